//! Memory and events that other sessions of the worker use too.
//!
//! Memory goes by the driver's own descriptors, which every piece of memory is made for. Events go by the driver's 64 bytes.

#![allow(unsafe_code)]

use crate::{
    driver::NvidiaDriver,
    memory::{GRANULE, Physical},
    stream::LiveEvent,
};
use cuda_abi::{CuResult, CudaError};
use cuda_driver::{Exported, Exports, Parcel};
use cuda_wire::{ContextId, EventId, Imported, MemoryHandleId};
use std::sync::{Arc, Weak};

/// A piece of memory as another session hears of it: its bytes, its device.
const PARCEL_BYTES: usize = 8 + 4;

/// Shared memory.
struct SharedMemory {
    pieces: Vec<Weak<Physical>>,
    offset: u64,
}

impl Exported for SharedMemory {
    fn pieces(&self) -> u32 {
        self.pieces.len() as u32
    }

    fn offset(&self) -> u64 {
        self.offset
    }

    fn is_alive(&self) -> bool {
        self.pieces.iter().all(|piece| piece.strong_count() > 0)
    }

    fn parcel(&self, piece: u32) -> CuResult<Parcel> {
        let piece = self.pieces.get(piece as usize).ok_or(CudaError::INVALID_VALUE)?;
        let physical = piece.upgrade().ok_or(CudaError::INVALID_VALUE)?;
        let mut words = physical.bytes.to_le_bytes().to_vec();
        words.extend(physical.device.to_le_bytes());
        Ok(Parcel { words, fd: Some(physical.export()?) })
    }
}

struct SharedEvent(Weak<LiveEvent>);

impl Exported for SharedEvent {
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
        Ok(Parcel { words: event.export()?.to_vec(), fd: None })
    }
}

impl Exports for NvidiaDriver {
    fn share_memory(&self, address: u64, bytes: u64) -> CuResult<Arc<dyn Exported>> {
        let (from, pieces) = self.work.memory.pieces_of(address, bytes)?;
        let pieces = pieces.iter().map(Arc::downgrade).collect();
        Ok(Arc::new(SharedMemory { pieces, offset: address - from }))
    }

    fn share_physical(&self, handle: MemoryHandleId) -> CuResult<Arc<dyn Exported>> {
        let tables = self.lock();
        let physical = tables.physical.get(&handle).ok_or(CudaError::INVALID_HANDLE)?;
        Ok(Arc::new(SharedMemory { pieces: vec![Arc::downgrade(physical)], offset: 0 }))
    }

    fn share_event(&self, event: EventId) -> CuResult<Arc<dyn Exported>> {
        let event = self.lock().event(event)?;
        // The driver says now whether the event was made for it.
        event.export()?;
        Ok(Arc::new(SharedEvent(Arc::downgrade(&event))))
    }

    fn import_memory(&self, handle: MemoryHandleId, parcel: Parcel) -> CuResult<Imported> {
        let (fd, words) = (parcel.fd.ok_or(CudaError::INVALID_VALUE)?, parcel.words);
        if words.len() != PARCEL_BYTES {
            return Err(CudaError::INVALID_VALUE);
        }
        let bytes = u64::from_le_bytes(words[..8].try_into().unwrap_or_default());
        let device = u32::from_le_bytes(words[8..].try_into().unwrap_or_default());
        self.check_device(device)?;
        if bytes == 0 || !bytes.is_multiple_of(GRANULE) || self.lock().physical.contains_key(&handle) {
            return Err(CudaError::INVALID_VALUE);
        }
        self.any_context()?.enter()?;
        let physical = Physical::import(&self.api, &fd, device, bytes)?;
        self.lock().physical.insert(handle, Arc::new(physical));
        Ok(Imported { offset: 0, bytes, device })
    }

    fn import_event(&self, event: EventId, context: ContextId, parcel: Parcel) -> CuResult<()> {
        let handle = parcel.words.try_into().map_err(|_| CudaError::INVALID_VALUE)?;
        let context = self.lock().context(context)?;
        if self.lock().events.contains_key(&event) {
            return Err(CudaError::INVALID_VALUE);
        }
        let opened = LiveEvent::open(&self.api, context, handle)?;
        self.lock().events.insert(event, Arc::new(opened));
        Ok(())
    }
}
