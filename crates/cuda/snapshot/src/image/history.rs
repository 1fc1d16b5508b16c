//! The versions of one block.

use super::Gone;
use crate::{BlockDigest, Bytes};
use std::collections::BTreeSet;

/// One version's bytes.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) entry: BlockDigest,
    pub(super) bytes: Bytes,
}

impl Stored {
    /// Memory that it takes.
    pub(super) fn cost(&self) -> u64 {
        /// A block's place in the maps and its handle, about. Without it, many tiny blocks would cost nothing.
        const BOOKS: u64 = 192;
        self.bytes.len() as u64 + BOOKS
    }
}

/// The block at one address through time: what each cut left there, or that it left nothing.
#[derive(Debug, Default)]
pub(super) struct History {
    /// By cut, ascending.
    versions: Vec<(u64, Option<Stored>)>,
}

impl History {
    pub(super) fn push(&mut self, number: u64, stored: Option<Stored>) {
        self.versions.push((number, stored));
    }

    /// What was there at a cut.
    pub(super) fn at(&self, number: u64) -> Option<&Stored> {
        let after = self.versions.partition_point(|(from, _)| *from <= number);
        self.versions[..after].last()?.1.as_ref()
    }

    pub(super) fn stored(&self) -> impl Iterator<Item = &Stored> {
        self.versions.iter().filter_map(|(_, stored)| stored.as_ref())
    }

    /// Moves versions that none of these cuts sees to `gone`; says how much memory they take.
    pub(super) fn prune(&mut self, kept: &BTreeSet<u64>, gone: &mut Gone) -> u64 {
        let mut dropped = 0;
        let mut next = None;
        let mut left = Vec::with_capacity(self.versions.len());
        for (from, stored) in std::mem::take(&mut self.versions).into_iter().rev() {
            let is_seen = match next {
                Some(next) => kept.range(from..next).next().is_some(),
                None => kept.range(from..).next().is_some(),
            };
            next = Some(from);
            match stored {
                Some(stored) if !is_seen => {
                    dropped += stored.cost();
                    gone.take(stored);
                }
                stored => left.push((from, stored)),
            }
        }
        left.reverse();
        // A cut that left nothing says something only after one that left something.
        let mut had_bytes = false;
        left.retain(|(_, stored)| {
            let says_something = stored.is_some() || had_bytes;
            had_bytes = stored.is_some();
            says_something
        });
        self.versions = left;
        dropped
    }

    pub(super) fn is_empty(&self) -> bool {
        self.versions.is_empty()
    }

    /// Whether a later prune may drop something without a new commit here.
    pub(super) fn is_crowded(&self) -> bool {
        self.versions.len() > 1
    }
}
