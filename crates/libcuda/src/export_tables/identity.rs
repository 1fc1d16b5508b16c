//! The id of a context, by which cuBLASLt keeps its kernels apart.
//!
//! The real table has 92 functions for tools. One of them is needed: without it cuBLASLt finds no kernels.

use super::table::{NOTHING, Table, UNKNOWN, Word};
use crate::{
    border,
    state::{Context, with_current},
};

const CONTEXT_ID: usize = 4;
/// This place is empty on the real driver.
const EMPTY: usize = 91;

pub(super) static TABLE: Table<93> = Table::sized({
    let mut words = [UNKNOWN; 93];
    words[CONTEXT_ID] = context_id as Word;
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
