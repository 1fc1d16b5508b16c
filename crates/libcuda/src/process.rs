//! What belongs to the process as a whole: whether cuInit succeeded, and what goes to the log.

use cuda_abi::{CuResult, CudaError};
use std::sync::atomic::{AtomicBool, Ordering};

static READY: AtomicBool = AtomicBool::new(false);

/// Success once cuInit succeeded.
#[inline]
pub(crate) fn check() -> CuResult<()> {
    if READY.load(Ordering::Acquire) { Ok(()) } else { Err(CudaError::NOT_INITIALIZED) }
}

/// A program called what we refuse; told once for each symbol.
#[cold]
pub(crate) fn refused(symbol: &'static str, reason: &'static str) {
    tracing::info!(symbol, reason, "refused a driver call");
}

/// A body panicked: our fault, never the program's.
#[cold]
pub(crate) fn panicked(symbol: &'static str) -> CudaError {
    tracing::error!(symbol, "a driver call panicked");
    CudaError::UNKNOWN
}

/// The answer of a body that is not written yet. The finished library has none.
#[cold]
pub(crate) fn pending(symbol: &'static str) -> CudaError {
    tracing::error!(symbol, "this driver call has no body yet");
    CudaError::NOT_SUPPORTED
}
