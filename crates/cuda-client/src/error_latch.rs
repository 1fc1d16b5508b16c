//! Errors that surface after the call that caused them.
//!
//! Most calls return before their work is done. When that work fails, the error meets a later call: one that kills
//! the context meets every later call on it, any other meets the next call that waits or asks, once.
//!
//! ```text
//!            report(fatal)                     report(other)
//! clean ───────────────────▶ dead      clean ────────────────▶ pending
//!   ▲                          │         ▲                        │
//!   └──────── reset ───────────┘         └──────── take ──────────┘
//! ```

use cuda_abi::{CuResult, CudaError};
use std::sync::atomic::{AtomicU64, Ordering};

/// The late errors of one context. Shared by threads; asking a clean one costs a single load.
#[derive(Debug, Default)]
pub struct ErrorLatch {
    /// The low half is the code that killed the context, the high half a pending one; 0 is none.
    codes: AtomicU64,
}

const PENDING_SHIFT: u32 = 32;

impl ErrorLatch {
    /// Nothing has failed.
    pub const fn new() -> Self {
        Self { codes: AtomicU64::new(0) }
    }

    /// Notes that earlier work failed. The first error of each sort is kept, and further ones are its echo.
    pub fn report(&self, error: CudaError) {
        let shift = if error.kills_context() { 0 } else { PENDING_SHIFT };
        let code = u64::from(error.code()) << shift;
        // `fetch_update` fails if the place is taken: then there is nothing to do.
        let _ = self.codes.fetch_update(Ordering::AcqRel, Ordering::Acquire, |codes| {
            ((codes >> shift) as u32 == 0).then_some(codes | code)
        });
    }

    /// For a call that starts work or asks nothing: the error that killed the context, if one did.
    #[inline]
    pub fn check(&self) -> CuResult<()> {
        cuda_abi::from_c(self.codes.load(Ordering::Acquire) as u32)
    }

    /// For a call that waits for or asks about earlier work: also a pending error, which is then delivered.
    #[inline]
    pub fn take(&self) -> CuResult<()> {
        let codes = self.codes.load(Ordering::Acquire);
        if codes == 0 {
            return Ok(());
        }
        self.take_slow()
    }

    #[cold]
    fn take_slow(&self) -> CuResult<()> {
        let dead = u64::from(u32::MAX);
        let codes = self.codes.fetch_and(dead, Ordering::AcqRel);
        cuda_abi::from_c(codes as u32)?;
        cuda_abi::from_c((codes >> PENDING_SHIFT) as u32)
    }

    /// The context starts anew (cuDevicePrimaryCtxReset).
    pub fn reset(&self) {
        self.codes.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FATAL: CudaError = CudaError::ILLEGAL_ADDRESS;
    const OTHER: CudaError = CudaError::OUT_OF_MEMORY;

    #[test]
    fn a_clean_context_has_no_error() {
        let latch = ErrorLatch::new();
        assert_eq!((latch.check(), latch.take()), (Ok(()), Ok(())));
    }

    #[test]
    fn an_error_that_kills_the_context_meets_every_call() {
        let latch = ErrorLatch::new();
        latch.report(FATAL);
        for _ in 0..3 {
            assert_eq!((latch.check(), latch.take()), (Err(FATAL), Err(FATAL)));
        }
    }

    #[test]
    fn the_first_fatal_error_wins() {
        let latch = ErrorLatch::new();
        latch.report(FATAL);
        latch.report(CudaError::LAUNCH_FAILED);
        assert_eq!(latch.check(), Err(FATAL));
    }

    #[test]
    fn any_other_error_is_delivered_once_and_only_where_work_is_waited_for() {
        let latch = ErrorLatch::new();
        latch.report(OTHER);
        latch.report(CudaError::INVALID_VALUE);
        assert_eq!(latch.check(), Ok(()));
        assert_eq!(latch.take(), Err(OTHER));
        assert_eq!(latch.take(), Ok(()));
        latch.report(CudaError::INVALID_VALUE);
        assert_eq!(latch.take(), Err(CudaError::INVALID_VALUE));
    }

    #[test]
    fn a_fatal_error_hides_a_pending_one() {
        let latch = ErrorLatch::new();
        latch.report(OTHER);
        latch.report(FATAL);
        assert_eq!(latch.take(), Err(FATAL));
        assert_eq!(latch.take(), Err(FATAL));
    }

    #[test]
    fn a_reset_brings_the_context_back_to_life() {
        let latch = ErrorLatch::new();
        latch.report(FATAL);
        latch.report(OTHER);
        latch.reset();
        assert_eq!((latch.check(), latch.take()), (Ok(()), Ok(())));
    }
}
