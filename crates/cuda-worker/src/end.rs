//! How a session ends.

use crate::sync::{lock, wait_for};
use std::fmt;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// Why a session ended. The number is the exit code of its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EndKind {
    /// The client said goodbye, or never began.
    Finished = 0,
    /// The client may not use this worker, or cannot.
    Refused = 70,
    /// The client sent what no well-behaved client sends.
    Protocol = 71,
    /// The client's process or the network went away without a goodbye.
    PeerLost = 72,
    /// The client said nothing for too long.
    Stalled = 73,
    /// The worker itself failed.
    Internal = 74,
    /// The front is gone or told the session to end.
    Stopped = 75,
}

impl EndKind {
    const ALL: [Self; 7] = [
        Self::Finished,
        Self::Refused,
        Self::Protocol,
        Self::PeerLost,
        Self::Stalled,
        Self::Internal,
        Self::Stopped,
    ];

    /// The exit code of a session process that ended so.
    pub fn exit_code(self) -> u8 {
        self as u8
    }

    /// The end that an exit code means.
    pub fn from_exit_code(code: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| i32::from(kind.exit_code()) == code)
    }

    /// Whether the client should hear why.
    pub(crate) fn is_told(self) -> bool {
        matches!(self, Self::Protocol | Self::Internal | Self::Stopped | Self::Stalled)
    }
}

/// How a session ended, in words for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionEnd {
    /// What kind of end.
    pub kind: EndKind,
    /// In words.
    pub reason: String,
}

impl SessionEnd {
    pub(crate) fn new(kind: EndKind, reason: impl Into<String>) -> Self {
        Self { kind, reason: reason.into() }
    }
}

impl fmt::Display for SessionEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.reason)
    }
}

/// The place where the first reason to end is kept. Any thread may end the session.
#[derive(Default)]
pub(crate) struct Ending {
    end: Mutex<Option<SessionEnd>>,
    changed: Condvar,
}

impl Ending {
    pub(crate) fn end(&self, kind: EndKind, reason: impl Into<String>) {
        lock(&self.end).get_or_insert_with(|| SessionEnd::new(kind, reason));
        self.changed.notify_all();
    }

    pub(crate) fn get(&self) -> Option<SessionEnd> {
        lock(&self.end).clone()
    }

    /// Waits for the end, at most for `timeout`.
    pub(crate) fn wait(&self, timeout: Duration) -> Option<SessionEnd> {
        let end = lock(&self.end);
        if end.is_some() {
            return end.clone();
        }
        wait_for(&self.changed, end, timeout).clone()
    }
}
