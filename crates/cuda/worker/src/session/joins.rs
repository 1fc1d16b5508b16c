//! The further connections of a session, gathered as the front hands them over.

use crate::{
    end::{EndKind, Ending},
    session::handshake::{HandshakeError, read_join, say_no},
};
use locks::{lock, wait_for};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use transport::{Connection, ConnectionKind, RawConnection, ServerSecurity};

#[derive(Default)]
pub(crate) struct Joins {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    events: Option<Connection>,
    lanes: Vec<Option<Connection>>,
    /// All are here: no more are taken.
    complete: bool,
    /// Connections whose first words are being read.
    reading: usize,
}

/// A session has at most one events connection and seven lanes; as many strangers at a time are enough.
const READING_MAX: usize = 16;

/// The events connection and the lanes.
pub(crate) struct Joined {
    pub(crate) events: Connection,
    pub(crate) lanes: Vec<Connection>,
}

impl Joins {
    /// Puts a connection in its place. False when the place is taken or does not exist.
    fn put(&self, kind: ConnectionKind, lane: u16, connection: Connection) -> bool {
        let mut state = lock(&self.state);
        if state.complete {
            return false;
        }
        let lane = usize::from(lane);
        let place = match kind {
            ConnectionKind::Events => &mut state.events,
            ConnectionKind::Lane if lane < cuda_wire::LANES_MAX => {
                if state.lanes.len() <= lane {
                    state.lanes.resize_with(lane + 1, || None);
                }
                &mut state.lanes[lane]
            }
            _ => return false,
        };
        if place.is_some() {
            return false;
        }
        *place = Some(connection);
        self.changed.notify_all();
        true
    }

    /// All of them, once they are here. Waits at most `timeout`; the caller looks again.
    pub(crate) fn take(&self, lanes: usize, timeout: Duration) -> Option<Joined> {
        let mut state = lock(&self.state);
        let is_complete = |state: &State| {
            state.events.is_some() && state.lanes.len() == lanes && state.lanes.iter().all(Option::is_some)
        };
        if !is_complete(&state) {
            state = wait_for(&self.changed, state, timeout);
        }
        if !is_complete(&state) {
            return None;
        }
        state.complete = true;
        let lanes = state.lanes.drain(..).flatten().collect();
        state.events.take().map(|events| Joined { events, lanes })
    }
}

/// Takes connections from the front until it goes away, which ends the session.
pub(crate) fn take_connections(
    control: OwnedFd,
    joins: &Arc<Joins>,
    security: &Arc<ServerSecurity>,
    secret: [u8; 32],
    timeout: Duration,
    ending: &Ending,
) {
    use std::os::fd::AsFd;
    loop {
        let raw = match RawConnection::take_over(control.as_fd()) {
            Ok(raw) => raw,
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                return ending.end(EndKind::Stopped, "the worker is shutting down");
            }
            Err(error) => {
                return ending.end(EndKind::Stopped, format!("the worker's front process is gone: {error}"));
            }
        };
        {
            let mut state = lock(&joins.state);
            if state.reading >= READING_MAX || state.complete {
                drop(state);
                raw.refuse("this session has all its connections");
                continue;
            }
            state.reading += 1;
        }
        let (joins, security) = (joins.clone(), security.clone());
        let thread = std::thread::Builder::new().name("dxpu-join".to_owned()).stack_size(256 << 10);
        let _ = thread.spawn(move || {
            join(raw, &joins, &security, secret, Instant::now() + timeout);
            lock(&joins.state).reading -= 1;
        });
    }
}

fn join(raw: RawConnection, joins: &Joins, security: &ServerSecurity, secret: [u8; 32], deadline: Instant) {
    let Some(preamble) = raw.preamble().copied() else { return };
    let peer = raw.peer().to_owned();
    let mut connection = match raw.serve(security, deadline) {
        Ok(connection) => connection,
        Err(error) => return tracing::debug!(peer, %error, "a further connection of a client was not set up"),
    };
    match read_join(&mut connection.rx, &secret, deadline) {
        Ok(()) => {
            if !joins.put(preamble.kind, preamble.lane, connection) {
                tracing::warn!(peer, kind = ?preamble.kind, lane = preamble.lane, "a client opened a connection that it has already, or that is none of its session");
            }
        }
        Err(HandshakeError::Refused(refusal)) => {
            tracing::warn!(peer, "a connection showed a wrong session secret and was refused");
            say_no(connection, refusal);
        }
        Err(error) => tracing::debug!(peer, %error, "a connection did not join its session"),
    }
}
