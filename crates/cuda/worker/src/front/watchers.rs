//! The status process, seen from the front: started for the first client that looks, ended when no client does.

use super::OnEvent;
use super::child::{self, SessionChild, SessionEvent};
use super::sessions::refuse_ticket;
use super::turned_away::Reason;
use crate::{
    config::{FrontConfig, Role},
    end::{EndKind, SessionEnd},
    front::sessions::{random_name, reap},
};
use locks::{lock, wait};
use std::collections::HashMap;
use std::io::{self, BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use transport::RawConnection;

/// How long the process stays without a client: long enough for a tool that is called again and again.
const STAYS_IDLE: Duration = Duration::from_secs(10);
/// Clients that wait for the process to start.
const WAITING_MAX: usize = 64;
/// Clients that were let in and have not come back yet.
const TICKETS_MAX: usize = 256;
/// How long they have for that.
const TICKET_GOOD_FOR: Duration = Duration::from_secs(10);

/// Clients that look, and the process that serves them.
pub(crate) struct Watchers {
    config: Arc<FrontConfig>,
    state: Mutex<State>,
    changed: Condvar,
    on_event: OnEvent,
}

#[derive(Default)]
struct State {
    /// Wait for a process.
    waiting: Vec<RawConnection>,
    /// Names under which clients come back that have shown their token, until then.
    tickets: HashMap<[u8; 16], Instant>,
    child: Option<Arc<SessionChild>>,
    /// Connections that the process has and has not said to be over.
    served: usize,
    stopping: bool,
}

/// Why clients that look cannot be served.
#[derive(Debug, thiserror::Error)]
enum StatusProcessError {
    #[error("cannot get the devices for a status process: {0}")]
    NoGrant(#[source] io::Error),
    #[error("cannot start a status process: {0}")]
    NotStarted(#[source] io::Error),
    #[error("{0}")]
    Failed(SessionEnd),
}

impl Watchers {
    pub(crate) fn start(
        config: Arc<FrontConfig>,
        on_event: OnEvent,
    ) -> io::Result<(Arc<Self>, JoinHandle<()>)> {
        let watchers = Arc::new(Self { config, state: Mutex::default(), changed: Condvar::new(), on_event });
        let keeper = watchers.clone();
        // The process is tied to the thread that starts it, so that thread stays with it.
        let thread = std::thread::Builder::new().name("dxpu-watchers".to_owned());
        let thread = thread.spawn(move || keeper.keep())?;
        Ok((watchers, thread))
    }

    /// A ticket for a client that has shown its token. `None` when too many have one.
    pub(crate) fn ask(&self) -> Option<[u8; 16]> {
        let (mut state, now) = (lock(&self.state), Instant::now());
        state.tickets.retain(|_, until| *until > now);
        if state.tickets.len() >= TICKETS_MAX {
            return None;
        }
        let name = random_name()?;
        state.tickets.insert(name, now + TICKET_GOOD_FOR);
        Some(name)
    }

    /// A client comes back with its ticket, and looks.
    pub(crate) fn begin(&self, ticket: [u8; 16], raw: RawConnection) -> Result<(), (Reason, &'static str)> {
        let mut state = lock(&self.state);
        if state.tickets.remove(&ticket).is_none() {
            drop(state);
            refuse_ticket(raw);
            return Err((Reason::NoTicket, "there is no such ticket"));
        }
        if state.stopping {
            drop(state);
            raw.refuse("this worker is shutting down");
            return Ok(());
        }
        if let Some(child) = state.child.clone() {
            // Counted first: what the process says of it may be here before this returns.
            state.served += 1;
            if let Err(error) = child.give(raw) {
                state.served -= 1;
                tracing::debug!(pid = child.pid, %error, "the status process did not take a client");
            }
            return Ok(());
        }
        if state.waiting.len() >= WAITING_MAX {
            drop(state);
            raw.refuse("too many clients at once, try again");
            return Err((Reason::Busy, "too many wait for the status process"));
        }
        state.waiting.push(raw);
        self.changed.notify_all();
        Ok(())
    }

    /// Ends the process. The thread that [`Watchers::start`] returned ends soon after.
    pub(crate) fn stop(&self) {
        let mut state = lock(&self.state);
        state.stopping = true;
        state.waiting.clear();
        if let Some(child) = state.child.take() {
            child.stop();
        }
        self.changed.notify_all();
    }

    /// Starts a process whenever a client waits for one, and attends it to its end.
    fn keep(&self) {
        loop {
            let mut state = lock(&self.state);
            while state.waiting.is_empty() && !state.stopping {
                state = wait(&self.changed, state);
            }
            if state.stopping {
                return;
            }
            drop(state);
            if let Err(error) = self.start_and_attend() {
                for raw in std::mem::take(&mut lock(&self.state).waiting) {
                    raw.refuse("this worker cannot show its devices");
                }
                (self.on_event)(SessionEvent::Broken { reason: error.to_string() });
            }
        }
    }

    fn start_and_attend(&self) -> Result<(), StatusProcessError> {
        let grant = (self.config.grant)().map_err(StatusProcessError::NoGrant)?;
        let started = SessionChild::start(&self.config, &grant, Role::Status, None);
        let (child, process, lines) = match started {
            Ok(started) => started,
            Err(error) => {
                (grant.release)();
                return Err(StatusProcessError::NotStarted(error));
            }
        };
        {
            let mut state = lock(&self.state);
            if !state.stopping {
                state.child = Some(child.clone());
                state.served = 0;
                for raw in std::mem::take(&mut state.waiting) {
                    state.served += usize::from(child.give(raw).is_ok());
                }
            }
        }
        let outcome = self.attend(&child, process, lines);
        (grant.release)();
        (self.on_event)(SessionEvent::Reaped { pid: child.pid });
        outcome
    }

    /// Hears from the process until it ends, and ends it when it has no client to serve.
    fn attend(
        &self,
        child: &Arc<SessionChild>,
        mut process: Child,
        lines: UnixStream,
    ) -> Result<(), StatusProcessError> {
        let mut said = None;
        let is_timed = lines.set_read_timeout(Some(STAYS_IDLE)).is_ok();
        let mut lines = BufReader::new(lines);
        let mut line = String::new();
        loop {
            match lines.read_line(&mut line) {
                Ok(0) => break,
                Ok(_) => {
                    match line.trim_end().split_once(' ').unwrap_or((line.trim_end(), "")) {
                        ("served", _) => {
                            let mut state = lock(&self.state);
                            state.served = state.served.saturating_sub(1);
                        }
                        ("ended", reason) => said = Some(reason.to_owned()),
                        _ => {}
                    }
                    line.clear();
                }
                Err(error) if is_timed && error.kind() == io::ErrorKind::WouldBlock => {
                    let mut state = lock(&self.state);
                    // Under the lock, so that no client is given to a process that leaves.
                    if state.served == 0 {
                        state.child = None;
                        child.stop();
                    }
                }
                Err(_) => break,
            }
        }
        lock(&self.state).child = None;
        child.stop();
        let end = child::end_of(said, reap(&mut process, self.config.session.leave_within()));
        if end.kind == EndKind::Internal { Err(StatusProcessError::Failed(end)) } else { Ok(()) }
    }
}
