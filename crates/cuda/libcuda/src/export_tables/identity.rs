//! The id of a context, by which cuBLASLt keeps its kernels apart.
//!
//! The real table has 92 functions for tools. A few of them are needed: without the first cuBLASLt finds no kernels,
//! without the others cuSOLVER gives up.

#![allow(unsafe_code)]

use super::table::{NOTHING, Table, Word, unknown_places};
use crate::{
    border,
    state::{Context, with_current},
};
use cuda_abi::CudaError;

const CONTEXT_ID: usize = 4;
/// Gives a number, which is 0 here.
const NUMBER: usize = 39;
/// Gives an object that callers hand on without looking inside.
const OBJECT: usize = 51;
/// This place is empty on the real driver.
const EMPTY: usize = 91;

pub(super) static TABLE: Table<93> = Table::sized({
    let mut words: [Word; 93] = unknown_places!(0x2131_8c60;
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39
        40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76
        77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92);
    words[CONTEXT_ID] = context_id as Word;
    words[NUMBER] = number as Word;
    words[OBJECT] = object as Word;
    words[EMPTY] = NOTHING;
    words
});

/// What cuCtxGetId answers.
///
/// # Safety
/// `id` is null or a place for a number.
unsafe extern "C" fn context_id(context: u64, id: *mut u64) -> u32 {
    border::enter("tools: context id", || {
        // SAFETY: our caller's promise.
        let mut place = unsafe { border::out(id) }?;
        place.set(match context {
            0 => with_current(|context| Ok(context.unique()))?,
            handle => Context::find(handle)?.unique(),
        });
        Ok(())
    })
}

/// # Safety
/// `out` is null or a place for a number.
unsafe extern "C" fn number(_: u64, _: u64, out: *mut u64) -> u32 {
    border::enter("tools: a number", || {
        // SAFETY: our caller's promise.
        unsafe { border::out(out) }?.set(0);
        Ok(())
    })
}

/// What [`object`] points to. This crate does not read it; a library that reads it finds zeros.
static NO_OBJECT: [u64; 512] = [0; 512];

/// # Safety
/// `out` is null or a place for a pointer.
unsafe extern "C" fn object(_: u64, which: u64, out: *mut u64) -> u32 {
    border::enter("tools: an object", || {
        if which == u64::MAX {
            return Err(CudaError::INVALID_HANDLE);
        }
        // SAFETY: our caller's promise.
        unsafe { border::out(out) }?.set(NO_OBJECT.as_ptr().addr() as u64);
        Ok(())
    })
}
