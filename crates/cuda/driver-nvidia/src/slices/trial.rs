//! Whether the device heeds slices: measured, with two processes on one GPU.
//!
//! ```text
//!   bearer (child)   kernels of 10 ms, more of them behind each
//!   probe            every few milliseconds a request of 2 ms: how long until it is done
//!                    first with the slices that the driver gives, then with a short one for the bearer and a long one for itself
//! ```
//!
//! A return code says nothing: there are drivers that accept a slice, name it when they are asked, and do as before. An empty kernel
//! says little: one whose neighbour has used up its slice is let in at once, whatever slices are. What slices decide is how often a
//! request has to give the device back before it is done.

#![allow(unsafe_code)]

use super::Slices;
use crate::context::LiveContext;
use crate::launch::{self, Launch};
use crate::sys::{Api, Function, LoadError, Module, Stream};
use cuda_abi::CudaError;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A kernel that takes as many nanoseconds as it is told.
const TEXT: &[u8] = b".version 7.0\n.target sm_70\n.address_size 64\n\
.visible .entry dxpu_busy(.param .u64 dxpu_ns) {\n\
.reg .b64 %r<4>;\n.reg .pred %p;\n\
ld.param.u64 %r0, [dxpu_ns];\nmov.u64 %r1, %globaltimer;\n\
AGAIN:\nmov.u64 %r2, %globaltimer;\nsub.u64 %r3, %r2, %r1;\nsetp.lt.u64 %p, %r3, %r0;\n@%p bra AGAIN;\nret;\n}\n\0";

/// How long a kernel of the bearer takes: longer than any slice that drivers give by themselves.
const BUSY_NS: u64 = 10_000_000;
/// How many of them the bearer orders at once, so that the device has the next one when one ends.
const AHEAD: usize = 3;
/// How long a request of the probe takes alone: as long as a slice that drivers give, so that it ends within one only if it began with it.
const REQUEST_NS: u64 = 2_000_000;
/// The blocks of both: about one for each multiprocessor.
const BLOCKS: u32 = 128;
const SAMPLES: usize = 60;
/// Not a divisor of the bearer's kernels, so that samples come at all times of one.
const PAUSE: Duration = Duration::from_micros(3_300);
/// The slices of the trial.
const SHORT_US: u64 = 1;
const LONG_US: u64 = 20_000;
/// What the bearer is told, and says.
const TAKE_SHORT: &str = "short";
const READY: &str = "ready";

/// Why it cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// The driver's library is not usable.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The driver refused.
    #[error("{what}: {error}")]
    Driver {
        /// What it was asked.
        what: &'static str,
        /// What it said.
        error: CudaError,
    },
    /// The other process cannot be started, or does not answer.
    #[error("the process that keeps the GPU busy")]
    Bearer(#[source] std::io::Error),
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trial {
    /// How much longer a request of 2 ms takes beside kernels of 10 ms, by the median, in microseconds.
    pub before_us: f64,
    /// The same with a short slice for those, and a long one for the request.
    pub after_us: f64,
    /// How many groups of channels the two processes have told the kernel of. None: nothing was changed.
    pub groups: usize,
}

impl Trial {
    /// Whether the device heeds slices.
    pub fn is_heeded(&self) -> bool {
        self.groups > 0 && self.after_us * 2.0 < self.before_us
    }
}

/// A context with the kernel in it.
struct Bench {
    api: Api,
    slices: Option<Slices>,
    _context: LiveContext,
    function: Function,
    stream: Stream,
}

impl Bench {
    fn new() -> Result<Self, TrialError> {
        let failed = |what| move |error| TrialError::Driver { what, error };
        let api = Api::load()?;
        let slices = Slices::watch(&api);
        // SAFETY: the driver may be initialised at any time.
        unsafe { api.init(0) }.map_err(failed("cuInit"))?;
        let context = LiveContext::primary(&api, 0).map_err(failed("cuDevicePrimaryCtxRetain"))?;
        let (mut module, mut function, mut stream) =
            (Module::default(), Function::default(), Stream::default());
        // SAFETY: every pointer is valid for its call, the text ends with a zero, and the module has one function.
        unsafe {
            api.module_load(&mut module, TEXT.as_ptr().cast(), 0, ptr::null_mut(), ptr::null_mut())
                .map_err(failed("cuModuleLoadDataEx"))?;
            api.module_functions(&mut function, 1, module).map_err(failed("cuModuleEnumerateFunctions"))?;
            api.function_load(function).map_err(failed("cuFuncLoad"))?;
            api.stream_create(&mut stream, 1, 0).map_err(failed("cuStreamCreateWithPriority"))?;
        }
        let bench = Self { api, slices, _context: context, function, stream };
        bench.run(1, 0)?;
        Ok(bench)
    }

    /// Runs so many kernels, one behind the other, and waits for them.
    fn run(&self, kernels: usize, ns: u64) -> Result<(), TrialError> {
        let parameters = &ns.to_le_bytes();
        let launch = Launch {
            function: self.function,
            grid: [BLOCKS, 1, 1],
            block: [128, 1, 1],
            shared_bytes: 0,
            parameters,
        };
        let launched =
            (0..kernels).try_for_each(|_| launch::launch(&self.api, self.stream, &launch, &mut []));
        // SAFETY: the stream is ours.
        let done = launched.and_then(|()| unsafe { self.api.stream_synchronize(self.stream) });
        done.map_err(|error| TrialError::Driver { what: "a kernel", error })
    }

    fn set(&self, slice_us: u64) -> usize {
        self.slices.as_ref().map_or(0, |slices| slices.set(Some(slice_us)))
    }

    /// How much longer a request takes than it works, by the median, in microseconds.
    fn wait_us(&self) -> Result<f64, TrialError> {
        let mut samples = Vec::with_capacity(SAMPLES);
        for _ in 0..SAMPLES {
            std::thread::sleep(PAUSE);
            let begun = Instant::now();
            self.run(1, REQUEST_NS)?;
            samples.push(begun.elapsed().as_secs_f64() * 1e6 - REQUEST_NS as f64 / 1e3);
        }
        samples.sort_by(f64::total_cmp);
        Ok(samples[SAMPLES / 2])
    }
}

/// Measures. `bearer` starts a process that calls [`bear`].
pub fn run(bearer: &mut Command) -> Result<Trial, TrialError> {
    let mut child =
        bearer.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(TrialError::Bearer)?;
    let result = Bench::new().and_then(|bench| measure(&bench, &mut child));
    // It may be in the middle of a kernel, and has nothing to lose.
    let _ = child.kill();
    let _ = child.wait();
    result
}

fn measure(bench: &Bench, child: &mut Child) -> Result<Trial, TrialError> {
    let broken = || TrialError::Bearer(std::io::ErrorKind::BrokenPipe.into());
    let (mut orders, said) = child.stdin.take().zip(child.stdout.take()).ok_or_else(broken)?;
    let mut said = BufReader::new(said).lines();
    let mut next = || said.next().ok_or_else(broken)?.map_err(TrialError::Bearer);
    if next()? != READY {
        return Err(broken());
    }
    let before_us = bench.wait_us()?;
    writeln!(orders, "{TAKE_SHORT}").map_err(TrialError::Bearer)?;
    let of_bearer: usize = next()?.parse().map_err(|_| broken())?;
    let ours = bench.set(LONG_US);
    let after_us = bench.wait_us()?;
    // Slices of one alone are half of the matter.
    let groups = if of_bearer.min(ours) == 0 { 0 } else { of_bearer + ours };
    Ok(Trial { before_us, after_us, groups })
}

/// Keeps the GPU busy until standard input ends.
pub fn bear() -> Result<(), TrialError> {
    static IS_OVER: AtomicBool = AtomicBool::new(false);
    static WANTS_SHORT: AtomicBool = AtomicBool::new(false);
    let bench = Bench::new()?;
    std::thread::spawn(|| {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            WANTS_SHORT.fetch_or(line == TAKE_SHORT, Ordering::SeqCst);
        }
        IS_OVER.store(true, Ordering::SeqCst);
    });
    let say = |text: &str| writeln!(std::io::stdout(), "{text}").map_err(TrialError::Bearer);
    say(READY)?;
    while !IS_OVER.load(Ordering::SeqCst) {
        bench.run(AHEAD, BUSY_NS)?;
        if WANTS_SHORT.swap(false, Ordering::SeqCst) {
            say(&bench.set(SHORT_US).to_string())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_nothing_is_not_heeded() {
        let trial = Trial { before_us: 2923.0, after_us: 350.0, groups: 4 };
        assert!(trial.is_heeded());
        assert!(!Trial { after_us: 2900.0, ..trial }.is_heeded(), "accepted, without effect");
        assert!(!Trial { groups: 0, ..trial }.is_heeded(), "the effect of something else");
    }

    #[test]
    fn the_kernel_can_be_compiled() {
        let module = ptx::Module::parse(&TEXT[..TEXT.len() - 1]).unwrap();
        let program = ptx::Program::bind(ptx::link(vec![module]).unwrap(), |_| 0);
        assert!(program.kernel("dxpu_busy").unwrap().is_ok());
    }
}
