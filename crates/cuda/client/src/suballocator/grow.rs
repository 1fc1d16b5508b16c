//! Where new pieces go.

use super::nodes::{NONE, State};
use super::{Effort, Heap, Piece, STEP_BYTES, Step};
use crate::stream_order::StreamOrder;

/// What devices map memory in: pieces are multiples of it.
pub const GRANULE_BYTES: u64 = 2 << 20;
/// Pieces of one growth: few commands, even for an allocation of many gigabytes, yet parts that can go one by one.
const PIECES_MAX: u64 = 8;
/// Addresses of the first arena; each further one has twice as many, so that a pool that is hardly used takes few.
const ARENA_BYTES_MIN: u64 = 2 << 30;
const ARENA_BYTES_MAX: u64 = 64 << 30;

/// Whether a piece was mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// It is there.
    Mapped,
    /// The device has no memory for it.
    Refused,
}

impl Heap {
    /// Adds addresses in which pieces can be mapped.
    pub fn add_arena(&mut self, address: u64, bytes: u64) {
        let node = self.nodes.add(address, bytes, State::Hole);
        self.arenas.insert(address, (bytes, node));
        self.holes.insert((address, node));
        self.cursor = address;
    }

    /// The worker was told to map a piece for work of `stream`, or refused to. Returns the arena that is empty then.
    pub fn mapped(&mut self, piece: Piece, outcome: Growth, stream: u32, order: &StreamOrder) -> Option<u64> {
        self.moving(piece)?;
        match outcome {
            Growth::Mapped => {
                self.pieces.insert(piece.address, piece.bytes);
                let lane = self.lane_of(stream);
                self.set_free(piece.node, lane, 0, order);
                None
            }
            Growth::Refused => {
                self.reserved_bytes -= piece.bytes;
                self.make_hole(piece.node);
                self.take_empty_arena(piece.address)
            }
        }
    }

    /// A piece that is on its way; `None` if it is of a heap that ended meanwhile with its context.
    pub(super) fn moving(&self, piece: Piece) -> Option<()> {
        let node = self.nodes.get(piece.node)?;
        let is_it = (node.start, node.bytes, node.state) == (piece.address, piece.bytes, State::Moving);
        is_it.then_some(())
    }

    /// Chooses a place for what is missing.
    pub(super) fn grow(&mut self, size: u64, own: u32, effort: Effort) -> Step {
        let Some((hole, from, missing)) = self.place_for(size, own) else {
            let arenas = self.arenas.len().min(u64::BITS as usize - 1 - ARENA_BYTES_MIN.ilog2() as usize);
            let bytes = (ARENA_BYTES_MIN << arenas).min(ARENA_BYTES_MAX);
            let stepped = size.checked_next_multiple_of(STEP_BYTES).unwrap_or(size);
            return Step::Reserve(bytes.max(stepped));
        };
        let room = self.nodes[hole].end() - from;
        let unit = if effort == Effort::Ordinary { STEP_BYTES } else { GRANULE_BYTES };
        let bytes = missing.next_multiple_of(unit).min(room);
        let piece_bytes = bytes.div_ceil(PIECES_MAX).next_multiple_of(unit);
        self.holes.remove(&(self.nodes[hole].start, hole));
        let mut node = hole;
        if from > self.nodes[hole].start {
            node = self.nodes.split(hole, from - self.nodes[hole].start);
            self.holes.insert((self.nodes[hole].start, hole));
        }
        if room > bytes {
            let rest = self.nodes.split(node, bytes);
            self.holes.insert((self.nodes[rest].start, rest));
        }
        self.cursor = from + bytes;
        self.reserved_bytes += bytes;
        let mut pieces = Vec::new();
        loop {
            self.nodes[node].state = State::Moving;
            let rest = (self.nodes[node].bytes > piece_bytes).then(|| self.nodes.split(node, piece_bytes));
            let found = &self.nodes[node];
            pieces.push(Piece { address: found.start, bytes: found.bytes, node });
            match rest {
                Some(rest) => node = rest,
                None => return Step::Map(pieces),
            }
        }
    }

    /// A hole, the address in it to begin at, and how much is missing there: first behind the cursor, then anywhere.
    fn place_for(&self, size: u64, own: u32) -> Option<(u32, u64, u64)> {
        let fits = |hole: u32, from: u64| {
            let found = &self.nodes[hole];
            let from = from.max(found.start);
            let tail = if from == found.start { self.tail_before(hole, own) } else { 0 };
            let missing = size.saturating_sub(tail).max(1).next_multiple_of(GRANULE_BYTES);
            (from < found.end() && missing <= found.end() - from).then_some((hole, from, missing))
        };
        let at_cursor = self.holes.range(..=(self.cursor, u32::MAX)).next_back();
        let at_cursor = at_cursor.filter(|(_, hole)| self.nodes[*hole].end() > self.cursor);
        at_cursor
            .and_then(|(_, hole)| fits(*hole, self.cursor))
            .or_else(|| self.holes.range((self.cursor, 0)..).find_map(|(start, hole)| fits(*hole, *start)))
            .or_else(|| self.holes.iter().find_map(|(start, hole)| fits(*hole, *start)))
    }

    /// Free bytes right before a hole that the lane can have with it.
    fn tail_before(&self, hole: u32, own: u32) -> u64 {
        let before = self.nodes[hole].before;
        if before == NONE {
            return 0;
        }
        match self.nodes[before].state {
            State::Free { lane, free } if lane == own || free == 0 => self.nodes[before].bytes,
            _ => 0,
        }
    }

    /// Makes a node a hole, joined with those beside it.
    pub(super) fn make_hole(&mut self, mut node: u32) {
        self.nodes[node].state = State::Hole;
        let is_hole = |heap: &Self, node: u32| node != NONE && heap.nodes[node].state == State::Hole;
        let after = self.nodes[node].after;
        if is_hole(self, after) {
            self.holes.remove(&(self.nodes[after].start, after));
            self.nodes.join(node);
        }
        let before = self.nodes[node].before;
        if is_hole(self, before) {
            self.holes.remove(&(self.nodes[before].start, before));
            self.nodes.join(before);
            node = before;
        }
        self.holes.insert((self.nodes[node].start, node));
    }
}
