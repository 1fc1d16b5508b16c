//! One of the connections that a cut is read through.

use crate::error::Broken;
use crate::talk::Talk;
use snapshot::{Block, BlockDigest, Bytes};
use std::collections::{BTreeMap, VecDeque};

/// Blocks that are asked for at a time. Two such portions are on their way: 8 MiB, enough for 10 GB/s at 800 us.
const PORTION: usize = 64;

/// Blocks that are kept because they came before a thread of the driver wanted them: those of the portion that one thread
/// reads, and as much again for threads that are late.
const ARRIVED_MAX: usize = 4 * PORTION;

/// A connection, and what was asked of it. It brings every portion whose number is `index` modulo `lines`.
pub(super) struct Line {
    /// None once it is lost.
    talk: Option<Talk>,
    lines: usize,
    /// Blocks that were asked for and have not come, as places in the list.
    asked: VecDeque<usize>,
    /// Blocks that came before a thread of the driver wanted them, at most [`ARRIVED_MAX`].
    arrived: BTreeMap<usize, Bytes>,
    /// The portion that is asked for next.
    next: usize,
}

impl Line {
    pub(super) fn new(talk: Talk, index: usize, lines: usize) -> Self {
        Self { talk: Some(talk), lines, asked: VecDeque::new(), arrived: BTreeMap::new(), next: index }
    }

    /// The portion that a place in the list belongs to.
    pub(super) fn portion(place: usize) -> usize {
        place / PORTION
    }

    /// The portions of a list.
    pub(super) fn portions(entries: usize) -> usize {
        entries.div_ceil(PORTION)
    }

    /// The block at a place in the list. Nothing is read after an error.
    pub(super) fn read(
        &mut self,
        number: u64,
        entries: &[BlockDigest],
        place: usize,
    ) -> Result<Bytes, Broken> {
        if let Some(bytes) = self.arrived.remove(&place) {
            return Ok(bytes);
        }
        let read = self.read_on(number, entries, place);
        if read.is_err() {
            self.talk = None;
        }
        read
    }

    fn read_on(&mut self, number: u64, entries: &[BlockDigest], place: usize) -> Result<Bytes, Broken> {
        let talk = self.talk.as_mut().ok_or(Broken::Closed)?;
        let portion = Self::portion(place);
        if !self.asked.contains(&place) && self.next != portion {
            // Somewhere else: what is on its way is let go of.
            while self.asked.pop_front().is_some() {
                talk.next_block()?;
            }
            self.arrived.clear();
            self.next = portion;
        }
        // The wanted block may be in the next portion while two are still on their way.
        if self.asked.len() <= PORTION || self.next == portion {
            let begin = (self.next * PORTION).min(entries.len());
            let end = (begin + PORTION).min(entries.len());
            let blocks: Vec<Block> = entries[begin..end].iter().map(|entry| entry.block).collect();
            talk.ask_for(number, &blocks)?;
            self.asked.extend(begin..end);
            self.next += self.lines;
        }
        while let Some(comes) = self.asked.pop_front() {
            let (block, bytes) = talk.next_block()?;
            if block != entries[comes].block {
                return Err(Broken::Unexpected);
            }
            if comes == place {
                return Ok(bytes);
            }
            self.arrived.insert(comes, bytes);
            if self.arrived.len() > ARRIVED_MAX {
                self.arrived.pop_first();
            }
        }
        Err(Broken::Unexpected)
    }
}
