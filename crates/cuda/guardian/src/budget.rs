//! The memory that all images of a guardian take together.

use crate::error::Refusal;
use locks::lock;
use snapshot::Gone;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Zeroing so much takes a few milliseconds.
const ASIDE_BYTES: u64 = 32 << 20;

/// Blocks that are charged until they are zeroed.
struct Charged {
    gone: Gone,
    budget: Arc<Budget>,
}

impl Drop for Charged {
    fn drop(&mut self) {
        self.budget.let_go(std::mem::take(&mut self.gone));
    }
}

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

    /// Zeroes blocks that are charged, and takes the charge back.
    pub(crate) fn let_go(&self, gone: Gone) {
        let bytes = gone.bytes();
        drop(gone);
        self.correct(bytes, 0);
    }

    /// The same while the caller goes on, if it would take long.
    pub(crate) fn let_go_aside(self: &Arc<Self>, gone: Gone) {
        if gone.bytes() < ASIDE_BYTES {
            return self.let_go(gone);
        }
        let charged = Charged { gone, budget: self.clone() };
        // If there is no thread to be had, the closure is dropped here, and its blocks with it.
        let aside = std::thread::Builder::new().name("dxpu-zero".to_owned()).spawn(move || drop(charged));
        if let Err(error) = aside {
            tracing::warn!(%error, "no thread to zero blocks: a program had to wait for it");
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
