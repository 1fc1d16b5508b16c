//! Values that libraries keep in a context under keys of their own.
//!
//! A library is told when a context ends through the destructor it gave with the value; then the runtime frees what
//! it holds for that context. An explicit delete runs no destructor, as on the real driver.

#![allow(unsafe_code)]

use super::table::{NOTHING, Table, Word};
use crate::{
    border,
    state::{Context, with_current},
};
use cuda_abi::{CuResult, CudaError};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub(super) static TABLE: Table<4> = Table::ended([put as Word, delete as Word, get as Word, NOTHING]);

/// Called with the context, the key and the value when the context ends.
type Destructor = unsafe extern "C" fn(context: u64, key: u64, value: u64);

/// What libraries keep in one context.
///
/// A handful of libraries have one key each, and look it up often: a short list serves them best.
#[derive(Default)]
pub(crate) struct LocalStorage {
    entries: RwLock<Vec<Entry>>,
}

struct Entry {
    key: u64,
    value: u64,
    destructor: Option<Destructor>,
}

impl LocalStorage {
    /// Keeps a value. A key that has one already is `INVALID_HANDLE`.
    fn put(&self, key: u64, value: u64, destructor: Option<Destructor>) -> CuResult<()> {
        let mut entries = self.writing();
        if entries.iter().any(|entry| entry.key == key) {
            return Err(CudaError::INVALID_HANDLE);
        }
        entries.push(Entry { key, value, destructor });
        Ok(())
    }

    /// The value of a key.
    fn get(&self, key: u64) -> CuResult<u64> {
        let entries = self.reading();
        entries
            .iter()
            .find(|entry| entry.key == key)
            .map(|entry| entry.value)
            .ok_or(CudaError::INVALID_HANDLE)
    }

    /// Forgets a key without running its destructor.
    fn delete(&self, key: u64) -> CuResult<()> {
        let mut entries = self.writing();
        let place = entries.iter().position(|entry| entry.key == key).ok_or(CudaError::INVALID_HANDLE)?;
        entries.remove(place);
        Ok(())
    }

    /// Ends everything in it; `context` is the handle that destructors are shown.
    pub(crate) fn clear(&self, context: u64) {
        // Taken out first: a destructor may well ask for other keys of the same context.
        let entries = std::mem::take(&mut *self.writing());
        for Entry { key, value, destructor } in entries {
            if let Some(destructor) = destructor {
                // SAFETY: the library that put the value gave this function to be called with these arguments, once,
                // when the context ends. That is now, and the entry is gone.
                unsafe { destructor(context, key, value) };
            }
        }
    }

    fn reading(&self) -> RwLockReadGuard<'_, Vec<Entry>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn writing(&self) -> RwLockWriteGuard<'_, Vec<Entry>> {
        self.entries.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs `body` with the storage of a context; null and all ones are the current one.
fn with_storage<R>(context: u64, body: impl FnOnce(&LocalStorage) -> CuResult<R>) -> CuResult<R> {
    match context {
        0 | u64::MAX => with_current(|context| body(&context.local_storage)),
        handle => body(&Context::find(handle)?.local_storage),
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Each line as driver 580 answers it.
    #[test]
    fn a_key_is_kept_once_until_it_is_deleted() {
        let storage = LocalStorage::default();
        assert_eq!(storage.get(5), Err(CudaError::INVALID_HANDLE));
        assert_eq!(storage.put(5, 50, None), Ok(()));
        assert_eq!(storage.put(5, 51, None), Err(CudaError::INVALID_HANDLE));
        assert_eq!(storage.get(5), Ok(50));
        assert_eq!(storage.delete(5), Ok(()));
        assert_eq!(storage.delete(5), Err(CudaError::INVALID_HANDLE));
        assert_eq!(storage.get(5), Err(CudaError::INVALID_HANDLE));
    }

    static SEEN: Mutex<Vec<(u64, u64, u64)>> = Mutex::new(Vec::new());

    unsafe extern "C" fn note(context: u64, key: u64, value: u64) {
        SEEN.lock().unwrap().push((context, key, value));
    }

    #[test]
    fn destructors_run_when_the_context_ends_and_not_on_delete() {
        let storage = LocalStorage::default();
        storage.put(1, 10, Some(note)).unwrap();
        storage.put(2, 20, None).unwrap();
        storage.put(3, 30, Some(note)).unwrap();
        storage.put(4, 40, Some(note)).unwrap();
        storage.delete(3).unwrap();
        assert!(SEEN.lock().unwrap().is_empty());
        storage.clear(77);
        storage.clear(77);
        assert_eq!(*SEEN.lock().unwrap(), [(77, 1, 10), (77, 4, 40)]);
        assert_eq!(storage.get(2), Err(CudaError::INVALID_HANDLE));
    }
}
