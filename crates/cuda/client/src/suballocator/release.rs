//! Which pieces go back to the device.

use super::nodes::{NONE, State};
use super::{GRANULE_BYTES, Heap, Piece};
use crate::stream_order::StreamOrder;

impl Heap {
    /// Takes out pieces in which nothing lives, the last first, as long as the heap keeps `keep_bytes`. Only those whose frees
    /// are done, unless `pressed`: then the worker waits for the work before it unmaps, as it always does.
    ///
    /// The caller has them unmapped and then calls [`Self::unmapped`].
    pub fn release(&mut self, keep_bytes: u64, order: &StreamOrder, pressed: bool) -> Vec<Piece> {
        let mut released = Vec::new();
        if !(self.may_release || pressed) || self.reserved_bytes <= keep_bytes {
            return released;
        }
        self.may_release = false;
        let mut is_kept = false;
        for (start, end) in self.free_runs(order, pressed).into_iter().rev() {
            let inside = |(address, bytes): (&u64, &u64)| {
                (*address >= start && *address + *bytes <= end).then_some((*address, *bytes))
            };
            let pieces: Vec<(u64, u64)> = self.pieces.range(start..end).filter_map(inside).collect();
            for (address, bytes) in pieces.into_iter().rev() {
                if self.reserved_bytes - bytes < keep_bytes {
                    is_kept = true;
                    continue;
                }
                let node = self.isolate(address, bytes);
                self.pieces.remove(&address);
                self.reserved_bytes -= bytes;
                released.push(Piece { address, bytes, node });
            }
        }
        // What the level keeps may go when the level falls; what waits for a stream may go when it is done.
        self.may_release = is_kept || self.has_waiting(order);
        released
    }

    /// The worker was told to unmap a piece. Returns the arena that is empty now, if there is one: its addresses are not
    /// the heap's any more.
    pub fn unmapped(&mut self, piece: Piece) -> Option<u64> {
        self.moving(piece)?;
        self.make_hole(piece.node);
        self.take_empty_arena(piece.address)
    }

    /// Forgets the arena of an address, if nothing is mapped in it.
    pub(super) fn take_empty_arena(&mut self, address: u64) -> Option<u64> {
        let (address, (bytes, first)) =
            self.arenas.range(..=address).next_back().map(|(address, arena)| (*address, *arena))?;
        let is_empty = self.nodes[first].state == State::Hole && self.nodes[first].bytes == bytes;
        is_empty.then(|| {
            self.holes.remove(&(address, first));
            self.nodes.remove(first);
            self.arenas.remove(&address);
            address
        })
    }

    /// First addresses of all arenas.
    pub fn arenas(&self) -> impl Iterator<Item = u64> {
        self.arenas.keys().copied()
    }

    /// Ranges that are free without a gap, in the order of addresses.
    fn free_runs(&self, order: &StreamOrder, pressed: bool) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (_, first) in self.arenas.values() {
            let mut at = *first;
            let mut run: Option<(u64, u64)> = None;
            while at != NONE {
                let node = &self.nodes[at];
                let goes = match node.state {
                    State::Free { lane, free } => {
                        pressed || order.is_done(self.context, self.lane(lane).stream, free)
                    }
                    _ => false,
                };
                if goes {
                    run = Some((run.map_or(node.start, |(start, _)| start), node.end()));
                } else {
                    runs.extend(run.take());
                }
                at = node.after;
            }
            runs.extend(run);
        }
        runs.retain(|(start, end)| end - start >= GRANULE_BYTES);
        runs
    }

    fn has_waiting(&self, order: &StreamOrder) -> bool {
        self.lanes.iter().flatten().any(|lane| {
            lane.free_bytes >= GRANULE_BYTES && !order.is_done(self.context, lane.stream, lane.newest)
        })
    }

    /// Makes one node of a free range, in no list.
    fn isolate(&mut self, address: u64, bytes: u64) -> u32 {
        let end = address + bytes;
        let mut at = self.node_at(address);
        if self.nodes[at].start < address {
            at = self.cut(at, address - self.nodes[at].start);
        }
        let first = at;
        loop {
            if self.nodes[at].end() > end {
                self.cut(at, end - self.nodes[at].start);
            }
            self.take_out(at);
            self.nodes[at].state = State::Moving;
            if at != first {
                let before = self.nodes[at].before;
                self.nodes.join(before);
                at = before;
            }
            if self.nodes[at].end() == end {
                return first;
            }
            at = self.nodes[at].after;
        }
    }

    /// Cuts a free extent in two; both stay free. Returns the second.
    fn cut(&mut self, node: u32, bytes: u64) -> u32 {
        let State::Free { lane, free } = self.nodes[node].state else {
            unreachable!("only free extents are cut")
        };
        self.take_out(node);
        let second = self.nodes.split(node, bytes);
        self.put_in(node, lane, free);
        self.put_in(second, lane, free);
        second
    }

    fn node_at(&self, address: u64) -> u32 {
        let (_, (_, first)) = self.arenas.range(..=address).next_back().expect("pieces lie in arenas");
        let mut at = *first;
        while self.nodes[at].end() <= address {
            at = self.nodes[at].after;
        }
        at
    }
}
