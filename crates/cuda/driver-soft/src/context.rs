//! One life of a context: from its making, or its last reset, to its end.

use crate::sync::{Lock, lock};
use cuda_abi::{CuResult, CudaError};
use cuda_wire::ContextId;
use ptx::AbortFlag;
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst},
    },
};

/// `CU_LIMIT_STACK_SIZE`.
pub(crate) const LIMIT_STACK: u32 = 0;
/// `CU_LIMIT_PRINTF_FIFO_SIZE`.
pub(crate) const LIMIT_PRINTF: u32 = 1;
/// `CU_LIMIT_MALLOC_HEAP_SIZE`.
pub(crate) const LIMIT_HEAP: u32 = 2;

/// The limits of a new context that may be set. CUDA's other limits are about parts that this device does not have.
pub(crate) const LIMITS: [(u32, u64); 3] =
    [(LIMIT_STACK, 1024), (LIMIT_PRINTF, 1 << 20), (LIMIT_HEAP, 8 << 20)];

/// A living context.
pub(crate) struct Context {
    pub(crate) id: ContextId,
    pub(crate) device: u32,
    /// Unlike the id, never used twice.
    pub(crate) life: u64,
    fault: Lock<Option<CudaError>>,
    is_dead: AtomicBool,
    /// Stops its running kernels.
    pub(crate) abort: Arc<AbortFlag>,
    limits: Lock<HashMap<u32, u64>>,
    peers: Lock<Vec<u64>>,
    /// The heap of device malloc, from its first use on.
    pub(crate) heap: Lock<Option<crate::heap::Heap>>,
}

impl Context {
    pub(crate) fn new(id: ContextId, device: u32) -> Arc<Self> {
        static LIVES: AtomicU64 = AtomicU64::new(1);
        Arc::new(Self {
            id,
            device,
            life: LIVES.fetch_add(1, Relaxed),
            fault: Lock::default(),
            is_dead: AtomicBool::new(false),
            abort: Arc::new(AbortFlag::default()),
            limits: Lock::new(LIMITS.into_iter().collect()),
            peers: Lock::default(),
            heap: Lock::default(),
        })
    }

    /// The error that killed it, from then on for every call.
    pub(crate) fn check(&self) -> CuResult<()> {
        if !self.is_dead.load(SeqCst) {
            return Ok(());
        }
        Err(lock(&self.fault).unwrap_or(CudaError::UNKNOWN))
    }

    /// Kills it: its work ends, every later call returns `error`. `false` if it was dead already.
    pub(crate) fn kill(&self, error: CudaError) -> bool {
        let mut fault = lock(&self.fault);
        if fault.is_some() {
            return false;
        }
        *fault = Some(error);
        self.is_dead.store(true, SeqCst);
        self.abort.abort();
        true
    }

    pub(crate) fn set_limit(&self, limit: u32, value: u64) -> CuResult<()> {
        match lock(&self.limits).get_mut(&limit) {
            Some(kept) => {
                *kept = value;
                Ok(())
            }
            None => Err(CudaError::UNSUPPORTED_LIMIT),
        }
    }

    pub(crate) fn limit(&self, limit: u32) -> u64 {
        lock(&self.limits).get(&limit).copied().unwrap_or(0)
    }

    pub(crate) fn set_peer(&self, peer: &Self, enable: bool) -> CuResult<()> {
        let mut peers = lock(&self.peers);
        let place = peers.iter().position(|&life| life == peer.life);
        match (place, enable) {
            (None, true) => peers.push(peer.life),
            (Some(place), false) => drop(peers.swap_remove(place)),
            (Some(_), true) => return Err(CudaError::PEER_ACCESS_ALREADY_ENABLED),
            (None, false) => return Err(CudaError::PEER_ACCESS_NOT_ENABLED),
        }
        Ok(())
    }

    /// Lives of the contexts whose memory its kernels may reach on other devices.
    pub(crate) fn peers(&self) -> Vec<u64> {
        lock(&self.peers).clone()
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("id", &self.id).field("life", &self.life).finish_non_exhaustive()
    }
}
