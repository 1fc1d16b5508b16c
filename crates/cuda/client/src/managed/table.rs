//! The blocks of one allocation.

use super::{BLOCK_BYTES, walk::Walks};
use std::ops::Range;

/// Which side has the newest bytes of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// Both sides; the program may read it.
    Same,
    /// The program, which may write it.
    HostNewer,
    /// The device; the program may not touch it.
    DeviceNewer,
    /// Both sides, and the program may not touch it yet: it was fetched ahead, and its first touch says that the next may be fetched.
    Ready,
}

/// What a touch of memory that the program may not touch needs. Ranges count bytes from the allocation's start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing: another thread's touch has opened it meanwhile.
    Late,
    /// `now` becomes writable. It is noted as written already.
    MakeWritable {
        /// What the program waits for.
        now: Range<u64>,
        /// What it will probably write next; its pages can be made while the program goes on. May be empty.
        ahead: Range<u64>,
    },
    /// `now` is here and can be opened, for writing if it was a write. It is noted as open already.
    Open {
        /// What the program waits for.
        now: Range<u64>,
        /// As with a fetch.
        ahead: Range<u64>,
    },
    /// `now` must be fetched, and then be noted with [`Table::arrived`]; then `ahead`, as [`Block::Ready`], while the program goes on.
    Fetch {
        /// What the program waits for.
        now: Range<u64>,
        /// What it will probably want next. May be empty.
        ahead: Range<u64>,
    },
}

/// What must happen before the device uses memory: first `close` is closed to the program (or made read-only, see
/// [`Table::share`]), then `send` is sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lent {
    /// Bytes whose protection changes. Empty if that is not necessary.
    pub close: Range<u64>,
    /// Bytes that the device does not have yet.
    pub send: Vec<Range<u64>>,
}

/// See the module's words.
#[derive(Debug)]
pub struct Table {
    bytes: u64,
    blocks: Vec<Block>,
    /// All blocks that are not [`Block::DeviceNewer`] lie in here.
    open: Range<usize>,
    fetches: Walks,
    writes: Walks,
}

impl Table {
    /// New memory, zero on both sides.
    pub fn new(bytes: u64) -> Self {
        let count = bytes.div_ceil(BLOCK_BYTES) as usize;
        let blocks = vec![Block::Same; count];
        Self { bytes, blocks, open: 0..count, fetches: Walks::default(), writes: Walks::default() }
    }

    /// Memory that the program has already, with bytes of its own.
    pub fn on_host(bytes: u64) -> Self {
        let mut table = Self::new(bytes);
        table.blocks.fill(Block::HostNewer);
        table
    }

    /// Memory that the device has already, with bytes of its own.
    pub fn on_device(bytes: u64) -> Self {
        let mut table = Self::new(bytes);
        table.blocks.fill(Block::DeviceNewer);
        table.open = 0..0;
        table
    }

    /// The state of the block that holds a byte.
    pub fn block_at(&self, offset: u64) -> Option<Block> {
        self.blocks.get((offset / BLOCK_BYTES) as usize).copied()
    }

    /// Whether the program may touch any of it.
    pub fn is_any_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// The program touched what it may not touch.
    pub fn fault(&mut self, offset: u64, is_write: bool) -> Fault {
        let at = (offset / BLOCK_BYTES) as usize;
        match self.blocks.get(at) {
            Some(Block::Same) if is_write => {
                let window = self.writes.window(at);
                // Nothing travels yet, so there is nothing to wait for in two steps.
                let count = window.now + window.ahead;
                let end = self.run_end(at, count, Block::Same);
                let next = if window.ahead > 0 { self.run_end(end, count, Block::Same) } else { end };
                self.writes.went(at, end);
                self.blocks[at..end].fill(Block::HostNewer);
                Fault::MakeWritable { now: self.bytes_of(at..end), ahead: self.bytes_of(end..next) }
            }
            Some(Block::Ready) => {
                let window = self.fetches.window(at);
                let end = self.run_end(at, self.blocks.len(), Block::Ready);
                let next = self.run_end(end, window.ahead, Block::DeviceNewer);
                self.fetches.went(at, end);
                self.blocks[at..end].fill(opened(is_write));
                Fault::Open { now: self.bytes_of(at..end), ahead: self.bytes_of(end..next) }
            }
            Some(Block::DeviceNewer) => {
                let window = self.fetches.window(at);
                let end = self.run_end(at, window.now, Block::DeviceNewer);
                let is_whole = end == at + window.now;
                let next = if is_whole { self.run_end(end, window.ahead, Block::DeviceNewer) } else { end };
                self.fetches.went(at, end);
                Fault::Fetch { now: self.bytes_of(at..end), ahead: self.bytes_of(end..next) }
            }
            _ => Fault::Late,
        }
    }

    /// Fetched bytes are here, and their blocks become `state`, which is not [`Block::DeviceNewer`].
    /// Returns whether every block still waited for them; if not, nothing is noted.
    #[must_use]
    pub fn arrived(&mut self, range: &Range<u64>, state: Block) -> bool {
        let blocks = self.blocks_of(range);
        if !self.blocks[blocks.clone()].iter().all(|block| *block == Block::DeviceNewer) {
            return false;
        }
        self.blocks[blocks.clone()].fill(state);
        self.open = hull(&self.open, &blocks);
        true
    }

    /// Work begins that may read and write these bytes: from now on only the device has them.
    pub fn lend(&mut self, range: &Range<u64>) -> Lent {
        let blocks = clip(&self.blocks_of(range), &self.open);
        let Some(first) = blocks.clone().find(|at| self.blocks[*at] != Block::DeviceNewer) else {
            return Lent::default();
        };
        let last = blocks.clone().rev().find(|at| self.blocks[*at] != Block::DeviceNewer).unwrap_or(first);
        let send = self.runs(blocks.clone(), Block::HostNewer);
        self.blocks[blocks.clone()].fill(Block::DeviceNewer);
        if blocks.start <= self.open.start {
            self.open.start = blocks.end.min(self.open.end);
        }
        if blocks.end >= self.open.end {
            self.open.end = blocks.start.max(self.open.start);
        }
        // What comes next is another part of the program: it has to show anew that it goes through memory.
        (self.fetches, self.writes) = Default::default();
        Lent { close: self.bytes_of(first..last + 1), send }
    }

    /// Work begins that only reads these bytes: both sides have them from now on. `close` becomes read-only; it has
    /// blocks in it that the program may not touch at all, so the shell takes `send` for the protection too.
    pub fn share(&mut self, range: &Range<u64>) -> Lent {
        let blocks = clip(&self.blocks_of(range), &self.open);
        let send = self.runs(blocks.clone(), Block::HostNewer);
        for run in &send {
            let blocks = self.blocks_of(run);
            self.blocks[blocks].fill(Block::Same);
        }
        let close = match (send.first(), send.last()) {
            (Some(first), Some(last)) => first.start..last.end,
            _ => 0..0,
        };
        Lent { close, send }
    }

    /// Runs of blocks that the device has and the host does not, within a range: what a prefetch to the host fetches.
    pub fn only_on_device(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        self.runs(self.blocks_of(range), Block::DeviceNewer)
    }

    fn run_end(&self, from: usize, count: usize, state: Block) -> usize {
        let limit = (from + count).min(self.blocks.len());
        (from..limit).find(|at| self.blocks[*at] != state).unwrap_or(limit)
    }

    fn runs(&self, blocks: Range<usize>, state: Block) -> Vec<Range<u64>> {
        let mut runs = Vec::new();
        let mut at = blocks.start;
        while at < blocks.end {
            let end = self.run_end(at, blocks.end - at, state);
            if end > at {
                runs.push(self.bytes_of(at..end));
            }
            at = end + 1;
        }
        runs
    }

    fn blocks_of(&self, range: &Range<u64>) -> Range<usize> {
        let end = range.end.min(self.bytes);
        if range.start >= end {
            return 0..0;
        }
        (range.start / BLOCK_BYTES) as usize..end.div_ceil(BLOCK_BYTES) as usize
    }

    fn bytes_of(&self, blocks: Range<usize>) -> Range<u64> {
        let end = |at: usize| (at as u64 * BLOCK_BYTES).min(self.bytes);
        end(blocks.start)..end(blocks.end)
    }
}

/// What a block becomes that a touch opens.
pub fn opened(is_write: bool) -> Block {
    if is_write { Block::HostNewer } else { Block::Same }
}

fn clip(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    let start = a.start.max(b.start);
    start..a.end.min(b.end).max(start)
}

fn hull(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    match (a.is_empty(), b.is_empty()) {
        (true, _) => b.clone(),
        (_, true) => a.clone(),
        _ => a.start.min(b.start)..a.end.max(b.end),
    }
}
