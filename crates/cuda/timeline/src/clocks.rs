//! How far the worker's clock is from ours.
//!
//! The client asks what the worker's clock shows. The answer was true at some moment between the question and the answer, so half
//! of the round trip is the most that the middle of it can be wrong by. The shortest of the last round trips is the best sample;
//! older ones go, because two machines' clocks drift apart.

use std::collections::VecDeque;

/// So many samples are compared. One is taken about every second.
const SAMPLES: usize = 16;
/// The first round trips of a session are long: threads and connections are new.
const SETTLED: usize = 4;
/// Questions that may be without an answer.
const OPEN_MAX: usize = 64;

/// A worker's clock against ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// To add to a time of the worker's.
    offset_ns: i64,
    /// By how much the sum may be wrong, at most.
    pub error_ns: u64,
}

impl Alignment {
    /// A time of the worker's as one of ours.
    pub fn ours(&self, worker_ns: u64) -> u64 {
        worker_ns.saturating_add_signed(self.offset_ns)
    }
}

/// What the answers of one worker have shown.
#[derive(Debug, Default)]
pub struct Clocks {
    open: VecDeque<(u64, u64)>,
    samples: VecDeque<Alignment>,
}

impl Clocks {
    /// The client asks, at this time of ours.
    pub fn asked(&mut self, nonce: u64, now_ns: u64) {
        if self.open.len() == OPEN_MAX {
            self.open.pop_front();
        }
        self.open.push_back((nonce, now_ns));
    }

    /// The worker's answer came, at this time of ours. An answer to no question of ours changes nothing.
    pub fn told(&mut self, nonce: u64, worker_ns: u64, now_ns: u64) {
        let Some(at) = self.open.iter().position(|(asked, _)| *asked == nonce) else { return };
        let Some((_, asked_ns)) = self.open.remove(at) else { return };
        let round_trip = now_ns.saturating_sub(asked_ns);
        let middle = asked_ns + round_trip / 2;
        let error_ns = round_trip.div_ceil(2);
        if self.samples.len() == SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back(Alignment { offset_ns: middle.wrapping_sub(worker_ns) as i64, error_ns });
    }

    /// Whether there are enough samples that one of them is good.
    pub fn are_settled(&self) -> bool {
        self.samples.len() >= SETTLED
    }

    /// The best of the last samples.
    pub fn best(&self) -> Option<Alignment> {
        self.samples.iter().copied().min_by_key(|sample| sample.error_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_answer_that_was_not_asked_for_tells_nothing() {
        let mut clocks = Clocks::default();
        clocks.told(0, 5, 10);
        assert_eq!(clocks.best(), None);
        clocks.asked(1, 100);
        clocks.told(1, 1000, 140);
        clocks.told(1, 5000, 150);
        let best = clocks.best().unwrap();
        assert_eq!((best.ours(1000), best.error_ns), (120, 20));
    }

    proptest! {
        /// Whatever the ways take, the truth is within the stated error.
        #[test]
        fn the_error_is_never_larger_than_stated(
            ahead in -1_000_000i64..1_000_000,
            trips in prop::collection::vec((0u64..100_000, 0u64..100_000), 1..40),
        ) {
            let mut clocks = Clocks::default();
            let mut now = 10_000_000;
            for (nonce, (there, back)) in trips.into_iter().enumerate() {
                clocks.asked(nonce as u64, now);
                let worker_ns = (now + there).checked_add_signed(ahead).unwrap();
                now += there + back;
                clocks.told(nonce as u64, worker_ns, now);
                let best = clocks.best().unwrap();
                let truth = worker_ns.checked_add_signed(-ahead).unwrap();
                prop_assert!(best.ours(worker_ns).abs_diff(truth) <= best.error_ns);
            }
        }
    }
}
