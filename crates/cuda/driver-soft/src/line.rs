//! A stream: a queue of tasks that one thread executes in order.
//!
//! The thread starts with the first task and ends after a while without any. A task names the places in other lines
//! that must be reached before it; those places were queued earlier, so lines never wait for each other in a circle.
//!
//! A line holds tasks of at most [`QUEUED_BYTES_MAX`] (their data included); beyond, queueing blocks, as it does on a
//! real device that is 1024 operations behind. Programs cannot deadlock by this that would not on a real device: what a
//! stream waits for, except a host function, was queued before, and a host function may not call CUDA.

use crate::{
    activity::now_ns,
    context::Context,
    gate::Gate,
    load::Load,
    session::Session,
    shared_event::SharedEvent,
    sync::{Lock, lock, wait},
    work::Work,
};
use cuda_abi::{CuResult, CudaError};
use std::{
    collections::VecDeque,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Release},
    },
    thread::JoinHandle,
    time::Instant,
};

/// The most memory that the tasks of one line may hold.
const QUEUED_BYTES_MAX: usize = 64 << 20;

/// How a line is ordered against the legacy stream of its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineKind {
    /// Legacy work waits for it and it for legacy work.
    Blocking,
    /// Not at all.
    NonBlocking,
    /// It is the legacy stream.
    Legacy,
}

/// A place in a line: done when that many tasks are.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) line: Arc<Line>,
    pub(crate) count: u64,
}

impl Place {
    pub(crate) fn is_reached(&self) -> bool {
        self.line.done.load(Acquire) >= self.count
    }

    /// Waits for it; an aborted session reaches nothing any more.
    pub(crate) fn wait(&self) -> CuResult<()> {
        self.line.wait_until(|| self.is_reached())
    }
}

/// One element of a line.
pub(crate) struct Task {
    /// What must be done before.
    pub(crate) after: Vec<Place>,
    /// What to do.
    pub(crate) work: Work,
}

/// A task in its line.
struct Queued {
    task: Task,
    /// The cut that it comes after, if that was not over when it was queued.
    gate: Option<Arc<Gate>>,
}

/// A stream.
pub(crate) struct Line {
    pub(crate) context: Arc<Context>,
    pub(crate) kind: LineKind,
    state: Lock<State>,
    /// Told when a task is queued, a task is done, an event in here is reached, or the session is aborted.
    changed: Condvar,
    done: AtomicU64,
    aborted: AtomicBool,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Queued>,
    queued_bytes: usize,
    queued: u64,
    is_running: bool,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl Line {
    pub(crate) fn new(context: Arc<Context>, kind: LineKind) -> Arc<Self> {
        Arc::new(Self {
            context,
            kind,
            state: Lock::default(),
            changed: Condvar::new(),
            done: AtomicU64::new(0),
            aborted: AtomicBool::new(false),
        })
    }

    /// The place after all tasks so far.
    pub(crate) fn end(self: &Arc<Self>) -> Place {
        Place { line: self.clone(), count: lock(&self.state).queued }
    }

    /// Whether all tasks so far are done.
    pub(crate) fn is_idle(&self) -> bool {
        lock(&self.state).queued == self.done.load(Acquire)
    }

    /// Blocks while the line, or all of them together, hold as much as they may. Call it without any lock.
    pub(crate) fn wait_for_room(&self, load: &Load) {
        let mut state = lock(&self.state);
        while state.queued_bytes > QUEUED_BYTES_MAX && !self.aborted.load(Acquire) {
            state = wait(&self.changed, state);
        }
        let (has_thread, held_bytes) = (state.is_running, state.queued_bytes);
        drop(state);
        load.wait_for_room(has_thread, held_bytes);
    }

    /// Queues a task and returns the place behind it. Tasks of an aborted session are dropped.
    pub(crate) fn push(self: &Arc<Self>, session: &Arc<Session>, task: Task) -> CuResult<Place> {
        let mut state = lock(&self.state);
        if self.aborted.load(Acquire) {
            return Err(CudaError::DEVICE_UNAVAILABLE);
        }
        if !state.is_running {
            // Without a thread nothing would ever happen; the program learns it now.
            session.load.begin_line()?;
            let (line, of_thread) = (self.clone(), session.clone());
            let spawned =
                std::thread::Builder::new().name("dxpu-stream".into()).spawn(move || line.run(&of_thread));
            let thread = spawned.map_err(|_| {
                session.load.end_line();
                CudaError::OUT_OF_MEMORY
            })?;
            // The thread before, if any, has left its loop; it need not be joined.
            state.thread = Some(thread);
            state.is_running = true;
        }
        let held_bytes = task.work.held_bytes();
        state.queued_bytes += held_bytes;
        session.load.queued(held_bytes);
        let gate = session.gate();
        if let Some(gate) = &gate {
            gate.want();
        }
        state.queue.push_back(Queued { task, gate });
        state.queued += 1;
        let count = state.queued;
        drop(state);
        self.changed.notify_all();
        Ok(Place { line: self.clone(), count })
    }

    /// Blocks until `condition` holds, which is looked at whenever something happens in this line.
    pub(crate) fn wait_until(&self, condition: impl Fn() -> bool) -> CuResult<()> {
        if condition() {
            return Ok(());
        }
        let mut state = lock(&self.state);
        loop {
            if condition() {
                return Ok(());
            }
            if self.aborted.load(Acquire) {
                return Err(CudaError::DEVICE_UNAVAILABLE);
            }
            state = wait(&self.changed, state);
        }
    }

    /// Ends all waits; nothing is executed any more.
    pub(crate) fn abort(&self) {
        let mut state = lock(&self.state);
        self.aborted.store(true, Release);
        let dropped = std::mem::take(&mut state.queue);
        drop(state);
        drop(dropped);
        self.changed.notify_all();
    }

    /// Waits for the end of its thread; only after [`Line::abort`].
    pub(crate) fn join(&self) {
        let thread = lock(&self.state).thread.take();
        // A thread that drops the last handle of its own session must not wait for itself.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }

    /// Whether its thread has ended or never was, so that it may be forgotten.
    pub(crate) fn is_at_rest(&self) -> bool {
        let state = lock(&self.state);
        !state.is_running && state.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Says that something waits may look at has changed.
    pub(crate) fn tell(&self) {
        // A thread that looked before the change holds the lock until it waits, so it is woken.
        drop(lock(&self.state));
        self.changed.notify_all();
    }

    fn run(self: Arc<Self>, session: &Arc<Session>) {
        while let Some(Queued { task, gate }) = self.next(&session.load) {
            if let Some(gate) = gate {
                gate.wait();
            }
            let held_bytes = task.work.held_bytes();
            let record = match &task.work {
                Work::Record(record) => Some(record.clone()),
                _ => None,
            };
            let outcome = catch_unwind(AssertUnwindSafe(|| self.execute(session, task)));
            if let Err(error) = outcome.unwrap_or_else(|_| {
                tracing::error!("a stream's work panicked; its context is lost");
                Err(CudaError::LAUNCH_FAILED)
            }) {
                session.fail(&self.context, error);
            }
            session.load.done(held_bytes);
            let mut state = lock(&self.state);
            state.queued_bytes -= held_bytes.min(state.queued_bytes);
            if session.is_aborted() {
                // What was cut short was not done, and must not be reported as done.
                continue;
            }
            self.done.fetch_add(1, Release);
            if let Some(record) = record {
                // At once with its place: a thread that hears that an event was reached finds its stream idle, if
                // nothing follows.
                record.note_reached();
            }
            drop(state);
            self.changed.notify_all();
            session.sweep();
        }
        session.load.end_line();
    }

    /// The next task; `None` when the thread shall end.
    fn next(&self, load: &Load) -> Option<Queued> {
        let mut state = lock(&self.state);
        let mut until = None;
        loop {
            if self.aborted.load(Acquire) {
                state.is_running = false;
                return None;
            }
            if let Some(task) = state.queue.pop_front() {
                return Some(task);
            }
            let until = *until.get_or_insert_with(|| Instant::now() + load.idle_max());
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                state.is_running = false;
                return None;
            }
            state = locks::wait_for(&self.changed, state, left);
        }
    }

    fn execute(self: &Arc<Self>, session: &Arc<Session>, task: Task) -> CuResult<()> {
        for place in &task.after {
            place.wait()?;
        }
        if let Work::Record(_) = task.work {
            // It is reached when it is counted as done.
            return Ok(());
        }
        task.work.execute(session, self)
    }
}

/// One record of an event: reached when its line comes to it.
#[derive(Debug)]
pub(crate) struct Record {
    line: Arc<Line>,
    /// Nanoseconds of a clock that never goes back; less than 0 if it was reached before that clock began, on another
    /// device.
    at: OnceLock<i64>,
    shared: Option<SharedRecord>,
}

/// A record of an event that other sessions know.
#[derive(Debug)]
struct SharedRecord {
    event: Arc<SharedEvent>,
    number: u64,
    /// A line of this session comes to it.
    is_ours: bool,
}

/// A record that no line comes to any more, since its session ends, holds no stream up.
impl Drop for SharedRecord {
    fn drop(&mut self) {
        if self.is_ours {
            self.event.reach(self.number);
        }
    }
}

impl Record {
    pub(crate) fn new(line: &Arc<Line>) -> Arc<Self> {
        Arc::new(Self { line: line.clone(), at: OnceLock::new(), shared: None })
    }

    /// A record that other sessions hear of.
    pub(crate) fn told(line: &Arc<Line>, event: Arc<SharedEvent>) -> Arc<Self> {
        let number = event.record();
        let shared = Some(SharedRecord { event, number, is_ours: true });
        Arc::new(Self { line: line.clone(), at: OnceLock::new(), shared })
    }

    /// A record that another session has made.
    pub(crate) fn of_another(context: &Arc<Context>, event: Arc<SharedEvent>, number: u64) -> Arc<Self> {
        let line = Line::new(context.clone(), LineKind::NonBlocking);
        let shared = Some(SharedRecord { event, number, is_ours: false });
        Arc::new(Self { line, at: OnceLock::new(), shared })
    }

    /// Whether it has this number among the records of an event that other sessions know.
    pub(crate) fn is_numbered(&self, number: u64) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.number == number)
    }

    /// Other sessions need not wait for it any longer.
    pub(crate) fn tell_others(&self) {
        if let Some(shared) = self.shared.as_ref().filter(|shared| shared.is_ours) {
            shared.event.reach(shared.number);
        }
    }

    fn note_reached(&self) {
        let _ = self.at.set(now_ns() as i64);
        self.tell_others();
    }

    /// A record that another session reached at this time of our clock.
    pub(crate) fn reached_elsewhere(context: &Arc<Context>, at_ns: i64) -> Arc<Self> {
        let record = Self::new(&Line::new(context.clone(), LineKind::NonBlocking));
        let _ = record.at.set(at_ns);
        record
    }

    /// The line has come to it.
    pub(crate) fn reach(&self) {
        self.note_reached();
        self.line.tell();
    }

    /// When the line came to it, in nanoseconds.
    pub(crate) fn reached_at(&self) -> Option<i64> {
        match &self.shared {
            Some(SharedRecord { event, number, is_ours: false }) => {
                (event.is_reached(*number) || event.is_orphan()).then_some(0)
            }
            _ => self.at.get().copied(),
        }
    }

    pub(crate) fn wait(&self) -> CuResult<()> {
        match &self.shared {
            Some(SharedRecord { event, number, is_ours: false }) => {
                event.wait(*number, || self.line.context.abort.is_set())
            }
            _ => self.line.wait_until(|| self.at.get().is_some()),
        }
    }
}
