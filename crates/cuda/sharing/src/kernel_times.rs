//! What kernels cost, learned from launches that are timed now and then.
//!
//! A wrong prediction costs an online program latency or an offline program throughput, never a result.

use std::collections::HashMap;

/// A launch of the first kind is timed once in so many, until [`SAMPLES_AT_FIRST`] are there.
const EVERY_AT_FIRST: u32 = 32;
/// So many samples make a cost trustworthy.
const SAMPLES_AT_FIRST: u32 = 8;
/// Then one launch in so many is timed, to follow a program that changes.
const EVERY_LATER: u32 = 1024;
/// A sample counts at most this many times the cost so far: it may contain a switch to another program.
const JUMP_MAX: u64 = 4;
/// A sample counts at least up to this: a cost near zero could not grow by a factor.
const JUMP_FLOOR_NS: u64 = 20_000;
/// One over the weight of a new sample.
const SMOOTHING: u64 = 4;
/// More kinds of launches than programs have. Beyond, those not seen for longest are forgotten.
const SHAPES_MAX: usize = 4096;

/// A kind of launch: launches of one kind cost about the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KernelShape {
    /// The function, by any number that names it in this session.
    pub function: u64,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
}

#[derive(Clone, Copy, Debug)]
struct Known {
    cost_ns: u64,
    samples: u32,
    until_sample: u32,
    seen_at: u64,
}

/// Costs of kernels by kind.
#[derive(Clone, Debug, Default)]
pub struct KernelTimes {
    known: HashMap<KernelShape, Known>,
    launches: u64,
}

impl KernelTimes {
    /// A launch of this kind comes: its predicted cost, and whether it is to be timed.
    pub fn launch(&mut self, shape: KernelShape) -> (Option<u64>, bool) {
        self.launches += 1;
        let seen_at = self.launches;
        if self.known.len() >= SHAPES_MAX && !self.known.contains_key(&shape) {
            self.forget_half();
        }
        let known =
            self.known.entry(shape).or_insert(Known { cost_ns: 0, samples: 0, until_sample: 0, seen_at });
        known.seen_at = seen_at;
        let is_sampled = known.until_sample == 0;
        if is_sampled {
            known.until_sample = match known.samples < SAMPLES_AT_FIRST {
                true => EVERY_AT_FIRST,
                false => EVERY_LATER,
            };
        }
        known.until_sample -= 1;
        ((known.samples > 0).then_some(known.cost_ns), is_sampled)
    }

    /// A launch that was timed took so long.
    pub fn sample(&mut self, shape: KernelShape, ns: u64) {
        let Some(known) = self.known.get_mut(&shape) else { return };
        known.cost_ns = match known.samples {
            0 => ns,
            _ => {
                let ns = ns.min(known.cost_ns.saturating_mul(JUMP_MAX).max(JUMP_FLOOR_NS));
                (known.cost_ns.saturating_mul(SMOOTHING - 1).saturating_add(ns)) / SMOOTHING
            }
        };
        known.samples = known.samples.saturating_add(1);
    }

    /// How many kinds it knows.
    pub fn shapes(&self) -> usize {
        self.known.len()
    }

    fn forget_half(&mut self) {
        let mut ages: Vec<u64> = self.known.values().map(|known| known.seen_at).collect();
        let middle = ages.len() / 2;
        let (_, &mut newest_to_go, _) = ages.select_nth_unstable(middle);
        self.known.retain(|_, known| known.seen_at > newest_to_go);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Dice;

    fn shape(function: u64) -> KernelShape {
        KernelShape { function, grid: [1, 2, 3], block: [4, 5, 6] }
    }

    #[test]
    fn the_first_launch_is_timed_then_one_of_32_then_one_of_1024() {
        let mut times = KernelTimes::default();
        let mut timed = Vec::new();
        for at in 0..4096 {
            let (cost, is_timed) = times.launch(shape(1));
            assert_eq!(cost.is_some(), at > 0);
            if is_timed {
                timed.push(at);
                times.sample(shape(1), 1000);
            }
        }
        let first: Vec<i32> = (0..9).map(|at| at * 32).collect();
        assert_eq!(timed[..9], first);
        assert_eq!(timed[9..], [256 + 1024, 256 + 2048, 256 + 3072]);
    }

    #[test]
    fn costs_follow_a_program_that_changes_and_survive_a_sample_with_a_switch_in_it() {
        let mut times = KernelTimes::default();
        times.launch(shape(1));
        (0..20).for_each(|_| times.sample(shape(1), 10_000));
        times.sample(shape(1), 5_000_000);
        let once = times.launch(shape(1)).0.unwrap();
        assert!(once < 20_000, "{once}");
        (0..40).for_each(|_| times.sample(shape(1), 80_000));
        let later = times.launch(shape(1)).0.unwrap();
        assert!((75_000..=80_000).contains(&later), "{later}");
        (0..40).for_each(|_| times.sample(shape(1), 0));
        (0..40).for_each(|_| times.sample(shape(1), 7_000));
        let again = times.launch(shape(1)).0.unwrap();
        assert!(again > 5_000, "a cost of nothing is left again: {again}");
    }

    #[test]
    fn a_program_that_makes_kinds_without_end_takes_bounded_memory_and_keeps_those_it_uses() {
        let mut times = KernelTimes::default();
        let mut dice = Dice::new(5);
        times.launch(shape(0));
        times.sample(shape(0), 42);
        for function in 1..50_000 {
            times.launch(shape(function));
            if dice.below(10) == 0 {
                assert_eq!(times.launch(shape(0)).0, Some(42));
            }
            assert!(times.shapes() <= SHAPES_MAX);
        }
    }
}
