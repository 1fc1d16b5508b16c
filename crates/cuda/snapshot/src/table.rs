//! Which blocks changed since the last committed cut.
//!
//! A worker keeps the digests of two cuts: the last one that is *committed* in the image, and the one on its way, which
//! is *pending*. Dirty is what differs from the committed one. A pending cut replaces it only when the image has it for
//! certain, so an abandoned or lost cut forgets nothing.

use crate::{Block, Digest};
use thiserror::Error;

/// A block and its digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockDigest {
    /// Where.
    pub block: Block,
    /// Of its bytes.
    pub digest: Digest,
}

/// A number for a whole table, the same for worker and image if and only if (but for one chance in 2^127) both have
/// the same blocks with the same digests. It does not depend on their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seal {
    /// How many blocks.
    pub blocks: u64,
    sum: u128,
}

impl Seal {
    /// The seal of a table.
    pub fn of(entries: impl IntoIterator<Item = BlockDigest>) -> Self {
        let mut seal = Self::default();
        entries.into_iter().for_each(|entry| seal.add(&entry));
        seal
    }

    /// The seal as two numbers, for the wire.
    pub fn to_parts(self) -> (u64, u128) {
        (self.blocks, self.sum)
    }

    /// What [`Seal::to_parts`] took apart.
    pub fn from_parts(blocks: u64, sum: u128) -> Self {
        Self { blocks, sum }
    }

    pub(crate) fn add(&mut self, entry: &BlockDigest) {
        self.blocks = self.blocks.wrapping_add(1);
        self.sum = self.sum.wrapping_add(weight(entry));
    }

    pub(crate) fn remove(&mut self, entry: &BlockDigest) {
        self.blocks = self.blocks.wrapping_sub(1);
        self.sum = self.sum.wrapping_sub(weight(entry));
    }
}

/// A block's part of a seal. The factor is odd, so two digests of one block never weigh the same; the digest covers the
/// length.
fn weight(entry: &BlockDigest) -> u128 {
    let place = u128::from(entry.block.address) << 1 | 1;
    entry.digest.0.wrapping_add(1).wrapping_mul(place.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
}

/// What a cut changes in the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delta {
    /// The committed cut that it is relative to; 0 for none: the delta is the whole image.
    pub base: u64,
    /// The cut.
    pub number: u64,
    /// Blocks whose bytes the image does not have, ascending.
    pub dirty: Vec<BlockDigest>,
    /// Addresses of blocks that the image has and that are no blocks any more, ascending.
    pub dead: Vec<u64>,
    /// Of all blocks of the cut.
    pub seal: Seal,
}

/// Why a table refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TableError {
    /// One cut is on its way at a time.
    #[error("cut {pending} is still on its way")]
    Busy {
        /// The cut on its way.
        pending: u64,
    },
    /// Numbers grow, from 1.
    #[error("cut {number} is not later than the committed cut {committed}")]
    NotLater {
        /// What was asked for.
        number: u64,
        /// What there is.
        committed: u64,
    },
    /// The blocks of a cut are listed by address.
    #[error("the blocks of a cut are not in ascending order at {address:#x}")]
    Unsorted {
        /// The first that is out of order.
        address: u64,
    },
    /// There is no such cut on its way.
    #[error("cut {number} is not on its way")]
    Unknown {
        /// What was asked for.
        number: u64,
    },
}

/// One cut's blocks, ascending.
#[derive(Clone, Debug, Default)]
struct Table {
    number: u64,
    entries: Vec<BlockDigest>,
}

/// The committed and the pending table of a worker.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    committed: Table,
    pending: Option<Table>,
}

impl Tables {
    /// Starts from an image that was restored, so that the next cut is small.
    pub fn restored(number: u64, entries: Vec<BlockDigest>) -> Result<Self, TableError> {
        check_order(&entries)?;
        Ok(Self { committed: Table { number, entries }, pending: None })
    }

    /// The number of the committed cut; 0 for none.
    pub fn committed(&self) -> u64 {
        self.committed.number
    }

    /// Whether the image has these very bytes.
    pub fn is_clean(&self, entry: &BlockDigest) -> bool {
        let entries = &self.committed.entries;
        let place = entries.binary_search_by_key(&entry.block.address, |kept| kept.block.address);
        place.is_ok_and(|place| entries[place] == *entry)
    }

    /// What the image has of these blocks, which ascend: a digest each, [`Digest::NEVER`] where it has no such block.
    pub fn committed_digests(&self, blocks: impl IntoIterator<Item = Block>) -> Vec<Digest> {
        let mut kept = self.committed.entries.iter().peekable();
        let of_block = |block: Block| {
            while kept.next_if(|entry| entry.block.address < block.address).is_some() {}
            kept.peek().filter(|entry| entry.block == block).map_or(Digest::NEVER, |entry| entry.digest)
        };
        blocks.into_iter().map(of_block).collect()
    }

    /// Takes a cut: `entries` are all live blocks, ascending. It is pending from now on.
    ///
    /// Work is held back meanwhile, and there may be millions of blocks: both tables are walked once, side by side.
    pub fn take(&mut self, number: u64, entries: Vec<BlockDigest>) -> Result<Delta, TableError> {
        if let Some(pending) = &self.pending {
            return Err(TableError::Busy { pending: pending.number });
        }
        if number <= self.committed.number {
            return Err(TableError::NotLater { number, committed: self.committed.number });
        }
        let (mut dirty, mut dead, mut seal) = (Vec::new(), Vec::new(), Seal::default());
        let mut kept = self.committed.entries.iter().peekable();
        let mut before = None;
        for entry in &entries {
            let address = entry.block.address;
            if before.replace(address).is_some_and(|before| before >= address) {
                return Err(TableError::Unsorted { address });
            }
            while let Some(gone) = kept.next_if(|kept| kept.block.address < entry.block.address) {
                dead.push(gone.block.address);
            }
            if kept.next_if(|kept| kept.block.address == entry.block.address) != Some(entry) {
                dirty.push(*entry);
            }
            seal.add(entry);
        }
        dead.extend(kept.map(|gone| gone.block.address));
        self.pending = Some(Table { number, entries });
        Ok(Delta { base: self.committed.number, number, dirty, dead, seal })
    }

    /// The fate of a pending cut: `is_committed` if the image has it for certain, else it never was.
    pub fn settle(&mut self, number: u64, is_committed: bool) -> Result<(), TableError> {
        match self.pending.take_if(|pending| pending.number == number) {
            Some(pending) if is_committed => self.committed = pending,
            Some(_) => {}
            None => return Err(TableError::Unknown { number }),
        }
        Ok(())
    }

    /// Forgets everything: the next cut is a whole image. For a cut whose fate is not known, and for a new image.
    pub fn forget(&mut self) {
        *self = Self::default();
    }
}

fn check_order(entries: &[BlockDigest]) -> Result<(), TableError> {
    match entries.windows(2).find(|pair| pair[0].block.address >= pair[1].block.address) {
        Some(pair) => Err(TableError::Unsorted { address: pair[1].block.address }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(address: u64, digest: u128) -> BlockDigest {
        BlockDigest { block: Block { address, bytes: 10 }, digest: Digest(digest) }
    }

    fn addresses(entries: &[BlockDigest]) -> Vec<u64> {
        entries.iter().map(|entry| entry.block.address).collect()
    }

    #[test]
    fn an_abandoned_cut_forgets_nothing() {
        let mut tables = Tables::default();
        tables.take(1, vec![entry(0, 1), entry(10, 1), entry(20, 1)]).unwrap();
        tables.settle(1, true).unwrap();
        let lost = tables.take(2, vec![entry(0, 2), entry(10, 1)]).unwrap();
        assert_eq!((addresses(&lost.dirty), lost.dead), (vec![0], vec![20]));
        tables.settle(2, false).unwrap();
        // Block 0 differs from what the image has, block 20 is what the image has.
        let next = tables.take(3, vec![entry(0, 2), entry(10, 1), entry(20, 1)]).unwrap();
        assert_eq!((next.base, addresses(&next.dirty), next.dead), (1, vec![0], vec![]));
    }

    #[test]
    fn one_cut_at_a_time_and_numbers_grow() {
        let mut tables = Tables::default();
        assert_eq!(tables.take(0, vec![]), Err(TableError::NotLater { number: 0, committed: 0 }));
        tables.take(5, vec![]).unwrap();
        assert_eq!(tables.take(6, vec![]), Err(TableError::Busy { pending: 5 }));
        assert_eq!(tables.settle(4, true), Err(TableError::Unknown { number: 4 }));
        tables.settle(5, true).unwrap();
        assert_eq!(tables.settle(5, true), Err(TableError::Unknown { number: 5 }));
        assert_eq!(tables.take(5, vec![]), Err(TableError::NotLater { number: 5, committed: 5 }));
        let unsorted = vec![entry(3, 0), entry(3, 0)];
        assert_eq!(tables.take(6, unsorted), Err(TableError::Unsorted { address: 3 }));
        tables.take(6, vec![]).unwrap();
    }

    #[test]
    fn a_block_of_another_length_is_dirty() {
        let mut tables = Tables::default();
        tables.take(1, vec![entry(0, 7)]).unwrap();
        tables.settle(1, true).unwrap();
        let shorter = BlockDigest { block: Block { address: 0, bytes: 9 }, digest: Digest(7) };
        assert_eq!(tables.take(2, vec![shorter]).unwrap().dirty, [shorter]);
    }

    #[test]
    fn after_a_restore_only_what_changed_is_dirty() {
        let mut tables = Tables::restored(9, vec![entry(0, 1), entry(10, 2)]).unwrap();
        let delta = tables.take(10, vec![entry(0, 1), entry(10, 3)]).unwrap();
        assert_eq!((delta.base, addresses(&delta.dirty)), (9, vec![10]));
        tables.forget();
        let delta = tables.take(11, vec![entry(0, 1)]).unwrap();
        assert_eq!((delta.base, addresses(&delta.dirty)), (0, vec![0]));
    }

    #[test]
    fn what_the_image_has_is_told_block_by_block() {
        let tables = Tables::restored(9, vec![entry(0, 1), entry(10, 2), entry(30, 3)]).unwrap();
        let longer = Block { address: 10, bytes: 11 };
        let asked = [entry(0, 0).block, longer, entry(20, 0).block, entry(30, 0).block, entry(40, 0).block];
        let never = Digest::NEVER;
        assert_eq!(tables.committed_digests(asked), [Digest(1), never, never, Digest(3), never]);
        let mut tables = tables;
        let delta = tables.take(10, vec![entry(5, 1), entry(10, 2), entry(30, 4), entry(50, 1)]).unwrap();
        assert_eq!((addresses(&delta.dirty), delta.dead), (vec![5, 30, 50], vec![0]));
        tables.settle(10, true).unwrap();
        let none = tables.take(11, vec![]).unwrap();
        assert_eq!(none.dead, [5, 10, 30, 50], "all that the image has");
    }

    #[test]
    fn a_seal_tells_tables_apart() {
        let seal = |entries: &[BlockDigest]| Seal::of(entries.iter().copied());
        let table = [entry(0, 1), entry(10, 2)];
        assert_eq!(seal(&table), seal(&[table[1], table[0]]));
        assert_ne!(seal(&table), seal(&table[..1]));
        assert_ne!(seal(&table), seal(&[entry(0, 2), entry(10, 1)]), "digests exchanged");
        assert_ne!(seal(&table), seal(&[entry(0, 1), entry(20, 2)]));
        let (blocks, sum) = seal(&table).to_parts();
        assert_eq!(Seal::from_parts(blocks, sum), seal(&table));
        let mut changed = seal(&table);
        changed.remove(&table[1]);
        assert_eq!(changed, seal(&table[..1]));
    }
}
