//! Device memory of a cut's own.
//!
//! The driver puts variables of modules into the same room as memory whose place it may choose. So a buffer that it places
//! moves the variables of every module that is loaded later, and the session that resumes the program, which loads modules before
//! its first cut, finds them elsewhere. Therefore buffers have addresses that are chosen here, far from that room.

#![allow(unsafe_code)]

use crate::{
    memory::{GRANULE, Lent, Memory, Physical},
    sys::Api,
};
use cuda_abi::CuResult;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Where the memory comes from; it goes back when this is dropped.
enum Source {
    /// Of the session's own, for as long as it is protected.
    Own(Physical),
    /// Borrowed from what the program has left.
    Lent(Lent),
}

impl Source {
    fn handle(&self) -> u64 {
        match self {
            Self::Own(physical) => physical.handle,
            Self::Lent(lent) => lent.handle(),
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Own(physical) => physical.bytes,
            Self::Lent(lent) => lent.bytes(),
        }
    }
}

/// Where buffers lie: above what this process and the driver map, below what programs have.
const FIRST: u64 = 0x4800_0000_0000;
const END: u64 = 0x5000_0000_0000;

/// The place of the next buffer. Places are used again after eight tebibytes; one that is still taken costs nothing, because the
/// driver chooses another then.
static NEXT: AtomicU64 = AtomicU64::new(FIRST);

fn next_place(bytes: u64) -> u64 {
    let behind = |place: u64| if END - place < bytes { FIRST } else { place };
    let taken = NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| Some(behind(next) + bytes));
    behind(taken.unwrap_or(FIRST))
}

/// Mapped device memory.
pub(super) struct DeviceBuffer {
    api: Api,
    pub(super) address: u64,
    pub(super) bytes: u64,
    /// Goes after the mapping.
    _source: Source,
}

impl DeviceBuffer {
    /// Memory of the session's own.
    pub(super) fn own(api: &Api, memory: &Memory, device: u32, bytes: u64) -> CuResult<Self> {
        let physical = Physical::create(api, device, bytes.next_multiple_of(GRANULE))?;
        Self::map(api, memory, device, Source::Own(physical))
    }

    /// Memory that the program can have back.
    pub(super) fn lent(api: &Api, memory: &Arc<Memory>, device: u32, lent: Lent) -> CuResult<Self> {
        Self::map(api, memory, device, Source::Lent(lent))
    }

    fn map(api: &Api, memory: &Memory, device: u32, source: Source) -> CuResult<Self> {
        const READ_WRITE: u32 = 3;
        let bytes = source.bytes();
        let mut address = 0;
        // SAFETY: `address` is valid for the call.
        unsafe { api.address_reserve(&mut address, bytes as usize, 0, next_place(bytes), 0)? };
        // SAFETY: no pointers; the range was reserved just now.
        if let Err(error) = unsafe { api.memory_map(address, bytes as usize, 0, source.handle(), 0) } {
            // SAFETY: nothing is mapped in it.
            let _ = unsafe { api.address_free(address, bytes as usize) };
            return Err(error);
        }
        // From here on a drop gives everything back.
        let buffer = Self { api: *api, address, bytes, _source: source };
        memory.set_access(address, bytes, device, READ_WRITE)?;
        Ok(buffer)
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        // SAFETY: the owner drops it when no work uses it. A driver that fails here has lost the memory anyway.
        unsafe {
            let unmapped = self.api.memory_unmap(self.address, self.bytes as usize);
            let freed = unmapped.and_then(|()| self.api.address_free(self.address, self.bytes as usize));
            if let Err(error) = freed {
                tracing::warn!(%error, "cannot give device memory of a cut back");
            }
        }
    }
}
