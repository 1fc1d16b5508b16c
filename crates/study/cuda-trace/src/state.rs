//! What this process is doing: nothing, recording, or injecting; and what the current thread is in the middle of.

#![allow(unsafe_code)]

use crate::clock::{self, Moment};
use crate::counted;
use crate::inject;
use crate::log;
use std::cell::Cell;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use trace_log::entry::{Entry, Kind};

/// CUDA_ERROR_NOT_PERMITTED
pub(crate) const NOT_PERMITTED: u32 = 800;

/// `trace`, `inject`, or both with a comma between them.
const MODE_VARIABLE: &str = "DXPU_TRACE_MODE";
/// The folder for logs.
const FOLDER_VARIABLE: &str = "DXPU_TRACE_FOLDER";
/// `profiler`: only what happens between cuProfilerStart and cuProfilerStop is recorded.
const RANGE_VARIABLE: &str = "DXPU_TRACE_RANGE";

/// What becomes of calls besides being handed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mode(u8);

impl Mode {
    const OFF: Self = Self(0);
    const TRACES: u8 = 1;
    const INJECTS: u8 = 2;

    #[inline]
    pub(crate) fn is_off(self) -> bool {
        self == Self::OFF
    }

    /// They are recorded.
    #[inline]
    pub(crate) fn traces(self) -> bool {
        self.0 & Self::TRACES != 0
    }

    /// They are delayed.
    #[inline]
    pub(crate) fn injects(self) -> bool {
        self.0 & Self::INJECTS != 0
    }

    /// As the environment asks for it.
    fn asked() -> Self {
        let words = std::env::var(MODE_VARIABLE).unwrap_or_default();
        let bit = |word: &str| match word {
            "trace" => Self::TRACES,
            "inject" => Self::INJECTS,
            _ => 0,
        };
        Self(words.split(',').map(bit).fold(0, |all, bit| all | bit))
    }
}

static MODE: AtomicU8 = AtomicU8::new(Mode::OFF.0);
static IS_RECORDING: AtomicBool = AtomicBool::new(false);
static IS_WATCHING: AtomicBool = AtomicBool::new(true);

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
    Mode(MODE.load(Relaxed))
}

/// Whether operations are looked at: in a marked range they are written down too.
#[inline]
pub(crate) fn is_watching() -> bool {
    mode().traces() && IS_WATCHING.load(Relaxed)
}

/// Whether calls are written down now.
#[inline]
pub(crate) fn is_recording() -> bool {
    IS_RECORDING.load(Relaxed)
}

/// The driver was initialised: from here on there is something to record.
pub(crate) fn start() {
    let mode = Mode::asked();
    if mode.is_off() {
        return;
    }
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
    counted::calibrate();
    MODE.store(mode.0, Relaxed);
    IS_RECORDING.store(mode.traces() && !is_ranged, Relaxed);
}

/// No call is recorded or delayed any more.
pub(crate) fn stop() {
    IS_RECORDING.store(false, Relaxed);
    MODE.store(Mode::OFF.0, Relaxed);
}

/// In the child of a fork, where CUDA does not work and the log is the parent's.
unsafe extern "C" fn forked() {
    stop();
    log::abandon();
}

/// The program marks the part of it that is to be recorded.
pub(crate) fn range(begins: bool) {
    if !mode().traces() || !config().is_some_and(|config| config.is_ranged) {
        return;
    }
    let kind = if begins { Kind::RangeBegin } else { Kind::RangeEnd };
    if IS_RECORDING.swap(begins, Relaxed) != begins {
        record(Entry { at: clock::ticks(), ..Entry::new(kind) });
    }
}

/// Switches timing and recording off or on, so that a program can be compared with itself: switched off, calls are only
/// handed on. Fails with CUDA's "not permitted" outside of `dxpu trace`.
#[unsafe(no_mangle)]
extern "C" fn dxpuTrace(is_on: u32) -> u32 {
    if !mode().traces() {
        return NOT_PERMITTED;
    }
    IS_WATCHING.store(is_on != 0, Relaxed);
    0
}

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether the current thread is in a call already: then the call comes from the driver, not from the program.
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

/// Writes an entry down, after the calls for state that came before it.
pub(crate) fn record(entry: Entry) {
    log::append(counted::since_last(entry.at), entry);
}
