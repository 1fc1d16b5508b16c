//! A running mean that one slow call does not spoil.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Of ticks; 0 before the first. Two threads may lose a sample between them; that is exact enough.
pub(crate) struct Mean(AtomicU64);

/// A sample counts as at most so many times the mean.
const FACTOR_MAX: u64 = 4;
/// The mean of about so many samples.
const SAMPLES: u64 = 8;

impl Mean {
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    pub(crate) fn add(&self, ticks: u64) {
        let known = self.get();
        let mean = if known == 0 {
            ticks
        } else {
            ((SAMPLES - 1) * known + ticks.min(FACTOR_MAX * known)) / SAMPLES
        };
        self.0.store(mean, Relaxed);
    }

    pub(crate) fn forget(&self) {
        self.0.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_that_was_held_up_does_not_spoil_it() {
        let mean = Mean::new();
        (0..100).for_each(|_| mean.add(800));
        mean.add(1_000_000);
        assert!((800..=1200).contains(&mean.get()), "{}", mean.get());
        (0..100).for_each(|_| mean.add(400));
        assert!(mean.get() < 420);
    }
}
