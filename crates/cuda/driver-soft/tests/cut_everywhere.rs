//! Random programs, cut at every command, restored into a fresh driver and continued: memory is that of the undisturbed
//! run, byte for byte.
//!
//! The program of a seed is free of races: every buffer belongs to one stream at a time and changes hands through an
//! event. Cuts are taken while work is queued before and behind them.

mod common;

use common::{guard::*, *};
use cuda_driver::Driver;
use cuda_wire::*;
use driver_soft::SoftConfig;
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
const STREAMS: usize = 5;
const EVENT: EventId = EventId(77);
const GRAPH: ExecId = ExecId(5);
/// The stream that launches the graph, and the buffer that the graph alone works on, relative to the session's base.
const GRAPH_STREAM: usize = 3;
const GRAPH_BUFFER: u64 = 1 << 30;

/// One command of a program; streams by index, addresses relative to the session's base.
#[derive(Clone, Debug)]
enum Step {
    Allocate { stream: Option<usize>, at: u64, bytes: u64 },
    Free { stream: Option<usize>, at: u64 },
    Fill { stream: usize, at: u64, words: u64, value: u32 },
    Write { stream: usize, at: u64, bytes: Vec<u8> },
    Copy { stream: usize, to: u64, from: u64 },
    Add { stream: usize, a: u64, b: u64, out: u64 },
    Count { stream: usize },
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
    let mut next = 0;
    while steps.len() < length {
        let stream = random.below(STREAMS as u64) as usize;
        let mine: Vec<u64> =
            buffers.iter().filter(|(_, (_, owner, _))| *owner == stream).map(|(at, _)| *at).collect();
        let pick = |random: &mut Random| mine.get(random.below(mine.len().max(1) as u64) as usize).copied();
        match random.below(14) {
            0..3 if buffers.len() < 12 => {
                let bytes = if random.below(4) == 0 { 150_000 } else { WORDS * 4 };
                let at = place_for(bytes, &mut free, &mut next);
                let is_ordered = random.below(2) == 0;
                steps.push(Step::Allocate { stream: is_ordered.then_some(stream), at, bytes });
                let value = random.below(1 << 32) as u32;
                steps.push(Step::Fill { stream, at, words: bytes / 4, value });
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
                let words = buffers[&at].0 / 4;
                let from = random.below(words);
                let words = random.below(words - from) + 1;
                let value = random.below(1 << 32) as u32;
                steps.push(Step::Fill { stream, at: at + from * 4, words, value });
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
                let picks = (pick(&mut random), pick(&mut random), pick(&mut random));
                let (Some(a), Some(b), Some(out)) = picks else { continue };
                steps.push(Step::Add { stream, a, b, out });
            }
            10 => steps.push(Step::Count { stream }),
            11 => steps.push(Step::Graph { run: steps.len() as u32 }),
            _ => {
                let Some(at) = pick(&mut random) else { continue };
                let to = random.below(STREAMS as u64) as usize;
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
    streams: Vec<StreamId>,
    kernels: [u32; 2],
    counter: u64,
}

impl Machine {
    fn new(base: u64) -> Self {
        let session = Session::at(base, SoftConfig { memory_bytes: 1 << 30, ..SoftConfig::default() });
        let info = session.load(1, include_bytes!("samples/kernels.ptx")).unwrap();
        let kernels = ["add", "count"]
            .map(|name| info.kernels.iter().position(|kernel| kernel.name == name).unwrap() as u32);
        let counter = info.variables.iter().find(|variable| variable.name == "counter").unwrap().address;
        let mut streams = vec![LEGACY];
        streams.extend([0, 0, 1, 1].map(|kind| session.stream(kind)));
        session.driver.event_create(EVENT, CONTEXT, 2).unwrap();
        let buffer = base + GRAPH_BUFFER;
        session.driver.memory_allocate(CONTEXT, buffer, WORDS * 4).unwrap();
        session.driver.enqueue(streams[GRAPH_STREAM], fill32(buffer, WORDS, 1)).unwrap();
        let arguments = parameters(&[buffer, buffer, buffer, WORDS]);
        let node = |op, after| GraphNode { op, after, enabled: true };
        let nodes = vec![
            node(launch(1, kernels[1], 1, 32, &[]), vec![]),
            node(launch(1, kernels[0], 5, 64, &arguments), vec![]),
            node(fill32(buffer, 1, 9), vec![0, 1]),
        ];
        session.driver.graph_instantiate(GRAPH, CONTEXT, nodes).unwrap();
        session.cuts().protect(key()).unwrap();
        Self { session, streams, kernels, counter }
    }

    fn step(&self, step: &Step) {
        let (driver, base) = (&self.session.driver, self.session.base);
        match step {
            Step::Allocate { stream: None, at, bytes } => {
                driver.memory_allocate(CONTEXT, base + at, *bytes).unwrap();
            }
            Step::Allocate { stream: Some(stream), at, bytes } => {
                let op = Op::Allocate { address: base + at, bytes: *bytes };
                driver.enqueue(self.streams[*stream], op).unwrap();
            }
            Step::Free { stream: None, at } => driver.memory_free(base + at).unwrap(),
            Step::Free { stream: Some(stream), at } => {
                driver.enqueue(self.streams[*stream], Op::Free { address: base + at }).unwrap();
            }
            Step::Fill { stream, at, words, value } => {
                driver.enqueue(self.streams[*stream], fill32(base + at, *words, *value)).unwrap();
            }
            Step::Write { stream, at, bytes } => {
                self.session.write(self.streams[*stream], base + at, bytes).unwrap();
            }
            Step::Copy { stream, to, from } => {
                driver.enqueue(self.streams[*stream], copy(base + to, base + from, WORDS * 4)).unwrap();
            }
            Step::Add { stream, a, b, out } => {
                let bytes = parameters(&[base + a, base + b, base + out, WORDS]);
                driver.enqueue(self.streams[*stream], launch(1, self.kernels[0], 5, 64, &bytes)).unwrap();
            }
            Step::Count { stream } => {
                driver.enqueue(self.streams[*stream], launch(1, self.kernels[1], 2, 32, &[])).unwrap();
            }
            Step::Graph { run } => {
                driver.graph_launch(GRAPH, self.streams[GRAPH_STREAM], *run).unwrap();
            }
            Step::HandOver { from, to } => {
                driver.enqueue(self.streams[*from], Op::Record { event: EVENT, flags: 0 }).unwrap();
                driver.enqueue(self.streams[*to], Op::Wait { event: EVENT, flags: 0 }).unwrap();
            }
        }
    }

    /// All buffers and the variable, when everything is done.
    fn memory(&self, steps: &[Step]) -> Vec<(u64, Vec<u8>)> {
        self.session.driver.context_synchronize(CONTEXT).unwrap();
        assert_eq!(self.session.driver.take_deferred(), None);
        let base = self.session.base;
        let mut memory: Vec<(u64, Vec<u8>)> = left(steps)
            .into_iter()
            .map(|(at, bytes)| (at, self.session.read(LEGACY, base + at, bytes).unwrap()))
            .collect();
        memory.push((GRAPH_BUFFER, self.session.read(LEGACY, base + GRAPH_BUFFER, WORDS * 4).unwrap()));
        memory.push((u64::MAX, self.session.read(LEGACY, self.counter, 4).unwrap()));
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
    let base = Session::some_base();
    let steps = program(seed, length);
    let undisturbed = Machine::new(base);
    steps.iter().for_each(|step| undisturbed.step(step));
    let expected = undisturbed.memory(&steps);
    drop(undisturbed);
    // Every position is cut at in one of these runs; the work of three steps comes between two cuts.
    for first in 0..3 {
        let guardian = Guardian::new();
        let machine = Machine::new(base);
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
            let machine = Machine::new(base);
            for (at, bytes) in left(before) {
                machine.session.driver.memory_allocate(CONTEXT, base + at, bytes).unwrap();
            }
            let number = position as u64 + 1;
            let restored = machine.session.restore(&guardian, number).unwrap();
            assert_eq!(restored.blocks, guardian.image.lock().unwrap().blocks(number).unwrap().len() as u64);
            // The buffers' streams are not the same any more: ordered frees of plain allocations work all the same.
            after.iter().for_each(|step| machine.step(step));
            assert_eq!(machine.memory(&steps), expected, "seed {seed}, cut at {position}");
        }
    }
}

#[test]
fn a_program_goes_on_from_any_cut_to_the_same_bytes() {
    for seed in 1..=6 {
        check(seed, 60);
    }
}
