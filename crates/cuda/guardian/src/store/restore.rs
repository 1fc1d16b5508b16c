//! A committed cut, read from a guardian.
//!
//! ```text
//!   list of blocks   | portion 0 | portion 1 | portion 2 | portion 3 | …
//!   lines of two       line 0      line 1      line 0      line 1
//! ```
//!
//! The threads of a driver read the blocks of the list roughly in order, each thread a portion. One connection brings less
//! than the GPU's bus takes, so a large cut is read through several, and each asks for its next portion before the driver
//! wants it.

use super::line::Line;
use crate::error::Broken;
use crate::talk::Talk;
use cuda_driver::{Blocks, LinkLost};
use locks::lock;
use snapshot::{Block, BlockDigest, Bytes, EventAge};
use std::sync::Mutex;

/// As many as a driver has threads that read.
const LINES_MAX: usize = 12;

/// A cut to restore.
pub(super) struct StoredCut {
    number: u64,
    entries: Vec<BlockDigest>,
    events: Vec<EventAge>,
    /// Never empty. The first one has listed the cut: while it is open the guardian keeps the blocks.
    lines: Vec<Mutex<Line>>,
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
        let more = (1..LINES_MAX.min(Line::portions(entries.len()))).map_while(|_| another().ok());
        let talks: Vec<Talk> = std::iter::once(talk).chain(more).collect();
        let lines = talks.len();
        let line = |(index, talk)| Mutex::new(Line::new(talk, index, lines));
        Ok(Self { number, entries, events, lines: talks.into_iter().enumerate().map(line).collect() })
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
        let place = self.entries.binary_search_by_key(&block.address, |entry| entry.block.address);
        let place = place.ok().filter(|place| self.entries[*place].block == block).ok_or(LinkLost)?;
        let line = &self.lines[Line::portion(place) % self.lines.len()];
        let read = lock(line).read(self.number, &self.entries, place);
        read.map_err(|broken| {
            tracing::warn!(%broken, "a block of an image cannot be read");
            LinkLost
        })
    }

    fn events(&self) -> Vec<EventAge> {
        self.events.clone()
    }
}
