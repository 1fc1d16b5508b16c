//! Memory and events that one session hands to another of the same worker.
//!
//! ```text
//!   session A ── share_memory ──▶ Exported ── parcel ──▶ socket ──▶ session B ── import_memory
//! ```

use cuda_abi::CuResult;
use cuda_wire::{ContextId, EventId, Imported, MemoryHandleId};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// What goes from one session process to another: bytes that only drivers of the same kind understand, and a descriptor.
#[derive(Debug)]
pub struct Parcel {
    /// At most [`Parcel::BYTES_MAX`].
    pub words: Vec<u8>,
    /// The memory itself.
    pub fd: Option<OwnedFd>,
}

impl Parcel {
    /// The most bytes beside the descriptor.
    pub const BYTES_MAX: usize = 256;
}

/// Something that a session shares. It does not keep the thing alive: what its owner has ended cannot be opened any more.
pub trait Exported: Send + Sync {
    /// How many pieces there are.
    fn pieces(&self) -> u32;

    /// Where the shared range begins in the first piece.
    fn offset(&self) -> u64;

    /// Whether it can still be opened.
    fn is_alive(&self) -> bool;

    /// A piece for another session. Called on any thread, and never blocks for the device.
    fn parcel(&self, piece: u32) -> CuResult<Parcel>;
}

/// The part of a driver that shares memory and events between sessions. Called in the order of commands.
pub trait Exports: Send + Sync {
    /// Shares a range of allocated memory. The range may lie in several allocations without a gap.
    fn share_memory(&self, address: u64, bytes: u64) -> CuResult<Arc<dyn Exported>>;

    /// Shares physical memory.
    fn share_physical(&self, handle: MemoryHandleId) -> CuResult<Arc<dyn Exported>>;

    /// Shares an event.
    fn share_event(&self, event: EventId) -> CuResult<Arc<dyn Exported>>;

    /// Takes memory of another session, as physical memory. It counts as the other session's.
    fn import_memory(&self, handle: MemoryHandleId, parcel: Parcel) -> CuResult<Imported>;

    /// Takes an event of another session.
    fn import_event(&self, event: EventId, context: ContextId, parcel: Parcel) -> CuResult<()>;
}
