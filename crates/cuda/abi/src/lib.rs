//! What crosses the C border of the CUDA driver API: error codes and structures, with plain integers for enums.
//!
//! Enums of the C header are plain integers here. A program may pass any value, and a Rust enum that holds a
//! value it does not list is undefined behaviour before anybody could refuse it.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![forbid(unsafe_code)]

pub mod attributes;
mod constants;
mod errors;
mod structs;
mod value;

pub use constants::*;
pub use errors::ERRORS;
pub use structs::*;
pub use value::CValue;

use core::{ffi::CStr, fmt, num::NonZeroU32};

/// What a driver call returns in Rust: the C code 0 is `Ok`.
pub type CuResult<T> = Result<T, CudaError>;

/// A `CUresult` other than success.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CudaError(NonZeroU32);

impl CudaError {
    /// The error of a C code; `None` for 0, which is success.
    pub const fn from_code(code: u32) -> Option<Self> {
        match NonZeroU32::new(code) {
            Some(code) => Some(Self(code)),
            None => None,
        }
    }

    /// The C code, never 0.
    pub const fn code(self) -> u32 {
        self.0.get()
    }

    /// `CUDA_ERROR_…`, if the driver knows the code.
    pub fn name(self) -> Option<&'static CStr> {
        self.row().map(|row| row.1)
    }

    /// The sentence cuGetErrorString gives for it.
    pub fn text(self) -> Option<&'static CStr> {
        self.row().map(|row| row.2)
    }

    /// Whether a context that met this error is dead: every later call on it returns the same error.
    pub const fn kills_context(self) -> bool {
        matches!(self.code(), 700 | 702 | 710 | 714..=719)
    }

    /// Whether a process may meet it because another one failed, where their contexts are merged (MPS).
    pub const fn ends_merged_contexts(self) -> bool {
        self.kills_context() || matches!(self.code(), 4 | 709 | 721 | 805..=810)
    }

    fn row(self) -> Option<&'static (u32, &'static CStr, &'static CStr)> {
        let index = ERRORS.binary_search_by_key(&self.code(), |row| row.0).ok()?;
        ERRORS.get(index)
    }
}

impl fmt::Debug for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{} ({})", name.to_string_lossy(), self.code()),
            None => write!(f, "CUDA error {}", self.code()),
        }
    }
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Some(text) => write!(f, "{} ({self:?})", text.to_string_lossy()),
            None => write!(f, "{self:?}"),
        }
    }
}

impl core::error::Error for CudaError {}

/// A `CUresult` of C as a Rust result.
pub fn from_c(code: u32) -> CuResult<()> {
    match CudaError::from_code(code) {
        None => Ok(()),
        Some(error) => Err(error),
    }
}

/// A Rust result as a `CUresult` of C.
pub fn to_c(result: CuResult<()>) -> u32 {
    match result {
        Ok(()) => 0,
        Err(error) => error.code(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_codes_ascend_so_that_they_can_be_searched() {
        assert!(ERRORS.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

    #[test]
    fn a_code_knows_its_name() {
        assert_eq!(CudaError::ILLEGAL_ADDRESS.name(), Some(c"CUDA_ERROR_ILLEGAL_ADDRESS"));
        assert_eq!(CudaError::from_code(4711).and_then(CudaError::name), None);
    }
}
