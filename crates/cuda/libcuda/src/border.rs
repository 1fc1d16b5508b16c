//! Between C and the bodies: every pointer of a caller is checked and wrapped here, and no panic gets out.
//!
//! The order is that of the real driver: is the library initialised, then null pointers from left to right, then
//! whatever the body checks. Thunks hand over a caller's pointers on the promise of the C API that a pointer is null
//! or good for its type and length; the types here carry that promise into safe code.

mod callback;
mod handle;
mod host;
mod pointer;
mod stream;

pub(crate) use callback::*;
pub(crate) use handle::*;
pub(crate) use host::*;
pub(crate) use pointer::*;
pub(crate) use stream::*;

use crate::process;
use cuda_abi::{CuResult, CudaError};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicBool, Ordering},
};

/// Runs a body once the library is initialised.
#[inline]
pub(crate) fn enter(symbol: &'static str, body: impl FnOnce() -> CuResult<()>) -> u32 {
    enter_before_init(symbol, || {
        process::check()?;
        body()
    })
}

/// Runs a body that may be called before cuInit.
#[inline]
pub(crate) fn enter_before_init(symbol: &'static str, body: impl FnOnce() -> CuResult<()>) -> u32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => failed(symbol, error),
        Err(payload) => {
            // Dropping the payload runs foreign code that may panic again.
            std::mem::forget(payload);
            process::panicked(symbol).code()
        }
    }
}

#[cold]
fn failed(symbol: &'static str, error: CudaError) -> u32 {
    // Not being ready is an answer, which some programs ask for thousands of times.
    if error != CudaError::NOT_READY {
        crate::log::debug(|| format!("{symbol} -> {error}"));
        crate::error_log::failed(symbol, error);
    }
    error.code()
}

/// Answers a call that the table refuses.
pub(crate) fn refuse(told: &AtomicBool, symbol: &'static str, reason: &'static str, code: CudaError) -> u32 {
    enter(symbol, || {
        if !told.swap(true, Ordering::Relaxed) {
            process::refused(symbol, reason);
        }
        Err(code)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_code() {
        assert_eq!(enter_before_init("cuTest", || panic!("a body fails")), CudaError::UNKNOWN.code());
    }

    #[test]
    fn a_result_becomes_its_code() {
        assert_eq!(enter_before_init("cuTest", || Ok(())), 0);
        assert_eq!(enter_before_init("cuTest", || Err(CudaError::INVALID_VALUE)), 1);
    }
}
