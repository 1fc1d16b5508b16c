//! Streams: which one a call means, and whether it is being captured.

#![allow(unsafe_code)]

use crate::driver;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Which default stream a symbol means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    /// The context's.
    Legacy,
    /// The calling thread's.
    PerThread,
}

/// CU_STREAM_LEGACY and CU_STREAM_PER_THREAD.
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;
/// How the log tells the default streams of threads from others.
const PER_THREAD_MARK: u64 = 1 << 63;

/// A stream that a call means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stream(usize);

impl Stream {
    pub(crate) fn new(handle: usize, flavour: Flavour) -> Self {
        match (handle, flavour) {
            (0, Flavour::PerThread) => Self(PER_THREAD),
            (0 | LEGACY, _) => Self(0),
            (handle, _) => Self(handle),
        }
    }

    /// What the real driver's ordinary symbols take.
    pub(crate) fn handle(self) -> usize {
        self.0
    }

    /// What the log has: 0 is the legacy stream, and each thread's own is a stream of its own.
    pub(crate) fn name(self) -> u64 {
        match self.0 {
            PER_THREAD => {
                // SAFETY: the call has no preconditions.
                PER_THREAD_MARK | (unsafe { libc::gettid() } as u64)
            }
            handle => handle as u64,
        }
    }

    /// Whether what goes to it now becomes part of a graph instead of being done.
    pub(crate) fn is_capturing(self) -> bool {
        if CAPTURES.load(Relaxed) == 0 {
            return false;
        }
        let mut status = 0;
        // SAFETY: `status` is a place for the answer.
        let code = unsafe { driver::is_capturing(self.0, &mut status) };
        // An error means that the default stream may not be touched now.
        code != 0 || status != 0
    }
}

/// Captures under way.
static CAPTURES: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn capture_begins() {
    CAPTURES.fetch_add(1, Relaxed);
}

pub(crate) fn capture_ended() {
    let _ = CAPTURES.fetch_update(Relaxed, Relaxed, |count| count.checked_sub(1));
}

/// Whether any stream is being captured: then nothing is timed, and the driver is asked nothing.
pub(crate) fn is_any_capturing() -> bool {
    CAPTURES.load(Relaxed) != 0
}
