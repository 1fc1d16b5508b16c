//! The current context, as tools and cuBLASLt ask for it.

#![allow(unsafe_code)]

use super::table::{NO_OPERATION, NOTHING, Table, Word};
use crate::{border, state::current_view};

pub(super) static TABLE: Table<3> = Table::sized([NOTHING, NO_OPERATION, current_context as Word]);

/// The current context of the calling thread; none is null and no error.
///
/// # Safety
/// `context` is null or a place for a handle.
unsafe extern "C" fn current_context(context: *mut u64) -> u32 {
    border::enter("tools: current context", || {
        // SAFETY: our caller's promise.
        let mut place = unsafe { border::out(context) }?;
        place.set(current_view().map_or(0, |current| current.handle()));
        Ok(())
    })
}
