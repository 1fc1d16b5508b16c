//! Host memory that copies may use while the program goes on: allocated pinned, or registered.

#![allow(unsafe_code)]

use crate::{host::HostRegion, link::SharedLink};
use cuda_abi::{CuResult, CudaError};
use cuda_client::host_memory::{HostKind, HostMemory, HostRange};
use cuda_wire::{INLINE_BYTES_MAX, RegionId, SharedPlane};
use locks::{read, write};
use shared_pages::SharedPages;
use std::{
    collections::HashMap,
    os::fd::AsFd,
    sync::{
        Arc, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

/// What is no larger is not shared with a worker: most of its copies are inline, and the mapping costs more.
const SHARED_BYTES_MIN: usize = INLINE_BYTES_MAX + 1;

/// All of it.
#[derive(Default)]
pub(crate) struct Pinned {
    memory: HostMemory,
    /// All pinned memory so far lay from here (kept as its complement, so that 0 means none) up to `end`.
    below: AtomicU64,
    end: AtomicU64,
    /// By base.
    shared: RwLock<HashMap<u64, Arc<Shared>>>,
}

/// Pinned memory that a worker maps too.
pub(crate) struct Shared {
    pages: SharedPages,
    region: RegionId,
    link: SharedLink,
    /// A copy that this process does not hear of may write it from now on, at any time.
    is_written: AtomicBool,
    /// Its copies go through the lanes, because a kernel has a shadow of it.
    is_closed: AtomicBool,
}

impl Shared {
    /// A copy in the order of a stream will write it.
    pub(crate) fn note_written(&self) {
        self.is_written.store(true, Ordering::Release);
    }

    /// Whether it must not be read now, but in the order of a stream.
    pub(crate) fn is_written(&self) -> bool {
        self.is_written.load(Ordering::Acquire)
    }

    /// A place in it, by its address, as the worker that `link` leads to knows it. `None`: the bytes take the lanes.
    pub(crate) fn plane(&self, link: &SharedLink, address: u64, pitches: (u64, u64)) -> Option<SharedPlane> {
        if !Arc::ptr_eq(link, &self.link) || self.is_closed.load(Ordering::Acquire) {
            return None;
        }
        let offset = address.checked_sub(self.pages.address() as u64)?;
        Some(SharedPlane { region: self.region, offset, row_pitch: pitches.0, slice_pitch: pitches.1 })
    }
}

fn host_range(base: u64, bytes: u64, flags: u32, kind: HostKind) -> HostRange {
    HostRange { base, bytes, flags, kind, device_address: 0, tag: 0 }
}

/// Memory that the worker maps too; `None` where it does not take it, or the machine has no such memory.
fn share(bytes: usize, link: &SharedLink) -> Option<Shared> {
    let rounded = bytes.checked_next_multiple_of(4096)?;
    let (pages, file) = SharedPages::create(rounded).ok()?;
    let region = link.share_memory(file.as_fd(), rounded as u64).ok()?;
    let (is_written, is_closed) = Default::default();
    Some(Shared { pages, region, link: Arc::clone(link), is_written, is_closed })
}

static NEXT_HAZARD: AtomicU64 = AtomicU64::new(1);

impl Pinned {
    /// Allocates pinned memory, page-aligned and zeroed. The worker maps it too where it can; else it is ordinary memory, and
    /// the network does the rest.
    pub(crate) fn allocate(&self, bytes: usize, flags: u32, link: &SharedLink) -> CuResult<u64> {
        if bytes >= SHARED_BYTES_MIN
            && link.shares_memory()
            && let Some(shared) = share(bytes, link)
        {
            let address = shared.pages.address() as u64;
            self.insert(host_range(address, bytes as u64, flags, HostKind::Allocated))?;
            write(&self.shared).insert(address, Arc::new(shared));
            return Ok(address);
        }
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
        if let Some(shared) = write(&self.shared).remove(&address) {
            shared.link.unshare_memory(shared.region);
            return Ok(());
        }
        let rounded = (range.bytes as usize).next_multiple_of(4096);
        // SAFETY: `allocate` mapped exactly this range, the table held it once, and the program gave it up.
        unsafe { libc::munmap(address as *mut _, rounded) };
        Ok(())
    }

    /// The shared memory that holds a whole piece of memory.
    pub(crate) fn shared(&self, address: u64, bytes: u64) -> Option<Arc<Shared>> {
        let range = self.memory.find(address, bytes.max(1))?;
        read(&self.shared).get(&range.base).cloned()
    }

    /// Copies of this memory go through the lanes from now on. True if copies that do not may still be writing it.
    pub(crate) fn close_sharing(&self, base: u64) -> bool {
        let Some(shared) = read(&self.shared).get(&base).cloned() else { return false };
        let was_closed = shared.is_closed.swap(true, Ordering::AcqRel);
        !was_closed && shared.is_written()
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

    /// Memory that the copy of a hazard writes, in the order of copies: what comes late for an earlier one leaves out what a later one
    /// has written.
    pub(crate) fn in_order(&'static self, region: HostRegion, hazard: u64) -> Box<InOrder> {
        Box::new(InOrder { memory: &self.memory, region, hazard })
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

/// See [`Pinned::in_order`].
pub(crate) struct InOrder {
    memory: &'static HostMemory,
    region: HostRegion,
    hazard: u64,
}

impl bulk::Sink for InOrder {
    fn take(&self, offset: u64, bytes: &[u8]) {
        self.region.write_parts(offset, bytes, &mut |address, count, write| {
            self.memory.land(self.hazard, address, count, write);
        });
    }

    fn target(&self, offset: u64, bytes: usize, read: &mut dyn FnMut(&mut [u8])) -> bool {
        self.memory.land_directly(self.hazard, || {
            self.region.target(offset, bytes, read);
        })
    }
}
