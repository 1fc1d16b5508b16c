//! The barrier of a cut: all streams stand still at one place in the order of commands.
//!
//! ```text
//! command thread    every stream: write `arrived` │ cut streams: wait `all_arrived`, digest, copy, write `taken` │ every stream: wait `go`
//! progress thread   all `arrived` ─▶ `all_arrived`
//! cut thread        all `taken` ─▶ the cut is told ─▶ `go`
//!                   work is held back for too long, and not all are there ─▶ `skipped`, `all_arrived`, `go`
//! ```
//!
//! What a stream waits for is written by a thread of ours, and neither thread calls the library while streams wait: a
//! command that waits for room in a stream would keep every such call waiting, and the room comes only with `go`.

use crate::{
    op::Work,
    pinned::{Word, Words},
    progress::{Until, Watch},
    stream::LiveStream,
};
use cuda_abi::{CuResult, CudaError};
use cuda_driver::Abandon;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Words that all cuts of a session share; each cut has a number, and a word at that number or beyond is set for it.
pub(crate) struct CutWords {
    pub(super) all_arrived: Word,
    pub(super) go: Word,
    /// Kernels of a cut that was given up read it and do nothing.
    pub(super) skipped: Word,
}

impl CutWords {
    pub(crate) fn new(words: &Arc<Words>) -> CuResult<Self> {
        Ok(Self { all_arrived: words.take()?, go: words.take()?, skipped: words.take()? })
    }
}

/// A stream of the program at the barrier.
struct Arrival {
    stream: Arc<LiveStream>,
    arrived: Option<Instant>,
    /// When something first came behind the barrier.
    wanted: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Gathering,
    Arrived,
    Skipped(Abandon),
}

struct State {
    phase: Phase,
    arrivals: Vec<Arrival>,
    /// When a stream that was created behind the barrier first got work.
    newcomer: Option<Instant>,
    /// The command thread puts the waits into streams, since then.
    closing: Option<Instant>,
    /// A call of the driver failed, or a context died.
    is_failed: bool,
    /// All streams have their waits.
    is_closed: bool,
    is_open: bool,
    /// What goes when the barrier is open.
    kept: Vec<Box<dyn Send>>,
}

/// One cut's barrier.
pub(crate) struct Barrier {
    number: u64,
    words: Arc<CutWords>,
    state: Mutex<State>,
    changed: Condvar,
}

impl Barrier {
    /// `number` is higher than that of any barrier before.
    pub(super) fn new(number: u64, words: &Arc<CutWords>, streams: Vec<Arc<LiveStream>>) -> Arc<Self> {
        let arrival = |stream| Arrival { stream, arrived: None, wanted: None };
        let state = State {
            phase: Phase::Gathering,
            arrivals: streams.into_iter().map(arrival).collect(),
            newcomer: None,
            closing: None,
            is_failed: false,
            is_closed: false,
            is_open: false,
            kept: Vec::new(),
        };
        Arc::new(Self { number, words: Arc::clone(words), state: Mutex::new(state), changed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    fn streams(&self) -> Vec<Arc<LiveStream>> {
        self.lock().arrivals.iter().map(|arrival| Arc::clone(&arrival.stream)).collect()
    }

    /// Pass 1: every stream says when it is there.
    #[allow(unsafe_code)]
    pub(super) fn call(self: &Arc<Self>, work: &Arc<Work>) -> CuResult<()> {
        for (index, stream) in self.streams().into_iter().enumerate() {
            let word = Arc::new(work.words.take()?);
            let raw = stream.enter()?;
            // SAFETY: the watch keeps the word until the stream has written it or is dead.
            unsafe { work.api.stream_write_value(raw, word.device(), 1, 0)? };
            let barrier = Arc::clone(self);
            work.progress.watch(Watch {
                until: Until::Written { word, value: 1 },
                stream,
                then: Box::new(move |reached| barrier.arrive(index, reached)),
            });
        }
        Ok(())
    }

    /// Pass 2: every stream waits. It comes after the cut's own work, so that no wait stands in front of what ends it.
    pub(super) fn close(&self, work: &Work) -> CuResult<()> {
        // A stream that is full keeps this thread; the others are held back meanwhile.
        self.lock().closing = Some(Instant::now());
        let closed = self.streams().iter().try_for_each(|stream| self.hold(work, stream));
        let mut state = self.lock();
        state.closing = None;
        state.is_closed = closed.is_ok();
        drop(state);
        self.changed.notify_all();
        closed
    }

    /// Lets a stream wait until the barrier is open.
    #[allow(unsafe_code)]
    pub(crate) fn hold(&self, work: &Work, stream: &LiveStream) -> CuResult<()> {
        let raw = stream.enter()?;
        // SAFETY: the word lives as long as the session.
        unsafe {
            work.api.stream_wait_value(raw, self.words.go.device(), self.number, crate::copy_in::AT_LEAST)
        }
    }

    /// A stream is there, or never will be. On the progress thread.
    fn arrive(&self, index: usize, reached: CuResult<()>) {
        let mut state = self.lock();
        match reached {
            Ok(()) => state.arrivals[index].arrived = Some(Instant::now()),
            Err(CudaError::DEVICE_UNAVAILABLE) => self.skip_in(&mut state, Abandon::Ended),
            Err(_) => self.skip_in(&mut state, Abandon::ContextLost),
        }
        let are_all = state.arrivals.iter().all(|arrival| arrival.arrived.is_some());
        if are_all && state.phase == Phase::Gathering {
            state.phase = Phase::Arrived;
            self.words.all_arrived.set(self.number);
        }
        drop(state);
        self.changed.notify_all();
    }

    fn skip_in(&self, state: &mut State, reason: Abandon) {
        if state.phase != Phase::Gathering {
            // Kernels that have not begun do nothing any more.
            self.words.skipped.set(self.number);
            state.is_failed = true;
            return;
        }
        state.phase = Phase::Skipped(reason);
        // In this order: kernels that start behind `all_arrived` see that they are skipped.
        self.words.skipped.set(self.number);
        self.words.all_arrived.set(self.number);
        self.words.go.set(self.number);
        state.is_open = true;
    }

    /// Gives the cut up: at once if not all streams are there, else when its kernels are over.
    pub(super) fn give_up(&self, reason: Abandon) {
        self.skip_in(&mut self.lock(), reason);
        self.changed.notify_all();
    }

    /// Gives the cut up if not all streams are there; else it is taken first.
    pub(super) fn give_up_waiting(&self) {
        let mut state = self.lock();
        if state.phase == Phase::Gathering {
            self.skip_in(&mut state, Abandon::Ended);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Something went wrong after all streams were there.
    pub(super) fn is_failed(&self) -> bool {
        self.lock().is_failed
    }

    /// Waits until all streams are there. Gives up when work was held back for longer than `patience`, or on demand.
    pub(super) fn gather(
        &self,
        patience: Duration,
        is_unwanted: impl Fn() -> Option<Abandon>,
    ) -> Result<(), Abandon> {
        /// How often the clock is looked at: short against any patience.
        const LOOK: Duration = Duration::from_millis(1);
        let mut state = self.lock();
        loop {
            match state.phase {
                Phase::Arrived => return Ok(()),
                Phase::Skipped(reason) => return Err(reason),
                Phase::Gathering => {}
            }
            if let Some(reason) = is_unwanted() {
                self.skip_in(&mut state, reason);
            } else if state.held_for().is_some_and(|held| held > patience) {
                self.skip_in(&mut state, Abandon::Patience);
            } else {
                state = self.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    /// Waits until the command thread has put all waits into streams. All streams are there, so they have room.
    pub(super) fn closed(&self) -> Result<(), Abandon> {
        let mut state = self.lock();
        while !state.is_closed && !state.is_failed {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.is_failed { Err(Abandon::ContextLost) } else { Ok(()) }
    }

    /// How long work has been held back.
    pub(super) fn held_for(&self) -> Duration {
        self.lock().held_for().unwrap_or_default()
    }

    /// Work comes to a stream, or a thread waits for it.
    pub(crate) fn want(&self, stream: &Arc<LiveStream>) {
        let mut state = self.lock();
        match state.arrivals.iter_mut().find(|arrival| Arc::ptr_eq(&arrival.stream, stream)) {
            Some(arrival) => drop(arrival.wanted.get_or_insert_with(Instant::now)),
            None => drop(state.newcomer.get_or_insert_with(Instant::now)),
        }
    }

    /// A thread waits for all streams.
    pub(crate) fn want_all(&self) {
        let now = Instant::now();
        for arrival in &mut self.lock().arrivals {
            arrival.wanted.get_or_insert(now);
        }
    }

    /// Keeps something that the cut's kernels read, until the barrier is open.
    pub(crate) fn keep(&self, kept: impl Send + 'static) {
        let mut state = self.lock();
        if !state.is_open {
            state.kept.push(Box::new(kept));
        }
    }

    /// Lets the streams go on.
    pub(super) fn open(&self) {
        let mut state = self.lock();
        self.words.go.set(self.number);
        state.is_open = true;
    }

    /// What was kept, once the barrier is open.
    pub(super) fn take_kept(&self) -> Vec<Box<dyn Send>> {
        std::mem::take(&mut self.lock().kept)
    }

    pub(super) fn is_open(&self) -> bool {
        self.lock().is_open
    }
}

impl State {
    /// How long something has been waiting for the barrier to open.
    fn held_for(&self) -> Option<Duration> {
        let of_arrival = |arrival: &Arrival| Some(arrival.arrived?.max(arrival.wanted?));
        let since = self.arrivals.iter().filter_map(of_arrival).chain(self.newcomer).min();
        let closing = self.closing.filter(|_| self.arrivals.iter().any(|arrival| arrival.arrived.is_some()));
        since.into_iter().chain(closing).min().map(|since| since.elapsed())
    }
}
