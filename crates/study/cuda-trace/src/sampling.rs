//! Which operations are timed. A function of what happened so far, so that it can be tested.

/// An operation that is timed costs its program about this much.
pub(crate) const SAMPLE_COST_US: f64 = 45.0;
/// The part of a program's time that may go into timing.
const SHARE_MAX: f64 = 0.015;
/// What may be spent beforehand: enough to see every kernel of a large program a few times while it warms up.
const CREDIT_US: f64 = 400_000.0;
/// Each kernel is timed so often as soon as it appears.
const FIRST: u32 = 8;
/// After that, one in so many: the GPU's time in fillers is part of what is recorded, so it must be little.
const ONE_IN: u32 = 251;
/// Up to so many samples of a kernel that timed more than the kernel are replaced by others.
const MISSED_MAX: u32 = 8;

/// What is known of one kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    samples: u32,
    since: u32,
    missed: u32,
}

impl Seen {
    /// A sample timed more than its kernel: another is taken in its place, at most `MISSED_MAX` times.
    pub(crate) fn missed(&mut self) {
        if self.missed < MISSED_MAX {
            self.missed += 1;
            self.samples = self.samples.saturating_sub(1);
        }
    }
}

/// What was spent on all.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Budget {
    spent_us: f64,
}

impl Budget {
    /// Whether to time an operation of a kernel, `elapsed_us` after the beginning.
    pub(crate) fn takes(&mut self, seen: &mut Seen, elapsed_us: f64) -> bool {
        seen.since = seen.since.saturating_add(1);
        let is_due = seen.samples < FIRST || seen.since >= ONE_IN;
        if !is_due || self.spent_us > CREDIT_US + SHARE_MAX * elapsed_us {
            return false;
        }
        seen.samples += 1;
        seen.since = 0;
        self.spent_us += SAMPLE_COST_US;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_launches_are_timed_and_then_few() {
        let (mut budget, mut seen) = (Budget::default(), Seen::default());
        let taken: Vec<bool> = (0..200).map(|at| budget.takes(&mut seen, f64::from(at))).collect();
        assert!(taken[..8].iter().all(|&is_timed| is_timed));
        assert_eq!(taken.iter().filter(|&&is_timed| is_timed).count(), 8);
        let later = (0..1000).filter(|&at| budget.takes(&mut seen, 200.0 + f64::from(at))).count();
        assert_eq!(later, (1000 + 192) / 251);
    }

    #[test]
    fn samples_that_saw_more_than_their_kernel_are_made_good_for_up_to_a_point() {
        let (mut budget, mut seen) = (Budget::default(), Seen::default());
        let taken = (0..200)
            .filter(|&at| {
                let is_taken = budget.takes(&mut seen, f64::from(at));
                if is_taken {
                    seen.missed();
                }
                is_taken
            })
            .count();
        assert_eq!(taken, 8 + 8, "none was clean, and that many were tried");
    }

    #[test]
    fn timing_never_takes_more_than_its_share() {
        let mut budget = Budget::default();
        let mut samples = 0.0;
        for at in 0..1_000_000 {
            // Every launch a new kernel, a microsecond apart: the worst there is.
            samples += f64::from(u8::from(budget.takes(&mut Seen::default(), f64::from(at))));
        }
        assert!(samples * SAMPLE_COST_US <= CREDIT_US + SHARE_MAX * 1e6 + SAMPLE_COST_US);
    }
}
