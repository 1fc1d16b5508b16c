//! Random programs on a model of a GPU that does what is enqueued whenever it likes.
//!
//! The model knows for each byte its newest value and which side may use it. Programs follow CUDA's rules: no two sides touch
//! a byte without order between them, except that a kernel may wait for a word. Then three things must hold:
//!
//! - the program never reads an old byte (checked after every step, for each byte that it may read);
//! - a kernel never reads an old byte, and a kernel that waits for a word gets it;
//! - nothing is sent, fetched or waited for without need.

use super::{
    differences::{CLOSE, WORD},
    *,
};
use proptest::prelude::*;
use std::collections::VecDeque;

const STREAMS: usize = 3;
/// Bytes of the memory. Longer than two differences that count as one.
const BYTES: usize = 200;
/// Those that are used, each in a word of its own: neighbours, close ones, far ones, the ends.
const PLACES: [usize; 6] = [0, 4, 40, 104, 195, 199];
const KEY: ShadowKey = ShadowKey { base: 0x1000, context: 7 };
/// What new device memory holds.
const GARBAGE: u8 = 0xee;
/// Bytes of a fetch that arrive together.
const CHUNK: usize = 120;

#[derive(Clone, Debug)]
enum Action {
    /// The program writes a byte.
    Write(usize),
    /// It launches a kernel: stream, bytes it reads, bytes it writes, and a byte that it waits for the program to write.
    Launch(usize, Vec<usize>, Vec<usize>, Option<usize>),
    /// It writes what kernels wait for.
    Signal,
    /// It records an event, which costs it nothing else here.
    Record,
    /// It asks whether an event has happened.
    Query,
    /// It has the second stream wait for what the first has now.
    Order(usize, usize),
    /// It copies from the device into the pinned memory.
    CopyOut(usize, usize),
    /// It waits for a stream.
    Synchronize(usize),
    /// It unpins the memory and pins it again.
    Repin,
    /// The side stream does one thing.
    StepSide,
    /// A stream does one thing.
    Step(usize),
    /// Some bytes of a fetch arrive.
    Arrive(usize),
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let place = || 0..PLACES.len();
    let some = || prop::collection::vec(0..PLACES.len(), 0..3);
    let stream = || 0..STREAMS;
    let action = prop_oneof![
        4 => place().prop_map(Action::Write),
        4 => (stream(), some(), some(), prop::option::weighted(0.2, place()))
            .prop_map(|(stream, reads, writes, waits)| Action::Launch(stream, reads, writes, waits)),
        2 => Just(Action::Signal),
        2 => Just(Action::Record),
        1 => Just(Action::Query),
        1 => (stream(), stream()).prop_map(|(from, to)| Action::Order(from, to)),
        1 => (stream(), place()).prop_map(|(stream, at)| Action::CopyOut(stream, at)),
        1 => stream().prop_map(Action::Synchronize),
        1 => prop::bool::weighted(0.1).prop_map(|repin| if repin { Action::Repin } else { Action::Query }),
        3 => Just(Action::StepSide),
        6 => stream().prop_map(Action::Step),
        4 => (0..8usize).prop_map(Action::Arrive),
    ];
    prop::collection::vec(action, 1..80)
}

enum SideOp {
    Fill,
    Send(Piece),
    Record,
}

enum Op {
    /// Until the side stream has recorded so often.
    WaitSide(u64),
    Kernel {
        waits: Option<(usize, u8)>,
        reads: Vec<(usize, u8)>,
        writes: Vec<(usize, u8)>,
    },
    Fetch(FetchId),
    CopyOut(usize, u8),
    Event(u64),
    WaitEvent(u64),
}

/// Bytes on their way from the GPU.
struct Arriving {
    stream: usize,
    /// `None`: those of a copy.
    fetch: Option<FetchId>,
    offset: usize,
    bytes: Vec<u8>,
    is_last: bool,
}

/// Which side may use a byte.
#[derive(Clone, Copy, PartialEq)]
enum Owner {
    /// The program.
    Program,
    /// These streams, by bit: one wrote it, and the others are ordered behind that.
    Streams(u8),
}

struct Byte {
    newest: u8,
    owner: Owner,
    /// Streams with kernels that read it and may not be done, by bit.
    readers: u8,
    /// What the client and the shadow agreed on last: sent or shown.
    agreed: u8,
}

struct World {
    host: Vec<u8>,
    device: Vec<u8>,
    bytes: Vec<Byte>,
    mirror: Mirror,
    book: Book<usize, ()>,
    side: VecDeque<SideOp>,
    side_records: (u64, u64),
    streams: [VecDeque<Op>; STREAMS],
    arriving: Vec<Arriving>,
    events: (u64, Vec<u64>),
    /// Copies of the program into the memory that are under way.
    copies: usize,
    fetches: usize,
    /// What kernels wait for and the program has not written.
    signals: Vec<(usize, u8)>,
    /// Streams whose kernels may have changed something that no fetch was enqueued behind.
    lent: [bool; STREAMS],
    /// Whether something was sent that the stream does not wait for.
    is_behind: [bool; STREAMS],
}

impl World {
    fn new() -> Self {
        let byte = |_| Byte { newest: 0, owner: Owner::Program, readers: 0, agreed: 0 };
        Self {
            host: vec![0; BYTES],
            device: vec![GARBAGE; BYTES],
            bytes: (0..BYTES).map(byte).collect(),
            mirror: Mirror::new(BYTES),
            book: Book::new(),
            side: VecDeque::new(),
            side_records: (0, 0),
            streams: Default::default(),
            arriving: Vec::new(),
            events: (0, Vec::new()),
            copies: 0,
            fetches: 0,
            signals: Vec::new(),
            lent: [false; STREAMS],
            is_behind: [false; STREAMS],
        }
    }

    /// A value that the byte never had. Programs are too short to use all.
    fn fresh(&mut self, at: usize) -> u8 {
        self.bytes[at].newest += 1;
        assert_ne!(self.bytes[at].newest, GARBAGE);
        self.bytes[at].newest
    }

    fn may_read(&self, stream: usize, at: usize) -> bool {
        match self.bytes[at].owner {
            Owner::Program => true,
            Owner::Streams(streams) => streams >> stream & 1 == 1,
        }
    }

    fn may_write(&self, stream: usize, at: usize) -> bool {
        self.may_read(stream, at) && self.bytes[at].readers & !(1 << stream) == 0 && !self.is_signal(at)
    }

    fn may_program_write(&self, at: usize) -> bool {
        self.bytes[at].owner == Owner::Program && self.bytes[at].readers == 0
    }

    fn is_signal(&self, at: usize) -> bool {
        self.signals.iter().any(|(signal, _)| *signal == at)
    }

    /// What libcuda does around the machine: sends what changed.
    fn send_changes(&mut self) {
        let host = &self.host;
        let pieces = self.mirror.take_changes(|at, out| out.copy_from_slice(&host[at..at + out.len()]));
        for Piece { offset, bytes } in pieces {
            let agreed = &mut self.bytes[offset..offset + bytes.len()];
            let is_needed: Vec<bool> =
                agreed.iter().zip(&bytes).map(|(old, new)| old.agreed != *new).collect();
            let is_any = |word: &[bool]| word.iter().any(|needed| *needed);
            let ends =
                [&is_needed[..WORD.min(is_needed.len())], &is_needed[is_needed.len().saturating_sub(WORD)..]];
            assert!(ends.into_iter().all(is_any), "sent without need at {offset}");
            let longest = is_needed.split(|needed| *needed).map(<[bool]>::len).max();
            assert!(longest < Some(CLOSE), "sent without need after {offset}");
            agreed.iter_mut().zip(&bytes).for_each(|(old, new)| old.agreed = *new);
            self.side.push_back(SideOp::Send(Piece { offset, bytes }));
            self.book.note_sent(KEY);
            self.is_behind = [true; STREAMS];
        }
    }

    fn order(&mut self, stream: usize) {
        if self.book.is_behind(stream as u64, KEY) {
            assert!(self.is_behind[stream], "waited for without need");
            self.is_behind[stream] = false;
            self.side.push_back(SideOp::Record);
            self.side_records.0 += 1;
            self.streams[stream].push_back(Op::WaitSide(self.side_records.0));
            self.book.note_ordered(stream as u64, KEY.context);
        }
    }

    fn lend(&mut self, stream: usize) {
        if self.book.find(KEY).is_none() {
            self.book.insert(KEY, BYTES as u64, ());
            self.side.push_back(SideOp::Fill);
            self.is_behind = [true; STREAMS];
        }
        if self.mirror.is_written_by_copies(self.copies + self.fetches) {
            self.forward();
            self.run_until(|world| world.streams.iter().all(VecDeque::is_empty));
        }
        self.send_changes();
        self.order(stream);
    }

    fn forward(&mut self) {
        if self.book.is_any_watched() {
            self.send_changes();
        }
    }

    fn fetch_all(&mut self) {
        self.forward();
        let noted: Vec<usize> = self.book.take_unfetched().into_iter().map(|(stream, ())| stream).collect();
        let mut expected: Vec<usize> = (0..STREAMS).filter(|stream| self.lent[*stream]).collect();
        expected.sort_by_key(|stream| noted.iter().position(|noted| noted == stream));
        assert_eq!(noted, expected, "fetched behind kernels, once each");
        self.lent = [false; STREAMS];
        for stream in noted {
            self.order(stream);
            let fetch = self.mirror.begin_fetch(stream as u64);
            self.fetches += 1;
            self.streams[stream].push_back(Op::Fetch(fetch));
        }
    }

    fn act(&mut self, action: &Action) {
        match action {
            Action::Write(place) => self.write(PLACES[*place]),
            Action::Launch(stream, reads, writes, waits) => self.launch(*stream, reads, writes, *waits),
            Action::Signal => {
                for (at, value) in std::mem::take(&mut self.signals) {
                    (self.host[at], self.bytes[at].newest) = (value, value);
                }
            }
            Action::Record => self.fetch_all(),
            Action::Query => self.forward(),
            Action::Order(from, to) => self.order_streams(*from, *to),
            Action::CopyOut(stream, place) => self.copy_out(*stream, PLACES[*place]),
            Action::Synchronize(stream) => self.synchronize(*stream),
            Action::Repin => self.repin(),
            Action::StepSide => {
                self.step_side();
            }
            Action::Step(stream) => {
                self.step(*stream);
            }
            Action::Arrive(pick) => {
                self.arrive(*pick);
            }
        }
        self.check();
    }

    fn write(&mut self, at: usize) {
        if self.may_program_write(at) && !self.is_signal(at) {
            self.host[at] = self.fresh(at);
        }
    }

    fn launch(&mut self, stream: usize, reads: &[usize], writes: &[usize], waits: Option<usize>) {
        // A kernel that waits for the program must not be waited for: the program would hang by its own fault, and where
        // a copy is under way by ours (see "What it cannot do").
        if self.copies > 0 && !self.signals.is_empty() {
            return;
        }
        let places = |places: &[usize]| places.iter().map(|place| PLACES[*place]).collect::<Vec<usize>>();
        let waits =
            waits.map(|place| PLACES[place]).filter(|at| self.may_program_write(*at) && !self.is_signal(*at));
        let reads: Vec<usize> = places(reads)
            .into_iter()
            .filter(|at| self.may_read(stream, *at) && !self.is_signal(*at) && Some(*at) != waits)
            .collect();
        let writes: Vec<usize> = places(writes)
            .into_iter()
            .filter(|at| self.may_write(stream, *at) && Some(*at) != waits)
            .collect();
        self.lend(stream);
        let reads = reads.into_iter().map(|at| (at, self.bytes[at].newest)).collect::<Vec<(usize, u8)>>();
        let waits = waits.map(|at| (at, self.bytes[at].newest + 1));
        self.signals.extend(waits);
        for at in reads.iter().map(|(at, _)| *at).chain(waits.map(|(at, _)| at)) {
            self.bytes[at].readers |= 1 << stream;
        }
        let written = |world: &mut Self, at: usize| {
            world.bytes[at].owner = Owner::Streams(1 << stream);
            (at, world.fresh(at))
        };
        let writes = writes.into_iter().map(|at| written(self, at)).collect();
        self.streams[stream].push_back(Op::Kernel { waits, reads, writes });
        self.mirror.note_lent(stream as u64);
        self.book.note_lent(&stream, stream as u64, KEY);
        self.lent[stream] = true;
    }

    fn order_streams(&mut self, from: usize, to: usize) {
        self.fetch_all();
        self.events.0 += 1;
        self.streams[from].push_back(Op::Event(self.events.0));
        self.streams[to].push_back(Op::WaitEvent(self.events.0));
        for byte in &mut self.bytes {
            if let Owner::Streams(streams) = &mut byte.owner
                && *streams >> from & 1 == 1
            {
                *streams |= 1 << to;
            }
        }
    }

    fn copy_out(&mut self, stream: usize, at: usize) {
        if self.may_write(stream, at) {
            self.fetch_all();
            let value = self.fresh(at);
            self.bytes[at].owner = Owner::Streams(1 << stream);
            self.copies += 1;
            self.streams[stream].push_back(Op::CopyOut(at, value));
        }
    }

    fn synchronize(&mut self, stream: usize) {
        if !self.signals.is_empty() {
            return;
        }
        let mark = self.book.mark();
        self.fetch_all();
        self.run_until(|world| world.streams[stream].is_empty());
        self.book.at_rest(mark, |other| *other == stream);
        for byte in &mut self.bytes {
            byte.readers &= !(1 << stream);
            if let Owner::Streams(streams) = byte.owner
                && streams >> stream & 1 == 1
            {
                byte.owner = Owner::Program;
            }
        }
    }

    fn repin(&mut self) {
        if self.signals.is_empty() {
            (0..STREAMS).for_each(|stream| self.synchronize(stream));
            // Unpinning waits for the whole context, the side stream included.
            while self.step_side() {}
            let shadows = usize::from(self.book.find(KEY).is_some());
            assert_eq!(self.book.forget_memory(KEY.base).len(), shadows);
            self.mirror.end();
            self.mirror = Mirror::new(BYTES);
            self.device.fill(GARBAGE);
            self.bytes.iter_mut().for_each(|byte| byte.agreed = 0);
        }
    }

    /// The GPU does things until `is_done`, and what it sent arrives.
    fn run_until(&mut self, is_done: impl Fn(&Self) -> bool) {
        while !is_done(self) {
            let mut has_moved = false;
            // The side stream comes last, so that all that does not wait for it overtakes it.
            for stream in 0..STREAMS {
                while self.step(stream) {
                    has_moved = true;
                }
            }
            has_moved |= self.step_side();
            assert!(has_moved, "a kernel waits for ever");
        }
        while self.arrive(0) {}
    }

    fn step_side(&mut self) -> bool {
        match self.side.pop_front() {
            None => return false,
            Some(SideOp::Fill) => self.device.fill(0),
            Some(SideOp::Send(Piece { offset, bytes })) => {
                self.device[offset..offset + bytes.len()].copy_from_slice(&bytes);
            }
            Some(SideOp::Record) => self.side_records.1 += 1,
        }
        true
    }

    fn step(&mut self, stream: usize) -> bool {
        let is_ready = match self.streams[stream].front() {
            None => false,
            Some(Op::WaitSide(records)) => self.side_records.1 >= *records,
            Some(Op::WaitEvent(event)) => self.events.1.contains(event),
            Some(Op::Kernel { waits: Some((at, value)), .. }) => self.device[*at] == *value,
            Some(_) => true,
        };
        if !is_ready {
            return false;
        }
        match self.streams[stream].pop_front() {
            Some(Op::Kernel { reads, writes, .. }) => {
                for (at, expected) in reads {
                    assert_eq!(
                        self.device[at], expected,
                        "a kernel of stream {stream} reads an old byte at {at}"
                    );
                }
                writes.iter().for_each(|(at, value)| self.device[*at] = *value);
            }
            Some(Op::Fetch(fetch)) => {
                for (number, bytes) in self.device.chunks(CHUNK).enumerate() {
                    let (offset, is_last) = (number * CHUNK, number == BYTES.div_ceil(CHUNK) - 1);
                    let (fetch, bytes) = (Some(fetch), bytes.to_vec());
                    self.arriving.push(Arriving { stream, fetch, offset, bytes, is_last });
                }
            }
            Some(Op::CopyOut(offset, value)) => {
                let (fetch, bytes, is_last) = (None, vec![value], true);
                self.arriving.push(Arriving { stream, fetch, offset, bytes, is_last });
            }
            Some(Op::Event(event)) => self.events.1.push(event),
            _ => {}
        }
        true
    }

    /// Fetches of one stream may overtake each other. Nothing else does, nor does the end of a fetch.
    fn arrive(&mut self, pick: usize) -> bool {
        let Some(first) = self.arriving.first() else { return false };
        let is_alike = |other: &&Arriving| other.stream == first.stream && other.fetch.is_some();
        let pick = pick % self.arriving.iter().take_while(is_alike).count().max(1);
        let id = self.arriving[pick].fetch;
        let first_of_it = self.arriving.iter().position(|arriving| arriving.fetch == id);
        let pick = first_of_it.filter(|_| self.arriving[pick].is_last).unwrap_or(pick);
        let Arriving { fetch, offset, bytes, is_last, .. } = self.arriving.remove(pick);
        let (host, model) = (&mut self.host, &mut self.bytes);
        let Some(fetch) = fetch else {
            host[offset] = bytes[0];
            self.copies -= 1;
            return true;
        };
        self.mirror.arrive(fetch, offset, &bytes, |at, news| {
            host[at..at + news.len()].copy_from_slice(news);
            model[at].agreed = news[0];
        });
        if is_last {
            self.mirror.end_fetch(fetch);
            self.fetches -= 1;
        }
        true
    }

    fn check(&self) {
        for (at, byte) in self.bytes.iter().enumerate() {
            if byte.owner == Owner::Program {
                assert_eq!(self.host[at], byte.newest, "the program reads an old byte at {at}");
            }
        }
    }
}

fn play(actions: &[Action]) {
    let mut world = World::new();
    actions.iter().for_each(|action| world.act(action));
    world.act(&Action::Signal);
    (0..STREAMS).for_each(|stream| world.act(&Action::Synchronize(stream)));
    assert!(world.bytes.iter().all(|byte| byte.owner == Owner::Program));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn no_side_ever_reads_an_old_byte(actions in actions()) {
        play(&actions);
    }
}

use Action::*;

/// Two streams are given the same memory: both have to wait for what was sent before the first launch.
#[test]
fn every_stream_waits_for_what_was_sent_for_another() {
    play(&[Write(0), Launch(0, vec![0], vec![], None), Launch(1, vec![0], vec![], None), Step(1), Step(1)]);
}

/// The program writes one part while a kernel has the other; the fetch behind the kernel must not bring the old part back.
#[test]
fn a_fetch_does_not_undo_what_was_sent_before_it() {
    play(&[Launch(0, vec![], vec![5], None), Write(0), Launch(1, vec![0], vec![], None), Synchronize(0)]);
}

/// A fetch is under way while the program writes a byte twice. It finds the first of the two.
#[test]
fn a_fetch_does_not_undo_what_was_sent_after_it() {
    let launch = || Launch(1, vec![], vec![], None);
    let first = [Launch(0, vec![], vec![], None), Record, Write(0), launch(), StepSide, StepSide, StepSide];
    let second = [Step(0), Step(0), Step(0), Write(0), launch(), Arrive(0)];
    play(&[first.as_slice(), &second].concat());
}

/// A kernel waits for a word while a copy into the same memory waits for the kernel.
#[test]
fn a_word_is_forwarded_though_a_copy_is_under_way() {
    play(&[Launch(0, vec![], vec![], Some(0)), CopyOut(0, 5), Signal, Synchronize(0)]);
}

/// The program writes two words while a kernel writes one between them: it must not be overwritten.
#[test]
fn what_lies_between_two_changes_is_not_undone() {
    let kernels = [Launch(0, vec![], vec![1], None), Launch(0, vec![], vec![], Some(2)), Write(0)];
    play(&[kernels.as_slice(), &[StepSide, StepSide, Step(0), Step(0), Signal, Synchronize(0)]].concat());
}

/// A launch waits for a copy, and a kernel waits for a word that the program has written already.
#[test]
fn a_word_is_forwarded_before_a_launch_waits_for_a_copy() {
    let launch = || Launch(0, vec![], vec![], None);
    play(&[Launch(1, vec![], vec![], Some(1)), CopyOut(0, 0), Signal, launch()]);
}

/// One kernel sets a flag and the next one clears it, and both are fetched at once.
#[test]
fn a_byte_that_kernels_set_and_set_back_is_seen() {
    let mut mirror = Mirror::new(2);
    let (first, second) = (mirror.begin_fetch(1), mirror.begin_fetch(1));
    let mut host = [0; 2];
    mirror.arrive(first, 0, &[7, 1], |at, news| host[at] = news[0]);
    mirror.end_fetch(first);
    mirror.arrive(second, 0, &[0, 1], |at, news| host[at] = news[0]);
    assert_eq!(host, [0, 1]);

    let mut mirror = Mirror::new(2);
    let (first, second) = (mirror.begin_fetch(1), mirror.begin_fetch(1));
    let mut host = [0; 2];
    mirror.arrive(second, 0, &[0, 1], |at, news| host[at] = news[0]);
    mirror.arrive(first, 0, &[7, 1], |at, news| host[at] = news[0]);
    assert_eq!(host, [0, 1], "the first arrived last");
}

#[test]
fn nothing_is_touched_after_the_memory_was_given_up() {
    let mut mirror = Mirror::new(3);
    let fetch = mirror.begin_fetch(1);
    mirror.end();
    mirror.arrive(fetch, 0, &[1, 2, 3], |_, _| panic!("written"));
    mirror.end_fetch(fetch);
    assert!(mirror.take_changes(|_, _| panic!("read")).is_empty());
}

#[test]
fn memory_is_compared_to_its_end() {
    let mut host = vec![0; 3 * 4096 + 5];
    let mut mirror = Mirror::new(host.len());
    (host[4095], host[4096], host[3 * 4096 + 4]) = (1, 2, 3);
    let pieces = mirror.take_changes(|at, out| out.copy_from_slice(&host[at..at + out.len()]));
    let sent: Vec<(usize, &[u8])> = pieces.iter().map(|piece| (piece.offset, &*piece.bytes)).collect();
    assert_eq!(sent, [(4095, &[1u8][..]), (4096, &[2]), (3 * 4096 + 4, &[3])]);
    assert!(mirror.take_changes(|at, out| out.copy_from_slice(&host[at..at + out.len()])).is_empty());
}

/// Two contexts have shadows of the same memory, and one range is next to another.
#[test]
fn what_ends_is_forgotten_and_nothing_else() {
    let key = |base, context| ShadowKey { base, context };
    let mut book = Book::new();
    for (shadow, (base, context)) in [(1, 1), (1, 2), (2, 1)].into_iter().enumerate() {
        book.insert(key(base, context), SIGNAL_BYTES_MAX + base - 1, shadow);
        book.note_lent(&context, context, key(base, context));
        book.note_lent(&context, context, key(base, context));
    }
    assert_eq!(book.watched(), [(1, 0), (2, 1)], "the last one is too large");
    book.note_ordered(1, 1);
    book.note_ordered(2, 2);
    book.note_sent(key(1, 2));
    assert!(book.is_behind(2, key(1, 2)) && !book.is_behind(1, key(1, 1)) && book.is_behind(3, key(1, 1)));
    book.forget_stream(1);
    assert!(book.is_behind(1, key(1, 1)));

    book.forget_context(2);
    assert_eq!((book.find(key(1, 2)), book.find(key(1, 1))), (None, Some(0)));
    assert_eq!(book.watched(), [(1, 0)]);
    assert_eq!(book.forget_memory(1), [0]);
    assert!(!book.is_any_watched() && book.is_any_unfetched());
    assert_eq!(book.take_unfetched(), [(1, 2)]);
    assert!(!book.is_any_unfetched());
    assert_eq!(book.forget_memory(2), [2]);
}

/// One thread waits for a stream while another launches there: the new kernel may wait for a word.
#[test]
fn a_kernel_that_was_launched_during_a_wait_stays_watched() {
    let mut book = Book::new();
    book.insert(KEY, 8, ());
    book.note_lent(&1, 1, KEY);
    let mark = book.mark();
    book.note_lent(&1, 1, KEY);
    book.at_rest(mark, |_| true);
    assert!(book.is_any_watched());
    book.at_rest(book.mark(), |stream| *stream == 2);
    assert!(book.is_any_watched());
    book.at_rest(book.mark(), |stream| *stream == 1);
    assert!(!book.is_any_watched());
}
