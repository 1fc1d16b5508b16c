//! Device memory of a cut's own, at addresses of the session's [`Room`].

#![allow(unsafe_code)]

use super::room::Room;
use crate::{
    memory::{GRANULE, Lent, Physical},
    op::Work,
    sys::Api,
};
use cuda_abi::CuResult;
use std::sync::Arc;

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

/// Mapped device memory.
pub(super) struct DeviceBuffer {
    api: Api,
    room: Arc<Room>,
    pub(super) address: u64,
    pub(super) bytes: u64,
    /// Goes after the mapping.
    _source: Source,
}

impl DeviceBuffer {
    /// Memory of the session's own.
    pub(super) fn own(work: &Work, device: u32, bytes: u64) -> CuResult<Self> {
        let physical = Physical::create(&work.api, device, bytes.next_multiple_of(GRANULE))?;
        Self::map(work, device, Source::Own(physical))
    }

    /// Memory that the program can have back.
    pub(super) fn lent(work: &Work, device: u32, lent: Lent) -> CuResult<Self> {
        Self::map(work, device, Source::Lent(lent))
    }

    fn map(work: &Work, device: u32, source: Source) -> CuResult<Self> {
        const READ_WRITE: u32 = 3;
        let bytes = source.bytes();
        let address = work.room.take(bytes)?;
        // SAFETY: no pointers; the range is reserved, and this part of it is free.
        if let Err(error) = unsafe { work.api.memory_map(address, bytes as usize, 0, source.handle(), 0) } {
            work.room.give(address);
            return Err(error);
        }
        // From here on a drop gives everything back.
        let buffer = Self { api: work.api, room: Arc::clone(&work.room), address, bytes, _source: source };
        work.memory.set_access(address, bytes, device, READ_WRITE)?;
        Ok(buffer)
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        // SAFETY: the owner drops it when no work uses it.
        match unsafe { self.api.memory_unmap(self.address, self.bytes as usize) } {
            Ok(()) => self.room.give(self.address),
            // A driver that fails here has lost the memory anyway. Its place stays taken.
            Err(error) => tracing::warn!(%error, "cannot give device memory of a cut back"),
        }
    }
}
