//! What we keep for each context of the program: its filler, and what is being timed in it.

#![allow(unsafe_code)]

use crate::clock;
use crate::driver;
use crate::filler::Filler;
use crate::inject::{self, Rates};
use crate::log;
use crate::state;
use crate::streams::Stream;
use crate::timing::Timing;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};
use trace_log::entry::{Entry, Kind};

/// One context.
pub(crate) struct Context {
    handle: usize,
    pub(crate) filler: Option<Filler>,
    pub(crate) timing: Mutex<Timing>,
    /// How fast copies are without us, measured where that is needed.
    pub(crate) rates: Rates,
    pub(crate) asked: inject::Asked,
    pub(crate) launches: Launches,
    /// The program's own launches, while something may be injected: a filler before a launch may make the launch
    /// slower.
    pub(crate) calls: Launches,
}

/// What launches cost the program's threads between their other work: more than launches one after the other.
#[derive(Default)]
pub(crate) struct Launches {
    count: AtomicU64,
    ticks: AtomicU64,
}

/// A launch that took so many times what it takes in a row was held up by a full queue.
const HELD_UP: f64 = 4.0;

impl Launches {
    fn add(&self, ticks: u64, usual_ticks: f64) {
        if (ticks as f64) < HELD_UP * usual_ticks {
            self.count.fetch_add(1, Relaxed);
            self.ticks.fetch_add(ticks, Relaxed);
        }
    }

    /// How many, and their nanoseconds together.
    pub(crate) fn so_far(&self) -> (u64, f64) {
        let ticks = self.ticks.load(Relaxed) as f64;
        (self.count.load(Relaxed), ticks * 1e6 / state::ticks_per_ms())
    }
}

static CONTEXTS: Mutex<Option<HashMap<usize, &'static Context>>> = Mutex::new(None);
/// Changes whenever a context goes: handles may be used again.
static GENERATION: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static LAST: Cell<(u64, usize, Option<&'static Context>)> = const { Cell::new((0, 0, None)) };
}

/// The current context's, made when it is first asked for.
pub(crate) fn current() -> Option<&'static Context> {
    let handle = driver::current_context();
    if handle == 0 {
        return None;
    }
    let generation = GENERATION.load(Relaxed);
    let (seen, last, known) = LAST.get();
    if seen == generation && last == handle {
        return known;
    }
    let mut contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    // A context is kept for good: other threads may be using it while it is taken off the list.
    let context = *contexts
        .get_or_insert_default()
        .entry(handle)
        .or_insert_with(|| Box::leak(Box::new(Context::new(handle))));
    LAST.set((generation, handle, Some(context)));
    Some(context)
}

impl Context {
    fn new(handle: usize) -> Self {
        let filler = Filler::load();
        if filler.is_none() {
            eprintln!("dxpu: the filler kernel does not run on this GPU: nothing is timed or delayed");
        }
        let rates = if state::mode().injects() { Rates::measure() } else { Rates::default() };
        tell_device();
        if let Some(filler) = &filler {
            tell_filler(filler, filler.host_ns);
        }
        Self {
            handle,
            filler,
            timing: Mutex::default(),
            rates,
            asked: inject::Asked::default(),
            launches: Launches::default(),
            calls: Launches::default(),
        }
    }

    /// A launch of the program's own took so long.
    pub(crate) fn called(&self, ticks: u64) {
        if let Some(filler) = &self.filler {
            self.calls.add(ticks, filler.host_ns * state::ticks_per_ms() / 1e6);
        }
    }

    /// Launches a filler, and notes what that cost.
    pub(crate) fn fill(&self, filler: &Filler, stream: Stream, cost_ns: f64, class: usize) {
        let called = clock::ticks();
        filler.fill(stream, cost_ns, class);
        let ticks = clock::ticks().saturating_sub(called);
        self.launches.add(ticks, filler.host_ns * state::ticks_per_ms() / 1e6);
    }

    /// Waits for the context's work, then writes samples and costs to the log. The context is current.
    fn settle(&self) {
        // SAFETY: the call takes nothing; an error leaves less to say.
        unsafe { driver::synchronize() };
        self.timing.lock().unwrap_or_else(PoisonError::into_inner).collect(usize::MAX);
        let Some(filler) = &self.filler else { return };
        let (launches, ns) = self.launches.so_far();
        if launches >= LAUNCHES_MIN {
            tell_filler(filler, ns / launches as f64);
        }
        if state::mode().injects() {
            inject::report(&self.asked, filler);
        }
    }
}

/// From so many launches on, their mean is better than the one measured with launches one after the other.
const LAUNCHES_MIN: u64 = 100;

/// Writes down what a filler costs; of several such entries in a log, the last counts.
fn tell_filler(filler: &Filler, host_ns: f64) {
    state::record(Entry {
        bytes: filler.least_ns as u64,
        extra: host_ns as u64,
        object: filler.pair_ns as u64,
        ..Entry::new(Kind::Filler)
    });
}

fn tell_device() {
    static TOLD: OnceLock<()> = OnceLock::new();
    TOLD.get_or_init(|| {
        if let Some(name) = driver::current_device_name() {
            log::append_text(Entry::new(Kind::Device), &name);
        }
    });
}

/// A context is about to go. `None`: settle all contexts.
pub(crate) fn goes(handle: Option<usize>) {
    if state::mode().is_off() {
        return;
    }
    let mut contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(contexts) = contexts.as_mut() else { return };
    let going: Vec<usize> =
        contexts.keys().copied().filter(|known| handle.is_none_or(|handle| handle == *known)).collect();
    for handle in going {
        if let Some(context) = contexts.remove(&handle) {
            within(context, Context::settle);
        }
    }
    GENERATION.fetch_add(1, Relaxed);
}

/// Settles all contexts: the program ends.
pub(crate) fn settle_all() {
    // A thread that was stopped in the middle of its work may hold the list. Do not wait for it: the program ends.
    let Ok(contexts) = CONTEXTS.try_lock() else { return };
    for context in contexts.iter().flat_map(HashMap::values) {
        within(context, Context::settle);
    }
}

fn within(context: &'static Context, body: impl FnOnce(&Context)) {
    let mut popped = 0;
    // SAFETY: the handle was current once; if the context is gone since, the driver refuses it. `popped` is a place.
    unsafe {
        if driver::push(context.handle) == 0 {
            body(context);
            driver::pop(&mut popped);
        }
    }
}
