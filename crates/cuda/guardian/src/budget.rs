//! The memory that all images of a guardian take together.

use locks::lock;
use std::sync::Mutex;

/// Counts guard memory.
#[derive(Debug)]
pub(crate) struct Budget {
    bytes_max: u64,
    used: Mutex<u64>,
}

impl Budget {
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self { bytes_max, used: Mutex::new(0) }
    }

    pub(crate) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    pub(crate) fn used(&self) -> u64 {
        *lock(&self.used)
    }

    /// Sets memory aside; `false` if there is not so much.
    pub(crate) fn charge(&self, bytes: u64) -> bool {
        let mut used = lock(&self.used);
        match used.checked_add(bytes).filter(|sum| *sum <= self.bytes_max) {
            Some(sum) => {
                *used = sum;
                true
            }
            None => false,
        }
    }

    /// Replaces what one image was charged by what it takes. Taking more than was charged is not refused here: the bytes
    /// are there already.
    pub(crate) fn correct(&self, charged: u64, takes: u64) {
        let mut used = lock(&self.used);
        *used = used.saturating_sub(charged).saturating_add(takes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_counted_to_the_byte() {
        let budget = Budget::new(100);
        assert!(budget.charge(60));
        assert!(!budget.charge(41));
        assert!(budget.charge(40));
        budget.correct(100, 10);
        assert_eq!(budget.used(), 10);
        assert!(!budget.charge(u64::MAX));
        assert!(budget.charge(90));
    }
}
