//! Which process serves which session, and the spares that wait for the next one.

use super::child::{self, Line, SessionChild, SessionEvent};
use crate::{
    config::{FrontConfig, Role},
    end::EndKind,
    sync::{lock, wait, wait_for},
};
use std::collections::HashMap;
use std::io;
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::{Duration, Instant};
use transport::RawConnection;

/// A client's own name for its session.
type SessionName = [u8; 16];
type Release = Box<dyn FnOnce() + Send>;
type OnEvent = Box<dyn Fn(SessionEvent) + Send + Sync>;

/// Starting a process, on a GPU with its context, takes locks of the driver and cores that the program which has just
/// come would have.
const REPLACE_AFTER: Duration = Duration::from_secs(1);
/// After a process that could not prepare itself, the next one is not tried at once.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// How long an ended session may take to leave before it is made to.
const LEAVE_WITHIN: Duration = Duration::from_secs(8);

pub(crate) struct Sessions {
    config: Arc<FrontConfig>,
    state: Mutex<State>,
    changed: Condvar,
    on_event: OnEvent,
}

#[derive(Default)]
struct State {
    spares: Vec<Arc<SessionChild>>,
    /// Processes that were started and are not ready yet.
    starting: usize,
    serving: HashMap<SessionName, Serving>,
    /// All processes, by number.
    processes: usize,
    /// Clients that wait for a process because no spare was ready.
    wanted: usize,
    stopping: bool,
    pause_until: Option<Instant>,
    /// Until then a spare that was taken is not replaced, unless it was the last.
    rest_until: Option<Instant>,
}

struct Serving {
    child: Arc<SessionChild>,
    peer: String,
    authenticated: bool,
}

impl Sessions {
    pub(crate) fn start(config: Arc<FrontConfig>, on_event: OnEvent) -> io::Result<Arc<Self>> {
        let sessions = Arc::new(Self { config, state: Mutex::default(), changed: Condvar::new(), on_event });
        let keeper = Arc::downgrade(&sessions);
        // Children are tied to the thread that starts them, so one thread starts them all and lives as long as any.
        std::thread::Builder::new().name("dxpu-spares".to_owned()).spawn(move || keep_spares(&keeper))?;
        Ok(sessions)
    }

    pub(crate) fn pids(&self) -> Vec<u32> {
        lock(&self.state).serving.values().map(|serving| serving.child.pid).collect()
    }

    /// A client wants a session.
    pub(crate) fn begin(&self, name: SessionName, raw: RawConnection) {
        let deadline = Instant::now() + self.config.session.handshake_timeout;
        let mut state = lock(&self.state);
        let unauthenticated = state.serving.values().filter(|serving| !serving.authenticated).count();
        let refusal = if state.stopping {
            Some("this worker is shutting down")
        } else if state.serving.contains_key(&name) {
            Some("this session exists already")
        } else if state.serving.len() + state.wanted >= self.config.sessions_max {
            Some("all sessions of this worker are in use")
        } else if unauthenticated + state.wanted >= self.config.unauthenticated_max {
            Some("too many clients at once, try again")
        } else {
            None
        };
        if let Some(text) = refusal {
            drop(state);
            tracing::info!(peer = raw.peer(), text, "a client was turned away");
            return raw.refuse(text);
        }
        state.wanted += 1;
        self.changed.notify_all();
        let child = loop {
            if let Some(child) = state.spares.pop() {
                state.rest_until = Some(Instant::now() + REPLACE_AFTER);
                break Some(child);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || state.stopping {
                break None;
            }
            state = wait_for(&self.changed, state, left);
        };
        state.wanted -= 1;
        let Some(child) = child else {
            drop(state);
            return raw.refuse("this worker cannot start a session");
        };
        let peer = raw.peer().to_owned();
        state.serving.insert(name, Serving { child: child.clone(), peer, authenticated: false });
        self.changed.notify_all();
        drop(state);
        if let Err(error) = child.give(raw) {
            tracing::warn!(pid = child.pid, %error, "a session process did not take its client");
            child.stop();
        }
    }

    /// A client opens another connection of its session.
    pub(crate) fn join(&self, name: SessionName, raw: RawConnection) {
        let child = lock(&self.state).serving.get(&name).map(|serving| serving.child.clone());
        let Some(child) = child else {
            let error = "there is no such session";
            tracing::debug!(peer = raw.peer(), error, "a stranger was turned away");
            return raw.refuse(error);
        };
        if let Err(error) = child.give(raw) {
            tracing::debug!(pid = child.pid, %error, "a session process did not take a connection");
        }
    }

    /// Ends everything and waits until all processes are gone.
    pub(crate) fn stop(&self) {
        let deadline = Instant::now() + LEAVE_WITHIN;
        let mut state = lock(&self.state);
        state.stopping = true;
        self.changed.notify_all();
        for child in state.spares.drain(..) {
            child.stop();
        }
        for serving in state.serving.values() {
            serving.child.stop();
        }
        while state.processes > 0 && Instant::now() < deadline {
            state = wait_for(&self.changed, state, Duration::from_millis(100));
        }
    }

    /// Hears from a process, and reaps it at its end. Runs on a thread of its own.
    fn attend(&self, child: &Arc<SessionChild>, mut process: Child, lines: UnixStream, release: Release) {
        let (mut said, mut ready) = (None, false);
        child::read_lines(lines, |line| match line {
            Line::Ready => {
                ready = true;
                let mut state = lock(&self.state);
                state.starting -= 1;
                if state.stopping {
                    child.stop()
                } else {
                    state.spares.push(child.clone())
                }
                self.changed.notify_all();
                drop(state);
                (self.on_event)(SessionEvent::Ready { pid: child.pid });
            }
            Line::Authenticated(client) => self.authenticated(child, client),
            Line::Ended(reason) => said = Some(reason),
        });
        // Whoever still wants to give it a connection hears that it is gone.
        child.stop();
        let end = child::end_of(said, reap(&mut process));
        release();
        let mut state = lock(&self.state);
        state.processes -= 1;
        state.spares.retain(|spare| !Arc::ptr_eq(spare, child));
        let name = state
            .serving
            .iter()
            .find(|(_, serving)| Arc::ptr_eq(&serving.child, child))
            .map(|(name, _)| *name);
        let served = name.and_then(|name| state.serving.remove(&name));
        let broken = !ready && !state.stopping;
        if !ready {
            state.starting -= 1;
        }
        if broken {
            state.pause_until = Some(Instant::now() + RETRY_PAUSE);
        }
        self.changed.notify_all();
        drop(state);
        let pid = child.pid;
        (self.on_event)(SessionEvent::Reaped { pid });
        match served {
            Some(Serving { peer, authenticated, .. }) => {
                (self.on_event)(SessionEvent::Ended { pid, peer, authenticated, end });
            }
            None if broken || end.kind == EndKind::Internal => {
                (self.on_event)(SessionEvent::Broken { reason: end.to_string() });
            }
            None => {}
        }
    }

    /// A process that was counted as starting did not start.
    fn not_started(&self, reason: &str) {
        let mut state = lock(&self.state);
        state.starting -= 1;
        state.processes -= 1;
        state.pause_until = Some(Instant::now() + RETRY_PAUSE);
        drop(state);
        (self.on_event)(SessionEvent::Broken { reason: reason.to_owned() });
    }

    fn authenticated(&self, child: &Arc<SessionChild>, client: String) {
        let mut state = lock(&self.state);
        let found = state.serving.values_mut().find(|serving| Arc::ptr_eq(&serving.child, child));
        let Some(serving) = found else { return };
        serving.authenticated = true;
        let peer = serving.peer.clone();
        drop(state);
        (self.on_event)(SessionEvent::Began { pid: child.pid, client, peer });
    }
}

/// Waits for a process that has closed its control socket, and makes it leave if it does not.
pub(super) fn reap(process: &mut Child) -> io::Result<std::process::ExitStatus> {
    let deadline = Instant::now() + LEAVE_WITHIN;
    let mut pause = Duration::from_micros(200);
    while Instant::now() < deadline {
        if let Some(status) = process.try_wait()? {
            return Ok(status);
        }
        std::thread::sleep(pause);
        pause = (2 * pause).min(Duration::from_millis(50));
    }
    process.kill()?;
    process.wait()
}

/// Starts processes whenever there are too few spares.
fn keep_spares(sessions: &Weak<Sessions>) {
    while let Some(sessions) = sessions.upgrade() {
        let mut state = lock(&sessions.state);
        loop {
            if state.stopping && state.processes == 0 {
                return;
            }
            let paused = state.pause_until.is_some_and(|until| Instant::now() < until);
            let target = sessions.config.spares.max(state.wanted);
            let ready = state.spares.len() + state.starting;
            let rest = state
                .rest_until
                .map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
            let resting = !rest.is_zero() && ready > state.wanted;
            if !state.stopping && !paused && !resting && ready < target {
                break;
            }
            state = match (paused, resting && ready < target) {
                (true, _) => wait_for(&sessions.changed, state, RETRY_PAUSE),
                (false, true) => wait_for(&sessions.changed, state, rest),
                (false, false) => wait(&sessions.changed, state),
            };
        }
        state.starting += 1;
        state.processes += 1;
        drop(state);
        start_one(&sessions);
    }
}

fn start_one(sessions: &Arc<Sessions>) {
    let grant = match (sessions.config.grant)() {
        Ok(grant) => grant,
        Err(error) => return sessions.not_started(&format!("nothing left for one more session: {error}")),
    };
    let (child, process, lines) = match SessionChild::start(&sessions.config, &grant, Role::Session) {
        Ok(started) => started,
        Err(error) => {
            (grant.release)();
            return sessions.not_started(&format!("cannot start a process: {error}"));
        }
    };
    let (attended, release) = (sessions.clone(), grant.release);
    let attend = std::thread::Builder::new().name("dxpu-attend".to_owned()).stack_size(256 << 10);
    let stopper = child.clone();
    let thread = attend.spawn(move || attended.attend(&child, process, lines, release));
    if let Err(error) = thread {
        // Its control socket closes, so it leaves by itself; nobody is left to wait for it.
        stopper.stop();
        sessions.not_started(&format!("cannot start a thread: {error}"));
    }
}
