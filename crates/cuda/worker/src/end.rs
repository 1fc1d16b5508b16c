//! How a session ends.

use locks::{lock, wait_for};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};
use std::{error::Error, fmt, io};
use transport::IdentityError;

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
    /// The device failed under a protected session, which goes on elsewhere.
    DeviceLost = 76,
}

impl EndKind {
    const ALL: [Self; 8] = [
        Self::Finished,
        Self::Refused,
        Self::Protocol,
        Self::PeerLost,
        Self::Stalled,
        Self::Internal,
        Self::Stopped,
        Self::DeviceLost,
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

/// Why there are no devices to serve clients with, in the words of the function that was to make the driver.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NoDevices(#[source] Box<dyn Error + Send + Sync>);

impl NoDevices {
    /// For the reason `why`: an error or a sentence.
    pub fn because(why: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(why.into())
    }
}

/// Why a session process or the status process ended before it could serve a client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unserved {
    #[error("cannot read the configuration: {0}")]
    Configuration(#[source] io::Error),
    #[error("{0}")]
    Devices(#[source] NoDevices),
    #[error("cannot use the TLS identity: {0}")]
    Identity(#[source] IdentityError),
    #[error("cannot share the control socket between threads: {0}")]
    Control(#[source] io::Error),
    #[error("cannot read /dev/urandom: {0}")]
    Randomness(#[source] io::Error),
}

impl From<Unserved> for SessionEnd {
    fn from(why: Unserved) -> Self {
        Self::new(EndKind::Internal, why.to_string())
    }
}

/// The place where the reason to end is kept. Any thread may end the session. The first reason counts, except that a
/// goodbye explains why connections ended: another thread may see that end before the goodbye is read.
#[derive(Default)]
pub(crate) struct Ending {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    end: Option<SessionEnd>,
    /// No thread reads commands any more, so no goodbye will be found.
    commands_over: bool,
}

impl State {
    /// Whether a goodbye may still explain the end.
    fn is_open(&self) -> bool {
        !self.commands_over && self.end.as_ref().is_some_and(|end| end.kind == EndKind::PeerLost)
    }
}

impl Ending {
    pub(crate) fn end(&self, kind: EndKind, reason: impl Into<String>) {
        lock(&self.state).end.get_or_insert_with(|| SessionEnd::new(kind, reason));
        self.changed.notify_all();
    }

    /// The same from the thread that reads commands, when it stops.
    pub(crate) fn end_of_commands(&self, end: SessionEnd) {
        let mut state = lock(&self.state);
        if state.end.is_none() || (state.is_open() && end.kind == EndKind::Finished) {
            state.end = Some(end);
        }
        state.commands_over = true;
        drop(state);
        self.changed.notify_all();
    }

    pub(crate) fn get(&self) -> Option<SessionEnd> {
        lock(&self.state).end.clone()
    }

    /// Waits for the end, at most for `timeout`.
    pub(crate) fn wait(&self, timeout: Duration) -> Option<SessionEnd> {
        let state = lock(&self.state);
        if state.end.is_some() {
            return state.end.clone();
        }
        wait_for(&self.changed, state, timeout).end.clone()
    }

    /// The end, once it is known whether a goodbye explains it. After `timeout`, the end as known by then.
    pub(crate) fn explained(&self, timeout: Duration) -> Option<SessionEnd> {
        let deadline = Instant::now() + timeout;
        let mut state = lock(&self.state);
        while state.is_open() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = wait_for(&self.changed, state, left);
        }
        state.end.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const LONG: Duration = Duration::from_secs(20);

    fn kind(end: Option<SessionEnd>) -> Option<EndKind> {
        end.map(|end| end.kind)
    }

    #[test]
    fn a_goodbye_explains_connections_that_ended_before_it_was_read() {
        let ending = Arc::new(Ending::default());
        ending.end(EndKind::PeerLost, "a lane closed");
        let commands = ending.clone();
        let reader = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            commands.end_of_commands(SessionEnd::new(EndKind::Finished, "goodbye"));
        });
        assert_eq!(kind(ending.explained(LONG)), Some(EndKind::Finished));
        reader.join().unwrap();
    }

    #[test]
    fn a_client_that_is_gone_without_a_goodbye_is_lost() {
        let ending = Ending::default();
        ending.end(EndKind::PeerLost, "a lane closed");
        assert_eq!(kind(ending.explained(Duration::from_millis(10))), Some(EndKind::PeerLost));
        ending.end_of_commands(SessionEnd::new(EndKind::PeerLost, "no goodbye"));
        let started = Instant::now();
        assert_eq!(ending.explained(LONG).unwrap().reason, "a lane closed", "the first reason counts");
        assert!(started.elapsed() < LONG / 2);
        ending.end_of_commands(SessionEnd::new(EndKind::Finished, "too late"));
        assert_eq!(kind(ending.get()), Some(EndKind::PeerLost));
    }

    #[test]
    fn a_goodbye_excuses_nothing_else() {
        let ending = Ending::default();
        ending.end(EndKind::Protocol, "nonsense on a lane");
        ending.end_of_commands(SessionEnd::new(EndKind::Finished, "goodbye"));
        assert_eq!(kind(ending.explained(LONG)), Some(EndKind::Protocol));
    }
}
