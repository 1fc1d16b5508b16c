//! Memory and events that other sessions of the worker use too.
//!
//! Memory of cuMemAlloc is this process's own. When it is shared for the first time, its granules move into a memory file
//! at the same addresses: when all work is done, and before the next command.

use crate::{
    SoftDriver,
    memory::{LentPiece, Physical},
    op::Event,
    shared_event::SharedEvent,
    space::PhysicalMemory,
    sync::lock,
};
use cuda_abi::{CuResult, CudaError};
use cuda_driver::{Exported, Exports, Parcel};
use cuda_wire::{ContextId, EventId, Imported, MemoryHandleId};
use std::sync::{Arc, Weak};

/// A piece as another session hears of it: its place in the file, its bytes, the bytes of the file, the device.
const PARCEL_BYTES: usize = 3 * 8 + 4;

/// Shared memory.
struct SharedMemory {
    pieces: Vec<Piece>,
    offset: u64,
    device: u32,
}

struct Piece {
    pages: Weak<Physical>,
    offset: u64,
    bytes: u64,
}

impl Exported for SharedMemory {
    fn pieces(&self) -> u32 {
        self.pieces.len() as u32
    }

    fn offset(&self) -> u64 {
        self.offset
    }

    fn is_alive(&self) -> bool {
        self.pieces.iter().all(|piece| piece.pages.strong_count() > 0)
    }

    fn parcel(&self, piece: u32) -> CuResult<Parcel> {
        let piece = self.pieces.get(piece as usize).ok_or(CudaError::INVALID_VALUE)?;
        let pages = piece.pages.upgrade().ok_or(CudaError::INVALID_VALUE)?;
        let mut words = Vec::with_capacity(PARCEL_BYTES);
        for number in [piece.offset, piece.bytes, pages.bytes()] {
            words.extend(number.to_le_bytes());
        }
        words.extend(self.device.to_le_bytes());
        let fd = pages.descriptor().map_err(|_| CudaError::OPERATING_SYSTEM)?;
        Ok(Parcel { words, fd: Some(fd) })
    }
}

struct ExportedEvent(Weak<SharedEvent>);

impl Exported for ExportedEvent {
    fn pieces(&self) -> u32 {
        1
    }

    fn offset(&self) -> u64 {
        0
    }

    fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }

    fn parcel(&self, _: u32) -> CuResult<Parcel> {
        let event = self.0.upgrade().ok_or(CudaError::INVALID_VALUE)?;
        let (fd, slot) = event.descriptor().map_err(|_| CudaError::OPERATING_SYSTEM)?;
        Ok(Parcel { words: slot.to_le_bytes().to_vec(), fd: Some(fd) })
    }
}

impl Exports for SoftDriver {
    fn share_memory(&self, address: u64, bytes: u64) -> CuResult<Arc<dyn Exported>> {
        let session = &self.session;
        session.check_client_range(address, bytes)?;
        // Work that runs while the pages move would write to those that go.
        session.drain()?;
        if !lock(&session.tables).promises.holds(address, bytes) {
            return Err(CudaError::INVALID_VALUE);
        }
        let block = session.space.find(address).ok_or(CudaError::INVALID_VALUE)?;
        let region = session.space.region_of(address, bytes).ok_or(CudaError::INVALID_VALUE)?;
        let (from, lent) = region.lend(address, bytes).map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidInput => CudaError::INVALID_VALUE,
            _ => CudaError::OUT_OF_MEMORY,
        })?;
        let piece = |LentPiece { pages, offset, bytes }: LentPiece| Piece {
            pages: Arc::downgrade(&pages),
            offset,
            bytes,
        };
        let pieces = lent.into_iter().map(piece).collect();
        Ok(Arc::new(SharedMemory { pieces, offset: address - from, device: block.device }))
    }

    fn share_physical(&self, handle: MemoryHandleId) -> CuResult<Arc<dyn Exported>> {
        let tables = lock(&self.session.tables);
        let memory = tables.physical.get(&handle).ok_or(CudaError::INVALID_HANDLE)?;
        let (pages, bytes) = (Arc::downgrade(&memory.pages), memory.pages.bytes());
        let pieces = vec![Piece { pages, offset: 0, bytes }];
        Ok(Arc::new(SharedMemory { pieces, offset: 0, device: memory.device }))
    }

    fn share_event(&self, event: EventId) -> CuResult<Arc<dyn Exported>> {
        let mut tables = lock(&self.session.tables);
        let shared = tables.event(event)?.shared.as_ref().ok_or(CudaError::INVALID_HANDLE)?;
        Ok(Arc::new(ExportedEvent(Arc::downgrade(shared))))
    }

    fn import_memory(&self, handle: MemoryHandleId, parcel: Parcel) -> CuResult<Imported> {
        let (fd, words) = (parcel.fd.ok_or(CudaError::INVALID_VALUE)?, parcel.words);
        if words.len() != PARCEL_BYTES {
            return Err(CudaError::INVALID_VALUE);
        }
        let number = |at: usize| u64::from_le_bytes(words[at..at + 8].try_into().unwrap_or_default());
        let device = u32::from_le_bytes(words[24..].try_into().unwrap_or_default());
        let (offset, bytes, total) = (number(0), number(8), number(16));
        self.session.check_device(device)?;
        let pages = Physical::adopt(fd, total).map_err(|_| CudaError::INVALID_VALUE)?;
        let mut tables = lock(&self.session.tables);
        if tables.physical.contains_key(&handle) {
            return Err(CudaError::INVALID_VALUE);
        }
        tables.physical.insert(handle, Arc::new(PhysicalMemory { pages, device, _charge: None }));
        Ok(Imported { offset, bytes, device })
    }

    fn import_event(&self, event: EventId, context: ContextId, parcel: Parcel) -> CuResult<()> {
        let fd = parcel.fd.ok_or(CudaError::INVALID_VALUE)?;
        let slot = parcel.words.try_into().map(u32::from_le_bytes).map_err(|_| CudaError::INVALID_VALUE)?;
        let shared = SharedEvent::open(fd, slot).map_err(|_| CudaError::INVALID_VALUE)?;
        let mut tables = lock(&self.session.tables);
        let context = self.session.context(&mut tables, context)?;
        if tables.events.contains_key(&event) {
            return Err(CudaError::INVALID_VALUE);
        }
        tables.events.insert(event, Event { context, has_timing: false, latest: None, shared: Some(shared) });
        Ok(())
    }
}
