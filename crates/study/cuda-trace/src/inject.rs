//! The paper's experiment (section 3.4.2): the time that a network would add, put into a program on a local GPU.
//!
//! - A kernel, graph or memset gets a filler of the added round trip before it.
//! - A host-to-device copy gets a filler of the added round trip, or of what its bytes take longer at Eq. 1's rate, whichever is more.
//! - A device-to-host copy gets half the added round trip: posted writes cross once.

#![allow(unsafe_code)]

use crate::context::{self, Context};
use crate::driver;
use crate::filler::{CLASSES, Filler, Spent};
use crate::state::{self, NOT_PERMITTED};
use crate::streams::Stream;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use trace_log::entry::{Entry, Kind};
use trace_log::injected::Class;

/// The round trip that the network adds, in nanoseconds.
const ADDED_VARIABLE: &str = "DXPU_INJECT_ADDED_NS";
/// What Eq. 1 lets through, in bytes per second.
const RATE_VARIABLE: &str = "DXPU_INJECT_READ_RATE";

/// What to inject.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Settings {
    added_ns: f64,
    read_bytes_per_ns: f64,
}

/// What is injected now, as the bits of the two numbers.
static ADDED: AtomicU64 = AtomicU64::new(0);
static RATE: AtomicU64 = AtomicU64::new(0);

/// A number that says how much, or nothing.
fn amount(number: f64) -> f64 {
    if number.is_finite() && number >= 0.0 { number } else { 0.0 }
}

/// Begins to inject what the environment asks for.
pub(crate) fn start() {
    let number =
        |name| std::env::var(name).ok().and_then(|text| text.parse::<f64>().ok()).map_or(0.0, amount);
    set(number(ADDED_VARIABLE), number(RATE_VARIABLE));
}

fn set(added_ns: f64, read_bytes_per_s: f64) {
    ADDED.store(added_ns.to_bits(), Relaxed);
    RATE.store((read_bytes_per_s / 1e9).to_bits(), Relaxed);
}

/// Changes what is injected while the program runs, so that distances can be compared within one process: `added_ns` of round trip
/// and a read rate in bytes a second (0: no limit). Fails with CUDA's "not permitted" outside of `dxpu inject`.
#[unsafe(no_mangle)]
extern "C" fn dxpuInject(added_ns: f64, read_bytes_per_s: f64) -> u32 {
    if !state::mode().injects() {
        return NOT_PERMITTED;
    }
    set(amount(added_ns), amount(read_bytes_per_s));
    0
}

/// What was injected into the current context so far: fillers, nanoseconds asked for, nanoseconds that the fillers took of the GPU's
/// queue, launches of fillers that were not held up by a full queue and the nanoseconds these took of the calling threads, and the
/// same of the program's own launches. Waits for the GPU. Fails as [`dxpuInject`] does.
///
/// # Safety
///
/// `figures` is a place for seven numbers.
#[unsafe(no_mangle)]
unsafe extern "C" fn dxpuInjected(figures: *mut f64) -> u32 {
    let _inside = state::Inside::enter();
    let (true, Some(context)) = (state::mode().injects(), context::current()) else {
        return NOT_PERMITTED;
    };
    let Some(filler) = &context.filler else { return NOT_PERMITTED };
    // SAFETY: the call takes nothing.
    unsafe { driver::synchronize() };
    let Some(spent) = filler.spent() else { return NOT_PERMITTED };
    let total = |of: &[AtomicU64]| of.iter().map(|part| part.load(Relaxed) as f64).sum::<f64>();
    let (launches, launch_ns) = context.launches.so_far();
    let spent_ns: f64 = Class::ALL.iter().map(|&class| queue_ns(&spent, class as usize, filler)).sum();
    let (calls, call_ns) = context.calls.so_far();
    let found = [
        total(&context.asked.operations),
        total(&context.asked.ns),
        spent_ns,
        launches as f64,
        launch_ns,
        calls as f64,
        call_ns,
    ];
    // SAFETY: the caller promises the place.
    unsafe { figures.copy_from_nonoverlapping(found.as_ptr(), found.len()) };
    0
}

/// What the fillers of a class took of the GPU's queue: their own lengths, and what each costs besides.
fn queue_ns(spent: &Spent, class: usize, filler: &Filler) -> f64 {
    spent.ns[class] as f64 + spent.fillers[class] as f64 * filler.besides_ns
}

/// Whether anything is injected now.
#[inline]
pub(crate) fn is_on() -> bool {
    ADDED.load(Relaxed) != 0 || RATE.load(Relaxed) != 0
}

impl Settings {
    fn now() -> Self {
        Self {
            added_ns: f64::from_bits(ADDED.load(Relaxed)),
            read_bytes_per_ns: f64::from_bits(RATE.load(Relaxed)),
        }
    }

    /// What an operation is to be delayed by.
    fn asked_ns(&self, class: Class, bytes: u64, native_bytes_per_ns: f64) -> f64 {
        match class {
            Class::Launches | Class::Memsets => self.added_ns,
            Class::Downloads => 0.5 * self.added_ns,
            Class::Uploads => {
                let native_ns = bytes as f64 / native_bytes_per_ns;
                let slowed_ns =
                    if self.read_bytes_per_ns > 0.0 { bytes as f64 / self.read_bytes_per_ns } else { 0.0 };
                (slowed_ns - native_ns).max(self.added_ns)
            }
        }
    }
}

/// How fast host-to-device copies are on this machine, in bytes per nanosecond.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rates {
    pinned: f64,
    pageable: f64,
}

impl Default for Rates {
    /// PCIe Gen3 x16, where nothing could be measured.
    fn default() -> Self {
        Self { pinned: 11.2, pageable: 5.0 }
    }
}

/// Enough for a steady rate.
const RATE_BYTES: usize = 8 << 20;

impl Rates {
    /// Measures both, with memory that is given back.
    pub(crate) fn measure() -> Self {
        driver::beside_captures(|| Self::measured().unwrap_or_default())
    }

    fn measured() -> Option<Self> {
        let (mut device, mut pinned) = (0, std::ptr::null_mut());
        // SAFETY: both are places for addresses.
        unsafe {
            if driver::allocate(&mut device, RATE_BYTES) != 0 {
                return None;
            }
            if driver::allocate_host(&mut pinned, RATE_BYTES) != 0 {
                driver::free(device);
                return None;
            }
        }
        let pageable = vec![0u8; RATE_BYTES];
        let rate = |source: *const u8| {
            let mut best = f64::MAX;
            for _ in 0..3 {
                let began = Instant::now();
                // SAFETY: both places have so many bytes, and the copy is waited for.
                unsafe {
                    driver::write_later(device, source, RATE_BYTES, 0);
                    driver::stream_synchronize(0);
                }
                best = best.min(began.elapsed().as_secs_f64() * 1e9);
            }
            RATE_BYTES as f64 / best
        };
        let rates = Self { pinned: rate(pinned), pageable: rate(pageable.as_ptr()) };
        // SAFETY: both were allocated above and are no longer used.
        unsafe {
            driver::free_host(pinned);
            driver::free(device);
        }
        Some(rates)
    }
}

/// What was asked for so far, by class: operations and nanoseconds.
#[derive(Default)]
pub(crate) struct Asked {
    operations: [AtomicU64; CLASSES],
    ns: [AtomicU64; CLASSES],
}

/// Delays the next operation of a stream.
pub(crate) fn before(context: &Context, stream: Stream, class: Class, bytes: u64, is_pinned: bool) {
    let Some(filler) = &context.filler else { return };
    let native = if is_pinned { context.rates.pinned } else { context.rates.pageable };
    let asked_ns = Settings::now().asked_ns(class, bytes, native);
    if asked_ns <= 0.0 {
        return;
    }
    context.asked.operations[class as usize].fetch_add(1, Relaxed);
    context.asked.ns[class as usize].fetch_add(asked_ns as u64, Relaxed);
    context.fill(filler, stream, asked_ns, class as usize);
}

/// Writes down what was asked and what was done. The context is current and has finished its work.
pub(crate) fn report(asked: &Asked, filler: &Filler) {
    let spent = filler.spent().unwrap_or_default();
    for class in Class::ALL {
        let at = class as usize;
        let operations = asked.operations[at].load(Relaxed);
        if operations == 0 {
            continue;
        }
        state::record(Entry {
            count: at as u32,
            object: operations,
            bytes: asked.ns[at].load(Relaxed),
            extra: queue_ns(&spent, at, filler) as u64,
            ..Entry::new(Kind::Injected)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_paper_says_how_long_each_operation_is_delayed() {
        // 6.8 us instead of 1.2; 140 tags of 128 bytes.
        let settings = Settings { added_ns: 5600.0, read_bytes_per_ns: 140.0 * 128.0 / 6800.0 };
        let native = 11.2;
        assert_eq!(settings.asked_ns(Class::Launches, 0, native), 5600.0);
        assert_eq!(settings.asked_ns(Class::Memsets, 1 << 30, native), 5600.0);
        assert_eq!(settings.asked_ns(Class::Downloads, 1 << 30, native), 2800.0);
        assert_eq!(settings.asked_ns(Class::Uploads, 4, native), 5600.0);
        let large = settings.asked_ns(Class::Uploads, 112_000_000, native);
        assert!((large - (112_000_000.0 / 2.635_294 - 1e7)).abs() < 1e3, "{large}");
    }
}
