//! The image of a session's memory: versions of blocks by address.
//!
//! ```text
//! admit(incarnation) ─▶ begin(number) ─▶ put, bury … ─▶ commit(number) ─▶ read at a number
//!                          │                              │
//!                          └── the writer goes, fails or is replaced: the delta never was
//! ```
//!
//! One incarnation of a session writes; when the session is resumed elsewhere, its incarnation rises, and everything that
//! an older one still says is refused. A delta is relative to the committed cut and is taken whole or not at all: the
//! image computes the digest of every block that comes, and compares the seal of the resulting table with that of the
//! worker's. So a block that was lost, changed or left over on the way cannot become part of an image.

mod checked;
mod delta;
mod error;
mod gone;
mod history;

pub use checked::CheckedBlock;
pub use error::ImageError;
pub use gone::Gone;

use crate::{Block, BlockDigest, Bytes, Key, Seal};
use delta::Pending;
use history::{History, Stored};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// How long ago, at the cut, an event with timing had been reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventAge {
    /// The client's name of the event.
    pub event: u32,
    /// Nanoseconds from the event to the cut.
    pub age_ns: u64,
}

/// The memory of one session at its last committed cut, and at earlier ones that are pinned.
#[derive(Debug)]
pub struct Image {
    key: Arc<Key>,
    bytes_max: u64,
    bytes: u64,
    incarnation: u64,
    committed: u64,
    seal: Seal,
    blocks: BTreeMap<u64, History>,
    /// Events of the committed cut and of pinned ones.
    events: BTreeMap<u64, Vec<EventAge>>,
    pins: BTreeMap<u64, u32>,
    /// Addresses that have more than what the committed cut needs, because of pins.
    crowded: BTreeSet<u64>,
    pending: Option<Pending>,
    gone: Gone,
}

impl Image {
    /// An empty image that takes at most `bytes_max` of memory, and the digests of this key.
    pub fn new(key: Arc<Key>, bytes_max: u64) -> Self {
        Self {
            key,
            bytes_max,
            bytes: 0,
            incarnation: 0,
            committed: 0,
            seal: Seal::default(),
            blocks: BTreeMap::new(),
            events: BTreeMap::new(),
            pins: BTreeMap::new(),
            crowded: BTreeSet::new(),
            pending: None,
            gone: Gone::default(),
        }
    }

    /// The last committed cut; 0 for none.
    pub fn committed(&self) -> u64 {
        self.committed
    }

    /// The incarnation that may write; 0 before the first.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Memory that it takes, the uncommitted delta included, [`Gone`] blocks not.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The blocks that it has let go of since the last call. The thread that changes an image takes them, and drops them
    /// after it has given the image's lock back.
    pub fn take_gone(&mut self) -> Gone {
        std::mem::take(&mut self.gone)
    }

    /// Lets an incarnation write. An older one is refused; a newer one, or the same again after its connection broke,
    /// throws away what was not committed.
    pub fn admit(&mut self, incarnation: u64) -> Result<(), ImageError> {
        if incarnation < self.incarnation {
            return Err(ImageError::Superseded { incarnation, current: self.incarnation });
        }
        self.incarnation = incarnation;
        self.throw_away();
        Ok(())
    }

    /// The writer of an incarnation is gone: its uncommitted delta is thrown away, unless another writes already.
    pub fn leave(&mut self, incarnation: u64) {
        if incarnation == self.incarnation {
            self.throw_away();
        }
    }

    /// Begins the delta of cut `number`, relative to cut `base`; `base` 0 begins a whole image.
    pub fn begin(&mut self, incarnation: u64, base: u64, number: u64) -> Result<(), ImageError> {
        self.check_writer(incarnation)?;
        if let Some(pending) = &self.pending {
            return Err(ImageError::Busy { pending: pending.number });
        }
        if base != 0 && base != self.committed {
            return Err(ImageError::OtherBase { base, committed: self.committed });
        }
        if number <= self.committed {
            return Err(ImageError::NotLater { number, committed: self.committed });
        }
        self.pending = Some(Pending::new(number, base));
        Ok(())
    }

    /// Whether the delta of this cut is begun, for one more thread that brings blocks of it.
    pub fn join(&self, incarnation: u64, number: u64) -> Result<(), ImageError> {
        self.check_delta(incarnation, number)
    }

    /// Takes a block of the delta. A block whose bytes have another digest ends the delta, as does one for which there
    /// is no memory left.
    pub fn put(
        &mut self,
        incarnation: u64,
        number: u64,
        entry: BlockDigest,
        bytes: Bytes,
    ) -> Result<(), ImageError> {
        let checked = CheckedBlock::new(&self.key, entry, bytes);
        self.put_checked(incarnation, number, checked)
    }

    /// The same with a block that was checked before, or found to be another. Digests take most of the time of a put: who
    /// has many blocks checks them side by side, and only then comes here.
    pub fn put_checked(
        &mut self,
        incarnation: u64,
        number: u64,
        checked: Result<CheckedBlock, ImageError>,
    ) -> Result<(), ImageError> {
        let outcome = self.try_put(incarnation, number, checked);
        if outcome.as_ref().is_err_and(ImageError::ends_delta) {
            self.throw_away();
        }
        outcome
    }

    fn try_put(
        &mut self,
        incarnation: u64,
        number: u64,
        checked: Result<CheckedBlock, ImageError>,
    ) -> Result<(), ImageError> {
        self.check_delta(incarnation, number)?;
        let CheckedBlock { key, stored } = checked?;
        let address = stored.entry.block.address;
        if !Arc::ptr_eq(&key, &self.key) {
            // Its digest says nothing about this image's blocks.
            return Err(ImageError::BadBlock { address });
        }
        let needed = self.bytes.saturating_add(stored.cost());
        if needed > self.bytes_max {
            return Err(ImageError::Full { bytes_max: self.bytes_max });
        }
        let Some(pending) = &mut self.pending else { return Err(ImageError::NoDelta { number }) };
        if !pending.put(stored) {
            return Err(ImageError::Twice { address });
        }
        self.bytes = needed;
        Ok(())
    }

    /// Blocks of the base that are no blocks any more.
    pub fn bury(&mut self, incarnation: u64, number: u64, dead: &[u64]) -> Result<(), ImageError> {
        self.check_delta(incarnation, number)?;
        // An address that the image does not have takes no memory here: a writer cannot make the list grow for ever.
        let committed = self.committed;
        let unknown = dead.iter().find(|address| self.live(**address, committed).is_none());
        if let Some(&address) = unknown {
            self.throw_away();
            return Err(ImageError::BadBlock { address });
        }
        if let Some(pending) = &mut self.pending {
            pending.dead.extend(dead);
        }
        Ok(())
    }

    /// Commits the delta if the resulting table has this seal; else the delta is thrown away and the image stays as it
    /// was.
    pub fn commit(
        &mut self,
        incarnation: u64,
        number: u64,
        seal: Seal,
        events: Vec<EventAge>,
    ) -> Result<(), ImageError> {
        self.check_delta(incarnation, number)?;
        let Some(mut pending) = self.pending.take() else { return Err(ImageError::NoDelta { number }) };
        if pending.base == 0 {
            let committed = self.committed;
            let all = self.blocks.iter().filter(|(_, history)| history.at(committed).is_some());
            pending.dead = all.map(|(&address, _)| address).collect();
        }
        let found = self.seal_after(&pending);
        let events_bytes = size_of::<EventAge>() as u64 * events.len() as u64;
        let refusal = if found != seal {
            Some(ImageError::OtherSeal { number, blocks: seal.blocks, found: found.blocks })
        } else if self.bytes.saturating_add(events_bytes) > self.bytes_max {
            Some(ImageError::Full { bytes_max: self.bytes_max })
        } else {
            None
        };
        if let Some(refusal) = refusal {
            self.pending = Some(pending);
            self.throw_away();
            return Err(refusal);
        }
        self.apply(pending);
        self.seal = found;
        self.bytes += events_bytes;
        self.events.insert(number, events);
        self.committed = number;
        self.prune();
        Ok(())
    }

    /// The seal of the committed table with a delta applied.
    fn seal_after(&self, pending: &Pending) -> Seal {
        let mut seal = self.seal;
        for address in pending.touched() {
            if let Some(stored) = self.live(address, self.committed) {
                seal.remove(&stored.entry);
            }
        }
        pending.blocks.values().for_each(|stored| seal.add(&stored.entry));
        seal
    }

    fn apply(&mut self, pending: Pending) {
        for address in pending.dead {
            if !pending.blocks.contains_key(&address)
                && let Some(history) = self.blocks.get_mut(&address)
            {
                history.push(pending.number, None);
                self.crowded.insert(address);
            }
        }
        for (address, stored) in pending.blocks {
            self.blocks.entry(address).or_default().push(pending.number, Some(stored));
            self.crowded.insert(address);
        }
    }

    /// Throws the delta of a cut away: its writer has given it up.
    pub fn abandon(&mut self, incarnation: u64, number: u64) -> Result<(), ImageError> {
        self.check_delta(incarnation, number)?;
        self.throw_away();
        Ok(())
    }

    /// Keeps the committed cut readable until [`Image::unpin`], whatever is committed meanwhile.
    pub fn pin(&mut self, number: u64) -> Result<(), ImageError> {
        self.check_readable(number)?;
        *self.pins.entry(number).or_default() += 1;
        Ok(())
    }

    /// Takes one pin back; its memory goes when nothing else needs it.
    pub fn unpin(&mut self, number: u64) {
        let Some(pins) = self.pins.get_mut(&number) else { return };
        *pins -= 1;
        if *pins == 0 {
            self.pins.remove(&number);
            self.prune();
        }
    }

    /// All blocks at a committed or pinned cut, ascending.
    pub fn blocks(&self, number: u64) -> Result<Vec<BlockDigest>, ImageError> {
        self.check_readable(number)?;
        Ok(self.blocks.values().filter_map(|history| Some(history.at(number)?.entry)).collect())
    }

    /// A block's bytes at a committed or pinned cut.
    pub fn read(&self, number: u64, block: Block) -> Result<Bytes, ImageError> {
        self.check_readable(number)?;
        let stored = self.live(block.address, number).filter(|stored| stored.entry.block == block);
        stored.map(|stored| stored.bytes.clone()).ok_or(ImageError::BadBlock { address: block.address })
    }

    /// The events at a committed or pinned cut.
    pub fn events(&self, number: u64) -> Result<&[EventAge], ImageError> {
        self.check_readable(number)?;
        Ok(self.events.get(&number).map_or(&[], Vec::as_slice))
    }

    /// Ends the image: all its bytes are zeroed now, except those of blocks that readers still hold, which are zeroed
    /// when the readers let go. Says how many those are.
    pub fn end(self) -> usize {
        let held = |stored: &&Stored| stored.bytes.handles() > 1;
        let committed = self.blocks.values().flat_map(History::stored).filter(held).count();
        let pending = self.pending.iter().flat_map(|pending| pending.blocks.values()).filter(held).count();
        committed + pending
    }

    fn live(&self, address: u64, number: u64) -> Option<&Stored> {
        self.blocks.get(&address)?.at(number)
    }

    fn check_writer(&self, incarnation: u64) -> Result<(), ImageError> {
        if incarnation == self.incarnation && incarnation != 0 {
            return Ok(());
        }
        Err(ImageError::Superseded { incarnation, current: self.incarnation })
    }

    fn check_delta(&self, incarnation: u64, number: u64) -> Result<(), ImageError> {
        self.check_writer(incarnation)?;
        match &self.pending {
            Some(pending) if pending.number == number => Ok(()),
            _ => Err(ImageError::NoDelta { number }),
        }
    }

    fn check_readable(&self, number: u64) -> Result<(), ImageError> {
        if number != 0 && (number == self.committed || self.pins.contains_key(&number)) {
            return Ok(());
        }
        Err(ImageError::NotKept { number, committed: self.committed })
    }

    fn throw_away(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.bytes -= pending.cost();
            pending.blocks.into_values().for_each(|stored| self.gone.take(stored));
        }
    }

    /// Lets go of versions that neither the committed cut nor a pinned one needs.
    fn prune(&mut self) {
        let kept: BTreeSet<u64> = self.pins.keys().copied().chain([self.committed]).collect();
        let (blocks, bytes, gone) = (&mut self.blocks, &mut self.bytes, &mut self.gone);
        self.crowded.retain(|&address| {
            let Some(history) = blocks.get_mut(&address) else { return false };
            *bytes -= history.prune(&kept, gone);
            if history.is_empty() {
                blocks.remove(&address);
                return false;
            }
            history.is_crowded()
        });
        self.events.retain(|number, events| {
            let stays = kept.contains(number);
            if !stays {
                *bytes -= size_of::<EventAge>() as u64 * events.len() as u64;
            }
            stays
        });
    }
}

#[cfg(test)]
mod tests;
