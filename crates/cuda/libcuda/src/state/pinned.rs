//! Host memory that copies may use while the program goes on: allocated pinned, or registered.

#![allow(unsafe_code)]

use cuda_abi::{CuResult, CudaError};
use cuda_client::host_memory::{HostKind, HostMemory, HostRange};
use std::sync::atomic::{AtomicU64, Ordering};

/// All of it.
#[derive(Default)]
pub(crate) struct Pinned {
    memory: HostMemory,
    /// All pinned memory so far lay from here (kept as its complement, so that 0 means none) up to `end`.
    below: AtomicU64,
    end: AtomicU64,
}

fn host_range(base: u64, bytes: u64, flags: u32, kind: HostKind) -> HostRange {
    HostRange { base, bytes, flags, kind, device_address: 0, tag: 0 }
}

static NEXT_HAZARD: AtomicU64 = AtomicU64::new(1);

impl Pinned {
    /// Allocates pinned memory. It is ordinary memory here, page-aligned and zeroed: the network does the rest.
    pub(crate) fn allocate(&self, bytes: usize, flags: u32) -> CuResult<u64> {
        let rounded = bytes.checked_next_multiple_of(4096).ok_or(CudaError::OUT_OF_MEMORY)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches nothing that exists.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), rounded, protection, kind, -1, 0) };
        if address == libc::MAP_FAILED {
            return Err(CudaError::OUT_OF_MEMORY);
        }
        let address = address as u64;
        self.insert(host_range(address, bytes as u64, flags, HostKind::Allocated))?;
        Ok(address)
    }

    /// Gives pinned memory back. The caller has waited for copies that use it.
    pub(crate) fn free(&self, address: u64) -> CuResult<()> {
        let range = self.memory.remove(address, HostKind::Allocated).map_err(|_| CudaError::INVALID_VALUE)?;
        let rounded = (range.bytes as usize).next_multiple_of(4096);
        // SAFETY: `allocate` mapped exactly this range, the table held it once, and the program gave it up.
        unsafe { libc::munmap(address as *mut _, rounded) };
        Ok(())
    }

    /// Notes memory of the program's own as usable like pinned memory.
    pub(crate) fn register(&self, address: u64, bytes: u64, flags: u32) -> CuResult<()> {
        self.insert(host_range(address, bytes, flags, HostKind::Registered))
    }

    fn insert(&self, range: HostRange) -> CuResult<()> {
        self.memory.insert(range)?;
        self.below.fetch_max(!range.base, Ordering::Relaxed);
        self.end.fetch_max(range.base + range.bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Whether an address might be one of pinned memory: a quick no for most that are not.
    #[inline]
    pub(crate) fn may_hold(&self, address: u64) -> bool {
        address < self.end.load(Ordering::Relaxed) && address >= !self.below.load(Ordering::Relaxed)
    }

    /// Forgets memory that `register` noted.
    pub(crate) fn unregister(&self, address: u64) -> CuResult<()> {
        self.memory.remove(address, HostKind::Registered).map(drop)
    }

    /// The pinned range that holds an address.
    pub(crate) fn find(&self, address: u64) -> Option<HostRange> {
        self.memory.find(address, 1)
    }

    /// Whether a whole piece of memory is pinned.
    pub(crate) fn holds(&self, address: u64, bytes: u64) -> bool {
        self.memory.find(address, bytes.max(1)).is_some()
    }

    /// Notes that a copy is about to write a piece of pinned memory.
    pub(crate) fn begin_write(&self, address: u64, bytes: u64) -> u64 {
        let hazard = NEXT_HAZARD.fetch_add(1, Ordering::Relaxed);
        self.memory.begin_write(hazard, address, bytes);
        hazard
    }

    /// That copy landed.
    pub(crate) fn end_write(&self, hazard: u64) {
        self.memory.end_write(hazard);
    }

    /// How many copies may still write into a piece of memory.
    pub(crate) fn writes_under_way(&self, address: u64, bytes: u64) -> usize {
        self.memory.writes_under_way(address, bytes)
    }

    /// Whether a copy may still write into a piece of memory.
    pub(crate) fn is_being_written(&self, address: u64, bytes: u64) -> bool {
        self.memory.hazard(address, bytes)
    }
}
