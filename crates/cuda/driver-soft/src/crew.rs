//! How many host threads help with kernels.
//!
//! A stream's own thread always works on its kernel, so that a kernel that waits for another stream's never keeps that one
//! from running. Helpers come on top, at most a fixed number in the whole session. They are threads of the launch,
//! started where the grid is worth the start.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Threads in a grid from which on a helper is worth its start: each costs some ten microseconds.
const HELPED_THREADS_MIN: u64 = 1024;

/// The helpers that are left.
pub(crate) struct Crew {
    free: AtomicUsize,
}

/// Helpers that a launch has; they are free again when this ends.
pub(crate) struct Helpers<'c> {
    crew: &'c Crew,
    pub(crate) count: usize,
}

impl Crew {
    pub(crate) fn new(helpers: usize) -> Self {
        Self { free: AtomicUsize::new(helpers) }
    }

    /// Helpers for a launch of so many blocks and threads.
    pub(crate) fn helpers(&self, blocks: u64, threads: u64) -> Helpers<'_> {
        let wanted = if threads < HELPED_THREADS_MIN { 0 } else { blocks.saturating_sub(1) };
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
        let mut count = 0;
        let _ = self.free.fetch_update(Relaxed, Relaxed, |free| {
            count = free.min(wanted);
            Some(free - count)
        });
        Helpers { crew: self, count }
    }
}

impl Drop for Helpers<'_> {
    fn drop(&mut self) {
        self.crew.free.fetch_add(self.count, Relaxed);
    }
}
