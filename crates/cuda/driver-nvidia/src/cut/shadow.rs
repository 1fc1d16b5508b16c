//! Where a cut puts what changed while the streams stand still: device memory that the program has left, and for the
//! rest memory of this process.
//!
//! ```text
//! shadow   slot 0 │ slot 1 │ …        │ table: address and bytes of slots │ order │ count      (for the way out)
//! spill    two pieces of pinned memory in turn: the kernel fills one while the cut thread empties the other
//! ```

use super::{buffer::DeviceBuffer, lane::Lane};
use crate::{
    op::Work,
    pinned::{OwnedPages, Word},
};
use cuda_abi::CuResult;
use snapshot::{BLOCK_BYTES, Bytes};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes that a slot needs beside its block, for the table of the way out.
const TABLE_BYTES: usize = 16 + 4;
/// Pieces of a spill at most: a few hundred orders fit into a stream.
const PIECES_MAX: usize = 64;
/// Slots of a piece at least: 64 MiB. Tests have little memory and many pieces.
const PIECE_SLOTS_MIN: usize = if cfg!(test) { 16 } else { 1024 };

/// Device memory for what changed.
pub(super) struct Shadow {
    buffer: DeviceBuffer,
    pub(super) slots: usize,
}

impl Shadow {
    /// For at most `slots` blocks, as far as the program leaves memory; `None` if it leaves none. The lane's context is
    /// current.
    #[allow(unsafe_code)]
    pub(super) fn borrow(work: &Work, lane: &Lane, slots: usize) -> CuResult<Option<Self>> {
        if slots == 0 {
            return Ok(None);
        }
        lane.context.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both pointers are valid for the call.
        unsafe { work.api.memory_info(&mut free, &mut total)? };
        let (device, wanted) = (lane.context.device, Self::bytes_for(slots));
        let Some(lent) = work.memory.lend(device, wanted, free as u64)? else { return Ok(None) };
        let fits =
            (lent.bytes().saturating_sub(2 * TABLE_ALIGN as u64)) as usize / (BLOCK_BYTES + TABLE_BYTES);
        let buffer = DeviceBuffer::lent(work, device, lent)?;
        Ok(Some(Self { buffer, slots: fits.min(slots) }))
    }

    fn bytes_for(slots: usize) -> u64 {
        (slots * (BLOCK_BYTES + TABLE_BYTES) + 2 * TABLE_ALIGN) as u64
    }

    pub(super) fn slot(&self, slot: usize) -> u64 {
        self.buffer.address + (slot * BLOCK_BYTES) as u64
    }

    /// Where the table of the way out, its order and its count are.
    pub(super) fn table(&self) -> [u64; 3] {
        let table = self.slot(self.slots);
        let order = table + (self.slots * 16) as u64;
        [table, order, (order + (self.slots * 4) as u64).next_multiple_of(TABLE_ALIGN as u64)]
    }
}

/// The count is read as a word by itself.
const TABLE_ALIGN: usize = 64;

/// Memory of this process for what does not fit into the shadow.
pub(super) struct Spill {
    pages: [OwnedPages; 2],
    pub(super) piece_slots: usize,
    pub(super) pieces: usize,
    /// Pieces that the stream has filled.
    pub(super) filled: Arc<Word>,
    /// Pieces that the cut thread has emptied.
    pub(super) emptied: Word,
    /// What came, in the order of the list of what changed.
    pub(super) blocks: Mutex<Vec<Bytes>>,
}

impl Spill {
    /// For this many blocks.
    pub(super) fn new(work: &Work, slots: usize) -> CuResult<Self> {
        let piece_slots = slots.div_ceil(PIECES_MAX).max(PIECE_SLOTS_MIN.min(slots));
        let bytes = piece_slots * BLOCK_BYTES;
        Ok(Self {
            pages: [OwnedPages::new(&work.api, bytes)?, OwnedPages::new(&work.api, bytes)?],
            piece_slots,
            pieces: slots.div_ceil(piece_slots),
            filled: Arc::new(work.words.take()?),
            emptied: work.words.take()?,
            blocks: Mutex::default(),
        })
    }

    pub(super) fn device(&self, piece: usize) -> u64 {
        self.pages[piece % 2].device()
    }

    /// Takes the first `slots` blocks out of a piece.
    ///
    /// # Safety
    ///
    /// The stream has filled the piece, and waits until it is emptied before it fills it again.
    #[allow(unsafe_code)]
    pub(super) unsafe fn empty(&self, piece: usize, slots: usize) {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        for slot in 0..slots {
            // SAFETY: our caller's promise.
            let bytes = unsafe { self.pages[piece % 2].bytes(slot * BLOCK_BYTES, BLOCK_BYTES) };
            blocks.push(Bytes::copy_of(bytes));
        }
        drop(blocks);
        self.emptied.set(piece as u64 + 1);
    }

    /// Nothing more is taken out.
    pub(super) fn let_go(&self) {
        self.emptied.set(u64::MAX >> 1);
    }
}
