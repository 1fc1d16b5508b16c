//! The memory of a pool, given out here: the worker maps it in large pieces and hears of nothing smaller.
//!
//! A heap has arenas, ranges of addresses that are far larger than what is mapped in them. Pieces of memory are mapped into
//! an arena side by side, and a block may lie across several; so what is free at the end of one piece is not lost when
//! the next is mapped, and a piece in which nothing lives can go back to the device by itself.
//!
//! ```text
//! arena │ piece, 32 MiB         │ piece                 │            not mapped            │ piece         │ not mapped
//!       │ live │free 1│  live          │    free 2     │              hole                │ live │ free 1 │   hole
//! ```
//!
//! What is free belongs to a lane: the stream it was freed in, with the number of that free. Its own stream may have it
//! again at once, because the stream itself keeps the order. Another stream may have it when [`StreamOrder`] knows that it comes
//! after the free. Neighbours of one lane are always joined; those of different lanes when both are done.
//!
//! Nothing here is locked and nothing is sent. A caller takes [`Step`]s until its block is [`Step::Placed`], and tells
//! the worker what each step asks for in between. No block is placed in a piece before [`Heap::mapped`], and the piece
//! is not mapped anew before [`Heap::unmapped`], so the caller need not hold the heap while it talks.

mod bins;
mod free_ranges;
mod grow;
mod nodes;
mod release;

use crate::stream_order::{Reuse, StreamOrder};
use bins::{Bins, UNIT_BYTES};
use nodes::{NONE, Nodes, State};
use std::collections::{BTreeMap, BTreeSet};

pub use grow::{GRANULE_BYTES, Growth};

/// What a pool takes from the device at a time, as driver 580 does.
pub const STEP_BYTES: u64 = 32 << 20;
/// Free memory of other streams that a stream lets lie, rather than wait for them: this much, or half of what is used.
/// A stream that allocates what another one frees would otherwise take more and more from the device.
const LET_LIE_BYTES: u64 = 2 * STEP_BYTES;
/// The lane of memory that no work uses; no stream has this number.
const NO_STREAM: u32 = 0;
const SHARED_LANE: u32 = 0;

/// A block of a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// First address.
    pub address: u64,
    /// Its number, for [`Heap::free`].
    pub number: u32,
}

/// A piece of memory that the worker maps or unmaps as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First address.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    node: u32,
}

/// What must happen next for an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing: here it is.
    Placed(Block),
    /// Make the allocating stream wait for this one, tell the order, and try again.
    WaitFor(u32),
    /// Have these pieces mapped, say of each whether it is, and try again.
    Map(Vec<Piece>),
    /// Add an arena of so many addresses, and try again.
    Reserve(u64),
}

/// How hard an allocation should try.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effort {
    /// The device has memory.
    Ordinary,
    /// It has not: wait for other streams rather than take more, and take no more than is needed.
    Pressed,
}

/// Free extents of one stream.
#[derive(Debug)]
struct Lane {
    stream: u32,
    bins: Bins,
    free_bytes: u64,
    /// The latest free in it.
    newest: u64,
}

/// The memory of one pool in one context.
#[derive(Debug)]
pub struct Heap {
    context: u64,
    nodes: Nodes,
    /// Lanes; a place without one is `None`.
    lanes: Vec<Option<Lane>>,
    /// The lane that was used last, nearly always the next one too.
    latest_lane: u32,
    /// Arenas: first address to bytes and first node.
    arenas: BTreeMap<u64, (u64, u32)>,
    /// Mapped pieces: first address to bytes.
    pieces: BTreeMap<u64, u64>,
    /// What is not mapped: first address and node.
    holes: BTreeSet<(u64, u32)>,
    /// Where the next piece is looked for: addresses that were given up are used again as late as possible.
    cursor: u64,
    used_bytes: u64,
    reserved_bytes: u64,
    /// Whether something was freed since the last look for pieces that can go.
    may_release: bool,
}

impl Heap {
    /// An empty heap for blocks of a context.
    pub fn new(context: u64) -> Self {
        let shared = Lane { stream: NO_STREAM, bins: Bins::new(), free_bytes: 0, newest: 0 };
        Self {
            context,
            nodes: Nodes::new(),
            lanes: vec![Some(shared)],
            latest_lane: SHARED_LANE,
            arenas: BTreeMap::new(),
            pieces: BTreeMap::new(),
            holes: BTreeSet::new(),
            cursor: 0,
            used_bytes: 0,
            reserved_bytes: 0,
            may_release: false,
        }
    }

    /// The context it belongs to.
    pub fn context(&self) -> u64 {
        self.context
    }

    /// Bytes that the program asked for and has not freed.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Bytes that are mapped, or about to be.
    pub fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes
    }

    /// The next step towards a block of `bytes` for work of `stream`.
    pub fn step(
        &mut self,
        bytes: u64,
        stream: u32,
        order: &StreamOrder,
        reuse: Reuse,
        effort: Effort,
    ) -> Step {
        let size = bytes.max(1).next_multiple_of(UNIT_BYTES);
        let own = self.lane_of(stream);
        let found = self
            .find_own(own, size)
            .or_else(|| self.find_ordered(own, size, order, reuse))
            .or_else(|| self.find_joined(own, size, order, reuse));
        if let Some(node) = found {
            return Step::Placed(self.place(node, size, bytes));
        }
        if reuse.internal_dependencies
            && let Some(freed_in) = self.worth_waiting_for(own, size, order, reuse, effort)
        {
            return Step::WaitFor(freed_in);
        }
        self.grow(size, own, effort)
    }

    /// Frees a block. With a stream, when that stream comes to it, as the free of this number. Without one, nothing that was
    /// given to it since it was placed uses it any more. Returns what was asked for, `None` if no such block lives.
    pub fn free(&mut self, block: Block, freed_in: Option<(u32, u64)>, order: &StreamOrder) -> Option<u64> {
        let node = self.nodes.get(block.number).filter(|node| node.start == block.address)?;
        let State::Live { asked, lane, free } = node.state else { return None };
        self.used_bytes -= asked;
        let (lane, free) = match freed_in {
            Some((stream, free)) => (self.lane_of(stream), free),
            // A lane that is gone had nothing that was not done.
            None if self.lanes[lane as usize].is_none() => (SHARED_LANE, 0),
            None => (lane, free),
        };
        self.set_free(block.number, lane, free, order);
        Some(asked)
    }

    /// The latest free in a stream.
    pub fn newest_free_in(&self, stream: u32) -> Option<u64> {
        self.lanes.iter().flatten().find(|lane| lane.stream == stream).map(|lane| lane.newest)
    }

    /// All that was freed in a stream is done and the stream is gone: any stream may have its memory.
    pub fn end_lane(&mut self, stream: u32, order: &StreamOrder) {
        let known = |lane: &Option<Lane>| lane.as_ref().is_some_and(|lane| lane.stream == stream);
        let Some(index) = self.lanes.iter().position(known).map(|index| index as u32) else { return };
        if index == SHARED_LANE {
            return;
        }
        for node in self.lane(index).bins.all(&self.nodes) {
            // It may have been joined with one that came before it in the list.
            if matches!(self.nodes.get(node).map(|node| node.state), Some(State::Free { lane, .. }) if lane == index)
            {
                self.take_out(node);
                self.set_free(node, SHARED_LANE, 0, order);
            }
        }
        self.lanes[index as usize] = None;
        self.latest_lane = SHARED_LANE;
    }

    fn lane(&self, lane: u32) -> &Lane {
        self.lanes[lane as usize].as_ref().expect("a lane that nodes name is there")
    }

    /// The lane of a stream, made if need be.
    #[inline]
    fn lane_of(&mut self, stream: u32) -> u32 {
        if self.lanes[self.latest_lane as usize].as_ref().is_some_and(|lane| lane.stream == stream) {
            return self.latest_lane;
        }
        let known = |lane: &Option<Lane>| lane.as_ref().is_some_and(|lane| lane.stream == stream);
        let found = self.lanes.iter().position(known).unwrap_or_else(|| {
            let lane = Some(Lane { stream, bins: Bins::new(), free_bytes: 0, newest: 0 });
            let vacant = self.lanes.iter().position(Option::is_none);
            match vacant {
                Some(place) => {
                    self.lanes[place] = lane;
                    place
                }
                None => {
                    self.lanes.push(lane);
                    self.lanes.len() - 1
                }
            }
        });
        self.latest_lane = found as u32;
        self.latest_lane
    }

    /// An extent of the stream's own lane, or of the lane of memory that no work uses.
    #[inline]
    fn find_own(&self, own: u32, size: u64) -> Option<u32> {
        let own = self.lane(own).bins.find(&self.nodes, size);
        own.or_else(|| self.lane(SHARED_LANE).bins.find(&self.nodes, size))
    }

    /// Lanes of other streams that have as much free.
    fn others(&self, own: u32, size: u64) -> impl Iterator<Item = &Lane> {
        let other = move |(index, lane): &(usize, &Option<Lane>)| {
            *index as u32 != own
                && *index as u32 != SHARED_LANE
                && lane.as_ref().is_some_and(|lane| lane.free_bytes >= size)
        };
        self.lanes.iter().enumerate().filter(other).filter_map(|(_, lane)| lane.as_ref())
    }

    /// An extent of another lane that the stream is ordered behind.
    fn find_ordered(&self, own: u32, size: u64, order: &StreamOrder, reuse: Reuse) -> Option<u32> {
        let stream = self.lane(own).stream;
        self.others(own, size).find_map(|lane| {
            let is_ordered = |free: u64| order.is_ordered(self.context, lane.stream, free, stream, reuse);
            if is_ordered(lane.newest) {
                return lane.bins.find(&self.nodes, size);
            }
            lane.bins.find_where(&self.nodes, size, |node| match self.nodes[node].state {
                State::Free { free, .. } => is_ordered(free),
                _ => false,
            })
        })
    }

    /// The same after neighbours were joined that the stream is ordered behind, whatever their lanes.
    fn find_joined(&mut self, own: u32, size: u64, order: &StreamOrder, reuse: Reuse) -> Option<u32> {
        let with_memory = self.lanes.iter().flatten().filter(|lane| lane.free_bytes > 0);
        let (lanes, free_bytes) = with_memory.fold((0, 0), |(n, sum), lane| (n + 1, sum + lane.free_bytes));
        if lanes < 2 || free_bytes < size {
            return None;
        }
        self.join_ordered(own, order, reuse);
        self.lane(own).bins.find(&self.nodes, size)
    }

    /// Joins neighbours that the stream is ordered behind, as if it had allocated and freed them itself.
    fn join_ordered(&mut self, own: u32, order: &StreamOrder, reuse: Reuse) {
        let stream = self.lane(own).stream;
        let context = self.context;
        let firsts: Vec<u32> = self.arenas.values().map(|(_, first)| *first).collect();
        for first in firsts {
            let mut at = first;
            while at != NONE {
                let after = self.nodes[at].after;
                if after == NONE {
                    break;
                }
                let lane_of = |node: u32| match self.nodes[node].state {
                    State::Free { lane, free } => Some((lane, free)),
                    _ => None,
                };
                let (Some(here), Some(there)) = (lane_of(at), lane_of(after)) else {
                    at = after;
                    continue;
                };
                let is_ordered = |(lane, free): (u32, u64)| {
                    order.is_ordered(context, self.lane(lane).stream, free, stream, reuse)
                };
                if !is_ordered(here) || !is_ordered(there) {
                    at = after;
                    continue;
                }
                let is_done = |(lane, free): (u32, u64)| order.is_done(context, self.lane(lane).stream, free);
                let are_done = is_done(here) && is_done(there);
                self.take_out(at);
                self.take_out(after);
                self.nodes.join(at);
                // A new number: another stream may have the joined extent once it is ordered behind this stream's
                // present work.
                let free = if are_done { 0 } else { order.next_free() };
                self.put_in(at, own, free);
            }
        }
    }

    /// The stream whose memory the allocation should wait for, rather than take more from the device.
    fn worth_waiting_for(
        &self,
        own: u32,
        size: u64,
        order: &StreamOrder,
        reuse: Reuse,
        effort: Effort,
    ) -> Option<u32> {
        let stream = self.lane(own).stream;
        let unordered =
            |lane: &&Lane| !order.is_ordered(self.context, lane.stream, lane.newest, stream, reuse);
        if effort == Effort::Pressed {
            // Behind all of them everything that is free can be joined.
            return self.others(own, 1).find(unordered).map(|lane| lane.stream);
        }
        let lies: u64 = self.others(own, 1).map(|lane| lane.free_bytes).sum();
        let too_much = lies > LET_LIE_BYTES.max(self.used_bytes / 2);
        self.others(own, size)
            .filter(|lane| too_much || order.waits_anyway(lane.stream, stream))
            .filter(unordered)
            .find(|lane| lane.bins.find(&self.nodes, size).is_some())
            .map(|lane| lane.stream)
    }

    /// Makes a free extent, or its beginning, a block.
    fn place(&mut self, node: u32, size: u64, asked: u64) -> Block {
        let State::Free { lane, free } = self.nodes[node].state else { unreachable!("it was in a list") };
        self.take_out(node);
        if self.nodes[node].bytes > size {
            let rest = self.nodes.split(node, size);
            self.put_in(rest, lane, free);
        }
        self.nodes[node].state = State::Live { asked, lane, free };
        self.used_bytes += asked;
        Block { address: self.nodes[node].start, number: node }
    }

    /// Makes a node that is in no list free, joined with neighbours of its lane and those that are done.
    fn set_free(&mut self, mut node: u32, lane: u32, mut free: u64, order: &StreamOrder) {
        while let after = self.nodes[node].after
            && let Some(other) = self.joins(after, lane, order)
        {
            self.take_out(after);
            self.nodes.join(node);
            free = free.max(other);
        }
        while let before = self.nodes[node].before
            && let Some(other) = self.joins(before, lane, order)
        {
            self.take_out(before);
            self.nodes.join(before);
            node = before;
            free = free.max(other);
        }
        self.may_release |= self.nodes[node].bytes >= GRANULE_BYTES;
        self.put_in(node, lane, free);
    }

    /// The number of a free extent that may become a part of a lane: one of the lane itself, or one that is done.
    #[inline]
    fn joins(&self, node: u32, lane: u32, order: &StreamOrder) -> Option<u64> {
        if node == NONE {
            return None;
        }
        let State::Free { lane: other, free } = self.nodes[node].state else { return None };
        if other == lane {
            return Some(free);
        }
        let is_done = order.is_done(self.context, self.lane(other).stream, free);
        // 0 is below every number of a lane. An extent that is not done must not get into the lane of memory that no
        // work uses.
        is_done.then_some(0)
    }

    fn take_out(&mut self, node: u32) {
        let State::Free { lane, .. } = self.nodes[node].state else { unreachable!("it is in a list") };
        let bytes = self.nodes[node].bytes;
        let lane = self.lanes[lane as usize].as_mut().expect("a lane that nodes name is there");
        lane.bins.remove(&mut self.nodes, node);
        lane.free_bytes -= bytes;
    }

    fn put_in(&mut self, node: u32, lane: u32, free: u64) {
        self.nodes[node].state = State::Free { lane, free };
        let bytes = self.nodes[node].bytes;
        let lane = self.lanes[lane as usize].as_mut().expect("a lane that nodes name is there");
        lane.bins.insert(&mut self.nodes, node);
        lane.free_bytes += bytes;
        lane.newest = lane.newest.max(free);
    }
}

#[cfg(test)]
mod tests;
