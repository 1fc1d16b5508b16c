//! Which work of a session is timed, and by which events.
//!
//! An event is recorded behind each piece of work. One is recorded in front of it, too, unless the stream certainly has work left
//! when the piece is put into it: then it begins where the work before it ended, and one event does for both. A stream "certainly"
//! has work left when the piece [`LOOK_BACK`] places before was not done a moment ago. That halves what a timeline costs a GPU that
//! is busy, and a GPU that waits for its program loses nothing by the second event.
//!
//! ```text
//!   idle stream    S kernel E        S kernel E          S, E: events
//!   busy stream    S kernel E kernel E kernel E kernel E
//! ```
//!
//! A stream may also stand still at a place that is no work: it waits for an event, for a word in memory, or (the legacy stream
//! and the streams that are ordered against it) for another stream. The next piece of work then has an event in front of it.
//!
//! Short kernels that are known already have no events of their own most of the time ([`crate::thrift`]). They lie between the last
//! piece that has and the next one, which then has an event in front of it, and each is said to be an estimate:
//!
//! ```text
//!   S kernel E kernel kernel kernel kernel S kernel E
//!              └─ estimated ───────────┘
//! ```

use crate::{
    place::{Guess, place},
    thrift::Thrift,
    trace::Timed,
};
use cuda_wire::{
    ContextId, EventId, KernelRef, Span, StreamId, TimedAnswer, TimedKernel, TimedStream, TimedWork, timed,
};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// How many pieces of work before the next one must be unfinished, at least, for the stream to be busy when that one comes. A
/// guess: the worker takes as long for one launch as the GPU for a few of the smallest kernels.
const LOOK_BACK: usize = 4;
/// Events of a context; work beyond them is not timed, and counted. Drivers take about 1,000 pieces of work a stream.
const EVENTS_MAX: u32 = 8192;
/// Events and streams of ours have names from here on; clients count theirs from the other end.
const NAMES_FROM: u32 = 0xf000_0000;
/// So much is said at once: 512 kernels take less than half of the longest notice.
const BATCH_MAX: usize = 512;
/// The kinds of streams, as `StreamCreate` has them.
const ORDERED: u32 = 0;
const LEGACY: u32 = 2;
/// Records that wait to be said. They are said every few milliseconds.
const RECORDS_MAX: usize = 1 << 16;

/// So many kernels are estimated between two that are measured, at most, and for so long: mistakes must not add up, and a viewer
/// shows where measured ones are.
const PASSED_MAX: usize = 256;
const PASSED_FOR_NS: u64 = 20_000_000;
/// Kernels behind which nothing is measured any more are said after this time.
const TAIL_NS: u64 = 50_000_000;

/// A piece of work of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A kernel.
    #[allow(missing_docs)]
    Kernel { kernel: KernelRef, grid: [u32; 3], block: [u32; 3], shared_bytes: u32 },
    /// Anything else; `kind` is one of [`cuda_wire::timed`].
    #[allow(missing_docs)]
    Other { kind: u8, bytes: u64 },
}

/// An event of a context whose time is known: others are measured from it.
#[derive(Debug, PartialEq, Eq)]
pub struct Base {
    /// The event.
    pub event: EventId,
    /// When it was recorded, by the worker's clock.
    pub at_ns: u64,
}

/// Which events to record around a piece of work.
#[derive(Debug)]
pub struct Plan {
    /// In front of it. None: it begins where the work before it ends.
    pub start: Option<EventId>,
    /// Behind it.
    pub end: EventId,
    /// Those of them that do not exist yet.
    pub made: Vec<EventId>,
    base: Arc<Base>,
}

/// A piece of work that was put into its stream with the events of a plan.
#[derive(Debug)]
struct Begun {
    number: u64,
    plan: Plan,
    work: Work,
    /// What was put into the stream before it and is not measured.
    before: Vec<Passed>,
}

/// A kernel that has no events.
#[derive(Debug)]
struct Passed {
    work: Work,
    put_ns: u64,
}

/// A piece of work that may be done by now.
#[derive(Clone, Debug)]
pub struct Due {
    /// Its stream.
    pub stream: StreamId,
    /// Its number.
    pub number: u64,
    /// What its events are measured from.
    pub base: Arc<Base>,
    /// The event in front of it, if there is one.
    pub start: Option<EventId>,
    /// The event behind it.
    pub end: EventId,
}

/// What the events of a piece of work show, by the worker's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamps {
    /// Of the event in front of it, if there is one.
    pub start_ns: Option<u64>,
    /// Of the event behind it.
    pub end_ns: u64,
}

/// What became of a piece of work that was due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolved {
    /// It is done.
    Done(Stamps),
    /// Its events tell nothing: its context is gone or dead.
    Lost,
}

#[derive(Debug)]
struct Context {
    device: u32,
    base: Option<Arc<Base>>,
    /// Bases that unfinished work is measured from.
    old_bases: Vec<Arc<Base>>,
    free: Vec<EventId>,
    made: u32,
    /// What its legacy stream got, and what the streams that are ordered against it got.
    legacy_works: u64,
    ordered_works: u64,
}

impl Context {
    /// A stream of this kind gets something.
    fn count(&mut self, kind: u32) {
        match kind {
            LEGACY => self.legacy_works += 1,
            ORDERED => self.ordered_works += 1,
            _ => {}
        }
    }
}

#[derive(Debug)]
struct Stream {
    context: ContextId,
    kind: u32,
    is_named: bool,
    is_gone: bool,
    /// It may stand still before the next piece of work.
    needs_start: bool,
    /// The work of others, as [`Context`] counts it, before the last piece of its own.
    seen: u64,
    /// Where the last piece of work that is done ended.
    last_end_ns: Option<u64>,
    under_way: VecDeque<Begun>,
    /// What was put into it since and is not measured.
    passed: Vec<Passed>,
}

/// The contexts, streams and unfinished work of a session, and what is to be said about work that is done.
#[derive(Debug, Default)]
pub struct Book {
    contexts: HashMap<ContextId, Context>,
    streams: HashMap<StreamId, Stream>,
    next_name: u32,
    next_number: u64,
    thrift: Thrift,
    said: Unsaid,
    records: usize,
}

/// What is to be said. From the front on, a part at a time: there may be tens of thousands.
#[derive(Debug, Default)]
struct Unsaid {
    streams: VecDeque<TimedStream>,
    kernels: VecDeque<TimedKernel>,
    works: VecDeque<TimedWork>,
    answers: VecDeque<TimedAnswer>,
    missed: u64,
}

impl Book {
    /// The primary context of each device exists from the start.
    pub fn new(devices: u32) -> Self {
        let mut book = Self::default();
        for device in 0..devices {
            book.context_created(ContextId(device), device);
        }
        book
    }

    /// A name of our own, for an event or a stream.
    pub fn name(&mut self) -> u32 {
        self.next_name = self.next_name.wrapping_add(1) & (u32::MAX - NAMES_FROM);
        NAMES_FROM + self.next_name
    }

    /// A context was made.
    pub fn context_created(&mut self, context: ContextId, device: u32) {
        let made = Context {
            device,
            base: None,
            old_bases: Vec::new(),
            free: Vec::new(),
            made: 0,
            legacy_works: 0,
            ordered_works: 0,
        };
        self.contexts.insert(context, made);
    }

    /// Everything in a context has ended, our events too. A primary one lives on.
    pub fn context_emptied(&mut self, context: ContextId, lives_on: bool) {
        let device = self.contexts.remove(&context).map_or(0, |context| context.device);
        if lives_on {
            self.context_created(context, device);
        }
        let mut missed = 0;
        self.streams.retain(|_, stream| {
            let is_in_it = stream.context == context;
            let before = stream.under_way.iter().map(|begun| begun.before.len()).sum::<usize>();
            missed += if is_in_it { stream.under_way.len() + before + stream.passed.len() } else { 0 };
            !is_in_it
        });
        self.said.missed += missed as u64;
    }

    /// A stream was made.
    pub fn stream_created(&mut self, stream: StreamId, context: ContextId, kind: u32) {
        let made = Stream {
            context,
            kind,
            is_named: false,
            is_gone: false,
            needs_start: true,
            seen: 0,
            last_end_ns: None,
            under_way: VecDeque::new(),
            passed: Vec::new(),
        };
        self.streams.insert(stream, made);
    }

    /// A stream was ended. Its work goes on to the end.
    pub fn stream_destroyed(&mut self, stream: StreamId) {
        if self.streams.get(&stream).is_some_and(|known| known.under_way.is_empty()) {
            self.settle_stream(stream, None);
        }
        if let Some(known) = self.streams.get_mut(&stream) {
            known.is_gone = true;
            if known.under_way.is_empty() {
                self.streams.remove(&stream);
            }
        }
    }

    /// The stream's context.
    pub fn context_of(&self, stream: StreamId) -> Option<ContextId> {
        self.streams.get(&stream).map(|stream| stream.context)
    }

    /// What the events of a context are measured from.
    pub fn base_of(&self, context: ContextId) -> Option<Arc<Base>> {
        self.contexts.get(&context)?.base.clone()
    }

    /// An event of the context was recorded at this time; later work is measured from it. Events of bases that no work needs
    /// any more are used again.
    pub fn set_base(&mut self, context: ContextId, event: EventId, at_ns: u64) {
        let Some(context) = self.contexts.get_mut(&context) else { return };
        context.old_bases.extend(context.base.replace(Arc::new(Base { event, at_ns })));
        let (needed, free) =
            std::mem::take(&mut context.old_bases).into_iter().partition(|base| Arc::strong_count(base) > 1);
        context.old_bases = needed;
        context.free.extend(Vec::<Arc<Base>>::into_iter(free).map(|base| base.event));
    }

    /// An event of the context for a base, and whether it exists.
    pub fn base_event(&mut self, context: ContextId) -> Option<(EventId, bool)> {
        let mut made = Vec::new();
        let event = self.event(context, &mut made)?;
        Some((event, made.is_empty()))
    }

    /// The stream has something in it that is no work and may hold it up.
    pub fn disturbed(&mut self, stream: StreamId) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.needs_start = true;
            // What holds it up also holds up the streams that are ordered against it.
            if let Some(context) = self.contexts.get_mut(&stream.context) {
                context.count(stream.kind);
            }
        }
    }

    /// Whether the next piece of work of the stream gets events. If not, and it is put into the stream, it is [`Self::passed`].
    pub fn measures(&mut self, stream: StreamId, work: &Work, now_ns: u64) -> bool {
        let is_worth_it = self.thrift.measures(work, now_ns);
        let Some(stream) = self.streams.get(&stream) else { return true };
        let Some(context) = self.contexts.get(&stream.context) else { return true };
        let others = match stream.kind {
            LEGACY => stream.seen != context.ordered_works,
            ORDERED => stream.seen != context.legacy_works,
            _ => false,
        };
        let is_first = stream.under_way.is_empty() && stream.last_end_ns.is_none();
        let since = stream.passed.first().map_or(0, |first| now_ns.saturating_sub(first.put_ns));
        let is_due = stream.passed.len() >= PASSED_MAX || since >= PASSED_FOR_NS;
        is_worth_it || others || is_first || is_due || stream.needs_start
    }

    /// The work was put into the stream at this time, without events.
    pub fn passed(&mut self, stream: StreamId, work: Work, put_ns: u64) {
        let Some(stream) = self.streams.get_mut(&stream) else { return };
        stream.passed.push(Passed { work, put_ns });
        if let Some(context) = self.contexts.get_mut(&stream.context) {
            context.count(stream.kind);
        }
    }

    /// Says what is known of kernels behind which nothing is measured any more. `all`: the client wants to know everything.
    pub fn settle(&mut self, now_ns: u64, all: bool) {
        let is_over = |stream: &Stream| {
            let is_old = |last: &Passed| all || last.put_ns + TAIL_NS <= now_ns;
            stream.under_way.is_empty() && stream.passed.last().is_some_and(is_old)
        };
        let over = self.streams.iter().filter(|(_, stream)| is_over(stream)).map(|(id, _)| *id);
        for stream in over.collect::<Vec<_>>() {
            self.settle_stream(stream, Some(now_ns));
        }
    }

    fn settle_stream(&mut self, id: StreamId, until: Option<u64>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let (passed, from) = (std::mem::take(&mut stream.passed), stream.last_end_ns);
        // What comes next may stand behind something that takes longer than usual.
        stream.needs_start |= !passed.is_empty();
        if let Some(end) = self.estimate(id, &passed, from, until)
            && let Some(stream) = self.streams.get_mut(&id)
        {
            stream.last_end_ns = Some(end);
        }
    }

    /// Says where work lies that was not measured, and where the last piece ends.
    fn estimate(
        &mut self,
        stream: StreamId,
        passed: &[Passed],
        from: Option<u64>,
        until: Option<u64>,
    ) -> Option<u64> {
        let from = from.unwrap_or(passed.first()?.put_ns);
        let guess = |passed: &Passed| Guess {
            put_ns: passed.put_ns,
            typical_ns: self.thrift.typical_ns(&passed.work).unwrap_or(0),
        };
        let guesses: Vec<Guess> = passed.iter().map(guess).collect();
        let spans = place(from, until, &guesses);
        for (passed, span) in passed.iter().zip(&spans) {
            let work = match passed.work {
                Work::Kernel { kernel, grid, block, shared_bytes } => {
                    Work::Kernel { kernel, grid, block, shared_bytes: shared_bytes | timed::ESTIMATED }
                }
                Work::Other { kind, bytes } => Work::Other { kind: kind | timed::ESTIMATED_KIND, bytes },
            };
            self.record(stream, work, *span);
        }
        spans.last().map(|span| span.end_ns)
    }

    /// If this event is not reached yet, the stream is busy when the next piece of work comes.
    pub fn look_back(&self, stream: StreamId) -> Option<EventId> {
        let Stream { under_way, passed, .. } = self.streams.get(&stream)?;
        // What is not measured ends where the next piece begins: that one has an event in front of it in any case.
        if !passed.is_empty() {
            return None;
        }
        let at = under_way.len().checked_sub(LOOK_BACK)?;
        under_way.get(at).map(|begun| begun.plan.end)
    }

    /// How to time the next piece of work of a stream. None: it is not timed, and counted as such.
    pub fn plan(&mut self, stream: StreamId, is_busy: bool) -> Option<Plan> {
        let plan = self.try_plan(stream, is_busy);
        self.said.missed += u64::from(plan.is_none());
        plan
    }

    fn try_plan(&mut self, id: StreamId, is_busy: bool) -> Option<Plan> {
        let stream = self.streams.get_mut(&id)?;
        let context = self.contexts.get_mut(&stream.context)?;
        let others = match stream.kind {
            LEGACY => std::mem::replace(&mut stream.seen, context.ordered_works) != context.ordered_works,
            ORDERED => std::mem::replace(&mut stream.seen, context.legacy_works) != context.legacy_works,
            _ => false,
        };
        context.count(stream.kind);
        let needs_start = std::mem::replace(&mut stream.needs_start, true) || others || !is_busy;
        let needs_start = needs_start || stream.under_way.is_empty() || !stream.passed.is_empty();
        let (base, context) = (context.base.clone()?, stream.context);
        let mut made = Vec::new();
        let end = self.event(context, &mut made)?;
        let start = match needs_start.then(|| self.event(context, &mut made)) {
            None => None,
            Some(Some(start)) => Some(start),
            Some(None) => {
                self.give_back(context, [end].into_iter().filter(|end| !made.contains(end)));
                return None;
            }
        };
        Some(Plan { start, end, made, base })
    }

    fn event(&mut self, context: ContextId, made: &mut Vec<EventId>) -> Option<EventId> {
        let known = self.contexts.get_mut(&context)?;
        if let Some(event) = known.free.pop() {
            return Some(event);
        }
        if known.made == EVENTS_MAX {
            return None;
        }
        known.made += 1;
        let event = EventId(self.name());
        made.push(event);
        Some(event)
    }

    fn give_back(&mut self, context: ContextId, events: impl Iterator<Item = EventId>) {
        if let Some(context) = self.contexts.get_mut(&context) {
            context.free.extend(events);
        }
    }

    /// The work was put into the stream, between the events of the plan.
    pub fn began(&mut self, stream: StreamId, plan: Plan, work: Work) {
        let number = self.next_number;
        self.next_number += 1;
        let Some(known) = self.streams.get_mut(&stream) else { return };
        known.needs_start = false;
        self.thrift.spends();
        let before = std::mem::take(&mut known.passed);
        known.under_way.push_back(Begun { number, plan, work, before });
        if !known.is_named {
            known.is_named = true;
            let device = self.contexts.get(&known.context).map_or(0, |context| context.device);
            self.said.streams.push_back(TimedStream { stream, device, kind: known.kind });
        }
    }

    /// The driver refused the work. The events exist and can be used again.
    pub fn gave_up(&mut self, stream: StreamId, plan: Plan) {
        if let Some(context) = self.context_of(stream) {
            self.give_back(context, plan.start.into_iter().chain([plan.end]));
        }
    }

    /// The work was done without the events: the driver refused those. They are not used again.
    pub fn not_timed(&mut self) {
        self.said.missed += 1;
    }

    /// The oldest piece of unfinished work of each stream.
    pub fn due(&self) -> Vec<Due> {
        let due = |(stream, known): (&StreamId, &Stream)| {
            let Begun { number, plan, .. } = known.under_way.front()?;
            let Plan { start, end, base, .. } = plan;
            Some(Due { stream: *stream, number: *number, base: base.clone(), start: *start, end: *end })
        };
        self.streams.iter().filter_map(due).collect()
    }

    /// A piece of work that was due is done, or lost. Returns the stream's next one.
    pub fn resolve(&mut self, due: Due, resolved: Resolved) -> Option<Due> {
        let Due { stream: id, number, base, .. } = due;
        drop(base);
        let stream = self.streams.get_mut(&id)?;
        stream.under_way.front().filter(|begun| begun.number == number)?;
        let begun = stream.under_way.pop_front()?;
        let (context, plan, last_end_ns) = (stream.context, begun.plan, stream.last_end_ns);
        let (span, end_ns) = match resolved {
            Resolved::Lost => (None, None),
            Resolved::Done(stamps) => {
                // No stream goes back in time; the last digits of what events tell may.
                let end_ns = stamps.end_ns.max(stream.last_end_ns.unwrap_or(0));
                let start_ns = stamps.start_ns.or(stream.last_end_ns);
                let start_ns = start_ns.map(|start| start.max(stream.last_end_ns.unwrap_or(0)).min(end_ns));
                (start_ns.map(|start_ns| Span { start_ns, end_ns }), Some(end_ns))
            }
        };
        stream.last_end_ns = end_ns;
        let next = stream.under_way.front().map(|Begun { number, plan, .. }| Due {
            stream: id,
            number: *number,
            base: plan.base.clone(),
            start: plan.start,
            end: plan.end,
        });
        match span {
            Some(span) => {
                self.estimate(id, &begun.before, last_end_ns, Some(span.start_ns));
                self.thrift.learns(&begun.work, span.end_ns - span.start_ns);
                self.record(id, begun.work, span);
            }
            None => self.said.missed += 1 + begun.before.len() as u64,
        }
        if next.is_none() && self.streams.get(&id).is_some_and(|stream| stream.is_gone) {
            self.settle_stream(id, None);
            self.streams.remove(&id);
        }
        if resolved != Resolved::Lost {
            self.give_back(context, plan.start.into_iter().chain([plan.end]));
        }
        next
    }

    fn record(&mut self, stream: StreamId, work: Work, span: Span) {
        if self.records >= RECORDS_MAX {
            self.said.missed += 1;
            return;
        }
        self.records += 1;
        match work {
            Work::Kernel { kernel, grid, block, shared_bytes } => {
                self.said.kernels.push_back(TimedKernel { stream, kernel, grid, block, shared_bytes, span });
            }
            Work::Other { kind, bytes } => self.said.works.push_back(TimedWork { stream, kind, bytes, span }),
        }
    }

    /// A call was answered.
    pub fn answered(&mut self, call: u32, span: Span) {
        if self.records < RECORDS_MAX {
            self.records += 1;
            self.said.answers.push_back(TimedAnswer { call, span });
        }
    }

    /// Whether work is unfinished or something is to be said.
    pub fn is_idle(&self) -> bool {
        self.records == 0
            && self.said.streams.is_empty()
            && self.said.missed == 0
            && self.streams.values().all(|stream| stream.under_way.is_empty() && stream.passed.is_empty())
    }

    /// What is to be said next, if anything.
    pub fn say(&mut self) -> Option<Timed> {
        let said = &mut self.said;
        let is_empty = self.records == 0 && said.streams.is_empty() && said.missed == 0;
        if is_empty {
            return None;
        }
        let mut room = BATCH_MAX;
        let batch = Timed {
            streams: first(&mut said.streams, &mut room),
            kernels: first(&mut said.kernels, &mut room),
            works: first(&mut said.works, &mut room),
            answers: first(&mut said.answers, &mut room),
            missed: std::mem::take(&mut said.missed),
        };
        self.records -= batch.kernels.len() + batch.works.len() + batch.answers.len();
        Some(batch)
    }
}

/// Takes the first ones, as many as there is room for.
fn first<T>(of: &mut VecDeque<T>, room: &mut usize) -> Vec<T> {
    let count = of.len().min(*room);
    *room -= count;
    of.drain(..count).collect()
}
