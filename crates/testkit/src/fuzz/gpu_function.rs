//! A guest that lies to the GPU function, and a worker behind the function that acts at any moment.
//!
//! The input is a list of moves, a byte each with what the move needs: the guest writes registers, the host answers reads
//! of memory rightly, wrongly or never, the worker takes and sends bytes, time passes. Whatever the moves, the function
//! must not panic, must touch only memory that the guest named, and must tell the worker a story that makes sense: bytes
//! only between an opening and a close, never more of them unread than the function's window.

use std::collections::HashSet;
use std::time::Duration;

use gpu_registers::{CHANNELS, RING_BYTES_MAX, channel_at, control, register, status};
use pcie::endpoint::FunctionOptions;
use pcie::endpoint::gpu::{Action, GpuFunction};
use pcie::{Time, TlpBuf};
use tlp::{Bdf, Body, Header, MemoryOp, ReadCompletionBoundary, SizeLimit, Span, Status, Tag, TransactionId};

/// Where the guest has put the function's registers.
const BAR: u64 = 0xfe00_0000;
/// Moves of one input, and packets between two moves: a guest may ask for more, a fuzzer need not wait for it.
const MOVES_MAX: usize = 400;
const PACKETS_MAX: usize = 64;
/// Bytes that the function may hold of one channel before the worker has taken any: its window and the last piece.
const HELD_BYTES_MAX: usize = (1 << 20) + (64 << 10);

/// Registers that a guest may write, the ones that matter most first.
const REGISTERS: [u64; 12] = [
    register::CONTROL,
    register::OUTBOUND_PUT,
    register::INBOUND_TAKEN,
    register::STATUS_AT,
    register::STATUS_AT + 4,
    register::OUTBOUND_AT,
    register::OUTBOUND_AT + 4,
    register::INBOUND_AT,
    register::INBOUND_AT + 4,
    register::OUTBOUND_BYTES,
    register::INBOUND_BYTES,
    register::VECTOR,
];

/// Takes values off the front of the input; zeros behind its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    fn channel(&mut self) -> usize {
        usize::from(self.byte()) % CHANNELS
    }
}

/// How a channel looks from the worker's side.
#[derive(Clone, Copy, Default)]
struct Seen {
    is_open: bool,
    is_finished: bool,
    held: usize,
}

struct World {
    function: GpuFunction,
    now: Time,
    seen: [Seen; CHANNELS],
    /// Halves of addresses that the guest has ever written. Any two of them may have become an address.
    low: HashSet<u32>,
    high: HashSet<u32>,
    /// Reads of memory that are not answered yet.
    reads: Vec<Header>,
    /// What the worker was told in all: openings, pieces of bytes, ends, closes.
    told: [usize; 4],
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            function: GpuFunction::new(FunctionOptions::default()),
            now: Time::ZERO,
            seen: [Seen::default(); CHANNELS],
            low: HashSet::from([0]),
            high: HashSet::from([0]),
            reads: Vec::new(),
            told: [0; 4],
        };
        // What a guest's kernel does: a place for the BAR, then memory space and bus mastering.
        for (at, value) in [(0x10, BAR as u32), (0x04, 6)] {
            let id = TransactionId::new(Bdf(0), Tag::truncated(0));
            let header = Header::config_write(id, false, Bdf(0x0100), at, 0xf);
            world.deliver(TlpBuf { header, payload: value.to_le_bytes().to_vec() });
        }
        world
    }

    fn deliver(&mut self, packet: TlpBuf) {
        self.function.receive(packet, self.now);
        self.settle();
    }

    fn write(&mut self, channel: usize, at: u64, value: u32) {
        match at {
            register::STATUS_AT | register::OUTBOUND_AT | register::INBOUND_AT => {
                self.low.insert(value);
            }
            at if at & 4 != 0 && at < register::OUTBOUND_BYTES => {
                self.high.insert(value);
            }
            _ => {}
        }
        let address = BAR + channel_at(channel) + at;
        self.deliver(TlpBuf::memory_write(Bdf(0), address, &value.to_le_bytes()).expect("a double word"));
    }

    /// Takes what the function has for the host and for the worker, and holds it to what it promised.
    fn settle(&mut self) {
        for _ in 0..PACKETS_MAX {
            let Some(packet) = self.function.transmit(self.now) else { break };
            assert!(packet.header.check().is_ok(), "what the function sends is a packet");
            if let Some((span, is_read)) = memory_of(&packet.header) {
                self.check_span(&span);
                if is_read {
                    self.reads.push(packet.header);
                }
            }
        }
        while let Some(action) = self.function.next_action() {
            self.check_action(action);
        }
    }

    fn check_span(&self, span: &Span) {
        let bytes = u64::from(span.length_dw) * 4;
        let is_named = |base: u64| {
            let reach = u64::from(RING_BYTES_MAX).max(status::BYTES);
            span.address >= base && span.address + bytes <= base.saturating_add(reach)
        };
        let bases = self.high.iter().flat_map(|high| self.low.iter().map(move |low| (high, low)));
        let mut bases = bases.map(|(high, low)| u64::from(*high) << 32 | u64::from(*low));
        assert!(bases.any(is_named), "the guest never named {:#x}", span.address);
    }

    fn check_action(&mut self, action: Action) {
        let which = match action {
            Action::Open(_) => 0,
            Action::Bytes(..) => 1,
            Action::Finish(_) => 2,
            Action::Close(_) => 3,
        };
        self.told[which] += 1;
        match action {
            Action::Open(id) => {
                assert!(!self.seen[id].is_open, "channel {id} is open already");
                self.seen[id] = Seen { is_open: true, ..Seen::default() };
            }
            Action::Bytes(id, data) => {
                let seen = &mut self.seen[id];
                assert!(seen.is_open && !seen.is_finished, "bytes of channel {id} that is not open");
                seen.held += data.len();
                assert!(seen.held <= HELD_BYTES_MAX, "channel {id} holds {} bytes", seen.held);
            }
            Action::Finish(id) => {
                assert!(self.seen[id].is_open && !self.seen[id].is_finished, "channel {id} ends once");
                self.seen[id].is_finished = true;
            }
            Action::Close(id) => {
                assert!(self.seen[id].is_open, "channel {id} is closed already");
                self.seen[id] = Seen::default();
            }
        }
    }

    /// Answers a read of memory: rightly, or with what the input says.
    fn answer(&mut self, input: &mut Input<'_>) {
        if self.reads.is_empty() {
            return;
        }
        let which = usize::from(input.byte()) % self.reads.len();
        let request = self.reads.swap_remove(which);
        let Some((span, _)) = memory_of(&request) else { return };
        let how = input.byte();
        if how & 3 == 3 {
            return self.deliver(TlpBuf::completion(&request, Bdf(0), Status::UnsupportedRequest));
        }
        let bytes = if how & 3 == 2 { usize::from(input.byte()) } else { usize::from(span.length_dw) * 4 };
        let data = vec![how; bytes];
        let limit = SizeLimit::new(128).expect("a size of the specification");
        let boundary = ReadCompletionBoundary::Bytes64;
        let pieces: Vec<TlpBuf> =
            TlpBuf::completions(&request, Bdf(0), span.address, &data, limit, boundary).collect();
        // Some hosts say everything twice.
        let times = 1 + usize::from(how & 4 != 0);
        for packet in std::iter::repeat_n(pieces, times).flatten() {
            self.deliver(packet);
        }
    }

    fn play(&mut self, input: &mut Input<'_>) {
        match input.byte() % 12 {
            0 | 1 => {
                let (id, at) = (input.channel(), REGISTERS[usize::from(input.byte()) % REGISTERS.len()]);
                let value = input.word();
                self.write(id, at, value);
            }
            // A guest that begins as it should, so that the moves behind it reach deeper.
            2 => {
                let (id, base) = (input.channel(), u32::from(input.byte()) << 16);
                let ring = 4096u32 << (input.byte() % 13);
                for (at, value) in [
                    (register::STATUS_AT, base),
                    (register::OUTBOUND_AT, base + 0x1000),
                    (register::INBOUND_AT, base + 0x2000),
                    (register::OUTBOUND_BYTES, ring),
                    (register::INBOUND_BYTES, ring),
                    (register::VECTOR, u32::from(input.byte())),
                    (register::CONTROL, control::OPEN),
                ] {
                    self.write(id, at, value);
                }
                self.function.opened(id);
            }
            3 => self.answer(input),
            4 => self.function.opened(input.channel()),
            5 => self.function.refused(input.channel()),
            6 => {
                let id = input.channel();
                let bytes = usize::from(input.byte()) << 9;
                self.seen[id].held = self.seen[id].held.saturating_sub(bytes);
                self.function.taken(id, bytes);
            }
            7 => {
                let (id, bytes) = (input.channel(), usize::from(input.byte()) << 4);
                let room = self.function.room(id);
                assert_eq!(self.function.push(id, &vec![0x5a; bytes]), room.min(bytes));
            }
            8 => self.function.finish(input.channel()),
            9 => self.function.desert(input.channel()),
            10 => {
                self.now += Duration::from_millis(u64::from(input.byte()) << 2);
                self.function.on_tick(self.now);
            }
            _ => {
                let Ok((tlp, rest)) = tlp::Tlp::decode_front(input.0) else { return };
                input.0 = rest;
                let packet = TlpBuf { header: tlp.header, payload: tlp.payload.to_vec() };
                // Configuration is the host's business: it alone says where the function's interrupts go.
                if !matches!(packet.header.body, Body::Config(_)) {
                    self.deliver(packet);
                }
            }
        }
        self.settle();
    }
}

/// The memory that a packet of the function reads or writes, and whether it reads.
fn memory_of(header: &Header) -> Option<(Span, bool)> {
    match &header.body {
        Body::Memory(memory) => Some((memory.span(), memory.op == MemoryOp::Read)),
        _ => None,
    }
}

/// Moves of a guest, its host and the worker behind the function, see above.
pub fn gpu_function(bytes: &[u8]) {
    play_all(bytes);
}

fn play_all(bytes: &[u8]) -> [usize; 4] {
    let mut world = World::new();
    let mut input = Input(bytes);
    for _ in 0..MOVES_MAX {
        if input.0.is_empty() {
            break;
        }
        world.play(&mut input);
    }
    world.function.reset();
    world.settle();
    assert!(world.seen.iter().all(|seen| !seen.is_open), "a reset closes every channel");
    world.told
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus;

    /// Seeds whose moves the function ignores would teach a fuzzer nothing.
    #[test]
    fn the_seeds_reach_the_worker() {
        let mut told = [0; 4];
        for (_, bytes) in corpus::seeds("gpu_function").expect("the corpus is there") {
            let one = play_all(&bytes);
            told = std::array::from_fn(|at| told[at] + one[at]);
        }
        let [opened, pieces, ended, closed] = told;
        assert!(opened >= 25 && pieces >= 5 && ended >= 1 && closed == opened, "{told:?}");
    }
}
