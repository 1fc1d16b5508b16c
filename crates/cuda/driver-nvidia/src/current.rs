//! Which context a thread of ours works in.

#![allow(unsafe_code)]

use crate::sys::{Api, Context};
use cuda_abi::CuResult;
use std::cell::Cell;

thread_local! {
    static CURRENT: Cell<Context> = const { Cell::new(Context(std::ptr::null_mut())) };
}

/// Makes `context` the calling thread's, if it is not already.
#[inline]
pub(crate) fn enter(api: &Api, context: Context) -> CuResult<()> {
    CURRENT.with(|current| {
        if current.get() != context {
            // SAFETY: no pointers; a context that is gone is refused by the driver.
            unsafe { api.context_set_current(context)? };
            current.set(context);
        }
        Ok(())
    })
}

/// After the driver has changed the calling thread's context by itself.
pub(crate) fn forget() {
    CURRENT.with(|current| current.set(Context(std::ptr::null_mut())));
}
