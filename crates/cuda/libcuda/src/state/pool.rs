//! Memory pools: handles, and what the worker hears of them.
//!
//! Blocks are given out here; the worker maps and unmaps whole pieces. What it is told, and when, is decided in
//! `cuda_client::suballocator`; how streams are kept in order is in [`super::pool_order`].

use super::{Context, Stream, client, lock, pool_order};
use cuda_abi::{CuResult, CudaError};
use cuda_client::{
    pool::{Pool, Released},
    suballocator::{Block, Effort, Growth, Piece, Step},
};
use cuda_wire::Command;
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

/// Whether the program ever allocated from a pool: most never do, and a synchronise should not look.
static USED: AtomicBool = AtomicBool::new(false);

/// Pools that were destroyed while blocks of them live.
static DESTROYED: Mutex<Vec<Arc<MemoryPool>>> = Mutex::new(Vec::new());

/// Whether any pool was ever destroyed, for a free that need not look.
static ANY_DESTROYED: AtomicBool = AtomicBool::new(false);

/// Whether the program ever allocated from a pool.
#[inline]
pub(crate) fn pools_are_used() -> bool {
    USED.load(Ordering::Relaxed)
}

/// Notes that pools are in use.
#[inline]
pub(crate) fn note_pool_use() {
    if !pools_are_used() {
        USED.store(true, Ordering::Relaxed);
    }
}

/// All pools whose memory may be mapped, destroyed ones included.
pub(super) fn all_pools() -> Vec<Arc<MemoryPool>> {
    let Ok(client) = client() else { return Vec::new() };
    let mut pools: Vec<Arc<MemoryPool>> = client.pools.snapshot().into_iter().map(|(_, pool)| pool).collect();
    pools.extend(lock(&DESTROYED).iter().cloned());
    pools
}

/// The program synchronised with the device: pools give back what is beyond their threshold.
pub(super) fn settle_pools() {
    let Ok(client) = client() else { return };
    for (_, pool) in client.pools.snapshot() {
        pool.unmap(pool.books.synchronized(&client.stream_order));
    }
}

/// A device has no memory left: its pools give back what nothing lives in. Returns whether they had something.
#[cold]
pub(crate) fn squeeze_pools(device: usize) -> bool {
    let Ok(client) = client() else { return false };
    if !pools_are_used() {
        return false;
    }
    let mut found = false;
    for pool in all_pools().into_iter().filter(|pool| pool.device == device) {
        let released = pool.books.squeeze(&client.stream_order);
        found |= !released.is_empty();
        pool.unmap(released);
    }
    found
}

/// A context ends, and with it the memory that was mapped in it.
pub(super) fn end_pools_of(context: &Context) {
    if !pools_are_used() {
        return;
    }
    for pool in all_pools() {
        for arena in pool.books.end_context(context.handle) {
            if let Ok(device) = context.device() {
                device.memory.free_arena(arena);
            }
        }
    }
    lock(&DESTROYED).retain(|pool| !pool.books.is_unused());
    pool_order::end_context(context);
}

/// A `CUmemoryPool`.
pub(crate) struct MemoryPool {
    /// Its handle.
    pub(crate) handle: u64,
    /// The device its memory is on.
    pub(crate) device: usize,
    /// Its memory, attributes and counters.
    pub(crate) books: Pool,
    /// `CUmemAccess_flags` of other devices.
    access: Mutex<HashMap<usize, u32>>,
    /// `CUmemAllocationHandleType`s that it was made with.
    pub(crate) handle_types: u32,
    /// Another process's pool: nothing is allocated from it here.
    is_imported: bool,
}

impl MemoryPool {
    pub(super) fn default_of(handle: u64, device: usize) -> Self {
        let books = Pool::default_of(device as u32);
        Self { handle, device, books, access: Mutex::default(), handle_types: 0, is_imported: false }
    }

    /// Makes a pool; `max_bytes` 0 is no bound.
    pub(crate) fn create(device: usize, max_bytes: u64, handle_types: u32) -> CuResult<Arc<Self>> {
        Self::make(device, max_bytes, handle_types, false)
    }

    /// A pool of another process.
    pub(crate) fn imported(device: usize) -> CuResult<Arc<Self>> {
        Self::make(device, 0, 0, true)
    }

    /// Whether other processes may have its memory.
    pub(crate) fn is_shareable(&self) -> bool {
        self.handle_types != 0
    }

    pub(crate) fn is_imported(&self) -> bool {
        self.is_imported
    }

    fn make(device: usize, max_bytes: u64, handle_types: u32, is_imported: bool) -> CuResult<Arc<Self>> {
        let mut made = None;
        client()?.pools.insert_with(|handle| {
            let books = Pool::created(device as u32, max_bytes);
            let access = Mutex::default();
            let pool = Arc::new(Self { handle, device, books, access, handle_types, is_imported });
            made = Some(Arc::clone(&pool));
            pool
        })?;
        made.ok_or(CudaError::UNKNOWN)
    }

    /// The pool behind a handle.
    #[inline]
    pub(crate) fn find(handle: u64) -> CuResult<Arc<Self>> {
        client()?.pools.get(handle).ok_or(CudaError::INVALID_VALUE)
    }

    /// The pool that a living block is of: it may be destroyed.
    fn of_block(handle: u64) -> CuResult<Arc<Self>> {
        Self::find(handle)
            .or_else(|error| lock(&DESTROYED).iter().find(|pool| pool.handle == handle).cloned().ok_or(error))
    }

    /// Ends it. Memory in which blocks live stays until they are freed.
    pub(crate) fn destroy(self: &Arc<Self>) -> CuResult<()> {
        let client = client()?;
        // Another thread that frees a block finds it in the list before it is gone from the table.
        lock(&DESTROYED).push(Arc::clone(self));
        ANY_DESTROYED.store(true, Ordering::Release);
        let removed = client.pools.remove(self.handle).map(drop).ok_or(CudaError::INVALID_VALUE);
        self.end_if_unused();
        removed
    }

    /// Gives everything back, once it is destroyed and nothing lives in it.
    fn end_if_unused(&self) {
        let Ok(client) = client() else { return };
        let mut destroyed = lock(&DESTROYED);
        if client.pools.get(self.handle).is_none() && self.books.is_unused() {
            destroyed.retain(|pool| pool.handle != self.handle);
            drop(destroyed);
            self.unmap(self.books.squeeze(&client.stream_order));
        }
    }

    /// What another device may do with its memory.
    pub(crate) fn access(&self, device: usize) -> u32 {
        lock(&self.access).get(&device).copied().unwrap_or(0)
    }

    /// Whether another device may use its memory.
    pub(super) fn has_peers(&self) -> bool {
        lock(&self.access).values().any(|flags| *flags != 0)
    }

    /// Sets that.
    pub(crate) fn set_access(&self, device: usize, flags: u32) {
        lock(&self.access).insert(device, flags);
    }

    /// A block for work of a stream.
    #[inline]
    pub(crate) fn allocate(&self, stream: &Arc<Stream>, bytes: u64) -> CuResult<Block> {
        let client = client()?;
        pool_order::join(stream);
        let (context, order) = (stream.context.handle, &client.stream_order);
        match self.books.step(context, bytes, stream.id.0, order, Effort::Ordinary)? {
            Step::Placed(block) => Ok(block),
            step => self.allocate_slowly(stream, bytes, step),
        }
    }

    #[cold]
    fn allocate_slowly(&self, stream: &Arc<Stream>, bytes: u64, mut step: Step) -> CuResult<Block> {
        let client = client()?;
        let context = &stream.context;
        let mut effort = Effort::Ordinary;
        let mut is_squeezed = false;
        loop {
            match step {
                Step::Placed(block) => return Ok(block),
                Step::WaitFor(freed_in) => pool_order::wait_for(stream, freed_in)?,
                Step::Reserve(bytes) => {
                    let arena = context.device()?.memory.reserve_arena(context, bytes)?;
                    self.books.add_arena(context.handle, arena, bytes);
                }
                Step::Map(pieces) => match self.map(stream, pieces) {
                    Ok(()) => {}
                    Err(CudaError::OUT_OF_MEMORY) if effort == Effort::Ordinary => effort = Effort::Pressed,
                    Err(CudaError::OUT_OF_MEMORY) if !is_squeezed => {
                        is_squeezed = true;
                        if !squeeze_pools(self.device) {
                            return Err(CudaError::OUT_OF_MEMORY);
                        }
                    }
                    Err(error) => return Err(error),
                },
            }
            step = self.books.step(context.handle, bytes, stream.id.0, &client.stream_order, effort)?;
        }
    }

    /// Has the worker map pieces.
    fn map(&self, stream: &Stream, pieces: Vec<Piece>) -> CuResult<()> {
        let client = client()?;
        let context = &stream.context;
        let mut outcome = Ok(());
        for piece in pieces {
            let (address, bytes) = (piece.address, piece.bytes);
            let command = Command::MemoryAllocate { context: context.id, address, bytes };
            let told = outcome.and_then(|()| context.link.allocate(&command, bytes));
            let growth = if told.is_ok() { Growth::Mapped } else { Growth::Refused };
            let order = &client.stream_order;
            if let Some(arena) = self.books.mapped(context.handle, piece, growth, stream.id.0, order) {
                context.device()?.memory.free_arena(arena);
            }
            outcome = outcome.and(told);
        }
        match outcome {
            // A device without memory is no error yet; other errors are the context's too.
            Err(CudaError::OUT_OF_MEMORY) => outcome,
            outcome => context.settle(outcome),
        }
    }

    /// Has the worker unmap pieces, when the work before is done.
    fn unmap(&self, released: Released) {
        let Some(device) = client().ok().and_then(|client| client.devices.get(self.device)) else { return };
        for (context, piece) in released {
            // A worker that is lost has no memory to give back.
            let _ = device.link.post(&Command::MemoryFree { address: piece.address });
            if let Some(arena) = self.books.unmapped(context, piece) {
                device.memory.free_arena(arena);
            }
        }
    }

    /// cuMemPoolTrimTo.
    pub(crate) fn trim_to(&self, bytes: u64) -> CuResult<()> {
        self.unmap(self.books.trim_to(bytes, &client()?.stream_order));
        Ok(())
    }
}

/// A block that the program freed, with its pool and its context.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FreedBlock {
    /// Handle of its pool.
    pub(crate) pool: u64,
    /// Handle of the context it was allocated in.
    pub(crate) context: u64,
    /// Where it is.
    pub(crate) block: Block,
}

impl FreedBlock {
    /// Gives it back to its pool, when `stream` comes to it.
    #[inline]
    pub(crate) fn free_in(self, stream: &Arc<Stream>) -> CuResult<()> {
        if self.context != stream.context.handle {
            // The order of streams is known within a context only. Freeing in a stream of another context is rare: wait
            // for the stream.
            stream.context.call(&Command::StreamSynchronize { stream: stream.id })?;
            return self.free();
        }
        pool_order::join(stream);
        self.give_back(Some(stream.id.0))
    }

    /// Gives it back to its pool. As CUDA demands for memory of a pool, no work uses it any more.
    pub(crate) fn free(self) -> CuResult<()> {
        self.give_back(None)
    }

    #[inline]
    fn give_back(self, stream: Option<u32>) -> CuResult<()> {
        let pool = MemoryPool::of_block(self.pool)?;
        pool.books.free(self.context, self.block, stream, &client()?.stream_order);
        if ANY_DESTROYED.load(Ordering::Acquire) {
            pool.end_if_unused();
        }
        Ok(())
    }
}
