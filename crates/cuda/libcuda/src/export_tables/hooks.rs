//! Which callbacks of profilers the runtime must make: none.
//!
//! The runtime asks for two arrays of switches and looks at them before it would call a hook. Ours are all zero and
//! stay so, since no profiler can attach to a GPU elsewhere. The arrays are memory of ours that foreign code may read
//! and write at any time, hence atomics, and are larger than any version of the runtime is known to look at.

#![allow(unsafe_code)]

use super::table::{NO_OPERATION, NOTHING, Table, UNKNOWN, Word};
use crate::border;
use std::sync::atomic::AtomicU64;

pub(super) static TABLE: Table<7> = Table::sized([
    NOTHING,
    NO_OPERATION,
    runtime_switches as Word,
    UNKNOWN,
    NO_OPERATION,
    UNKNOWN,
    driver_switches as Word,
]);

/// How many switches the real driver says there are.
const RUNTIME_SWITCHES: usize = 1024;
const DRIVER_SWITCHES: usize = 14;

/// Eight bytes for each switch, though four are known to be used.
static RUNTIME: [AtomicU64; RUNTIME_SWITCHES] = [const { AtomicU64::new(0) }; RUNTIME_SWITCHES];
/// Some versions look a little further than the number they are told.
static DRIVER: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// # Safety
/// Both pointers are null or places for their results.
unsafe extern "C" fn runtime_switches(switches: *mut u64, count: *mut usize) {
    // SAFETY: our caller's promise.
    unsafe { answer("cudart: runtime hooks", switches, RUNTIME.as_ptr().addr(), count, RUNTIME_SWITCHES) }
}

/// # Safety
/// Both pointers are null or places for their results.
unsafe extern "C" fn driver_switches(switches: *mut u64, count: *mut usize) {
    // SAFETY: our caller's promise.
    unsafe { answer("cudart: driver hooks", switches, DRIVER.as_ptr().addr(), count, DRIVER_SWITCHES) }
}

/// # Safety
/// Both pointers are null or places for their results.
unsafe fn answer(symbol: &'static str, switches: *mut u64, array: usize, count: *mut usize, length: usize) {
    // The functions return nothing, so neither is an error of theirs.
    let _ = border::enter_before_init(symbol, || {
        // SAFETY: our caller's promise.
        if let Some(mut place) = unsafe { border::out_optional(switches) } {
            place.set(array as u64);
        }
        // SAFETY: our caller's promise.
        if let Some(mut place) = unsafe { border::out_optional(count) } {
            place.set(length);
        }
        Ok(())
    });
}
