//! What a writer has sent of a cut that is not committed.

use super::history::Stored;
use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

/// An uncommitted delta.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) number: u64,
    pub(super) base: u64,
    pub(super) blocks: BTreeMap<u64, Stored>,
    pub(super) dead: BTreeSet<u64>,
}

impl Pending {
    pub(super) fn new(number: u64, base: u64) -> Self {
        Self { number, base, blocks: BTreeMap::new(), dead: BTreeSet::new() }
    }

    /// `false` if the block came before.
    pub(super) fn put(&mut self, stored: Stored) -> bool {
        match self.blocks.entry(stored.entry.block.address) {
            Entry::Vacant(place) => {
                place.insert(stored);
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    /// Memory of its blocks.
    pub(super) fn cost(&self) -> u64 {
        self.blocks.values().map(Stored::cost).sum()
    }

    /// Addresses that it changes, each once.
    pub(super) fn touched(&self) -> impl Iterator<Item = u64> + '_ {
        let dead = self.dead.iter().filter(|address| !self.blocks.contains_key(address));
        self.blocks.keys().chain(dead).copied()
    }
}
