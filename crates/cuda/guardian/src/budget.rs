//! The memory that all images of a guardian take together.

use crate::error::Refusal;
use locks::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Counts guard memory.
#[derive(Debug)]
pub(crate) struct Budget {
    bytes_max: u64,
    used: Mutex<u64>,
    /// Memory was asked for and not there since the last look.
    is_short: AtomicBool,
    /// Why suspended images cannot make room by going to disk; empty: they can, or there is no disk.
    obstacle: Mutex<String>,
}

impl Budget {
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self { bytes_max, used: Mutex::new(0), is_short: AtomicBool::new(false), obstacle: Mutex::default() }
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
            None => {
                self.is_short.store(true, Ordering::Relaxed);
                false
            }
        }
    }

    /// Whether room should be made: less than an eighth is free, or something did not fit since this was asked last.
    pub(crate) fn takes_shortage(&self) -> bool {
        self.is_short.swap(false, Ordering::Relaxed) || self.used() > self.bytes_max / 8 * 7
    }

    /// Notes why suspended images stay in memory although it is short.
    pub(crate) fn set_obstacle(&self, why: String) {
        *lock(&self.obstacle) = why;
    }

    /// The refusal of something that does not fit.
    pub(crate) fn full(&self) -> Refusal {
        let obstacle = lock(&self.obstacle).clone();
        let hint = if obstacle.is_empty() { String::new() } else { format!(". {obstacle}") };
        Refusal::MemoryFull { used: self.used(), bytes_max: self.bytes_max, hint }
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
