//! The failure process, played out: GPUs break, spares take their places, repaired ones become spares.

use pool::{SplitMix, spares_for};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

const DAYS_PER_YEAR: f64 = 365.0;

/// Stretches a simulated history is cut into, to tell how far its result can be trusted.
const BATCHES: usize = 20;

/// How long a repair takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repairs {
    /// Always the mean.
    Fixed,
    /// Any length, short ones most often.
    Exponential,
}

/// How often GPUs break, and how long they are gone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FailureProcess {
    /// Failures of one working GPU in a year.
    pub failures_per_gpu_year: f64,
    /// How long a broken GPU is gone, on average.
    pub repair_days: f64,
    /// How repairs differ.
    pub repairs: Repairs,
}

impl FailureProcess {
    /// GPUs in repair on average, if so many work.
    pub fn mean_in_repair(&self, gpus: usize) -> f64 {
        gpus as f64 * self.failures_per_gpu_year * self.repair_days / DAYS_PER_YEAR
    }

    /// Days until the next of so many working GPUs breaks.
    pub(super) fn days_to_failure(&self, working: usize, dice: &mut SplitMix) -> f64 {
        let per_day = working as f64 * self.failures_per_gpu_year / DAYS_PER_YEAR;
        if per_day > 0.0 { dice.exponential(1.0 / per_day) } else { f64::INFINITY }
    }

    /// Days until a GPU that breaks now is back.
    pub(super) fn days_of_repair(&self, dice: &mut SplitMix) -> f64 {
        match self.repairs {
            Repairs::Fixed => self.repair_days,
            Repairs::Exponential => dice.exponential(self.repair_days),
        }
    }
}

/// A moment in days, ordered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Day(pub(super) f64);

impl PartialEq for Day {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Day {}

impl PartialOrd for Day {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Day {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// What came of a simulated history.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlayedOut {
    /// Years that were simulated.
    pub years: f64,
    /// GPUs that broke.
    pub failures: u64,
    /// The share of time in which every broken GPU had been replaced.
    pub covered: f64,
    /// The standard error of `covered`.
    pub covered_error: f64,
    /// The share of failures that found a spare at once.
    pub served_at_once: f64,
}

/// Simulates a pool that should always have `gpus` at work, until so many have broken. Spares wait in the dark and break
/// only once they work; while they do not suffice, fewer GPUs work.
pub fn play_out(
    process: &FailureProcess,
    gpus: usize,
    spares: usize,
    failures: u64,
    dice: &mut SplitMix,
) -> PlayedOut {
    let (mut history, mut batches) = (History::default(), Vec::new());
    let (mut at_once, mut now, mut batch_from, mut batch_covered) = (0u64, 0.0, 0.0, 0.0);
    let mut covered = 0.0;
    let batch = (failures / BATCHES as u64).max(1);
    for number in 1..=failures {
        let since = now;
        let in_repair =
            history.until_next_failure(process, gpus + spares, gpus, &mut now, dice, |count, days| {
                if count <= spares {
                    batch_covered += days;
                }
            });
        debug_assert!(now >= since);
        at_once += u64::from(in_repair < spares);
        if number % batch == 0 {
            batches.push((batch_covered, now - batch_from));
            covered += batch_covered;
            (batch_from, batch_covered) = (now, 0.0);
        }
    }
    covered += batch_covered;
    PlayedOut {
        years: now / DAYS_PER_YEAR,
        failures,
        covered: if now > 0.0 { covered / now } else { 1.0 },
        covered_error: standard_error(&batches),
        served_at_once: at_once as f64 / failures.max(1) as f64,
    }
}

fn standard_error(batches: &[(f64, f64)]) -> f64 {
    let shares: Vec<f64> = batches.iter().map(|(covered, days)| covered / days).collect();
    let count = shares.len() as f64;
    if count < 2.0 {
        return f64::NAN;
    }
    let mean = shares.iter().sum::<f64>() / count;
    let variance = shares.iter().map(|share| (share - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (variance / count).sqrt()
}

/// The GPUs in repair, by the day they come back.
#[derive(Default)]
struct History {
    returns: BinaryHeap<Reverse<Day>>,
}

impl History {
    /// Goes on to the next failure. Calls `stretch` with how many were in repair for how many days, as that changes, and
    /// returns how many were in repair when the failure came.
    fn until_next_failure(
        &mut self,
        process: &FailureProcess,
        owned: usize,
        wanted: usize,
        now: &mut f64,
        dice: &mut SplitMix,
        mut stretch: impl FnMut(usize, f64),
    ) -> usize {
        loop {
            let in_repair = self.returns.len();
            let working = wanted.min(owned.saturating_sub(in_repair));
            let failure = *now + process.days_to_failure(working, dice);
            match self.returns.peek() {
                // Drawn again after a repair: a GPU does not remember how long it has worked.
                Some(&Reverse(Day(back))) if back <= failure => {
                    stretch(in_repair, back - *now);
                    *now = back;
                    self.returns.pop();
                }
                _ => {
                    assert!(failure.is_finite(), "a failure needs a GPU that can fail");
                    stretch(in_repair, failure - *now);
                    *now = failure;
                    self.returns.push(Reverse(Day(failure + process.days_of_repair(dice))));
                    return in_repair;
                }
            }
        }
    }
}

/// The spares a pool of one size needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SparesNeeded {
    /// GPUs that should always be at work.
    pub gpus: usize,
    /// GPUs in repair on average, by the rates alone.
    pub mean_in_repair: f64,
    /// Spares by the closed form.
    pub computed: usize,
    /// Spares by simulation: the fewest that covered enough of the time.
    pub simulated: usize,
    /// What came of it with that many.
    pub with: PlayedOut,
    /// What came of it with one less, where that is possible.
    pub with_one_less: Option<PlayedOut>,
}

/// Finds the spares that cover this share of the time, by the closed form and, apart from it, by playing it out until so
/// many GPUs have broken.
pub fn spares_needed(
    process: &FailureProcess,
    gpus: usize,
    cover: f64,
    failures: u64,
    seed: u64,
) -> SparesNeeded {
    let mean_in_repair = process.mean_in_repair(gpus);
    let computed = spares_for(mean_in_repair, cover) as usize;
    let mut dice = SplitMix::new(seed);
    let mut spares = spares_if_unlimited(process, gpus, cover, failures, &mut dice);
    let mut with = play_out(process, gpus, spares, failures, &mut dice);
    while with.covered < cover {
        spares += 1;
        with = play_out(process, gpus, spares, failures, &mut dice);
    }
    let mut with_one_less = None;
    while spares > 0 {
        let less = play_out(process, gpus, spares - 1, failures, &mut dice);
        if less.covered < cover {
            with_one_less = Some(less);
            break;
        }
        (spares, with) = (spares - 1, less);
    }
    SparesNeeded { gpus, mean_in_repair, computed, simulated: spares, with, with_one_less }
}

/// A first guess from one history in which spares never run out: how many were in use for how long.
fn spares_if_unlimited(
    process: &FailureProcess,
    gpus: usize,
    cover: f64,
    failures: u64,
    dice: &mut SplitMix,
) -> usize {
    let (mut history, mut now) = (History::default(), 0.0);
    let mut days_with: Vec<f64> = Vec::new();
    for _ in 0..failures {
        history.until_next_failure(process, usize::MAX, gpus, &mut now, dice, |count, days| {
            if days_with.len() <= count {
                days_with.resize(count + 1, 0.0);
            }
            days_with[count] += days;
        });
    }
    let mut covered = 0.0;
    let enough = days_with.iter().position(|days| {
        covered += days;
        covered >= cover * now
    });
    enough.unwrap_or(days_with.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pool::poisson_cover;

    fn process(repairs: Repairs) -> FailureProcess {
        FailureProcess { failures_per_gpu_year: 0.111, repair_days: 5.0, repairs }
    }

    #[test]
    fn play_and_closed_form_agree_whatever_repairs_look_like() {
        for repairs in [Repairs::Fixed, Repairs::Exponential] {
            let process = process(repairs);
            let mean = process.mean_in_repair(2000);
            for spares in [2, 5, 8] {
                let played = play_out(&process, 2000, spares, 300_000, &mut SplitMix::new(5));
                let (expected, margin) = (poisson_cover(mean, spares as u64), 5.0 * played.covered_error);
                // Fewer GPUs break while fewer work, so a little more is covered than the closed form says.
                let above = expected - margin..expected + margin + 0.002;
                assert!(above.contains(&played.covered), "{repairs:?} {spares}: {played:?} {expected}");
                // A failure sees what any moment sees, so it finds a spare if fewer than all were gone.
                let at_once = poisson_cover(mean, spares as u64 - 1);
                assert!((played.served_at_once - at_once).abs() < 0.01, "{played:?} {at_once}");
            }
        }
    }

    #[test]
    fn the_spares_found_cover_and_one_less_does_not() {
        let needed = spares_needed(&process(Repairs::Exponential), 512, 0.99, 200_000, 1);
        assert!(needed.with.covered >= 0.99);
        assert!(needed.with_one_less.unwrap().covered < 0.99);
        assert!(needed.simulated.abs_diff(needed.computed) <= 1, "{needed:?}");
    }

    #[test]
    fn a_history_adds_up() {
        let played = play_out(&process(Repairs::Fixed), 1000, 0, 1110, &mut SplitMix::new(3));
        assert!((8.0..12.5).contains(&played.years), "111 failures a year: {played:?}");
        assert_eq!(played.served_at_once, 0.0);
    }
}
