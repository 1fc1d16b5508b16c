//! The book against a device that is simulated: what it says of each piece of work is what happened.

use cuda_wire::{ContextId, EventId, KernelRef, ModuleId, Span, StreamId, timed::ESTIMATED};
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};
use timeline::{Book, Due, Resolved, Stamps, Work};

const CONTEXT: ContextId = ContextId(0);
/// Streams by kind: ordered against the legacy stream, not ordered, the legacy stream itself.
const STREAMS: [(StreamId, u32); 4] =
    [(StreamId(10), 0), (StreamId(11), 0), (StreamId(12), 1), (StreamId(13), 2)];

#[derive(Clone, Debug)]
enum Step {
    /// The program does something else for a while.
    Pause(u64),
    /// A kernel of this length.
    Launch { stream: usize, length: u64 },
    /// The stream waits for something that happens after a while.
    Wait { stream: usize, until: u64 },
    /// The driver refuses a launch.
    Refused { stream: usize },
    /// Somebody looks for work that is done.
    Collect,
    /// Another event becomes the base.
    Rebase,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0u64..200).prop_map(Step::Pause),
        9 => (0usize..4, 1u64..60).prop_map(|(stream, length)| Step::Launch { stream, length }),
        1 => (0usize..4, 0u64..300).prop_map(|(stream, until)| Step::Wait { stream, until }),
        1 => (0usize..4).prop_map(|stream| Step::Refused { stream }),
        2 => Just(Step::Collect),
        1 => Just(Step::Rebase),
    ]
}

/// A device whose future is known: when each record of an event is reached.
#[derive(Default)]
struct Device {
    now: u64,
    /// When each stream is done with what it has.
    free_at: [u64; 4],
    reached: HashMap<EventId, u64>,
    truth: HashMap<u32, Span>,
}

impl Device {
    /// When a stream would begin with something that comes now.
    fn begins(&self, stream: usize) -> u64 {
        let own = self.free_at[stream].max(self.now);
        match STREAMS[stream].1 {
            2 => own.max(self.free_at[0]).max(self.free_at[1]),
            0 => own.max(self.free_at[3]),
            _ => own,
        }
    }

    fn record(&mut self, stream: usize, event: EventId) {
        let at = self.begins(stream);
        self.free_at[stream] = at;
        self.reached.insert(event, at);
    }
}

fn launch(
    book: &mut Book,
    device: &mut Device,
    at: usize,
    length: u64,
    index: u32,
    in_use: &mut HashSet<EventId>,
) {
    let stream = STREAMS[at].0;
    let is_busy = book.look_back(stream).is_some_and(|event| device.reached[&event] > device.now);
    let plan = book.plan(stream, is_busy).expect("there are events enough");
    for event in plan.start.into_iter().chain([plan.end]) {
        assert!(in_use.insert(event), "an event is used twice at once");
    }
    if let Some(start) = plan.start {
        device.record(at, start);
    }
    let start_ns = device.begins(at);
    device.truth.insert(index, Span { start_ns, end_ns: start_ns + length });
    device.free_at[at] = start_ns + length;
    device.record(at, plan.end);
    let kernel = KernelRef { module: ModuleId(1), index };
    let work = Work::Kernel { kernel, grid: [1; 3], block: [1; 3], shared_bytes: 0 };
    book.began(stream, plan, work);
}

fn collect(book: &mut Book, device: &Device, in_use: &mut HashSet<EventId>) {
    for due in book.due() {
        let mut next = Some(due);
        while let Some(due) = next.take() {
            if device.reached[&due.end] > device.now {
                break;
            }
            let Due { start, end, .. } = due;
            let start_ns = start.map(|start| device.reached[&start]);
            for event in start.into_iter().chain([end]) {
                in_use.remove(&event);
            }
            next = book.resolve(due, Resolved::Done(Stamps { start_ns, end_ns: device.reached[&end] }));
        }
    }
}

proptest! {
    #[test]
    fn what_it_says_is_what_happened(steps in prop::collection::vec(step(), 0..300)) {
        let (mut book, mut device) = (Book::new(1), Device::default());
        let mut in_use = HashSet::new();
        for (stream, kind) in STREAMS {
            book.stream_created(stream, CONTEXT, kind);
        }
        let (base, _) = book.base_event(CONTEXT).unwrap();
        book.set_base(CONTEXT, base, 0);
        let mut launched = 0;
        for step in steps {
            match step {
                Step::Pause(length) => device.now += length,
                Step::Launch { stream, length } => {
                    launch(&mut book, &mut device, stream, length, launched, &mut in_use);
                    launched += 1;
                }
                Step::Wait { stream, until } => {
                    device.free_at[stream] = device.begins(stream).max(device.now + until);
                    book.disturbed(STREAMS[stream].0);
                }
                Step::Refused { stream } => {
                    if let Some(plan) = book.plan(STREAMS[stream].0, false) {
                        book.gave_up(STREAMS[stream].0, plan);
                    }
                }
                Step::Collect => collect(&mut book, &device, &mut in_use),
                Step::Rebase => {
                    let (event, _) = book.base_event(CONTEXT).unwrap();
                    book.set_base(CONTEXT, event, device.now);
                }
            }
        }
        device.now = u64::MAX;
        collect(&mut book, &device, &mut in_use);
        let mut told = HashMap::new();
        while let Some(said) = book.say() {
            prop_assert_eq!(said.missed, 0);
            told.extend(said.kernels.into_iter().map(|kernel| (kernel.kernel.index, kernel.span)));
        }
        prop_assert_eq!(told, device.truth);
        prop_assert!(book.is_idle() && in_use.is_empty());
    }
}

/// The length of the kernels of this index; their number is the grid.
const LENGTHS: [u64; 3] = [300, 900, 2_000];

fn launch_known(
    book: &mut Book,
    device: &mut Device,
    index: usize,
    number: u32,
    in_use: &mut HashSet<EventId>,
) -> bool {
    let (at, stream) = (2, STREAMS[2].0);
    let kernel = KernelRef { module: ModuleId(1), index: index as u32 };
    let work = Work::Kernel { kernel, grid: [1; 3], block: [1; 3], shared_bytes: number };
    let is_measured = book.measures(stream, &work, device.now);
    let is_busy = book.look_back(stream).is_some_and(|event| device.reached[&event] > device.now);
    let plan = is_measured.then(|| book.plan(stream, is_busy).expect("there are events enough"));
    if let Some(plan) = &plan {
        in_use.extend(plan.start.into_iter().chain([plan.end]));
    }
    if let Some(start) = plan.as_ref().and_then(|plan| plan.start) {
        device.record(at, start);
    }
    let start_ns = device.begins(at);
    let end_ns = start_ns + LENGTHS[index];
    device.truth.insert(number, Span { start_ns, end_ns });
    device.free_at[at] = end_ns;
    match plan {
        Some(plan) => {
            device.record(at, plan.end);
            book.began(stream, plan, work);
        }
        None => book.passed(stream, work, device.now),
    }
    is_measured
}

proptest! {
    /// Kernels that take as long each time are where they were, measured or not, as long as nothing else holds their stream up.
    #[test]
    fn estimates_of_steady_kernels_are_right(
        steps in prop::collection::vec((0usize..3, 0u64..1_500, prop::bool::weighted(0.05)), 600..1_000),
    ) {
        let (mut book, mut device) = (Book::new(1), Device::default());
        let mut in_use = HashSet::new();
        book.stream_created(STREAMS[2].0, CONTEXT, STREAMS[2].1);
        let (base, _) = book.base_event(CONTEXT).unwrap();
        book.set_base(CONTEXT, base, 0);
        let mut measured = 0;
        for (number, (index, pause, collects)) in steps.iter().enumerate() {
            device.now += pause;
            measured += u32::from(launch_known(&mut book, &mut device, *index, number as u32, &mut in_use));
            if *collects {
                collect(&mut book, &device, &mut in_use);
                book.settle(device.now, false);
            }
        }
        device.now = device.free_at[2] + 1;
        collect(&mut book, &device, &mut in_use);
        book.settle(device.now, true);
        let (mut told, mut estimated) = (HashMap::new(), 0);
        while let Some(said) = book.say() {
            prop_assert_eq!(said.missed, 0);
            estimated += said.kernels.iter().filter(|kernel| kernel.shared_bytes & ESTIMATED != 0).count() as u32;
            told.extend(said.kernels.into_iter().map(|kernel| (kernel.shared_bytes & !ESTIMATED, kernel.span)));
        }
        prop_assert_eq!(measured + estimated, steps.len() as u32);
        prop_assert!(estimated > 100, "{estimated} estimated");
        prop_assert_eq!(told.len(), device.truth.len());
        for (number, truth) in &device.truth {
            let said = told[number];
            // Typical lengths are rounded down by some nanoseconds.
            prop_assert!(said.start_ns.abs_diff(truth.start_ns) <= 2_000, "{number}: {said:?} {truth:?}");
            prop_assert!((said.end_ns - said.start_ns).abs_diff(truth.end_ns - truth.start_ns) <= 20, "{said:?} {truth:?}");
        }
        prop_assert!(book.is_idle() && in_use.is_empty());
    }
}

/// A book with a stream and a base.
fn ready() -> (Book, StreamId) {
    let mut book = Book::new(1);
    let stream = StreamId(5);
    book.stream_created(stream, CONTEXT, 1);
    let (base, exists) = book.base_event(CONTEXT).unwrap();
    assert!(!exists, "the first event has to be made");
    book.set_base(CONTEXT, base, 100);
    (book, stream)
}

const FILL: Work = Work::Other { kind: cuda_wire::timed::FILL, bytes: 8 };

#[test]
fn a_busy_stream_costs_one_event_and_an_idle_one_two() {
    let (mut book, stream) = ready();
    for at in 0..10 {
        let is_busy = book.look_back(stream).is_some();
        assert_eq!(is_busy, at >= 4);
        let plan = book.plan(stream, is_busy).unwrap();
        assert_eq!(plan.start.is_some(), !is_busy);
        book.began(stream, plan, FILL);
    }
}

#[test]
fn what_cannot_be_timed_is_counted() {
    let (mut book, stream) = ready();
    let mut timed = 0;
    while let Some(plan) = book.plan(stream, true) {
        book.began(stream, plan, FILL);
        timed += 1;
        assert!(timed < 100_000, "events are bounded");
    }
    assert!(book.plan(StreamId(99), true).is_none(), "a stream that nobody made");
    assert_eq!(book.say().unwrap().missed, 2);
    // The context ends, and with it everything that was under way.
    book.context_emptied(CONTEXT, true);
    assert_eq!(book.say().unwrap().missed, timed);
    assert!(book.is_idle() && book.plan(stream, true).is_none());
}

#[test]
fn lost_work_takes_what_began_at_its_end_with_it() {
    let (mut book, stream) = ready();
    for at in 0..6 {
        let plan = book.plan(stream, at > 0).unwrap();
        book.began(stream, plan, FILL);
    }
    book.stream_destroyed(stream);
    let mut due = book.due().pop();
    let mut resolved = 0;
    while let Some(piece) = due {
        let stamps = Stamps { start_ns: piece.start.map(|_| 200), end_ns: 300 + resolved };
        let state = if resolved == 2 { Resolved::Lost } else { Resolved::Done(stamps) };
        due = book.resolve(piece, state);
        resolved += 1;
    }
    let said = book.say().unwrap();
    assert_eq!((resolved, said.works.len() as u64, said.missed), (6, 4, 2));
    assert!(book.due().is_empty() && book.context_of(stream).is_none(), "the stream is forgotten");
}

#[test]
fn a_lot_is_said_in_pieces() {
    let mut book = Book::new(1);
    for call in 0..1200 {
        book.answered(call, Span { start_ns: 1, end_ns: 2 });
    }
    let pieces: Vec<usize> = std::iter::from_fn(|| book.say()).map(|said| said.answers.len()).collect();
    assert_eq!(pieces, [512, 512, 176]);
}
