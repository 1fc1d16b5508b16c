//! The private table through which libraries reach the values they keep in a context.

#![allow(unsafe_code)]

use super::table::{NOTHING, Table, Word};
use crate::{
    border,
    state::{Current, Destructor, LocalStorage, current_view},
};
use cuda_abi::{CuResult, CudaError};

pub(super) static TABLE: Table<4> = Table::ended([put as Word, delete as Word, get as Word, NOTHING]);

/// Runs `body` with the storage of a context; null and all ones are the current one.
fn with_storage<R>(context: u64, body: impl FnOnce(&LocalStorage) -> CuResult<R>) -> CuResult<R> {
    let current = match context {
        0 | u64::MAX => current_view().ok_or(CudaError::INVALID_CONTEXT)?,
        handle => Current::find(handle)?,
    };
    match &current.green {
        None => body(&current.context.local_storage),
        Some(green) => body(&green.local_storage),
    }
}

extern "C" fn put(context: u64, key: u64, value: u64, destructor: Option<Destructor>) -> u32 {
    border::enter("context storage: put", || {
        with_storage(context, |storage| storage.put(key, value, destructor))
    })
}

extern "C" fn delete(context: u64, key: u64) -> u32 {
    border::enter("context storage: delete", || with_storage(context, |storage| storage.delete(key)))
}

/// # Safety
/// `value` is null or a place for a word. It is left as it was if there is no value.
unsafe extern "C" fn get(value: *mut u64, context: u64, key: u64) -> u32 {
    border::enter("context storage: get", || {
        // SAFETY: our caller's promise.
        let mut place = unsafe { border::out(value) }?;
        place.set(with_storage(context, |storage| storage.get(key))?);
        Ok(())
    })
}
