//! Memory pools: a name and its books. The memory itself is placed like any other.

use super::{client, lock};
use cuda_abi::{CuResult, CudaError};
use cuda_client::pool::Pool;
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

/// Whether the program ever allocated from a pool: most never do, and a synchronise should not look.
static USED: AtomicBool = AtomicBool::new(false);

/// Notes that pools are in use.
pub(crate) fn note_pool_use() {
    USED.store(true, Ordering::Relaxed);
}

/// The program synchronised with the device: pools give back what is beyond their threshold.
#[inline]
pub(crate) fn settle_pools() {
    if USED.load(Ordering::Relaxed)
        && let Ok(client) = client()
    {
        client.pools.snapshot().iter().for_each(|(_, pool)| pool.books.synchronized());
    }
}

/// A `CUmemoryPool`.
pub(crate) struct MemoryPool {
    /// Its handle.
    pub(crate) handle: u64,
    /// The device its memory is on.
    pub(crate) device: usize,
    /// Its attributes and counters.
    pub(crate) books: Pool,
    /// `CUmemAccess_flags` of other devices.
    access: Mutex<HashMap<usize, u32>>,
}

impl MemoryPool {
    pub(super) fn default_of(handle: u64, device: usize) -> Self {
        Self { handle, device, books: Pool::default_of(device as u32), access: Mutex::default() }
    }

    /// Makes a pool; `max_bytes` 0 is no bound.
    pub(crate) fn create(device: usize, max_bytes: u64) -> CuResult<Arc<Self>> {
        let mut made = None;
        client()?.pools.insert_with(|handle| {
            let books = Pool::created(device as u32, max_bytes);
            let pool = Arc::new(Self { handle, device, books, access: Mutex::default() });
            made = Some(Arc::clone(&pool));
            pool
        })?;
        made.ok_or(CudaError::UNKNOWN)
    }

    /// The pool behind a handle.
    pub(crate) fn find(handle: u64) -> CuResult<Arc<Self>> {
        client()?.pools.get(handle).ok_or(CudaError::INVALID_VALUE)
    }

    /// What another device may do with its memory.
    pub(crate) fn access(&self, device: usize) -> u32 {
        lock(&self.access).get(&device).copied().unwrap_or(0)
    }

    /// Sets that.
    pub(crate) fn set_access(&self, device: usize, flags: u32) {
        lock(&self.access).insert(device, flags);
    }
}
