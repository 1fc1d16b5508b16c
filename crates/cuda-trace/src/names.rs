//! Kernels: what they are called, and which launches are alike.

use crate::driver;
use crate::log;
use crate::sampling::{Budget, Seen};
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

#[derive(Default)]
struct Names {
    handles: HashMap<usize, Handle>,
    alike: HashMap<Alike, (u64, Seen)>,
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
        let next = names.alike.len() as u64;
        let Names { handles, alike: known, budget } = names;
        let (number, seen) = known.entry(alike).or_insert_with(|| {
            if let Some(name) = name(alike, handles) {
                log::append_text(Entry { object: next, ..Entry::new(Kind::Name) }, &name);
            }
            (next, Seen::default())
        });
        (*number, may_time && budget.takes(seen, elapsed_us))
    })
}

/// A sample of operations like this one saw more than the operation.
pub(crate) fn missed(alike: Alike) {
    with(|names| {
        if let Some((_, seen)) = names.alike.get_mut(&alike) {
            seen.missed();
        }
    });
}

fn name(alike: Alike, handles: &HashMap<usize, Handle>) -> Option<String> {
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
