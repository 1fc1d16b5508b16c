//! Values that libraries keep in a context under keys of their own.
//!
//! A library is told when a context ends through the destructor it gave with the value; then the runtime frees what
//! it holds for that context. An explicit delete runs no destructor, as on the real driver.

#![allow(unsafe_code)]

use cuda_abi::{CuResult, CudaError};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Called with the context, the key and the value when the context ends.
pub(crate) type Destructor = unsafe extern "C" fn(context: u64, key: u64, value: u64);

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
    pub(crate) fn put(&self, key: u64, value: u64, destructor: Option<Destructor>) -> CuResult<()> {
        let mut entries = self.writing();
        if entries.iter().any(|entry| entry.key == key) {
            return Err(CudaError::INVALID_HANDLE);
        }
        entries.push(Entry { key, value, destructor });
        Ok(())
    }

    /// The value of a key.
    pub(crate) fn get(&self, key: u64) -> CuResult<u64> {
        let entries = self.reading();
        entries
            .iter()
            .find(|entry| entry.key == key)
            .map(|entry| entry.value)
            .ok_or(CudaError::INVALID_HANDLE)
    }

    /// Forgets a key without running its destructor.
    pub(crate) fn delete(&self, key: u64) -> CuResult<()> {
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
        locks::read(&self.entries)
    }

    fn writing(&self) -> RwLockWriteGuard<'_, Vec<Entry>> {
        locks::write(&self.entries)
    }
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
