//! A table of words as C sees it, and the functions that fill its unknown places.

#![allow(unsafe_code)]

use crate::{border, process};
use core::ffi::c_void;
use cuda_abi::CudaError;
use std::{
    ptr,
    sync::atomic::{AtomicBool, Ordering},
};

/// One word: a size, a function, or null.
pub(super) type Word = *const c_void;

/// `N` words at an address that never changes, as long as it is a `static`.
#[repr(C)]
pub(super) struct Table<const N: usize>([Word; N]);

// SAFETY: the words are never written, and functions may be called from any thread.
unsafe impl<const N: usize> Sync for Table<N> {}

impl<const N: usize> Table<N> {
    /// A table that begins with its own size in bytes, which takes the place of the first word.
    pub(super) const fn sized(mut words: [Word; N]) -> Self {
        words[0] = ptr::without_provenance(N * size_of::<Word>());
        Self(words)
    }

    /// A table without a size, which ends in null.
    pub(super) const fn ended(words: [Word; N]) -> Self {
        assert!(words[N - 1].is_null());
        Self(words)
    }

    /// Where it is.
    pub(super) fn address(&'static self) -> u64 {
        ptr::from_ref(self).addr() as u64
    }

    /// The word at a place.
    pub(super) fn word(&self, place: usize) -> Word {
        self.0[place]
    }
}

/// A place that is empty on the real driver too.
pub(super) const NOTHING: Word = ptr::null();

/// A function whose purpose is not public. It reads no argument and answers that it is not supported; that is safe for
/// any list of arguments, since in C's convention the caller clears them away.
pub(super) const UNKNOWN: Word = unknown as Word;

extern "C" fn unknown() -> u32 {
    static TOLD: AtomicBool = AtomicBool::new(false);
    border::enter_before_init("a private function of the driver", || {
        if !TOLD.swap(true, Ordering::Relaxed) {
            process::refused("a private function of the driver", "its purpose is not public");
        }
        Err(CudaError::NOT_SUPPORTED)
    })
}

/// The same for a place of a table whose callers are not known: it says which place it is.
pub(super) const fn unknown_at<const TABLE: u32, const PLACE: usize>() -> Word {
    unknown_place::<TABLE, PLACE> as Word
}

extern "C" fn unknown_place<const TABLE: u32, const PLACE: usize>() -> u32 {
    crate::log::debug(|| format!("private table {TABLE:08x}, function {PLACE} is not supported"));
    CudaError::NOT_SUPPORTED.code()
}

/// An array of words, each a function that says which place of table `$table` it is.
macro_rules! unknown_places {
    ($table:expr; $($place:literal)*) => {
        [$($crate::export_tables::table::unknown_at::<{ $table }, $place>()),*]
    };
}
pub(super) use unknown_places;

/// A function that has nothing to do here and succeeds.
pub(super) const NO_OPERATION: Word = no_operation as Word;

extern "C" fn no_operation() -> u32 {
    0
}
