//! The private table through which NVRTC keeps what it has compiled.
//!
//! NVRTC was seen to use it so, twice for each program (for the PTX and for the machine code):
//!
//! ```text
//!   make(&key, kind, source, bytes, options, host, build, architecture)      NOT_INITIALIZED: the cache is off
//!   find(key, 0, &data, &bytes) ── found ──▶ free(data)
//!                               └─ NOT_FOUND: compiles ──▶ put(key, 0, data, bytes)
//!   end(key)
//! ```
//!
//! `build` is the day and the time at which the compiler was built, such as `Aug 20 202514:13:52`.

#![allow(unsafe_code)]

use super::table::{NOTHING, Table, Word};
use crate::{
    border,
    compute_cache::{ComputeCache, Key},
};
use core::ffi::c_char;
use cuda_abi::{CuResult, CudaError};
use locks::lock;
use std::{collections::HashMap, sync::Mutex};

pub(super) static TABLE: Table<7> = Table::sized([
    NOTHING,
    make as Word,
    end as Word,
    find as Word,
    put as Word,
    remove as Word,
    free as Word,
]);

/// A source larger than this is compiled anew each time: hashing it would not be worth it, and no program has one.
const SOURCE_BYTES_MAX: usize = 1 << 30;

/// Keys and data that the program holds, by the numbers it knows them by.
struct Held {
    keys: HashMap<u64, Key>,
    data: HashMap<u64, Box<[u8]>>,
    last: u64,
}

static HELD: Mutex<Option<Held>> = Mutex::new(None);

fn with_held<R>(body: impl FnOnce(&mut Held) -> R) -> R {
    let mut held = lock(&HELD);
    body(held.get_or_insert_with(|| Held { keys: HashMap::new(), data: HashMap::new(), last: 0 }))
}

fn key_of(handle: u64) -> CuResult<Key> {
    with_held(|held| held.keys.get(&handle).copied()).ok_or(CudaError::INVALID_VALUE)
}

fn cache() -> CuResult<&'static ComputeCache> {
    ComputeCache::of_this_process().ok_or(CudaError::NOT_INITIALIZED)
}

/// # Safety
/// `key` is null or a place for a word; `source` has `bytes` bytes; `options`, `host` and `build` are null or
/// texts.
#[allow(clippy::too_many_arguments)]
unsafe extern "C" fn make(
    key: *mut u64,
    kind: u32,
    source: *const u8,
    bytes: usize,
    options: *const c_char,
    host: *const c_char,
    build: *const c_char,
    architecture: u32,
) -> u32 {
    border::enter_before_init("compute cache: make a key", || {
        cache()?;
        if bytes > SOURCE_BYTES_MAX {
            return Err(CudaError::INVALID_VALUE);
        }
        // SAFETY: our caller's promise.
        let mut place = unsafe { border::out(key) }?;
        // SAFETY: our caller's promise.
        let source = unsafe { border::slice(source, bytes) }?;
        // SAFETY: our caller's promise.
        let build = unsafe { border::text_optional(build) }.unwrap_or_default().to_bytes();
        // SAFETY: our caller's promise.
        let options = unsafe { border::text_optional(options) }.unwrap_or_default().to_bytes();
        // SAFETY: our caller's promise.
        let host = unsafe { border::text_optional(host) }.unwrap_or_default().to_bytes();
        let numbers = [kind.to_le_bytes(), architecture.to_le_bytes()].concat();
        let key = Key::of(&[&numbers, source, options, host, build]);
        place.set(with_held(|held| {
            held.last += 16;
            held.keys.insert(held.last, key);
            held.last
        }));
        Ok(())
    })
}

extern "C" fn end(key: u64) -> u32 {
    border::enter_before_init("compute cache: end a key", || {
        with_held(|held| held.keys.remove(&key)).map(|_| ()).ok_or(CudaError::INVALID_VALUE)
    })
}

/// # Safety
/// `data` and `bytes` are null or places for a word and a half one. They are left as they were if there is nothing.
unsafe extern "C" fn find(key: u64, _: u64, data: *mut u64, bytes: *mut u32) -> u32 {
    border::enter_before_init("compute cache: find", || {
        // SAFETY: our caller's promise.
        let mut data = unsafe { border::out(data) }?;
        // SAFETY: our caller's promise.
        let mut bytes = unsafe { border::out(bytes) }?;
        let found = cache()?.find(key_of(key)?).ok_or(CudaError::NOT_FOUND)?;
        let count = u32::try_from(found.len()).map_err(|_| CudaError::NOT_FOUND)?;
        let found = found.into_boxed_slice();
        let address = found.as_ptr().addr() as u64;
        with_held(|held| held.data.insert(address, found));
        data.set(address);
        bytes.set(count);
        Ok(())
    })
}

/// # Safety
/// `data` has `bytes` bytes.
unsafe extern "C" fn put(key: u64, _: u64, data: *const u8, bytes: usize) -> u32 {
    border::enter_before_init("compute cache: put", || {
        // SAFETY: our caller's promise.
        let data = unsafe { border::slice(data, bytes) }?;
        cache()?.put(key_of(key)?, data);
        Ok(())
    })
}

extern "C" fn remove(key: u64) -> u32 {
    border::enter_before_init("compute cache: remove", || {
        cache()?.remove(key_of(key)?);
        Ok(())
    })
}

extern "C" fn free(data: u64) -> u32 {
    border::enter_before_init("compute cache: free", || {
        with_held(|held| held.data.remove(&data)).map(|_| ()).ok_or(CudaError::INVALID_VALUE)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_data_that_nobody_made_are_refused() {
        assert_eq!(end(7), CudaError::INVALID_VALUE.code());
        assert_eq!(free(7), CudaError::INVALID_VALUE.code());
        let (mut data, mut bytes) = (5, 6);
        // SAFETY: places on the stack.
        let code = unsafe { find(7, 0, &mut data, &mut bytes) };
        assert_ne!(code, 0);
        assert_eq!((data, bytes), (5, 6));
    }
}
