//! Starts a guardian, or another process that works for a worker, as a child; starts it again when it dies, and ends it in order.
//!
//! The child ends by itself when its standard input ends. So it also ends, and zeroes its images, when this process is
//! killed.

use crate::store::GuardianStore;
use locks::{lock, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use std::io;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use thiserror::Error;

/// How long a guardian may take until it answers.
const READY_WITHIN: Duration = Duration::from_secs(20);

/// How long a guardian may take to zero its images: hundreds of gigabytes.
const ENDED_WITHIN: Duration = Duration::from_secs(60);

/// The pause before a guardian that died is started again; it doubles up to [`REST_MAX`] while it dies at once.
const REST: Duration = Duration::from_millis(200);

/// The longest pause.
const REST_MAX: Duration = Duration::from_secs(10);

/// A guardian that lived for so long did not die at once.
const LIVED: Duration = Duration::from_secs(30);

/// Why a guardian is not there.
#[derive(Debug, Error)]
pub enum SuperviseError {
    /// It cannot be started, or does not answer.
    #[error("the {what} did not start; its own message is above")]
    NotReady {
        /// What it is.
        what: &'static str,
    },
    /// The system gives no thread to watch it with.
    #[error("the {what} cannot be watched")]
    Thread {
        /// What it is.
        what: &'static str,
        /// What the system says.
        source: io::Error,
    },
}

/// Makes the command line of a guardian, without its standard input.
pub type MakeCommand = Box<dyn Fn() -> Command + Send>;

/// A child process that is a guardian or the like. Dropping it ends that process.
pub struct Supervisor {
    watched: Arc<Watched>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Watched {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Open as long as the child is to live.
    stdin: Option<ChildStdin>,
    pid: Option<Pid>,
    is_stopping: bool,
    /// The thread has reaped the last child.
    is_over: bool,
}

impl Supervisor {
    /// Starts the guardian that `make` makes, and returns when it answers at `socket`.
    pub fn start(make: MakeCommand, socket: &Path) -> Result<Self, SuperviseError> {
        Self::of("guardian", make, || GuardianStore::connect(socket).is_ok())
    }

    /// Starts another process that ends with its standard input, and returns when it is ready.
    pub fn of(
        what: &'static str,
        make: MakeCommand,
        is_ready: impl Fn() -> bool,
    ) -> Result<Self, SuperviseError> {
        let watched = Arc::new(Watched::default());
        let watching = watched.clone();
        let thread = std::thread::Builder::new().name(format!("{what}-watch"));
        let watch = move || watch(&watching, what, &make);
        let thread = thread.spawn(watch).map_err(|source| SuperviseError::Thread { what, source })?;
        let supervisor = Self { watched, thread: Some(thread) };
        let until = Instant::now() + READY_WITHIN;
        while !is_ready() {
            if Instant::now() >= until {
                return Err(SuperviseError::NotReady { what });
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(supervisor)
    }

    /// The process, while it lives.
    pub fn pid(&self) -> Option<u32> {
        lock(&self.watched.state).pid.map(|pid| pid.as_raw_nonzero().get().cast_unsigned())
    }

    /// Ends the guardian, which zeroes its images, and waits until it has ended.
    pub fn stop(mut self) {
        self.halt();
    }

    fn halt(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        let mut state = lock(&self.watched.state);
        state.is_stopping = true;
        // Its end is what the guardian waits for.
        drop(state.stdin.take());
        self.watched.changed.notify_all();
        let until = Instant::now() + ENDED_WITHIN;
        while !state.is_over && Instant::now() < until {
            state = wait_for(&self.watched.changed, state, Duration::from_millis(100));
        }
        if let Some(pid) = state.pid.filter(|_| !state.is_over) {
            // Not reaped yet, so its number is still its own.
            let _ = kill_process(pid, Signal::KILL);
        }
        drop(state);
        let _ = thread.join();
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.halt();
    }
}

fn watch(watched: &Watched, what: &str, make: &MakeCommand) {
    let mut rest = REST;
    loop {
        let began = Instant::now();
        run(watched, what, make);
        let mut state = lock(&watched.state);
        if state.is_stopping {
            state.is_over = true;
            watched.changed.notify_all();
            return;
        }
        rest = if began.elapsed() >= LIVED { REST } else { (rest * 2).min(REST_MAX) };
        let until = Instant::now() + rest;
        while !state.is_stopping && Instant::now() < until {
            state = wait_for(&watched.changed, state, until.saturating_duration_since(Instant::now()));
        }
    }
}

/// Starts one guardian and waits for its end.
fn run(watched: &Watched, what: &str, make: &MakeCommand) {
    let mut state = lock(&watched.state);
    if state.is_stopping {
        return;
    }
    // One arena: the allocator would keep freed blocks of each thread to itself, and the process would take more memory
    // than it counts.
    let spawned = make().stdin(Stdio::piped()).env("MALLOC_ARENA_MAX", "1").spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => {
            tracing::error!(%error, "the {what} cannot be started");
            return;
        }
    };
    (state.stdin, state.pid) = (child.stdin.take(), Some(Pid::from_child(&child)));
    drop(state);
    let ended = child.wait();
    let mut state = lock(&watched.state);
    (state.stdin, state.pid) = (None, None);
    if !state.is_stopping {
        let how = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
        tracing::error!(how, "the {what} died, and what it kept with it; it is started again");
    }
}
