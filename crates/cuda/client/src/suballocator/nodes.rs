//! The parts of arenas, each with its neighbours: what is live, free, on its way, or not mapped.

use std::ops::{Index, IndexMut};

/// No node.
pub(super) const NONE: u32 = u32::MAX;

/// What a part of an arena is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// A block of the program's, which asked for so many bytes. Work of the stream before may still use it: it was free in
    /// this lane since the free of this number.
    Live { asked: u64, lane: u32, free: u64 },
    /// Mapped and free: in the lists of a lane, since the free of this number. 0: no work uses it.
    Free { lane: u32, free: u64 },
    /// The worker is being told to map it or to unmap it. No other caller touches it.
    Moving,
    /// Not mapped.
    Hole,
    /// Not a node: a place for one.
    Vacant,
}

/// A part of an arena.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub(super) start: u64,
    pub(super) bytes: u64,
    pub(super) state: State,
    /// Neighbours by address, in the same arena.
    pub(super) before: u32,
    pub(super) after: u32,
    /// Neighbours in a list of free extents. A vacant node's `next` is the next vacant one.
    pub(super) previous: u32,
    pub(super) next: u32,
}

impl Node {
    pub(super) fn end(&self) -> u64 {
        self.start + self.bytes
    }
}

/// All nodes of a heap, by number.
#[derive(Debug)]
pub(super) struct Nodes {
    all: Vec<Node>,
    vacant: u32,
}

impl Nodes {
    pub(super) fn new() -> Self {
        Self { all: Vec::new(), vacant: NONE }
    }

    pub(super) fn get(&self, node: u32) -> Option<&Node> {
        self.all.get(node as usize).filter(|node| node.state != State::Vacant)
    }

    /// A node without neighbours.
    pub(super) fn add(&mut self, start: u64, bytes: u64, state: State) -> u32 {
        let node = Node { start, bytes, state, before: NONE, after: NONE, previous: NONE, next: NONE };
        if self.vacant == NONE {
            self.all.push(node);
            return self.all.len() as u32 - 1;
        }
        let place = self.vacant;
        self.vacant = self[place].next;
        self[place] = node;
        place
    }

    /// Takes a node out; its neighbours become each other's.
    pub(super) fn remove(&mut self, node: u32) {
        let Node { before, after, .. } = self[node];
        if before != NONE {
            self[before].after = after;
        }
        if after != NONE {
            self[after].before = before;
        }
        self[node].state = State::Vacant;
        self[node].next = self.vacant;
        self.vacant = node;
    }

    /// Cuts a node in two at `bytes` from its start. The second part has the same state; the caller updates the lists.
    pub(super) fn split(&mut self, node: u32, bytes: u64) -> u32 {
        let Node { start, bytes: all, state, after, .. } = self[node];
        debug_assert!(0 < bytes && bytes < all);
        let second = self.add(start + bytes, all - bytes, state);
        self[node].bytes = bytes;
        self[node].after = second;
        self[second].before = node;
        self[second].after = after;
        if after != NONE {
            self[after].before = second;
        }
        second
    }

    /// Makes a node and the one after it one, with the state of the first.
    pub(super) fn join(&mut self, node: u32) {
        let after = self[node].after;
        debug_assert_eq!(self[node].end(), self[after].start);
        self[node].bytes += self[after].bytes;
        self.remove(after);
    }
}

impl Index<u32> for Nodes {
    type Output = Node;

    fn index(&self, node: u32) -> &Node {
        &self.all[node as usize]
    }
}

impl IndexMut<u32> for Nodes {
    fn index_mut(&mut self, node: u32) -> &mut Node {
        &mut self.all[node as usize]
    }
}
