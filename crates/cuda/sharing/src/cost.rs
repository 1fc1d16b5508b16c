//! What sharing costs an online program, measured and not guessed.
//!
//! The first request of a busy period came while offline work may have been running; the next ones of the same period
//! did not. The difference between the two, for requests of the same kind, is what sharing costs.

use std::collections::HashMap;

/// So many first and so many next requests are needed for a judgement.
const REQUESTS_MIN: u64 = 20;
/// More kinds of requests than programs have. Further ones are not measured until the next judgement.
const KINDS_MAX: usize = 256;

/// Requests of one kind since the last judgement.
#[derive(Clone, Copy, Debug, Default)]
struct Kind {
    firsts: u64,
    first_us: u64,
    nexts: u64,
    next_us: u64,
}

/// A judgement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// How much longer a first request takes, on average.
    pub cost_us: f64,
    /// How long a next request takes.
    pub next_us: f64,
    /// First requests that it rests on.
    pub firsts: u64,
}

/// Collects times of requests.
#[derive(Clone, Debug, Default)]
pub struct CostMeter {
    kinds: HashMap<u64, Kind>,
}

impl CostMeter {
    /// A request of a kind (a graph, or a hash of its commands) took so long, queueing not included.
    pub fn request(&mut self, kind: u64, is_first: bool, us: u64) {
        if self.kinds.len() >= KINDS_MAX && !self.kinds.contains_key(&kind) {
            return;
        }
        let kind = self.kinds.entry(kind).or_default();
        let (count, sum) = match is_first {
            true => (&mut kind.firsts, &mut kind.first_us),
            false => (&mut kind.nexts, &mut kind.next_us),
        };
        *count += 1;
        *sum = sum.saturating_add(us);
    }

    /// The cost since the last judgement, when there are requests enough; they are forgotten then.
    ///
    /// Each kind is compared with itself and weighs as often as it came first: a program whose first requests are
    /// longer by nature, say because they fill a cache, must not look like one that is disturbed.
    pub fn judge(&mut self) -> Option<Cost> {
        let comparable = || self.kinds.values().filter(|kind| kind.firsts > 0 && kind.nexts > 0);
        let firsts: u64 = comparable().map(|kind| kind.firsts).sum();
        let nexts: u64 = comparable().map(|kind| kind.nexts).sum();
        if firsts < REQUESTS_MIN || nexts < REQUESTS_MIN {
            return None;
        }
        let (mut cost_us, mut next_us) = (0.0, 0.0);
        for kind in comparable() {
            let next = kind.next_us as f64 / kind.nexts as f64;
            cost_us += kind.first_us as f64 - kind.firsts as f64 * next;
            next_us += kind.firsts as f64 * next;
        }
        self.kinds.clear();
        Some(Cost { cost_us: cost_us / firsts as f64, next_us: next_us / firsts as f64, firsts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_compared_with_itself() {
        let mut meter = CostMeter::default();
        // Long requests come first more often than short ones; each costs 100 us more.
        for _ in 0..30 {
            meter.request(1, true, 10_100);
            meter.request(2, false, 1_000);
        }
        assert_eq!(meter.judge(), None, "no kind has both");
        for _ in 0..30 {
            meter.request(1, false, 10_000);
        }
        meter.request(2, true, 1_100);
        let cost = meter.judge().unwrap();
        assert!((cost.cost_us - 100.0).abs() < 1e-6, "{cost:?}");
        assert_eq!(cost.firsts, 31);
        assert_eq!(meter.judge(), None, "they are forgotten");
    }

    #[test]
    fn a_program_with_kinds_without_end_takes_bounded_memory() {
        let mut meter = CostMeter::default();
        (0..10_000).for_each(|kind| meter.request(kind, true, 1));
        assert_eq!(meter.kinds.len(), KINDS_MAX);
    }
}
