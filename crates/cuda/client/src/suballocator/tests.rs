//! Heaps against a model that knows no lists, lanes or numbers: only which frees each stream comes after.

use super::*;
use crate::stream_order::StreamKind;
use proptest::prelude::*;
use std::collections::HashSet;

const CONTEXT: u64 = 5;
const STREAMS: u32 = 3;
const MIB: u64 = 1 << 20;
const ALL: Reuse = Reuse { follow_events: true, opportunistic: true, internal_dependencies: true };

/// One thing a program does.
#[derive(Clone, Copy, Debug)]
enum Action {
    Allocate {
        bytes: u64,
        stream: u32,
    },
    /// Frees one of the live blocks, in a stream or without one.
    Free {
        which: usize,
        stream: Option<u32>,
    },
    Record {
        event: u32,
        stream: u32,
    },
    Wait {
        event: u32,
        stream: u32,
    },
    Synchronize {
        stream: u32,
    },
    SynchronizeAll,
    Release {
        keep: u64,
        pressed: bool,
    },
    /// How much the device has from now on.
    Device {
        bytes: u64,
    },
    /// A stream is destroyed and another one begins in its place.
    Renew {
        stream: u32,
    },
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let stream = || 0..STREAMS;
    let bytes = prop_oneof![
        6 => 1u64..100_000,
        2 => 1u64..8 * MIB,
        1 => 1u64..200 * MIB,
        1 => Just(512u64),
        1 => Just(3 << 30u64),
    ];
    let action = prop_oneof![
        10 => (bytes, stream()).prop_map(|(bytes, stream)| Action::Allocate { bytes, stream }),
        9 => (any::<usize>(), proptest::option::weighted(0.9, stream()))
            .prop_map(|(which, stream)| Action::Free { which, stream }),
        2 => (0..2u32, stream()).prop_map(|(event, stream)| Action::Record { event, stream }),
        2 => (0..2u32, stream()).prop_map(|(event, stream)| Action::Wait { event, stream }),
        1 => stream().prop_map(|stream| Action::Synchronize { stream }),
        1 => Just(Action::SynchronizeAll),
        1 => (prop_oneof![Just(0), 0..300 * MIB], any::<bool>())
            .prop_map(|(keep, pressed)| Action::Release { keep, pressed }),
        1 => (1u64..4 << 10).prop_map(|mib| Action::Device { bytes: mib * MIB }),
        1 => stream().prop_map(|stream| Action::Renew { stream }),
    ];
    proptest::collection::vec(action, 1..250)
}

#[derive(Default)]
struct Model {
    /// Live blocks: address, bytes, number.
    live: Vec<(u64, u64, u32)>,
    /// Mapped pieces: address, bytes.
    mapped: Vec<(u64, u64)>,
    /// Ranges by the free that they had last: address, end, free.
    freed: Vec<(u64, u64, u64)>,
    /// What each stream comes after.
    after: Vec<HashSet<u64>>,
    events: [HashSet<u64>; 2],
    done: HashSet<u64>,
    frees: u64,
}

struct Bed {
    heap: Heap,
    order: StreamOrder,
    model: Model,
    /// The numbers of the streams now.
    streams: [u32; STREAMS as usize],
    next_stream: u32,
    next_arena: u64,
    device_bytes: u64,
    reuse: Reuse,
}

impl Bed {
    fn new(reuse: Reuse) -> Self {
        let order = StreamOrder::default();
        let streams = [100, 101, 102];
        let kinds = [StreamKind::Legacy, StreamKind::Blocking, StreamKind::NonBlocking];
        streams.iter().zip(kinds).for_each(|(stream, kind)| order.add_stream(*stream, CONTEXT, kind));
        let model = Model { after: vec![HashSet::new(); 3], ..Model::default() };
        let (next_stream, next_arena, device_bytes) = (103, 1 << 40, 8 << 30);
        Self { heap: Heap::new(CONTEXT), order, model, streams, next_stream, next_arena, device_bytes, reuse }
    }

    fn is_mapped(&self, start: u64, end: u64) -> bool {
        let mut pieces: Vec<_> =
            self.model.mapped.iter().filter(|(at, bytes)| *at < end && at + bytes > start).collect();
        pieces.sort();
        let mut at = start;
        for (from, bytes) in pieces {
            if *from > at {
                return false;
            }
            at = from + bytes;
        }
        at >= end
    }

    fn allocate(&mut self, bytes: u64, stream: u32) -> Option<Block> {
        let mut effort = Effort::Ordinary;
        let mut reuse = self.reuse;
        for _ in 0..100 {
            let number = self.streams[stream as usize];
            match self.heap.step(bytes, number, &self.order, reuse, effort) {
                Step::Placed(block) => {
                    self.placed(block, bytes, stream);
                    return Some(block);
                }
                Step::Reserve(bytes) => {
                    self.heap.add_arena(self.next_arena, bytes);
                    self.next_arena += bytes + (1 << 30);
                }
                Step::WaitFor(other) => {
                    // A stream that ended keeps an event behind its last work: the harness records it where it ends.
                    let Some(other) = self.streams.iter().position(|known| *known == other) else {
                        reuse.internal_dependencies = false;
                        continue;
                    };
                    assert!(self.reuse.internal_dependencies, "the pool does not allow it");
                    self.order.record(9, self.streams[other]);
                    self.order.waited(&self.order.expect(9).unwrap(), number);
                    let seen = self.model.after[other].clone();
                    self.model.after[stream as usize].extend(seen);
                }
                Step::Map(pieces) => {
                    let mut refused = false;
                    for piece in pieces {
                        let used: u64 = self.model.mapped.iter().map(|(_, bytes)| bytes).sum();
                        let fits = used + piece.bytes <= self.device_bytes;
                        refused |= !fits;
                        let outcome = if fits { Growth::Mapped } else { Growth::Refused };
                        if fits {
                            let overlaps = |(at, bytes): &(u64, u64)| {
                                *at < piece.address + piece.bytes && piece.address < at + bytes
                            };
                            assert!(!self.model.mapped.iter().any(overlaps), "mapped twice");
                            assert!(piece.address.is_multiple_of(GRANULE_BYTES));
                            assert!(piece.bytes.is_multiple_of(GRANULE_BYTES));
                            self.model.mapped.push((piece.address, piece.bytes));
                        }
                        let _ = self.heap.mapped(piece, outcome, number, &self.order);
                    }
                    match (refused, effort) {
                        (false, _) => {}
                        (true, Effort::Ordinary) => effort = Effort::Pressed,
                        (true, Effort::Pressed) => return None,
                    }
                }
            }
        }
        panic!("no end of steps");
    }

    fn placed(&mut self, block: Block, bytes: u64, stream: u32) {
        let end = block.address + bytes;
        assert!(block.address.is_multiple_of(512));
        assert!(self.is_mapped(block.address, end), "not mapped");
        let overlaps = |(at, bytes, _): &(u64, u64, u32)| *at < end && block.address < at + bytes;
        assert!(!self.model.live.iter().any(overlaps), "live blocks overlap");
        let after = &self.model.after[stream as usize];
        for (from, to, free) in &self.model.freed {
            if *from < end && block.address < *to {
                assert!(
                    after.contains(free) || self.model.done.contains(free),
                    "stream {stream} gets what free {free} left, and does not come after it"
                );
            }
        }
        self.model.live.push((block.address, bytes, block.number));
    }

    fn free(&mut self, which: usize, stream: Option<u32>) {
        if self.model.live.is_empty() {
            return;
        }
        let place = which % self.model.live.len();
        let (address, bytes, number) = self.model.live.swap_remove(place);
        let block = Block { address, number };
        let freed_in = stream.map(|stream| (self.streams[stream as usize], self.order.next_free()));
        assert_eq!(self.heap.free(block, freed_in, &self.order), Some(bytes));
        assert_eq!(self.heap.free(block, freed_in, &self.order), None, "freed twice");
        if let Some(stream) = stream {
            // The program orders a free behind the allocation: behind all that may still use the place.
            let end = address + bytes.next_multiple_of(512);
            let before: Vec<u64> = self
                .model
                .freed
                .iter()
                .filter(|(from, to, _)| *from < end && address < *to)
                .map(|(_, _, free)| *free)
                .collect();
            self.model.after[stream as usize].extend(before);
            self.model.frees += 1;
            let free = self.model.frees;
            self.model.after[stream as usize].insert(free);
            self.model.freed.push((address, end, free));
        }
    }

    fn release(&mut self, keep: u64, pressed: bool) {
        let before = self.heap.reserved_bytes();
        let released = self.heap.release(keep, &self.order, pressed);
        assert!(self.heap.reserved_bytes() >= keep.min(before));
        for piece in released {
            let place = self.model.mapped.iter().position(|known| *known == (piece.address, piece.bytes));
            self.model.mapped.swap_remove(place.expect("a whole piece"));
            let end = piece.address + piece.bytes;
            let lives = |(at, bytes, _): &(u64, u64, u32)| *at < end && piece.address < at + bytes;
            assert!(!self.model.live.iter().any(lives), "something lives there");
            let waits = |(from, to, free): &(u64, u64, u64)| {
                *from < end && piece.address < *to && !self.model.done.contains(free)
            };
            assert!(pressed || !self.model.freed.iter().any(waits), "work still uses it");
            // The worker unmaps when all work is done; what is mapped there next is fresh.
            let old = std::mem::take(&mut self.model.freed);
            for (from, to, free) in old {
                self.model
                    .freed
                    .extend((from < piece.address.min(to)).then(|| (from, to.min(piece.address), free)));
                self.model.freed.extend((end.max(from) < to).then(|| (from.max(end), to, free)));
            }
            if let Some(arena) = self.heap.unmapped(piece) {
                assert!(!self.heap.arenas().any(|known| known == arena));
            }
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Allocate { bytes, stream } => drop(self.allocate(bytes, stream)),
            Action::Free { which, stream } => self.free(which, stream),
            Action::Record { event, stream } => {
                self.order.record(event, self.streams[stream as usize]);
                self.model.events[event as usize] = self.model.after[stream as usize].clone();
            }
            Action::Wait { event, stream } => {
                if let Some(expected) = self.order.expect(event) {
                    self.order.waited(&expected, self.streams[stream as usize]);
                }
                let seen = self.model.events[event as usize].clone();
                self.model.after[stream as usize].extend(seen);
            }
            Action::Synchronize { stream } => {
                self.order.done(&self.order.mark(self.streams[stream as usize]));
                let done = self.model.after[stream as usize].clone();
                self.model.done.extend(done);
            }
            Action::SynchronizeAll => {
                let over = self.order.context_done(CONTEXT, self.order.mark_all());
                over.into_iter().for_each(|stream| self.heap.end_lane(stream, &self.order));
                self.model.done.extend(1..=self.model.frees);
            }
            Action::Release { keep, pressed } => self.release(keep, pressed),
            Action::Device { bytes } => self.device_bytes = bytes,
            Action::Renew { stream } => {
                let place = &mut self.streams[stream as usize];
                let old = std::mem::replace(place, self.next_stream);
                let newest = self.heap.newest_free_in(old).unwrap_or(0);
                if self.order.end_stream(old, newest) {
                    self.heap.end_lane(old, &self.order);
                }
                self.order.add_stream(self.next_stream, CONTEXT, StreamKind::NonBlocking);
                self.next_stream += 1;
                self.model.after[stream as usize] = HashSet::new();
            }
        }
        self.check();
    }

    /// Books and chains are whole.
    fn check(&self) {
        let used: u64 = self.model.live.iter().map(|(_, bytes, _)| bytes).sum();
        assert_eq!(self.heap.used_bytes(), used);
        let reserved: u64 = self.model.mapped.iter().map(|(_, bytes)| bytes).sum();
        assert_eq!(self.heap.reserved_bytes(), reserved);
        let heap = &self.heap;
        let mut free = vec![0; heap.lanes.len()];
        for (start, (bytes, first)) in &heap.arenas {
            let (mut at, mut node, mut before) = (*start, *first, NONE);
            while node != NONE {
                let found = &heap.nodes[node];
                assert_eq!((found.start, found.before), (at, before));
                if let State::Free { lane, .. } = found.state {
                    free[lane as usize] += found.bytes;
                    let joinable = before != NONE
                        && matches!(heap.nodes[before].state, State::Free { lane: other, .. } if other == lane);
                    assert!(!joinable, "neighbours of one lane");
                }
                at = found.end();
                (before, node) = (node, found.after);
            }
            assert_eq!(at, start + bytes);
        }
        for (lane, bytes) in heap.lanes.iter().zip(free) {
            let Some(lane) = lane else { continue };
            assert_eq!(lane.free_bytes, bytes);
            let listed: u64 = lane.bins.all(&heap.nodes).iter().map(|node| heap.nodes[*node].bytes).sum();
            assert_eq!(listed, bytes);
        }
        self.check_free_ranges();
    }

    /// What is free is what is mapped and not live, to the byte; in larger multiples it is a part of that.
    fn check_free_ranges(&self) {
        let (mut exact, mut blocks) = (Vec::new(), Vec::new());
        self.heap.free_ranges(1, &mut exact);
        self.heap.free_ranges(64 << 10, &mut blocks);
        let live: u64 = self.model.live.iter().map(|(_, bytes, _)| bytes.next_multiple_of(512)).sum();
        let free: u64 = exact.iter().map(|(_, bytes)| bytes).sum();
        assert_eq!(free + live, self.heap.reserved_bytes());
        for (at, bytes) in &exact {
            let overlaps =
                |(start, bytes, _): &(u64, u64, u32), end: u64| *start < end && *at < start + bytes;
            assert!(
                !self.model.live.iter().any(|live| overlaps(live, at + bytes)),
                "a live block is called free"
            );
            assert!(self.is_mapped(*at, at + bytes));
        }
        for (at, bytes) in &blocks {
            assert!(at.is_multiple_of(64 << 10) && bytes.is_multiple_of(64 << 10) && *bytes > 0);
            assert!(exact.iter().any(|(from, all)| from <= at && at + bytes <= from + all));
        }
    }
}

fn reuses() -> impl Strategy<Value = Reuse> {
    any::<[bool; 3]>().prop_map(|[follow_events, opportunistic, internal_dependencies]| Reuse {
        follow_events: follow_events || internal_dependencies,
        opportunistic,
        internal_dependencies,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn whatever_a_program_does(reuse in reuses(), actions in actions()) {
        let mut bed = Bed::new(reuse);
        actions.into_iter().for_each(|action| bed.act(action));
        // In the end everything can be freed and goes back.
        while !bed.model.live.is_empty() {
            bed.free(0, None);
        }
        bed.act(Action::SynchronizeAll);
        bed.release(0, true);
        prop_assert_eq!(bed.heap.reserved_bytes(), 0);
        prop_assert_eq!(bed.heap.arenas().count(), 0);
    }
}

fn bed() -> Bed {
    Bed::new(ALL)
}

#[test]
fn a_stream_gets_its_own_memory_back_at_once_and_another_does_not() {
    let mut bed = bed();
    let first = bed.allocate(10_000, 0).unwrap();
    bed.free(0, Some(0));
    assert_eq!(bed.allocate(10_000, 0).unwrap().address, first.address);
    bed.free(0, Some(0));
    assert_ne!(bed.allocate(10_000, 2).unwrap().address, first.address);
    bed.free(0, Some(2));
    bed.act(Action::Synchronize { stream: 0 });
    assert!(bed.allocate(20 * MIB, 2).is_some() && bed.allocate(20 * MIB, 2).is_some());
    assert_eq!(bed.heap.reserved_bytes(), 2 * STEP_BYTES, "what is done is anybody's");
}

#[test]
fn a_steady_program_takes_no_more_memory() {
    let mut bed = bed();
    let sizes = [3 * MIB, 70_000, 512, 41 * MIB, 9 * MIB, 100, 12_345_678];
    let mut reserved = 0;
    for round in 0..50 {
        let blocks: Vec<Block> = sizes.iter().map(|bytes| bed.allocate(*bytes, 2).unwrap()).collect();
        assert_eq!(blocks.len(), bed.model.live.len());
        while !bed.model.live.is_empty() {
            bed.free(round, Some(2));
        }
        if round == 0 {
            reserved = bed.heap.reserved_bytes();
        }
        assert_eq!(bed.heap.reserved_bytes(), reserved);
    }
    assert_eq!(reserved, 96 * MIB);
}

/// One stream allocates what another frees, and neither ever waits.
#[test]
fn memory_that_goes_from_stream_to_stream_is_bounded() {
    let mut bed = bed();
    for _ in 0..1000 {
        bed.allocate(MIB, 0).unwrap();
        bed.free(0, Some(2));
    }
    assert!(bed.heap.reserved_bytes() <= LET_LIE_BYTES + 2 * STEP_BYTES, "{}", bed.heap.reserved_bytes());
}

#[test]
fn a_full_device_gives_what_lies_in_other_streams() {
    let mut bed = bed();
    bed.device_bytes = 64 * MIB;
    bed.allocate(30 * MIB, 0).unwrap();
    bed.allocate(30 * MIB, 1).unwrap();
    bed.free(0, Some(0));
    bed.free(0, Some(1));
    assert!(bed.allocate(60 * MIB, 2).is_some());
    assert!(bed.allocate(60 * MIB, 2).is_none());
}

#[test]
fn a_device_with_less_than_a_step_left_gives_what_it_has() {
    let mut bed = bed();
    bed.device_bytes = 6 * MIB;
    assert!(bed.allocate(3 * MIB, 0).is_some());
    assert_eq!(bed.heap.reserved_bytes(), 4 * MIB);
    assert!(bed.allocate(3 * MIB, 0).is_none());
    assert!(bed.allocate(2 * MIB, 0).is_some());
}

#[test]
fn pieces_of_a_large_allocation_are_few_and_go_one_by_one() {
    let mut bed = bed();
    bed.allocate(3 << 30, 0).unwrap();
    assert_eq!(bed.model.mapped.len(), 8);
    bed.free(0, None);
    bed.release(1 << 30, false);
    assert_eq!(bed.heap.reserved_bytes(), (3 << 30) / 8 * 3);
}
