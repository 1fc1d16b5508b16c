//! A committed cut, read from a guardian.
//!
//! ```text
//!   threads of a driver      A ═ line 2 ═▶ guardian       each takes a line that is idle, asks for its blocks,
//!                            B ═ line 0 ═▶ guardian       and gives it back when they are here
//!                                line 1   idle
//! ```
//!
//! One connection brings less than the GPU's bus takes, so a large cut is read through several. A line belongs to one thread while it
//! brings blocks: threads that shared lines once ran into each other, and a restore took ten times as long.

use crate::error::Broken;
use crate::talk::Talk;
use cuda_driver::{Blocks, LinkLost};
use locks::{lock, wait};
use snapshot::{Block, BlockDigest, Bytes, EventAge};
use std::sync::{Condvar, Mutex};

/// As many as a driver has threads that read.
const LINES_MAX: usize = 12;

/// Blocks that are asked for at a time: 4 MiB. The pause until the first of them comes is short beside the time that they take.
const PORTION: usize = 64;

/// A cut to restore.
pub(super) struct StoredCut {
    number: u64,
    entries: Vec<BlockDigest>,
    events: Vec<EventAge>,
    lines: Mutex<Lines>,
    given_back: Condvar,
}

/// Connections. The one that has listed the cut is among them: while it is open the guardian keeps the blocks.
struct Lines {
    idle: Vec<Talk>,
    /// Those that are not lost.
    open: usize,
}

impl StoredCut {
    /// Lists the cut by `talk`. `another` opens one more connection to read from.
    pub(super) fn list<E>(
        mut talk: Talk,
        number: u64,
        another: impl Fn() -> Result<Talk, E>,
    ) -> Result<Self, Broken> {
        let (entries, events) = talk.list(number)?;
        if entries.windows(2).any(|pair| pair[0].block.address >= pair[1].block.address) {
            return Err(Broken::Unexpected);
        }
        // A guardian that takes no further connection is read through those that it took.
        let more = (1..LINES_MAX.min(entries.len().div_ceil(PORTION))).map_while(|_| another().ok());
        let idle: Vec<Talk> = std::iter::once(talk).chain(more).collect();
        let lines = Mutex::new(Lines { open: idle.len(), idle });
        Ok(Self { number, entries, events, lines, given_back: Condvar::new() })
    }

    /// A line that no other thread has; `None`: all are lost.
    fn take_line(&self) -> Option<Talk> {
        let mut lines = lock(&self.lines);
        while lines.open > 0 {
            if let Some(talk) = lines.idle.pop() {
                return Some(talk);
            }
            lines = wait(&self.given_back, lines);
        }
        None
    }

    /// Gives a line back; `None` for one that is lost.
    fn give_back(&self, line: Option<Talk>) {
        let mut lines = lock(&self.lines);
        match line {
            Some(talk) => {
                lines.idle.push(talk);
                self.given_back.notify_one();
            }
            None => {
                lines.open -= 1;
                // It may have been the last one that the others wait for.
                self.given_back.notify_all();
            }
        }
    }

    fn bring(&self, talk: &mut Talk, blocks: &[Block], into: &mut [u8]) -> Result<(), Broken> {
        let mut rest = into;
        for portion in blocks.chunks(PORTION) {
            talk.ask_for(self.number, portion)?;
            for block in portion {
                let (place, behind) = rest.split_at_mut(block.bytes as usize);
                if talk.next_block_into(place)? != *block {
                    return Err(Broken::Unexpected);
                }
                rest = behind;
            }
        }
        Ok(())
    }

    /// Whether the cut has such a block.
    fn has(&self, block: &Block) -> bool {
        let place = self.entries.binary_search_by_key(&block.address, |entry| entry.block.address);
        place.is_ok_and(|place| self.entries[place].block == *block)
    }
}

impl Blocks for StoredCut {
    fn number(&self) -> u64 {
        self.number
    }

    fn list(&self) -> Vec<BlockDigest> {
        self.entries.clone()
    }

    fn read(&self, block: Block) -> Result<Bytes, LinkLost> {
        if !self.has(&block) {
            return Err(LinkLost);
        }
        let mut bytes = vec![0; block.bytes as usize].into_boxed_slice();
        let read = self.read_into(&[block], &mut bytes);
        // Overwritten when it is dropped, whatever came.
        let bytes = Bytes::from(bytes);
        read.map(|()| bytes)
    }

    fn read_into(&self, blocks: &[Block], into: &mut [u8]) -> Result<(), LinkLost> {
        let bytes: usize = blocks.iter().map(|block| block.bytes as usize).sum();
        if bytes != into.len() || !blocks.iter().all(|block| self.has(block)) {
            return Err(LinkLost);
        }
        let mut talk = self.take_line().ok_or(LinkLost)?;
        let brought = self.bring(&mut talk, blocks, into);
        // After an error the rest may still be on its way, so nothing is read from this line any more.
        self.give_back(brought.is_ok().then_some(talk));
        brought.map_err(|broken| {
            tracing::warn!(%broken, "a block of an image cannot be read");
            LinkLost
        })
    }

    fn events(&self) -> Vec<EventAge> {
        self.events.clone()
    }
}
