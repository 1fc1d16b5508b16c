//! A kernel that does nothing but last: how it is loaded, measured and launched.
//!
//! What a filler costs a busy queue is more than its length: it must be started and finished. That is measured once for each
//! context, so that a filler of a given cost can be asked for.

#![allow(unsafe_code)]

use crate::driver;
use crate::streams::Stream;
use std::time::Instant;

/// The text of the kernels, with the zero that the driver looks for.
static IMAGE: &str = concat!(include_str!("filler.ptx"), "\0");

/// Classes that fillers are counted by: those of `trace_log::injected`. Fillers for measurements belong to none of them, but
/// must count somewhere; they are subtracted.
pub(crate) const CLASSES: usize = 4;

/// A clock that changes less often than this is too coarse to wait by.
const COARSE_NS: f64 = 200.0;
/// Long enough to see both clocks well.
const PROBE_NS: u64 = 200_000;

/// The filler of one context.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Filler {
    function: usize,
    /// Steps of its clock in a nanosecond.
    steps_per_ns: f64,
    /// Where the device counts.
    spent: u64,
    /// What a filler of no length costs a busy queue.
    pub(crate) least_ns: f64,
    /// What a filler costs a busy queue besides its length.
    pub(crate) besides_ns: f64,
    /// What its launch costs the calling thread.
    pub(crate) host_ns: f64,
    /// What a pair of events sees of a filler of no length.
    pub(crate) pair_ns: f64,
}

/// What the device counted: nanoseconds and fillers, by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    pub(crate) ns: [u64; CLASSES],
    pub(crate) fillers: [u64; CLASSES],
}

impl Filler {
    /// Loads the kernels into the current context and measures them. `None` where that does not work: then nothing is filled.
    pub(crate) fn load() -> Option<Self> {
        driver::beside_captures(|| {
            let (mut module, mut fill, mut by_cycles, mut probe) = (0, 0, 0, 0);
            let (mut spent, mut answers, mut bytes) = (0, 0, 0);
            // SAFETY: the image and all names end with a zero, and every other pointer is a place for an answer.
            let is_loaded = unsafe {
                driver::module_load(&mut module, IMAGE.as_ptr()) == 0
                    && driver::module_function(&mut fill, module, c"dxpu_fill_ns".as_ptr().cast()) == 0
                    && driver::module_function(&mut by_cycles, module, c"dxpu_fill_cycles".as_ptr().cast())
                        == 0
                    && driver::module_function(&mut probe, module, c"dxpu_probe_clocks".as_ptr().cast()) == 0
                    && driver::module_global(&mut spent, &mut bytes, module, c"dxpu_spent".as_ptr().cast())
                        == 0
                    && driver::module_global(&mut answers, &mut bytes, module, c"dxpu_probe".as_ptr().cast())
                        == 0
            };
            if !is_loaded {
                return None;
            }
            let bench = Bench::new()?;
            let mut filler = Self {
                function: fill,
                steps_per_ns: 1.0,
                spent,
                least_ns: 0.0,
                besides_ns: 0.0,
                host_ns: 0.0,
                pair_ns: 0.0,
            };
            if let Some(cycles_per_ns) = bench.cycles_if_coarse(probe, answers) {
                (filler.function, filler.steps_per_ns) = (by_cycles, cycles_per_ns);
            }
            bench.measure(&mut filler)?;
            filler.forget();
            Some(filler)
        })
    }

    /// Launches a filler that costs a busy queue `cost_ns`, or as little as it can.
    pub(crate) fn fill(&self, stream: Stream, cost_ns: f64, class: usize) {
        self.launch(stream.handle(), (cost_ns - self.besides_ns).max(0.0), class);
    }

    fn launch(&self, stream: usize, length_ns: f64, class: usize) -> u32 {
        let mut length = (length_ns * self.steps_per_ns) as u64;
        let mut class = class as u64;
        let mut parameters: [*mut u64; 2] = [&mut length, &mut class];
        // SAFETY: the function takes two words, which the driver copies before it returns.
        unsafe { driver::launch(self.function, 1, 1, 1, 1, 1, 1, 0, stream, parameters.as_mut_ptr(), 0) }
    }

    /// What the device counted so far. Waits for the context.
    pub(crate) fn spent(&self) -> Option<Spent> {
        let mut words = [0u64; 2 * CLASSES];
        let bytes = size_of_val(&words);
        // SAFETY: the variable has as many words as the array.
        let code = unsafe { driver::read(words.as_mut_ptr().cast(), self.spent, bytes) };
        let mut spent = Spent::default();
        spent.ns.copy_from_slice(&words[..CLASSES]);
        spent.fillers.copy_from_slice(&words[CLASSES..]);
        (code == 0).then_some(spent)
    }

    /// Lets the device count from 0 again.
    fn forget(&self) {
        let words = [0u64; 2 * CLASSES];
        // SAFETY: the variable has as many words as the array.
        unsafe { driver::write(self.spent, words.as_ptr().cast(), size_of_val(&words)) };
    }
}

/// A stream and two events to measure with.
struct Bench {
    stream: usize,
    before: usize,
    after: usize,
}

/// CU_STREAM_NON_BLOCKING
const NON_BLOCKING: u32 = 1;
/// Long enough for the calling thread to queue what is measured.
const HOLD_NS: f64 = 400_000.0;
/// Fillers in a row, and how often.
const ROW: u32 = 48;
const ROUNDS: usize = 5;
/// The length at which the cost besides the length is measured.
const LENGTH_NS: f64 = 10_000.0;

impl Bench {
    fn new() -> Option<Self> {
        let mut bench = Self { stream: 0, before: 0, after: 0 };
        // SAFETY: all are places for handles.
        let is_made = unsafe {
            driver::stream_create(&mut bench.stream, NON_BLOCKING) == 0
                && driver::event_create(&mut bench.before, 0) == 0
                && driver::event_create(&mut bench.after, 0) == 0
        };
        is_made.then_some(bench)
    }

    /// Cycles in a nanosecond, if the nanosecond clock is too coarse to wait by.
    fn cycles_if_coarse(&self, probe: usize, answers: u64) -> Option<f64> {
        let mut length = PROBE_NS;
        let mut parameters: [*mut u64; 1] = [&mut length];
        let mut words = [0u64; 3];
        // SAFETY: the function takes one word, and the variable has at least as many words as the array.
        let is_probed = unsafe {
            driver::launch(probe, 1, 1, 1, 1, 1, 1, 0, self.stream, parameters.as_mut_ptr(), 0) == 0
                && driver::stream_synchronize(self.stream) == 0
                && driver::read(words.as_mut_ptr().cast(), answers, size_of_val(&words)) == 0
        };
        let [changes, ns, cycles] = words.map(|word| word as f64);
        let is_coarse = is_probed && changes > 0.0 && ns / changes > COARSE_NS && cycles > 0.0;
        is_coarse.then(|| cycles / ns)
    }

    fn measure(&self, filler: &mut Filler) -> Option<()> {
        // The first launches load code.
        for _ in 0..3 {
            filler.launch(self.stream, 0.0, 0);
        }
        filler.least_ns = self.row_ns(filler, 0.0, ROW)?.0 / f64::from(ROW);
        let (long_ns, host_ns) = self.row_ns(filler, LENGTH_NS, ROW)?;
        filler.besides_ns = (long_ns / f64::from(ROW) - LENGTH_NS).max(0.0);
        filler.host_ns = host_ns / f64::from(ROW);
        filler.pair_ns = self.row_ns(filler, 0.0, 1)?.0;
        Some(())
    }

    /// What `count` fillers cost a busy queue, between two events, and what their launches cost this thread: medians.
    fn row_ns(&self, filler: &Filler, length_ns: f64, count: u32) -> Option<(f64, f64)> {
        let (mut costs, mut launches) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let mut ms = 0.0;
            filler.launch(self.stream, HOLD_NS, 0);
            // SAFETY: the handles are those of this bench.
            unsafe { driver::event_record(self.before, self.stream) };
            let began = Instant::now();
            let is_launched = (0..count).all(|_| filler.launch(self.stream, length_ns, 0) == 0);
            launches.push(began.elapsed().as_secs_f64() * 1e9);
            // SAFETY: as above, and `ms` is a place for the answer.
            let is_known = unsafe {
                driver::event_record(self.after, self.stream) == 0
                    && driver::stream_synchronize(self.stream) == 0
                    && driver::event_elapsed(&mut ms, self.before, self.after) == 0
            };
            if !is_launched || !is_known {
                return None;
            }
            costs.push(f64::from(ms) * 1e6);
        }
        Some((median(costs), median(launches)))
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // Events are left: they are two, and cost nothing.
        // SAFETY: the stream is ours, and no other code has its handle.
        unsafe { driver::stream_destroy(self.stream) };
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
