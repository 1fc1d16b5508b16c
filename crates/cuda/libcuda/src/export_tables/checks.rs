//! Whether a context stands for another one inside it. None does: green contexts are refused.

#![allow(unsafe_code)]

use super::table::{NOTHING, Table, UNKNOWN, Word};
use crate::border;

pub(super) static TABLE: Table<15> = Table::sized([
    NOTHING,
    UNKNOWN,
    is_wrapped as Word,
    nothing_pending as Word,
    UNKNOWN,
    UNKNOWN,
    UNKNOWN,
    UNKNOWN,
    UNKNOWN,
    UNKNOWN,
    UNKNOWN,
    UNKNOWN,
    UNKNOWN,
    UNKNOWN,
    UNKNOWN,
]);

/// Says that `context` is itself. The place for the inner context is left as it was, as the real driver leaves it.
///
/// # Safety
/// `wrapped` is null or a place for a number.
unsafe extern "C" fn is_wrapped(_context: u64, wrapped: *mut u32, _inner: *mut u64) -> u32 {
    border::enter_before_init("cudart: context check", || {
        // SAFETY: our caller's promise.
        unsafe { border::out(wrapped) }?.set(0);
        Ok(())
    })
}

/// Always 0 on the real driver as well.
extern "C" fn nothing_pending() -> u32 {
    0
}
