//! Random programs, cut at every command, restored into a fresh session and continued: memory is that of the undisturbed
//! run, byte for byte.
//!
//! The program of a seed is free of races: every buffer belongs to one stream at a time and changes hands through an
//! event. Cuts are taken while work is queued before and behind them.

use super::{guard::*, session::*};
use cuda_driver::Driver;
use cuda_wire::*;
use std::collections::BTreeMap;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % bound
    }
}

const WORDS: u64 = 300;
/// Legacy, two that wait for it and two that do not.
const KINDS: [u32; 5] = [2, 0, 0, 1, 1];
const EVENT: EventId = EventId(77);
const MODULE: ModuleId = ModuleId(1);
const GRAPH: ExecId = ExecId(5);
/// The stream that launches the graph, and the buffer that the graph alone works on.
const GRAPH_STREAM: usize = 3;
const GRAPH_BUFFER: u64 = DATA + (1 << 30);

fn stream(index: usize) -> StreamId {
    StreamId(100 + index as u32)
}

/// One command of a program; streams by index.
#[derive(Clone, Debug)]
enum Step {
    Allocate { stream: Option<usize>, at: u64, bytes: u64 },
    Free { stream: Option<usize>, at: u64 },
    Fill { stream: usize, at: u64, bytes: u64, value: u32 },
    Write { stream: usize, at: u64, bytes: Vec<u8> },
    Copy { stream: usize, to: u64, from: u64 },
    Store { stream: usize, at: u64, value: u64 },
    Variable { stream: usize, value: u64 },
    Graph { run: u32 },
    HandOver { from: usize, to: usize },
}

/// A place for a buffer: one that was freed a moment ago, if it has that size.
fn place_for(bytes: u64, free: &mut Vec<(u64, u64)>, next: &mut u64) -> u64 {
    match free.iter().position(|&(_, kept)| kept == bytes) {
        Some(index) => free.swap_remove(index).0,
        None => {
            *next += 200_192;
            *next - 200_192
        }
    }
}

/// A program without races.
fn program(seed: u64, length: usize) -> Vec<Step> {
    let mut random = Random(seed);
    let mut steps = Vec::new();
    // Buffers by place: bytes, owner, whether freed in a stream's order.
    let mut buffers: BTreeMap<u64, (u64, usize, bool)> = BTreeMap::new();
    let mut free = Vec::new();
    let mut next = DATA;
    while steps.len() < length {
        let stream = random.below(KINDS.len() as u64) as usize;
        let mine: Vec<u64> =
            buffers.iter().filter(|(_, (_, owner, _))| *owner == stream).map(|(at, _)| *at).collect();
        let pick = |random: &mut Random| mine.get(random.below(mine.len().max(1) as u64) as usize).copied();
        match random.below(14) {
            0..3 if buffers.len() < 12 => {
                let bytes = if random.below(4) == 0 { 150_000 } else { WORDS * 4 };
                let at = place_for(bytes, &mut free, &mut next);
                let is_ordered = random.below(2) == 0;
                steps.push(Step::Allocate { stream: is_ordered.then_some(stream), at, bytes });
                steps.push(Step::Fill { stream, at, bytes, value: random.below(256) as u32 });
                buffers.insert(at, (bytes, stream, is_ordered));
            }
            3 => {
                let Some(at) = pick(&mut random) else { continue };
                let (bytes, _, is_ordered) = buffers.remove(&at).unwrap();
                steps.push(Step::Free { stream: is_ordered.then_some(stream), at });
                free.push((at, bytes));
            }
            4 | 5 => {
                let Some(at) = pick(&mut random) else { continue };
                let all = buffers[&at].0;
                let from = random.below(all);
                let bytes = random.below(all - from) + 1;
                steps.push(Step::Fill { stream, at: at + from, bytes, value: random.below(256) as u32 });
            }
            6 => {
                let Some(at) = pick(&mut random) else { continue };
                let bytes = (0..random.below(WORDS * 4) + 1).map(|_| random.below(256) as u8).collect();
                steps.push(Step::Write { stream, at, bytes });
            }
            7 => {
                let (Some(to), Some(from)) = (pick(&mut random), pick(&mut random)) else { continue };
                if to != from {
                    steps.push(Step::Copy { stream, to, from });
                }
            }
            8 | 9 => {
                let Some(at) = pick(&mut random) else { continue };
                let at = at + random.below(WORDS / 2) * 8;
                steps.push(Step::Store { stream, at, value: random.below(u64::MAX) });
            }
            10 => steps.push(Step::Variable { stream: GRAPH_STREAM, value: random.below(u64::MAX) }),
            11 => steps.push(Step::Graph { run: steps.len() as u32 }),
            _ => {
                let Some(at) = pick(&mut random) else { continue };
                let to = random.below(KINDS.len() as u64) as usize;
                steps.push(Step::HandOver { from: stream, to });
                buffers.get_mut(&at).unwrap().1 = to;
            }
        }
    }
    steps
}

/// A session with what all programs need.
struct Machine {
    session: Session,
    variable: u64,
}

impl Machine {
    fn new() -> Self {
        let session = Session::protected();
        let info = session.load(MODULE, CONTEXT).unwrap();
        let variable = info.variables[0].address;
        for (index, kind) in KINDS.into_iter().enumerate() {
            session.stream_create(stream(index), CONTEXT, kind, 0).unwrap();
        }
        session.event_create(EVENT, CONTEXT, 2).unwrap();
        session.memory_allocate(CONTEXT, GRAPH_BUFFER, WORDS * 4).unwrap();
        let copy = Op::CopyDevice {
            target: Plane::line(GRAPH_BUFFER + 8),
            source: Plane::line(GRAPH_BUFFER),
            shape: Shape::line(8),
        };
        let fresh = store(GRAPH_BUFFER, 77);
        let nodes = vec![node(copy, &[]), node(launch(MODULE, STORE, &fresh), &[0])];
        session.graph_instantiate(GRAPH, CONTEXT, nodes).unwrap();
        Self { session, variable }
    }

    fn step(&self, step: &Step) {
        let session = &self.session;
        let enqueue = |index: usize, op| session.enqueue(stream(index), op).unwrap();
        match step {
            Step::Allocate { stream: None, at, bytes } => {
                session.memory_allocate(CONTEXT, *at, *bytes).unwrap();
            }
            Step::Allocate { stream: Some(stream), at, bytes } => {
                enqueue(*stream, Op::Allocate { address: *at, bytes: *bytes });
            }
            Step::Free { stream: None, at } => session.memory_free(*at).unwrap(),
            Step::Free { stream: Some(stream), at } => enqueue(*stream, Op::Free { address: *at }),
            Step::Fill { stream, at, bytes, value } => enqueue(*stream, fill(*at, *bytes, *value)),
            Step::Write { stream, at, bytes } => {
                let data = HostData::Inline { bytes: Bytes(bytes) };
                let shape = Shape::line(bytes.len() as u64);
                enqueue(*stream, Op::CopyIn { target: Plane::line(*at), shape, data });
            }
            Step::Copy { stream, to, from } => {
                let (target, source) = (Plane::line(*to), Plane::line(*from));
                enqueue(*stream, Op::CopyDevice { target, source, shape: Shape::line(WORDS * 4) });
            }
            Step::Store { stream, at, value } => {
                enqueue(*stream, launch(MODULE, STORE, &store(*at, *value)));
            }
            Step::Variable { stream, value } => {
                enqueue(*stream, launch(MODULE, STORE, &store(self.variable + 8, *value)));
            }
            Step::Graph { run } => session.graph_launch(GRAPH, stream(GRAPH_STREAM), *run).unwrap(),
            Step::HandOver { from, to } => {
                enqueue(*from, Op::Record { event: EVENT, flags: 0 });
                enqueue(*to, Op::Wait { event: EVENT, flags: 0 });
            }
        }
    }

    /// All buffers and the variable, when everything is done.
    fn memory(&self, steps: &[Step]) -> Vec<(u64, Vec<u8>)> {
        self.session.drain();
        assert_eq!(self.session.take_deferred(), None);
        self.session.check_rules();
        let mut memory: Vec<(u64, Vec<u8>)> = left(steps)
            .into_iter()
            .map(|(at, bytes)| (at, self.session.fake.peek(at, bytes as usize)))
            .collect();
        memory.push((GRAPH_BUFFER, self.session.fake.peek(GRAPH_BUFFER, WORDS as usize * 4)));
        memory.push((u64::MAX, self.session.fake.peek(self.variable, 64)));
        memory
    }
}

/// Places and bytes of the buffers that are there after these steps.
fn left(steps: &[Step]) -> BTreeMap<u64, u64> {
    let mut buffers = BTreeMap::new();
    for step in steps {
        match step {
            Step::Allocate { at, bytes, .. } => drop(buffers.insert(*at, *bytes)),
            Step::Free { at, .. } => drop(buffers.remove(at)),
            _ => {}
        }
    }
    buffers
}

fn check(seed: u64, length: usize) {
    let steps = program(seed, length);
    let undisturbed = Machine::new();
    steps.iter().for_each(|step| undisturbed.step(step));
    let expected = undisturbed.memory(&steps);
    drop(undisturbed);
    // Every position is cut at in one of these runs; the work of three steps comes between two cuts.
    for first in 0..3 {
        let guardian = Guardian::new();
        let machine = Machine::new();
        let mut pending = None;
        for (position, step) in steps.iter().enumerate() {
            if position % 3 == first {
                if let Some(pending) = pending.take() {
                    guardian.finish(&machine.session, pending);
                }
                pending = Some(machine.session.cut(position as u64 + 1, PATIENT));
            }
            machine.step(step);
        }
        guardian.finish(&machine.session, pending.unwrap());
        assert_eq!(machine.memory(&steps), expected, "seed {seed}: cuts change nothing");
        drop(machine);
        for position in (first..steps.len()).step_by(3) {
            let (before, after) = steps.split_at(position);
            let machine = Machine::new();
            for (at, bytes) in left(before) {
                machine.session.memory_allocate(CONTEXT, at, bytes).unwrap();
            }
            let number = position as u64 + 1;
            let restored = machine.session.restore_from(&guardian, number).unwrap();
            assert_eq!(restored.blocks, guardian.image.lock().unwrap().blocks(number).unwrap().len() as u64);
            after.iter().for_each(|step| machine.step(step));
            assert_eq!(machine.memory(&steps), expected, "seed {seed}, cut at {position}");
        }
    }
}

#[test]
fn a_program_goes_on_from_any_cut_to_the_same_bytes() {
    for seed in 1..=3 {
        check(seed, 45);
    }
}
