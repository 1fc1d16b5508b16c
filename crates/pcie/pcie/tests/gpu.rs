//! The GPU function as a guest meets it: registers through a host port, rings in the guest's memory.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use gpu_registers::{CHANNELS, channel_at, control, identity, register, state, status};
use pcie::Time;
use pcie::endpoint::FunctionOptions;
use pcie::endpoint::gpu::{Action, GpuFunction};
use pcie::host::{Access, HostMemory, HostOutput, HostPort, HostPortOptions};
use proptest::prelude::*;

const STATUS: u64 = 0x1000;
const OUTBOUND: u64 = 0x10000;
const INBOUND: u64 = 0x20000;
const RING: u32 = 8192;

/// Memory of the guest that records every access.
struct Memory {
    bytes: RefCell<Vec<u8>>,
    reads: RefCell<Vec<(u64, u64)>>,
    writes: RefCell<Vec<(u64, u64)>>,
}

impl HostMemory for Memory {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        self.reads.borrow_mut().push((address, into.len() as u64));
        let bytes = self.bytes.borrow();
        let from = usize::try_from(address).ok().and_then(|at| bytes.get(at..at.checked_add(into.len())?));
        from.inspect(|from| into.copy_from_slice(from)).is_some()
    }

    fn write(&self, address: u64, from: &[u8]) -> bool {
        self.writes.borrow_mut().push((address, from.len() as u64));
        let mut bytes = self.bytes.borrow_mut();
        let to = usize::try_from(address).ok().and_then(|at| bytes.get_mut(at..at.checked_add(from.len())?));
        to.map(|to| to.copy_from_slice(from)).is_some()
    }
}

/// A guest, the function, and packets that move when the test says so.
struct World {
    port: HostPort,
    function: GpuFunction,
    memory: Memory,
    now: Time,
    accesses: u64,
    answers: BTreeMap<u64, Option<Vec<u8>>>,
    actions: VecDeque<Action>,
    interrupts: Vec<u16>,
}

impl World {
    fn new() -> Self {
        let bytes = RefCell::new(vec![0; 1 << 18]);
        let mut world = Self {
            port: HostPort::new(HostPortOptions::default()),
            function: GpuFunction::new(FunctionOptions::default()),
            memory: Memory { bytes, reads: RefCell::default(), writes: RefCell::default() },
            now: Time::ZERO,
            accesses: 0,
            answers: BTreeMap::new(),
            actions: VecDeque::new(),
            interrupts: Vec::new(),
        };
        world.port.discover();
        world.settle();
        world.enable();
        world
    }

    /// What a guest's kernel does: a place for the BAR, memory space, bus mastering, MSI.
    fn enable(&mut self) {
        self.config_write(0x10, &0xfe00_0000u32.to_le_bytes());
        self.config_write(0x54, &0xfee0_0000u32.to_le_bytes());
        self.config_write(0x5c, &0x40u16.to_le_bytes());
        self.config_write(0x52, &0x51u16.to_le_bytes());
        self.config_write(0x04, &6u16.to_le_bytes());
    }

    fn config_write(&mut self, at: u16, data: &[u8]) {
        self.accesses += 1;
        self.port.config_write(Access(self.accesses), at, data);
        self.settle();
    }

    fn settle(&mut self) {
        loop {
            let mut moved = false;
            while let Some(packet) = self.port.transmit(self.now) {
                self.function.receive(packet, self.now);
                moved = true;
            }
            while let Some(packet) = self.function.transmit(self.now) {
                self.port.receive(&packet, &self.memory);
                moved = true;
            }
            while let Some(output) = self.port.next_output() {
                match output {
                    HostOutput::Done { access, data } => drop(self.answers.insert(access.0, data)),
                    HostOutput::Msi(vector) => self.interrupts.push(vector),
                    HostOutput::Discovered(found) => drop(found.expect("a function that can be looked at")),
                    HostOutput::Msix(_) | HostOutput::Error { .. } => {}
                }
            }
            if !moved {
                break;
            }
        }
        while let Some(action) = self.function.next_action() {
            self.actions.push_back(action);
        }
    }

    fn read(&mut self, at: u64) -> u32 {
        self.accesses += 1;
        self.port.bar_read(Access(self.accesses), 0, at, 4);
        self.settle();
        let data = self.answers.remove(&self.accesses).flatten().expect("registers answer");
        u32::from_le_bytes(data.try_into().unwrap())
    }

    fn write(&mut self, at: u64, value: u32) {
        self.port.bar_write(0, at, &value.to_le_bytes());
        self.settle();
    }

    fn set(&mut self, channel: usize, at: u64, value: u32) {
        self.write(channel_at(channel) + at, value);
    }

    fn get(&mut self, channel: usize, at: u64) -> u32 {
        self.read(channel_at(channel) + at)
    }

    fn word(&self, at: u64) -> u32 {
        let at = at as usize;
        u32::from_le_bytes(self.memory.bytes.borrow()[at..at + 4].try_into().unwrap())
    }

    fn open(&mut self, channel: usize) {
        for (at, value) in [
            (register::STATUS_AT, STATUS as u32),
            (register::OUTBOUND_AT, OUTBOUND as u32),
            (register::INBOUND_AT, INBOUND as u32),
            (register::OUTBOUND_BYTES, RING),
            (register::INBOUND_BYTES, RING),
            (register::CONTROL, control::OPEN),
        ] {
            self.set(channel, at, value);
        }
        assert_eq!(self.actions.pop_front(), Some(Action::Open(channel)));
        self.function.opened(channel);
        self.settle();
        assert_eq!(self.word(STATUS + status::STATE), state::OPEN);
    }

    /// The guest sends.
    fn send(&mut self, channel: usize, from: u32, data: &[u8]) {
        for (n, byte) in data.iter().enumerate() {
            let at = (from.wrapping_add(n as u32)) % RING;
            self.memory.bytes.borrow_mut()[OUTBOUND as usize + at as usize] = *byte;
        }
        self.set(channel, register::OUTBOUND_PUT, from.wrapping_add(data.len() as u32));
    }

    fn received(&mut self, channel: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(Action::Bytes(from, data)) = self.actions.front() {
            assert_eq!(*from, channel);
            all.extend_from_slice(data);
            self.actions.pop_front();
        }
        all
    }
}

fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at as u32).wrapping_mul(0x9e37_79b1).to_be_bytes()[0] ^ seed).collect()
}

#[test]
fn the_first_page_says_what_it_is() {
    let mut world = World::new();
    assert_eq!(world.read(identity::MAGIC), gpu_registers::MAGIC);
    assert_eq!(world.read(identity::VERSION), gpu_registers::VERSION);
    assert_eq!(world.read(identity::CHANNELS), CHANNELS as u32);
    assert_eq!(world.get(CHANNELS - 1, register::VECTOR), u32::MAX);
}

#[test]
fn bytes_go_both_ways_round_the_corner() {
    let mut world = World::new();
    world.open(5);
    let (mut sent, mut pushed) = (0u32, 0u32);
    for round in 0..20 {
        let data = pattern(5000 + round * 97, round as u8);
        world.send(5, sent, &data);
        sent += data.len() as u32;
        assert_eq!(world.received(5), data, "round {round}");
        world.function.taken(5, data.len());

        assert_eq!(world.function.push(5, &data), data.len());
        world.settle();
        assert_eq!(world.word(STATUS + status::INBOUND_PUT), pushed + data.len() as u32);
        let bytes = world.memory.bytes.borrow();
        for (n, byte) in data.iter().enumerate() {
            let at = INBOUND as usize + (pushed as usize + n) % RING as usize;
            assert_eq!(bytes[at], *byte);
        }
        drop(bytes);
        pushed += data.len() as u32;
        world.set(5, register::INBOUND_TAKEN, pushed);
    }
    let told = world.word(STATUS + status::OUTBOUND_TAKEN);
    assert!(sent - told < RING / 4, "{sent} sent, {told} told");
}

#[test]
fn a_full_ring_takes_no_more() {
    let mut world = World::new();
    world.open(0);
    assert_eq!(world.function.push(0, &pattern(10_000, 1)), RING as usize);
    assert_eq!((world.function.room(0), world.function.push(0, b"more")), (0, 0));
    world.settle();
    world.set(0, register::INBOUND_TAKEN, 100);
    assert_eq!(world.function.push(0, &pattern(10_000, 1)), 100);
}

#[test]
fn the_end_comes_behind_the_last_byte() {
    let mut world = World::new();
    world.open(1);
    world.send(1, 0, b"last words");
    world.set(1, register::CONTROL, control::FINISH);
    assert_eq!(world.received(1), b"last words");
    assert_eq!(world.actions.pop_front(), Some(Action::Finish(1)));
    // The other direction goes on.
    world.function.push(1, b"answer");
    world.function.finish(1);
    world.settle();
    assert_eq!(world.word(STATUS + status::INBOUND_PUT), 6);
    assert_eq!(world.word(STATUS + status::STATE), state::OPEN | state::FINISHED);
    assert_eq!(world.function.push(1, b"nobody hears"), 0);
}

#[test]
fn what_was_sent_before_a_close_is_delivered() {
    let mut world = World::new();
    world.open(2);
    world.send(2, 0, b"goodbye");
    world.set(2, register::CONTROL, control::CLOSE);
    assert_eq!(world.received(2), b"goodbye");
    assert_eq!(world.get(2, register::STATE), state::OPEN | state::CLOSING);
    world.function.taken(2, 7);
    world.settle();
    assert_eq!(world.actions.pop_front(), Some(Action::Close(2)));
    assert_eq!(world.get(2, register::STATE), 0);
    world.memory.bytes.borrow_mut()[STATUS as usize..][..64].fill(0);
    world.open(2);
}

#[test]
fn a_reset_ends_a_channel_at_once_and_touches_no_other() {
    let mut world = World::new();
    world.open(2);
    world.open(3);
    world.send(2, 0, b"never taken");
    world.set(2, register::CONTROL, control::RESET);
    assert_eq!(world.received(2), b"never taken");
    assert_eq!(world.actions.pop_front(), Some(Action::Close(2)));
    assert_eq!((world.get(2, register::STATE), world.get(2, register::OUTBOUND_BYTES)), (0, 0));
    world.memory.writes.borrow_mut().clear();
    assert_eq!(world.function.push(2, b"late"), 0);
    world.function.finish(2);
    world.settle();
    assert!(world.memory.writes.borrow().is_empty());
    assert_eq!(world.function.push(3, b"alive"), 5);
}

#[test]
fn no_worker_is_said_at_once() {
    let mut world = World::new();
    world.open(0);
    world.set(4, register::STATUS_AT, 0x2000);
    world.set(4, register::OUTBOUND_AT, 0x8000);
    world.set(4, register::INBOUND_AT, 0x9000);
    world.set(4, register::OUTBOUND_BYTES, 4096);
    world.set(4, register::INBOUND_BYTES, 4096);
    world.set(4, register::CONTROL, control::OPEN);
    assert_eq!(world.actions.pop_front(), Some(Action::Open(4)));
    assert_eq!(world.get(4, register::STATE), state::OPENING);
    world.function.refused(4);
    world.settle();
    assert_ne!(world.word(0x2000 + status::STATE) & state::REFUSED, 0);
    assert_eq!(world.actions.pop_front(), Some(Action::Close(4)));
    world.set(4, register::CONTROL, control::CLOSE);
    assert_eq!(world.get(4, register::STATE), 0);
}

#[test]
fn lies_are_a_fault_of_their_channel() {
    let lies: [(u64, u32); 3] = [
        (register::OUTBOUND_PUT, RING + 1),
        (register::INBOUND_TAKEN, 1),
        (register::OUTBOUND_PUT, u32::MAX),
    ];
    for (at, value) in lies {
        let mut world = World::new();
        world.open(7);
        world.set(7, at, value);
        assert_eq!(world.actions.pop_front(), Some(Action::Close(7)));
        assert_ne!(world.word(STATUS + status::STATE) & state::FAULT, 0);
        assert_eq!(world.function.push(7, b"x"), 0);
        world.set(7, register::CONTROL, control::RESET);
        world.open(7);
    }
}

#[test]
fn memory_that_is_not_there_is_a_fault_and_bad_rings_are_never_opened() {
    let mut world = World::new();
    world.set(0, register::OUTBOUND_AT, 0x8000_0000);
    for (at, value) in [
        (register::STATUS_AT, STATUS as u32),
        (register::INBOUND_AT, INBOUND as u32),
        (register::OUTBOUND_BYTES, 4096),
        (register::INBOUND_BYTES, 4096),
        (register::CONTROL, control::OPEN),
    ] {
        world.set(0, at, value);
    }
    assert_eq!(world.actions.pop_front(), Some(Action::Open(0)));
    world.function.opened(0);
    world.set(0, register::OUTBOUND_PUT, 10);
    assert_ne!(world.word(STATUS + status::STATE) & state::FAULT, 0);
    assert_eq!(world.actions.pop_front(), Some(Action::Close(0)));

    for bad in [0, 5000, 2048, 32 << 20] {
        world.set(0, register::CONTROL, control::RESET);
        world.set(0, register::STATUS_AT, STATUS as u32);
        world.set(0, register::OUTBOUND_BYTES, 4096);
        world.set(0, register::INBOUND_BYTES, bad);
        world.set(0, register::CONTROL, control::OPEN);
        assert_eq!(world.get(0, register::STATE), state::FAULT, "{bad}");
        assert!(world.actions.is_empty());
    }
}

#[test]
fn a_function_level_reset_closes_everything() {
    let mut world = World::new();
    world.open(0);
    world.open(62);
    world.accesses += 1;
    world.port.reset(Access(world.accesses));
    world.settle();
    let closed: BTreeSet<_> = world.actions.drain(..).map(|action| format!("{action:?}")).collect();
    assert_eq!(closed, BTreeSet::from(["Close(0)".to_owned(), "Close(62)".to_owned()]));
    world.enable();
    world.open(62);
}

#[test]
fn news_raise_the_interrupt_that_was_asked_for_behind_them() {
    let mut world = World::new();
    world.set(9, register::VECTOR, 3);
    world.open(9);
    assert_eq!(world.interrupts, [3], "the state");
    world.function.push(9, b"x");
    world.settle();
    assert_eq!(world.interrupts, [3, 3]);
}

fn hostile_write() -> impl Strategy<Value = (u64, u32)> {
    let registers = prop_oneof![
        6 => prop::sample::select(vec![
            (register::STATUS_AT, vec![0x1000, 0x1040, 0x1001, 0x3_ffc0, 0xffff_ffc0]),
            (register::OUTBOUND_AT, vec![0x10000, 0x11000, 0x3f000, 0x10004, 0xffff_f000]),
            (register::INBOUND_AT, vec![0x20000, 0x21000, 0x3f000, 0x1000]),
            (register::OUTBOUND_BYTES, vec![4096, 8192, 8192, 4096, 100, 1 << 31]),
            (register::INBOUND_BYTES, vec![4096, 8192, 8192, 4096, 0]),
            (register::CONTROL, vec![1, 1, 1, 1, 2, 3, 4]),
            (register::OUTBOUND_PUT, vec![1, 100, 4096, 5000, 8192, 12000]),
            (register::INBOUND_TAKEN, vec![1, 100, 4096, 5000, 8192, 12000]),
        ]).prop_flat_map(|(at, values)| (Just(at), prop::sample::select(values))),
        1 => prop::sample::select(vec![register::STATUS_AT + 4, register::OUTBOUND_AT + 4, register::VECTOR])
            .prop_flat_map(|at| (Just(at), prop_oneof![Just(0u32), any::<u32>()])),
        1 => (0..1024u64, any::<u32>()).prop_map(|(dw, value)| (dw * 4, value)),
    ];
    (0..2u64, registers).prop_map(|(channel, (at, value))| (channel * 4096 + at, value))
}

fn is_within(range: (u64, u64), inside: &BTreeSet<(u64, u64)>) -> bool {
    inside.iter().any(|(at, bytes)| range.0 >= *at && range.0 + range.1 <= at + bytes)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn whatever_is_written_to_registers_only_what_they_name_is_touched(
        writes in prop::collection::vec((hostile_write(), any::<bool>()), 1..80)
    ) {
        let mut world = World::new();
        let (mut readable, mut writable) = (BTreeSet::new(), BTreeSet::new());
        for ((at, value), echo) in writes {
            let channel = (at / 4096) as usize;
            let name = |world: &mut World, readable: &mut BTreeSet<_>, writable: &mut BTreeSet<_>| {
                let mut long = |at: u64| u64::from(world.get(channel, at)) | u64::from(world.get(channel, at + 4)) << 32;
                let (status_at, out, into) =
                    (long(register::STATUS_AT), long(register::OUTBOUND_AT), long(register::INBOUND_AT));
                readable.insert((out, u64::from(world.get(channel, register::OUTBOUND_BYTES))));
                writable.insert((into, u64::from(world.get(channel, register::INBOUND_BYTES))));
                writable.insert((status_at, status::BYTES));
            };
            name(&mut world, &mut readable, &mut writable);
            world.write(4096 + at, value);
            name(&mut world, &mut readable, &mut writable);
            while let Some(action) = world.actions.pop_front() {
                match action {
                    Action::Open(id) if echo => world.function.opened(id),
                    Action::Open(id) => world.function.refused(id),
                    Action::Bytes(id, data) => {
                        world.function.taken(id, data.len());
                        if echo {
                            world.function.push(id, &data);
                        }
                    }
                    Action::Finish(id) => world.function.finish(id),
                    Action::Close(_) => {}
                }
                world.settle();
            }
            for read in world.memory.reads.borrow_mut().drain(..) {
                prop_assert!(is_within(read, &readable), "read {read:x?}");
            }
            for write in world.memory.writes.borrow_mut().drain(..) {
                prop_assert!(is_within(write, &writable), "write {write:x?}");
            }
        }
        // No mischief lasts: after a reset the channel works.
        for channel in 0..2 {
            world.set(channel, register::CONTROL, control::RESET);
        }
        world.actions.clear();
        world.open(0);
        world.send(0, 0, b"well");
        prop_assert_eq!(world.received(0), b"well");
    }
}
