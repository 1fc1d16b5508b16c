//! A model of NVIDIA's driver, for tests of this crate on machines without a GPU.
//!
//! [`crate::sys::Api`] calls it in place of the library's functions. It follows the documented semantics of the CUDA
//! driver API for the functions that this crate calls, and keeps a list of violations: calls that the documentation
//! forbids and that the real driver would answer with damage instead of an error code.
//!
//! ```text
//!   Api ─▶ Fake::call ─▶ recorded, perhaps failed by order ─▶ contexts · streams · events · memory · modules · graphs
//!                                                                  │ work
//!   test ─▶ hold, step, release ─▶ the GPU thread ◀────────────────┘
//! ```
//!
//! What it models:
//!
//! - **Streams** are queues. The thread `fake-gpu` takes their work from the front; streams overlap in any order. After
//!   [`Fake::hold`] nothing runs until the test says so. The legacy stream waits for the blocking streams of its
//!   context and they wait for it. A destroyed stream still finishes its work.
//!   [`Fake::limit_queues`] bounds them: a call that finds its stream full blocks until the stream has got on, as the
//!   library's calls do (about 1,000 pieces of work on an H200). Meanwhile every other call of the library waits for it.
//! - **Events** have tickets: a wait is for the latest record at the moment of the call.
//! - **Words**: waits for a value end when the word in host or device memory is at least the value.
//! - **Copies** read and write their bytes when the stream gets there. A copy from pageable memory takes the bytes at the
//!   call; a copy to pageable memory blocks its caller, as CUDA's does.
//! - **Device memory** is host memory behind `cuMemCreate`, `cuMemMap` and `cuMemSetAccess`. An access to an address
//!   that is not mapped with access at that moment is a violation.
//! - **Pinned memory** is known by its registration. The GPU sees it at another address than the process, so that the
//!   two cannot be confused.
//! - **Modules** are PTX texts of which only the names of entries and variables are read. A kernel named `store` writes
//!   its second parameter, a 64-bit number, to the address in its first. `dxpu_digest` and `dxpu_shadow` do what their text
//!   does, with the same parameters. Every other kernel does nothing.
//! - **Graphs** run their nodes one by one, the last added first wherever the edges allow it: a missing edge shows.
//! - **Blocking** calls that find work outstanding are counted, and panic on a thread that must not block.
//! - **Contexts** can be killed with an error, which every later call in them returns; their work is dropped. [`Fake::kill_all`] does
//!   that to all of them, as the fault of another client of an MPS server does.
//!
//! What it does not model: time, priorities, caches, peer access, what textures show, overlapping nodes of a graph, more than two
//! outcomes of a race, instructions of kernels, and what the library does beyond its documentation.

#![allow(unsafe_code)]

mod arrays;
mod contexts;
mod cut_kernels;
mod devices;
mod events;
mod gpu;
mod graphs;
mod green;
mod memory;
mod modules;
mod references;
mod streams;
mod work;

use crate::sys::{Context, Event, Stream};
use cuda_abi::{CuResult, CudaError};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

pub(crate) use devices::VERSION;
pub(crate) use memory::PINNED_OFFSET;
pub(crate) use modules::{COMPLAINT, REMARK};

/// A blocking call that takes longer waits for something that never comes: the test fails instead of hanging.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The driver of a test. It stays until the process ends, as the library does.
#[derive(Debug)]
pub(crate) struct Fake {
    state: Mutex<State>,
    /// Work was added, is over, or was released.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    calls: Vec<&'static str>,
    violations: Vec<String>,
    failure: Option<Failure>,
    failed: Option<&'static str>,
    contexts: HashMap<Context, contexts::ContextState>,
    current: HashMap<ThreadId, Context>,
    streams: BTreeMap<usize, streams::StreamState>,
    events: HashMap<Event, events::EventState>,
    memory: memory::MemoryState,
    arrays: arrays::ArraysState,
    /// What was bound to texture and surface references.
    bound: Vec<String>,
    modules: modules::ModulesState,
    green: green::GreenState,
    graphs: graphs::GraphsState,
    /// Threads that must not block.
    unblockable: HashSet<ThreadId>,
    /// Blocking calls that found work outstanding.
    blocked: Vec<&'static str>,
    /// Kernels that have run, in order.
    launched: Vec<work::Launched>,
    /// The most work that waits in one stream; a call that adds more blocks.
    queue_items_max: Option<usize>,
    /// The thread whose call waits for room in a stream.
    waits_for_room: Option<ThreadId>,
    next_ticket: u64,
    /// What events measure between two tickets, in milliseconds. A number, or 1.
    tick_ms: Option<f32>,
    /// Tickets of records that are over.
    reached: HashSet<u64>,
    is_held: bool,
    is_closed: bool,
}

/// A call that is to fail.
#[derive(Debug)]
struct Failure {
    /// Of these calls only; of every call if there is none.
    symbol: Option<&'static str>,
    /// Of this thread only; of every thread if there is none.
    thread: Option<ThreadId>,
    /// Calls until then, this one included.
    left: usize,
    error: CudaError,
}

/// What a session has of the driver; a test compares it before and after.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Live {
    pub(crate) contexts: usize,
    pub(crate) streams: usize,
    pub(crate) events: usize,
    pub(crate) modules: usize,
    pub(crate) links: usize,
    pub(crate) graphs: usize,
    pub(crate) execs: usize,
    pub(crate) physical: usize,
    pub(crate) mappings: usize,
    pub(crate) arrays: usize,
    /// Texture and surface objects.
    pub(crate) samplers: usize,
    /// Ranges of addresses.
    pub(crate) reserved: usize,
    /// Ranges of pinned memory.
    pub(crate) pinned: usize,
}

impl Fake {
    /// A machine with this many devices, and its GPU thread.
    pub(crate) fn start(devices: usize) -> &'static Self {
        let fake: &'static Self =
            Box::leak(Box::new(Self { state: Mutex::default(), changed: Condvar::new() }));
        fake.lock().memory.install(devices);
        std::thread::Builder::new().name("fake-gpu".to_owned()).spawn(|| fake.run()).unwrap();
        fake
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every call of the driver comes through here.
    pub(crate) fn call(&self, symbol: &'static str, run: impl FnOnce() -> CuResult<()>) -> CuResult<()> {
        let mut state = self.lock();
        while state.waits_for_room.is_some_and(|thread| thread != std::thread::current().id())
            && !state.is_closed
        {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.admit(symbol)?;
        drop(state);
        run()
    }

    /// How often a function was called.
    pub(crate) fn count(&self, symbol: &str) -> usize {
        self.lock().calls.iter().filter(|&&call| call == symbol).count()
    }

    /// Fails the `nth` call of a function from now on, counted from 1, of any thread.
    pub(crate) fn fail(&self, symbol: &'static str, nth: usize, error: CudaError) {
        self.lock().failure = Some(Failure { symbol: Some(symbol), thread: None, left: nth, error });
    }

    /// Fails the `nth` call that the calling thread makes from now on.
    pub(crate) fn fail_nth(&self, nth: usize, error: CudaError) {
        let thread = Some(std::thread::current().id());
        let mut state = self.lock();
        state.failed = None;
        state.failure = Some(Failure { symbol: None, thread, left: nth, error });
    }

    /// Fails the `nth` call from now on, of any thread.
    pub(crate) fn fail_any_nth(&self, nth: usize, error: CudaError) {
        let mut state = self.lock();
        state.failed = None;
        state.failure = Some(Failure { symbol: None, thread: None, left: nth, error });
    }

    /// The function that was made to fail, if it came to that; nothing more will fail.
    pub(crate) fn take_failed(&self) -> Option<&'static str> {
        let mut state = self.lock();
        state.failure = None;
        state.failed.take()
    }

    /// From now on work stays where it is.
    pub(crate) fn hold(&self) {
        self.lock().is_held = true;
    }

    /// Lets work run again.
    pub(crate) fn release(&self) {
        self.lock().is_held = false;
        self.changed.notify_all();
    }

    /// Runs `what` on this thread, which must not block in a call of the driver meanwhile.
    pub(crate) fn without_blocking<R>(&self, what: impl FnOnce() -> R) -> R {
        let me = std::thread::current().id();
        self.lock().unblockable.insert(me);
        let result = what();
        self.lock().unblockable.remove(&me);
        result
    }

    /// From now on a call blocks while its stream holds this much work.
    pub(crate) fn limit_queues(&self, items: usize) {
        self.lock().queue_items_max = Some(items);
    }

    /// From now on events measure this between one call and the next.
    pub(crate) fn set_tick_ns(&self, ns: u64) {
        self.lock().tick_ms = Some(ns as f32 / 1e6);
    }

    /// Blocking calls so far that found work outstanding.
    pub(crate) fn blocked(&self) -> Vec<&'static str> {
        self.lock().blocked.clone()
    }

    /// What the documentation forbids and was done nevertheless.
    pub(crate) fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    pub(crate) fn live(&self) -> Live {
        let state = self.lock();
        Live {
            contexts: state.contexts.values().filter(|context| !context.is_primary).count(),
            streams: state
                .streams
                .values()
                .filter(|stream| !stream.is_legacy && !stream.is_destroyed)
                .count(),
            events: state.events.len(),
            modules: state.modules.modules.len(),
            links: state.modules.links.len(),
            graphs: state.graphs.graphs.len(),
            execs: state.graphs.execs.len(),
            physical: state.memory.physical.len(),
            mappings: state.memory.mappings.len(),
            arrays: state.arrays.count().0,
            samplers: state.arrays.count().1,
            reserved: state.memory.reserved.len(),
            pinned: state.memory.pinned.len(),
        }
    }

    /// Ends the GPU thread and gives the pages of pinned memory back to the system.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        for (&start, &bytes) in &state.memory.pinned {
            let start: *mut c_void = std::ptr::with_exposed_provenance_mut(start);
            // SAFETY: the crate never unmaps these pages; a thread that still reads them finds zeros.
            unsafe { libc::madvise(start, bytes, libc::MADV_DONTNEED) };
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Blocks until `is_over`, as `symbol` is documented to.
    fn block<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        symbol: &'static str,
        is_over: impl Fn(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        if is_over(&state) {
            return state;
        }
        state.blocked.push(symbol);
        if state.unblockable.contains(&std::thread::current().id()) {
            drop(state);
            panic!("{symbol} blocks a thread that must not block");
        }
        while !is_over(&state) && !state.is_closed {
            let (next, waited) =
                self.changed.wait_timeout(state, PATIENCE).unwrap_or_else(PoisonError::into_inner);
            assert!(!waited.timed_out(), "{symbol} never ends");
            state = next;
        }
        state
    }
}

impl State {
    /// Records a call, and refuses it if a test said so.
    fn admit(&mut self, symbol: &'static str) -> CuResult<()> {
        self.calls.push(symbol);
        let me = std::thread::current().id();
        let Some(failure) = &mut self.failure else { return Ok(()) };
        if failure.symbol.is_some_and(|only| only != symbol) || failure.thread.is_some_and(|only| only != me)
        {
            return Ok(());
        }
        failure.left -= 1;
        if failure.left > 0 {
            return Ok(());
        }
        let error = failure.error;
        self.failure = None;
        self.failed = Some(symbol);
        Err(error)
    }

    fn violation(&mut self, what: impl Into<String>) {
        self.violations.push(what.into());
    }

    /// The calling thread's context, if it lives.
    fn current(&self) -> CuResult<Context> {
        let context = self.current.get(&std::thread::current().id()).copied();
        let context = context.ok_or(CudaError::INVALID_CONTEXT)?;
        match self.contexts.get(&context) {
            None => Err(CudaError::INVALID_CONTEXT),
            Some(state) => state.dead.map_or(Ok(context), Err),
        }
    }
}

/// A handle that no other object of any fake has.
fn handle() -> *mut c_void {
    static NEXT: AtomicUsize = AtomicUsize::new(0x1000);
    std::ptr::without_provenance_mut(NEXT.fetch_add(16, Ordering::Relaxed))
}

/// Writes a result where the caller wants it.
fn put<T>(place: *mut T, value: T) {
    // SAFETY: the callers of the driver's functions promise valid places, see `sys`.
    unsafe { place.write(value) };
}

/// The place of a stream among all: its handle, or the legacy stream's of a context.
fn key(stream: Stream, context: Context) -> usize {
    match stream.0.addr() {
        0 | crate::sys::STREAM_LEGACY => context.0.addr() | 1,
        other => other,
    }
}
