//! A reader of an image, beside its writer.

use super::{Kept, Shelf, State};
use crate::error::Refusal;
use snapshot::{Block, BlockDigest, Bytes, EventAge};
use std::sync::Arc;

/// Reads committed cuts. What it has listed stays readable until it is dropped.
pub(crate) struct Reader {
    shelf: Arc<Shelf>,
    kept: Arc<Kept>,
    pinned: Vec<u64>,
}

/// Cuts that one reader may hold at a time. Each keeps old blocks in memory.
const PINS_MAX: usize = 4;

impl Reader {
    pub(super) fn new(shelf: Arc<Shelf>, kept: Arc<Kept>) -> Self {
        Self { shelf, kept, pinned: Vec::new() }
    }

    /// A reader of an image that is open already.
    pub(crate) fn of(shelf: &Arc<Shelf>, kept: &Arc<Kept>) -> Self {
        Self::new(shelf.clone(), kept.clone())
    }

    pub(crate) fn state(&self) -> Result<State, Refusal> {
        self.kept.state()
    }

    /// All blocks and events of a cut, which is readable from now on whatever is committed meanwhile.
    pub(crate) fn list(&mut self, number: u64) -> Result<(Vec<BlockDigest>, Vec<EventAge>), Refusal> {
        let is_new = !self.pinned.contains(&number);
        if is_new && self.pinned.len() >= PINS_MAX {
            return Err(Refusal::OutOfPlace("this reader holds too many cuts"));
        }
        let listed = self.kept.look(&self.shelf.budget, |image| {
            let listed = (image.blocks(number)?, image.events(number)?.to_vec());
            if is_new {
                image.pin(number)?;
            }
            Ok(listed)
        })?;
        if is_new {
            self.pinned.push(number);
        }
        Ok(listed)
    }

    /// Lets go of a cut.
    pub(crate) fn forget(&mut self, number: u64) {
        if let Some(at) = self.pinned.iter().position(|pinned| *pinned == number) {
            self.pinned.swap_remove(at);
            let _ = self.kept.look(&self.shelf.budget, |image| {
                image.unpin(number);
                Ok(())
            });
        }
    }

    pub(crate) fn read(&self, number: u64, block: Block) -> Result<Bytes, Refusal> {
        self.kept.look(&self.shelf.budget, |image| Ok(image.read(number, block)?))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        while let Some(number) = self.pinned.last().copied() {
            self.forget(number);
        }
    }
}
