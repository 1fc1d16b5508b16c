//! The one writer of an image.

use super::{Kept, Reader, Shelf, State, older::Older};
use crate::disk::Disk;
use crate::error::Refusal;
use crate::protocol::Open;
use snapshot::{BlockDigest, Bytes, CheckedBlock, EventAge, Seal};
use std::sync::Arc;
use std::time::Instant;

/// What a block costs beside its bytes, at least as much as the image counts for it.
const BLOCK_COST: u64 = 256;

/// The right to write an image, until another writer opens it.
pub(crate) struct Writer {
    shelf: Arc<Shelf>,
    kept: Arc<Kept>,
    serial: u64,
    incarnation: u64,
}

impl Writer {
    pub(super) fn new(shelf: Arc<Shelf>, kept: Arc<Kept>, serial: u64, incarnation: u64) -> Self {
        Self { shelf, kept, serial, incarnation }
    }

    pub(crate) fn kept(&self) -> &Arc<Kept> {
        &self.kept
    }

    pub(crate) fn state(&self) -> Result<State, Refusal> {
        self.kept.state()
    }

    pub(crate) fn begin(&self, base: u64, number: u64) -> Result<(), Refusal> {
        self.change(0, |image, older| Ok(older.begin(image, self.incarnation, (base, number))?))
    }

    pub(crate) fn put(&self, number: u64, entry: BlockDigest, bytes: Bytes) -> Result<(), Refusal> {
        let cost = bytes.len() as u64 + BLOCK_COST;
        // Outside of the image's lock: several threads bring blocks, and the digest takes most of the time.
        let checked = CheckedBlock::new(self.kept.key(), entry, bytes);
        self.change(cost, |image, _| Ok(image.put_checked(self.incarnation, number, checked)?))
    }

    /// Whether the delta of this cut is begun.
    pub(crate) fn join(&self, number: u64) -> Result<(), Refusal> {
        self.change(0, |image, _| Ok(image.join(self.incarnation, number)?))
    }

    pub(crate) fn bury(&self, number: u64, dead: &[u64]) -> Result<(), Refusal> {
        self.change(0, |image, _| Ok(image.bury(self.incarnation, number, dead)?))
    }

    pub(crate) fn commit(&self, number: u64, seal: Seal, events: Vec<EventAge>) -> Result<(), Refusal> {
        let cost = size_of::<EventAge>() as u64 * events.len() as u64;
        let committed = self.change(cost, |image, older| {
            Ok(older.commit(image, self.incarnation, (number, seal), events)?)
        });
        self.kept.notify();
        committed
    }

    pub(crate) fn abandon(&self, number: u64) -> Result<(), Refusal> {
        self.change(0, |image, _| Ok(image.abandon(self.incarnation, number)?))
    }

    /// Ends the image: its bytes are zeroed when this returns.
    pub(crate) fn end(self) -> Result<(), Refusal> {
        self.kept.end(&self.shelf.budget, Some(self.serial))?;
        self.shelf.forget(&self.kept);
        Ok(())
    }

    /// Writes the last committed cut to disk and ends the image in memory. If the disk does not take it, it stays.
    pub(crate) fn park(&self, disk: &Disk, open: &Open) -> Result<(), Refusal> {
        self.change(0, |_, _| Ok(()))?;
        let open = Open { lease: self.kept.lease(), ..open.clone() };
        disk.park(&open, &mut Reader::of(&self.shelf, &self.kept))?;
        let ended = self.kept.end(&self.shelf.budget, Some(self.serial));
        if ended.is_err() {
            // Another writer has opened the image meanwhile, and goes on with the one in memory.
            disk.end(&open);
        }
        ended?;
        self.shelf.forget(&self.kept);
        Ok(())
    }

    /// The writer goes on purpose and the image stays, for its time.
    pub(crate) fn leave(self, now: Instant) {
        self.kept.writer_is_gone(&self.shelf.budget, (self.serial, self.incarnation), now, true);
    }

    /// The writer is lost and the image stays, for its time.
    pub(crate) fn lost(self, now: Instant) {
        self.kept.writer_is_gone(&self.shelf.budget, (self.serial, self.incarnation), now, false);
    }

    fn change<T>(
        &self,
        reserve: u64,
        change: impl FnOnce(&mut snapshot::Image, &mut Older) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        self.kept.change(&self.shelf.budget, self.serial, reserve, change)
    }
}
