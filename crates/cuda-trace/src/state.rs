//! What this process is doing: nothing, recording, or injecting; and what the current thread is in the middle of.

use crate::clock::{self, Moment};
use crate::inject;
use crate::log;
use std::cell::Cell;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use trace_log::entry::{Entry, Kind};

/// `trace` or `inject`.
const MODE_VARIABLE: &str = "DXPU_TRACE_MODE";
/// The folder for logs.
const FOLDER_VARIABLE: &str = "DXPU_TRACE_FOLDER";
/// `profiler`: only what happens between cuProfilerStart and cuProfilerStop is recorded.
const RANGE_VARIABLE: &str = "DXPU_TRACE_RANGE";

/// What becomes of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Mode {
    /// They are handed on.
    Off = 0,
    /// They are recorded too.
    Trace = 1,
    /// They are delayed too.
    Inject = 2,
}

static MODE: AtomicU8 = AtomicU8::new(Mode::Off as u8);
static IS_RECORDING: AtomicBool = AtomicBool::new(false);

/// What was asked for, read once.
pub(crate) struct Config {
    pub(crate) folder: PathBuf,
    pub(crate) is_ranged: bool,
    pub(crate) began: Moment,
}

static CONFIG: OnceLock<Config> = OnceLock::new();

pub(crate) fn config() -> Option<&'static Config> {
    CONFIG.get()
}

/// Ticks of the clock in a millisecond, measured once: well enough for costs.
pub(crate) fn ticks_per_ms() -> f64 {
    static TICKS: OnceLock<f64> = OnceLock::new();
    *TICKS.get_or_init(|| config().map_or(1e6, |config| config.began.ticks_per_ms() as f64))
}

#[inline]
pub(crate) fn mode() -> Mode {
    match MODE.load(Relaxed) {
        1 => Mode::Trace,
        2 => Mode::Inject,
        _ => Mode::Off,
    }
}

/// Whether calls are written down now.
#[inline]
pub(crate) fn is_recording() -> bool {
    IS_RECORDING.load(Relaxed)
}

/// The driver was initialised: from here on there is something to record.
pub(crate) fn start() {
    let mode = match std::env::var(MODE_VARIABLE).as_deref() {
        Ok("trace") => Mode::Trace,
        Ok("inject") => Mode::Inject,
        _ => return,
    };
    let Some(folder) = std::env::var_os(FOLDER_VARIABLE).map(PathBuf::from) else { return };
    let is_ranged = std::env::var(RANGE_VARIABLE).is_ok_and(|range| range == "profiler");
    let config = Config { folder, is_ranged, began: Moment::now() };
    if CONFIG.set(config).is_err() {
        return;
    }
    if let Err(error) = log::begin() {
        eprintln!("dxpu: nothing is recorded: {error}");
        return;
    }
    // SAFETY: the handlers are functions of this library, which is never unloaded.
    unsafe {
        libc::atexit(crate::exit::at_exit);
        libc::pthread_atfork(None, None, Some(forked));
    }
    inject::start();
    MODE.store(mode as u8, Relaxed);
    IS_RECORDING.store(mode == Mode::Trace && !is_ranged, Relaxed);
}

/// No call is recorded or delayed any more.
pub(crate) fn stop() {
    IS_RECORDING.store(false, Relaxed);
    MODE.store(Mode::Off as u8, Relaxed);
}

/// In the child of a fork, where CUDA does not work and the log is the parent's.
unsafe extern "C" fn forked() {
    stop();
    log::abandon();
}

/// The program marks the part of it that is to be recorded.
pub(crate) fn range(begins: bool) {
    if mode() != Mode::Trace || !config().is_some_and(|config| config.is_ranged) {
        return;
    }
    let kind = if begins { Kind::RangeBegin } else { Kind::RangeEnd };
    if IS_RECORDING.swap(begins, Relaxed) != begins {
        record(Entry { at: clock::ticks(), ..Entry::new(kind) });
    }
}

/// Calls for state that the current thread made since its last other call.
#[derive(Clone, Copy)]
struct Pending {
    calls: u32,
    ticks: u64,
    at: u64,
}

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    static PENDING: Cell<Pending> = const { Cell::new(Pending { calls: 0, ticks: 0, at: 0 }) };
}

/// Whether the current thread is in a call already: what the driver does to serve it is not the program's doing.
#[inline]
pub(crate) fn is_inside() -> bool {
    INSIDE.get()
}

/// Held while a call is served.
pub(crate) struct Inside;

impl Inside {
    #[inline]
    pub(crate) fn enter() -> Self {
        INSIDE.set(true);
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(false);
    }
}

/// A call for state that took so long.
#[inline]
pub(crate) fn local_call(ticks: u64) {
    let mut pending = PENDING.get();
    if pending.calls == 0 {
        pending.at = clock::ticks().saturating_sub(ticks);
    }
    pending.calls += 1;
    pending.ticks += ticks;
    PENDING.set(pending);
}

/// Writes an entry down, after the calls for state that came before it.
pub(crate) fn record(entry: Entry) {
    let Pending { calls: count, ticks, at } = PENDING.replace(Pending { calls: 0, ticks: 0, at: 0 });
    let before = (count > 0).then(|| Entry { count, ticks, at, ..Entry::new(Kind::Local) });
    log::append(before, entry);
}
