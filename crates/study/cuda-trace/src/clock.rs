//! A clock that costs almost nothing to read: the processor's time-stamp counter where there is one.

#![allow(unsafe_code)]

use std::sync::OnceLock;
use std::time::Instant;

/// Ticks since whenever.
#[inline]
pub(crate) fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: every x86-64 processor has the counter, and Linux leaves it readable.
        unsafe { core::arch::x86_64::_rdtsc() }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `now` is a place for the answer.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
        (now.tv_sec as u64) * 1_000_000_000 + now.tv_nsec as u64
    }
}

/// What reading the clock costs, in ticks.
pub(crate) fn cost() -> u64 {
    static COST: OnceLock<u64> = OnceLock::new();
    *COST.get_or_init(|| {
        let began = ticks();
        (0..READINGS - 1).for_each(|_| {
            ticks();
        });
        ticks().saturating_sub(began) / READINGS
    })
}

/// Enough of them for a mean.
const READINGS: u64 = 64;

/// Both clocks at one moment, to tell how long a tick is later on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) ticks: u64,
    pub(crate) instant: Instant,
}

impl Moment {
    pub(crate) fn now() -> Self {
        Self { ticks: ticks(), instant: Instant::now() }
    }

    /// Ticks in a millisecond, by what passed since this moment.
    pub(crate) fn ticks_per_ms(&self) -> u64 {
        let now = Self::now();
        let ms = now.instant.duration_since(self.instant).as_secs_f64() * 1e3;
        ((now.ticks.saturating_sub(self.ticks)) as f64 / ms.max(1e-6)).round().max(1.0) as u64
    }
}
