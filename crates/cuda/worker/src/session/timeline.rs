//! The timeline of a session whose client wished for one: times its work on the device, and tells the client.
//!
//! The command loop has the driver record events around work, as `timeline::Book` plans it. A thread looks every few milliseconds
//! which of them were reached, and sends what it found. It only asks the driver, which any thread may.
//!
//! The driver tells how long it was from one event to another. Which moment of the worker's clock that is follows from a *base*: an
//! event in a stream of our own that has nothing else to do, recorded and seen reached between two readings of the clock. A new base
//! is made every second or so, because a single-precision number of milliseconds tells microseconds for no longer than some seconds.

use crate::session::{events::Events, spawn};
use cuda_abi::{CuResult, CudaError};
use cuda_driver::{Driver, WaitTarget};
use cuda_wire::{ContextId, DriverCommand, EventId, Notice, Op, Shape, Span, StreamId, Wire, timed};
use locks::{lock, wait_for};
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use timeline::{Book, Due, Plan, Resolved, Stamps, Timed, Work};

/// How often the thread looks for work that is done.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How often it looks whether the session is over, while there is no work.
const IDLE_LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a client that wants to be told everything waits for work under way, and how often the thread looks meanwhile.
const FLUSH_WITHIN: Duration = Duration::from_millis(100);
const FLUSH_LOOK_EVERY: Duration = Duration::from_micros(500);
/// How old a base may get.
const BASE_EVERY: Duration = Duration::from_secs(1);
/// How long the first base of a context is waited for. The GPU may have to wake up.
const FIRST_BASE_WITHIN: Duration = Duration::from_secs(1);
/// How long a later base is waited for: the command loop waits meanwhile.
const BASE_WITHIN: Duration = Duration::from_micros(50);
/// A client asks for everything once, when it ends; more questions at once than this are not answered.
const FLUSHES_MAX: usize = 64;
/// Calls that the client waits for at once; more are not timed.
const CALLS_MAX: usize = 1 << 16;

pub(crate) struct Timeline {
    driver: Arc<dyn Driver>,
    events: Arc<Events>,
    started: Instant,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    book: Book,
    bases: HashMap<ContextId, Measuring>,
    /// When calls that are not answered yet came.
    calls: HashMap<u32, u64>,
    /// Clients' wishes to be told everything.
    flushes: Vec<u64>,
    /// The thread sleeps until it is woken.
    is_asleep: bool,
}

/// How bases of a context are made.
#[derive(Clone, Copy)]
struct Measuring {
    stream: StreamId,
    last: Instant,
    /// A base that was recorded and not seen reached in time.
    late: Option<EventId>,
}

impl Timeline {
    /// Starts the thread, and tells the client that there is a timeline.
    pub(crate) fn start(driver: &Arc<dyn Driver>, events: &Arc<Events>) -> Arc<Self> {
        let devices = driver.devices().len() as u32;
        let state = State {
            book: Book::new(devices),
            bases: HashMap::new(),
            calls: HashMap::new(),
            flushes: Vec::new(),
            is_asleep: false,
        };
        let timeline = Arc::new(Self {
            driver: driver.clone(),
            events: events.clone(),
            started: Instant::now(),
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        // Ahead of anything that the thread may say. A client that is gone ends the session elsewhere.
        let _ = timeline.tell(0);
        let thread = timeline.clone();
        spawn("dxpu-timeline", move || thread.run());
        timeline
    }

    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    fn tell(&self, nonce: u64) -> Result<(), cuda_driver::LinkLost> {
        self.events.send(&Notice::TimelineTold { nonce, worker_ns: self.now_ns() })
    }

    /// The client asks for the time, or for everything.
    pub(crate) fn asked(&self, nonce: u64, flush: bool) {
        if !flush {
            let _ = self.tell(nonce);
            return;
        }
        let mut state = lock(&self.state);
        if state.flushes.len() < FLUSHES_MAX {
            state.flushes.push(nonce);
        }
        drop(state);
        self.changed.notify_one();
    }

    /// A command came that the client waits for.
    pub(crate) fn received(&self, call: u32) {
        let now = self.now_ns();
        let calls = &mut lock(&self.state).calls;
        if calls.len() < CALLS_MAX {
            calls.insert(call, now);
        }
    }

    /// Its reply is sent.
    pub(crate) fn answered(&self, call: u32) {
        let end_ns = self.now_ns();
        let mut state = lock(&self.state);
        if let Some(start_ns) = state.calls.remove(&call) {
            state.book.answered(call, Span { start_ns, end_ns });
            self.wake(state);
        }
    }

    fn wake(&self, mut state: std::sync::MutexGuard<'_, State>) {
        if std::mem::take(&mut state.is_asleep) {
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Has the driver execute `command`, and times it if it is work.
    pub(crate) fn execute(&self, command: DriverCommand<'_>, answer: &mut Vec<u8>) -> CuResult<()> {
        use DriverCommand as C;
        match &command {
            C::Enqueue { stream, op } => {
                let stream = *stream;
                match work_of(op) {
                    Some(work) => self.time(stream, work, || self.driver.execute(command, answer)),
                    None => {
                        lock(&self.state).book.disturbed(stream);
                        self.driver.execute(command, answer)
                    }
                }
            }
            C::GraphLaunch { exec, stream, .. } => {
                let work = Work::Other { kind: timed::GRAPH, bytes: exec.0.into() };
                self.time(*stream, work, || self.driver.execute(command, answer))
            }
            _ => {
                let change = Change::of(&command);
                // Before the driver does it: the events of a context that ends must not be asked about any more.
                if let Some(Change::Emptied { context, lives_on }) = change {
                    self.collect();
                    let mut state = lock(&self.state);
                    state.book.context_emptied(context, lives_on);
                    state.bases.remove(&context);
                }
                self.driver.execute(command, answer)?;
                if let Some(change) = change {
                    change.note(&mut lock(&self.state).book);
                }
                Ok(())
            }
        }
    }

    /// Runs `run`, which puts `work` into a stream, between events.
    pub(crate) fn time<T>(
        &self,
        stream: StreamId,
        work: Work,
        run: impl FnOnce() -> CuResult<T>,
    ) -> CuResult<T> {
        let put_ns = self.now_ns();
        if !lock(&self.state).book.measures(stream, &work, put_ns) {
            let result = run();
            if result.is_ok() {
                let mut state = lock(&self.state);
                state.book.passed(stream, work, put_ns);
                self.wake(state);
            }
            return result;
        }
        let Some(plan) = self.plan(stream) else { return run() };
        let is_ready = plan.made.iter().all(|event| self.make(stream, *event).is_ok())
            && plan.start.is_none_or(|start| self.record(stream, start).is_ok());
        let result = run();
        let is_timed = is_ready && result.is_ok() && self.record(stream, plan.end).is_ok();
        let mut state = lock(&self.state);
        match (&result, is_timed) {
            (_, true) => state.book.began(stream, plan, work),
            (Err(_), _) if is_ready => state.book.gave_up(stream, plan),
            _ => state.book.not_timed(),
        }
        self.wake(state);
        result
    }

    fn plan(&self, stream: StreamId) -> Option<Plan> {
        let context = lock(&self.state).book.context_of(stream)?;
        self.keep_base(context);
        let before = lock(&self.state).book.look_back(stream);
        // Asked without the lock: the thread that collects must not wait for the driver.
        let is_busy =
            before.is_some_and(|event| matches!(self.driver.poll(WaitTarget::Event(event)), Ok(false)));
        lock(&self.state).book.plan(stream, is_busy)
    }

    fn run_command(&self, command: DriverCommand<'_>) -> CuResult<Vec<u8>> {
        let mut answer = Vec::new();
        self.driver.execute(command, &mut answer)?;
        Ok(answer)
    }

    fn make(&self, stream: StreamId, event: EventId) -> CuResult<()> {
        let context = lock(&self.state).book.context_of(stream).ok_or(CudaError::INVALID_HANDLE)?;
        self.run_command(DriverCommand::EventCreate { event, context, flags: 0 }).map(drop)
    }

    fn record(&self, stream: StreamId, event: EventId) -> CuResult<()> {
        let op = Op::Record { event, flags: 0 };
        self.run_command(DriverCommand::Enqueue { stream, op }).map(drop)
    }

    fn nanoseconds_between(&self, start: EventId, end: EventId) -> CuResult<u64> {
        let answer = self.run_command(DriverCommand::EventElapsed { start, end })?;
        let ms = f32::from_bytes(&answer).map_err(|_| CudaError::UNKNOWN)?;
        Ok((f64::from(ms) * 1e6).max(0.0) as u64)
    }
}

/// Bases: on the command loop's thread alone.
impl Timeline {
    /// Sees to it that the context has a base, and makes another one when it is old.
    fn keep_base(&self, context: ContextId) {
        let known = lock(&self.state).bases.get(&context).copied();
        match known {
            None => {
                if let Ok(measuring) = self.first_base(context) {
                    lock(&self.state).bases.insert(context, measuring);
                }
            }
            Some(measuring) if measuring.late.is_some() || measuring.last.elapsed() >= BASE_EVERY => {
                let next = self.next_base(context, measuring);
                lock(&self.state).bases.insert(context, next);
            }
            Some(_) => {}
        }
    }

    fn first_base(&self, context: ContextId) -> CuResult<Measuring> {
        const NOT_ORDERED: u32 = 1;
        let stream = StreamId(lock(&self.state).book.name());
        let make = DriverCommand::StreamCreate { stream, context, kind: NOT_ORDERED, priority: 0 };
        self.run_command(make)?;
        // The first record of a stream takes longer than all others.
        self.measure(context, stream, FIRST_BASE_WITHIN)?;
        let (event, at_ns) = self.measure(context, stream, FIRST_BASE_WITHIN)?;
        let at_ns = at_ns.ok_or(CudaError::NOT_READY)?;
        lock(&self.state).book.set_base(context, event, at_ns);
        Ok(Measuring { stream, last: Instant::now(), late: None })
    }

    fn next_base(&self, context: ContextId, before: Measuring) -> Measuring {
        let now = Instant::now();
        let (event, at_ns) = match before.late {
            // The device was busy when it was recorded, so only the device knows when that was.
            Some(event) if matches!(self.driver.poll(WaitTarget::Event(event)), Ok(true)) => {
                let base = lock(&self.state).book.base_of(context);
                let since = base
                    .and_then(|base| Some(base.at_ns + self.nanoseconds_between(base.event, event).ok()?));
                (event, since)
            }
            Some(_) => return before,
            None => match self.measure(context, before.stream, BASE_WITHIN) {
                Ok((event, None)) => return Measuring { late: Some(event), last: now, ..before },
                Ok(measured) => measured,
                Err(_) => return Measuring { last: now, ..before },
            },
        };
        if let Some(at_ns) = at_ns {
            lock(&self.state).book.set_base(context, event, at_ns);
        }
        Measuring { late: None, last: now, ..before }
    }

    /// Records an event in our own stream, and says when that was if it is reached within `patience`.
    fn measure(
        &self,
        context: ContextId,
        stream: StreamId,
        patience: Duration,
    ) -> CuResult<(EventId, Option<u64>)> {
        let event = lock(&self.state).book.base_event(context);
        let (event, exists) = event.ok_or(CudaError::OUT_OF_MEMORY)?;
        if !exists {
            self.run_command(DriverCommand::EventCreate { event, context, flags: 0 })?;
        }
        let began = Instant::now();
        let began_ns = self.now_ns();
        self.record(stream, event)?;
        while !self.driver.poll(WaitTarget::Event(event))? {
            if began.elapsed() >= patience {
                return Ok((event, None));
            }
            std::hint::spin_loop();
        }
        Ok((event, Some(began_ns.midpoint(self.now_ns()))))
    }
}

/// The thread.
impl Timeline {
    fn run(&self) {
        while !self.events.is_closed() {
            let flushes = std::mem::take(&mut lock(&self.state).flushes);
            let until = Instant::now() + if flushes.is_empty() { Duration::ZERO } else { FLUSH_WITHIN };
            self.collect();
            // The client has its answers, but the events behind the last work may not be reached yet.
            while Instant::now() < until && !lock(&self.state).book.due().is_empty() {
                std::thread::sleep(FLUSH_LOOK_EVERY);
                self.collect();
            }
            lock(&self.state).book.settle(self.now_ns(), !flushes.is_empty());
            if self.say_all().is_err() || flushes.into_iter().any(|nonce| self.tell(nonce).is_err()) {
                return;
            }
            let mut state = lock(&self.state);
            if state.flushes.is_empty() {
                state.is_asleep = state.book.is_idle();
                let pause = if state.is_asleep { IDLE_LOOK_EVERY } else { LOOK_EVERY };
                drop(wait_for(&self.changed, state, pause));
            }
        }
    }

    /// Finds out what is done.
    fn collect(&self) {
        let due = lock(&self.state).book.due();
        for mut piece in due {
            while let Some(resolved) = self.look(&piece) {
                match lock(&self.state).book.resolve(piece, resolved) {
                    Some(next) => piece = next,
                    None => break,
                }
            }
        }
    }

    /// What became of a piece of work; `None`: it is not done yet.
    fn look(&self, due: &Due) -> Option<Resolved> {
        match self.driver.poll(WaitTarget::Event(due.end)) {
            Ok(false) => None,
            Err(_) => Some(Resolved::Lost),
            Ok(true) => Some(self.stamps(due).map_or(Resolved::Lost, Resolved::Done)),
        }
    }

    fn stamps(&self, due: &Due) -> CuResult<Stamps> {
        let (base, base_ns) = (due.base.event, due.base.at_ns);
        let Some(start) = due.start else {
            return Ok(Stamps { start_ns: None, end_ns: base_ns + self.nanoseconds_between(base, due.end)? });
        };
        let start_ns = base_ns + self.nanoseconds_between(base, start)?;
        let end_ns = start_ns + self.nanoseconds_between(start, due.end)?;
        Ok(Stamps { start_ns: Some(start_ns), end_ns })
    }

    fn say_all(&self) -> Result<(), cuda_driver::LinkLost> {
        loop {
            let said = lock(&self.state).book.say();
            let Some(Timed { streams, kernels, works, answers, missed }) = said else { return Ok(()) };
            self.events.send(&Notice::Timed { streams, kernels, works, answers, missed })?;
        }
    }
}

/// What a command that is no work changes for the book.
#[derive(Clone, Copy)]
enum Change {
    ContextCreated { context: ContextId, device: u32 },
    Emptied { context: ContextId, lives_on: bool },
    StreamCreated { stream: StreamId, context: ContextId, kind: u32 },
    StreamDestroyed { stream: StreamId },
}

impl Change {
    fn of(command: &DriverCommand<'_>) -> Option<Self> {
        use DriverCommand as C;
        Some(match *command {
            C::ContextCreate { context, device, .. } => Self::ContextCreated { context, device },
            C::ContextDestroy { context } => Self::Emptied { context, lives_on: false },
            C::ContextReset { context } => Self::Emptied { context, lives_on: true },
            C::StreamCreate { stream, context, kind, .. }
            | C::GreenStreamCreate { stream, context, kind, .. } => {
                Self::StreamCreated { stream, context, kind }
            }
            C::StreamDestroy { stream } => Self::StreamDestroyed { stream },
            _ => return None,
        })
    }

    fn note(self, book: &mut Book) {
        match self {
            Self::ContextCreated { context, device } => book.context_created(context, device),
            Self::Emptied { .. } => {}
            Self::StreamCreated { stream, context, kind } => book.stream_created(stream, context, kind),
            Self::StreamDestroyed { stream } => book.stream_destroyed(stream),
        }
    }
}

/// What a piece of stream-ordered work is to a timeline. `None`: nothing that takes time by itself; it may hold the stream up.
fn work_of(op: &Op<'_>) -> Option<Work> {
    let moved = |kind, shape: &Shape| Some(Work::Other { kind, bytes: shape.bytes().unwrap_or(u64::MAX) });
    match op {
        Op::Launch { kernel, grid, block, shared_bytes, .. } => {
            Some(Work::Kernel { kernel: *kernel, grid: *grid, block: *block, shared_bytes: *shared_bytes })
        }
        Op::Fill { shape, .. } => moved(timed::FILL, shape),
        Op::CopyDevice { shape, .. } => moved(timed::COPY_DEVICE, shape),
        Op::CopyIn { shape, .. } | Op::CopyInShared { shape, .. } => moved(timed::COPY_IN, shape),
        Op::CopyOut { shape, .. } | Op::CopyOutShared { shape, .. } => moved(timed::COPY_OUT, shape),
        Op::HostCall { .. } => Some(Work::Other { kind: timed::HOST_FUNCTION, bytes: 0 }),
        _ => None,
    }
}

/// A read of device memory, as work.
pub(crate) fn work_of_read(shape: &Shape) -> Work {
    Work::Other { kind: timed::COPY_OUT, bytes: shape.bytes().unwrap_or(u64::MAX) }
}
