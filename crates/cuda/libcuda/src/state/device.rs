//! A device as the worker described it, and its primary context.

use super::{Client, Context, DeviceMemory, MemoryPool, lock};
use crate::link::{Session, SharedLink};
use cuda_abi::{CuResult, CudaError};
use cuda_client::limits::DeviceLimits;
use cuda_wire::{ContextId, DeviceInfo};
use std::sync::{
    Arc, Mutex, RwLock,
    atomic::{AtomicU32, Ordering},
};

/// `CUdevice_attribute` numbers of what a GPU may have and a remote one does not: host memory that kernels reach
/// unasked (86, 88, 89, 100, 101), memory shared by handles of Windows or between
/// machines (104, 105, 128), network cards that reach the GPU (110, 116, 117, 118, 124), multicast (132). Programs that ask choose
/// another way.
const NOT_SERVED: [u32; 14] = [86, 88, 89, 100, 101, 104, 105, 110, 116, 117, 118, 124, 128, 132];

/// `CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES`, and the one type that is served: file descriptors.
const POOL_HANDLE_TYPES: u32 = 119;
const FILE_DESCRIPTOR: i32 = 1;

/// `CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY`.
const MANAGED_MEMORY: u32 = 83;

/// One GPU.
pub(crate) struct Device {
    /// Its number in this process.
    pub(crate) ordinal: usize,
    /// Its number on its worker.
    pub(crate) remote: u32,
    /// The way to its worker.
    pub(crate) link: SharedLink,
    /// What the worker said.
    pub(crate) info: DeviceInfo,
    /// Values of `info.attributes` by number; `i32::MIN` where there is none.
    attributes: Vec<i32>,
    /// What launches on it must keep to.
    pub(crate) limits: DeviceLimits,
    /// Device addresses of its worker, shared by the worker's devices.
    pub(crate) memory: Arc<DeviceMemory>,
    /// Its primary context, whether retained or not.
    pub(crate) primary: Arc<Context>,
    primary_references: Mutex<u32>,
    /// 1 while the primary context is retained, for a query without a lock.
    primary_active: AtomicU32,
    primary_flags: AtomicU32,
    /// The pool that comes with the device.
    pub(crate) default_pool: u64,
    current_pool: RwLock<u64>,
}

impl Device {
    /// The devices of all sessions.
    pub(super) fn all(client: &Client, sessions: Vec<Session>) -> CuResult<Vec<Self>> {
        let mut devices = Vec::new();
        for session in sessions {
            let memory = Arc::new(DeviceMemory::new(session.addresses));
            for (remote, info) in session.devices.into_iter().enumerate() {
                devices.push(Self::new(client, devices.len(), remote as u32, &session.link, &memory, info)?);
            }
        }
        Ok(devices)
    }

    fn new(
        client: &Client,
        ordinal: usize,
        remote: u32,
        link: &SharedLink,
        memory: &Arc<DeviceMemory>,
        info: DeviceInfo,
    ) -> CuResult<Self> {
        let primary = Context::register(client, ordinal, link, ContextId(remote), true, 0, &info)?;
        let default_pool =
            client.pools.insert_with(|handle| Arc::new(MemoryPool::default_of(handle, ordinal)))?;
        let highest = info.attributes.iter().map(|(number, _)| *number).max().unwrap_or(0);
        let mut attributes = vec![i32::MIN; highest.min(1 << 16) as usize + 1];
        for (number, value) in &info.attributes {
            if let Some(place) = attributes.get_mut(*number as usize) {
                *place = match *number {
                    // Managed memory is made of the client's pages and ordinary device memory, whatever the GPU is.
                    MANAGED_MEMORY => 1,
                    POOL_HANDLE_TYPES => *value & FILE_DESCRIPTOR,
                    number if NOT_SERVED.contains(&number) => 0,
                    _ => *value,
                };
            }
        }
        Ok(Self {
            ordinal,
            remote,
            link: Arc::clone(link),
            limits: DeviceLimits::new(&info.attributes),
            info,
            attributes,
            memory: Arc::clone(memory),
            primary,
            primary_references: Mutex::new(0),
            primary_active: AtomicU32::new(0),
            primary_flags: AtomicU32::new(0),
            default_pool,
            current_pool: RwLock::new(default_pool),
        })
    }

    /// An attribute, if the worker named it.
    #[inline]
    pub(crate) fn attribute(&self, number: u32) -> Option<i32> {
        self.attributes.get(number as usize).copied().filter(|value| *value != i32::MIN)
    }

    /// Retains the primary context.
    pub(crate) fn retain_primary(&self) -> CuResult<&Arc<Context>> {
        let mut references = lock(&self.primary_references);
        if *references == 0 {
            self.primary.revive(self.primary_flags.load(Ordering::Relaxed))?;
            self.primary_active.store(1, Ordering::Release);
        }
        *references = references.checked_add(1).ok_or(CudaError::INVALID_VALUE)?;
        Ok(&self.primary)
    }

    /// Releases it; the last release ends everything in it.
    pub(crate) fn release_primary(&self) -> CuResult<()> {
        let mut references = lock(&self.primary_references);
        match *references {
            0 => Err(CudaError::INVALID_CONTEXT),
            1 => {
                *references = 0;
                self.primary_active.store(0, Ordering::Release);
                self.primary.end(true)
            }
            _ => {
                *references -= 1;
                Ok(())
            }
        }
    }

    /// Ends everything in it, however many references it has. The references end too: as in CUDA, using it needs a new
    /// retain.
    pub(crate) fn reset_primary(&self) -> CuResult<()> {
        let mut references = lock(&self.primary_references);
        *references = 0;
        self.primary_active.store(0, Ordering::Release);
        self.primary.end(true)
    }

    /// Flags and whether it is active.
    #[inline]
    pub(crate) fn primary_state(&self) -> (u32, i32) {
        let active = self.primary_active.load(Ordering::Acquire);
        (self.primary_flags.load(Ordering::Relaxed), active as i32)
    }

    /// Flags for the next (or this) life of the primary context.
    pub(crate) fn set_primary_flags(&self, flags: u32) {
        self.primary_flags.store(flags, Ordering::Relaxed);
        self.primary.set_flags(flags);
    }

    /// The pool that cuMemAllocAsync takes from.
    pub(crate) fn current_pool(&self) -> u64 {
        *locks::read(&self.current_pool)
    }

    /// Chooses it.
    pub(crate) fn set_current_pool(&self, pool: u64) {
        *locks::write(&self.current_pool) = pool;
    }
}
