//! Kernels: what they are called, and which launches are alike.

#![allow(unsafe_code)]

use crate::driver;
use crate::log;
use crate::sampling::{Budget, Seen};
use foldhash::fast::FixedState;
use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::{Mutex, PoisonError};
use trace_log::entry::{Entry, Kind};

/// Launches that are taken to last as long as each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Alike {
    /// Of one kernel with one shape.
    Kernel {
        /// A CUfunction or a CUkernel.
        function: usize,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
    },
    /// Of one graph.
    Graph { exec: usize, kernels: u32 },
    /// Copies of one direction, pinning and power of two.
    Copy { flags: u8, magnitude: u32 },
    /// Fills of one power of two.
    Memset { magnitude: u32 },
}

/// What a handle is, so that its name may be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handle {
    /// A CUfunction.
    Function,
    /// A CUkernel.
    Kernel,
}

/// Every launch looks here, so the hash is fast. It need not withstand an attacker: the driver chooses the handles.
type Map<K, V> = HashMap<K, V, FixedState>;

#[derive(Default)]
struct Names {
    handles: Map<usize, Handle>,
    alike: Map<Alike, (u64, Seen)>,
    /// The number of the next that appears.
    next: u64,
    budget: Budget,
}

static NAMES: Mutex<Option<Names>> = Mutex::new(None);

fn with<R>(body: impl FnOnce(&mut Names) -> R) -> R {
    body(NAMES.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

/// A handle appeared.
pub(crate) fn handle(handle: usize, kind: Handle) {
    with(|names| names.handles.insert(handle, kind));
}

/// The number of operations like this one, and whether to time this one.
pub(crate) fn look(alike: Alike, elapsed_us: f64, may_time: bool) -> (u64, bool) {
    with(|names| {
        let Names { handles, alike: known, next, budget } = names;
        let (number, seen) = known.entry(alike).or_insert_with(|| {
            let number = *next;
            *next += 1;
            if let Some(name) = name(alike, handles) {
                log::append_text(Entry { object: number, ..Entry::new(Kind::Name) }, &name);
            }
            (number, Seen::default())
        });
        (*number, may_time && budget.takes(seen, elapsed_us))
    })
}

/// The program begins something else: what it launches from here on is timed anew. A kernel of the same shape may have other work.
/// For programs that run one workload after another; harmless at any other time.
#[unsafe(no_mangle)]
extern "C" fn dxpuTraceAnew() -> u32 {
    with(|names| names.alike.clear());
    0
}

/// A sample of operations like this one timed more than the operation: the sample does not count.
pub(crate) fn missed(alike: Alike) {
    with(|names| {
        if let Some((_, seen)) = names.alike.get_mut(&alike) {
            seen.missed();
        }
    });
}

fn name(alike: Alike, handles: &Map<usize, Handle>) -> Option<String> {
    match alike {
        Alike::Kernel { function, .. } => {
            let mut name: *const i8 = std::ptr::null();
            let place = &mut name;
            // Only a handle of a known kind is asked: the driver trusts the kind it is told.
            // SAFETY: `place` is a place for the answer, and the handle is of the kind that the driver said it is.
            let code = unsafe {
                match handles.get(&function) {
                    Some(Handle::Function) => driver::function_name(place, function),
                    Some(Handle::Kernel) => driver::kernel_name(place, function),
                    None => 1,
                }
            };
            if code != 0 || name.is_null() {
                return Some(format!("kernel at {function:#x}"));
            }
            // SAFETY: the driver's text ends with a zero and stays as long as its module, which is in use.
            Some(unsafe { CStr::from_ptr(name.cast()) }.to_string_lossy().into_owned())
        }
        Alike::Graph { kernels, .. } => Some(format!("graph of {kernels} kernels")),
        Alike::Copy { .. } | Alike::Memset { .. } => None,
    }
}
