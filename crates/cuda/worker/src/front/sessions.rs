//! Which process serves which session, and the spares that wait for the next one.

use super::OnEvent;
use super::bell::Bell;
use super::child::{self, Line, SessionChild, SessionEvent};
use super::spares::{Next, Spares};
use super::turned_away::Reason;
use crate::{
    config::{FrontConfig, Role},
    content,
    end::EndKind,
};
use locks::{lock, wait, wait_for};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::{Duration, Instant};
use transport::RawConnection;

/// A client's own name for its session.
type SessionName = [u8; 16];
type Release = Box<dyn FnOnce() + Send>;
/// Why a connection is not served, with details for finding a fault.
type Refused = (Reason, &'static str);

/// How long after a client came its spare is replaced. Starting a process takes locks of the driver (with a GPU, for
/// its context) and cores, which the client's program needs at that moment.
const REPLACE_AFTER: Duration = Duration::from_secs(1);
/// After a process that could not prepare itself, the next one is not tried at once.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// How many processes may prepare themselves at a time: on a GPU they wait for each other's locks, and all of them for the
/// cores that programs would have.
const STARTING_MAX: usize = 8;
/// Clients that may wait for a process at a time. Each costs a descriptor.
const IN_LINE_MAX: usize = 1024;
const ALL_IN_USE: &str = "all sessions of this worker are in use";
/// How long a process is kept for a client that has shown its token and is to come back at once.
const TICKET_GOOD_FOR: Duration = Duration::from_secs(10);

pub(crate) struct Sessions {
    config: Arc<FrontConfig>,
    state: Mutex<State>,
    changed: Condvar,
    on_event: OnEvent,
    /// Memory for what clients send, which all sessions share.
    content: Option<OwnedFd>,
    /// Rung when a client in line may find a process.
    bells: Vec<Arc<Bell>>,
}

/// What a client that was let in hears.
pub(crate) enum Asked {
    /// Come back under this name.
    Ticket(SessionName),
    /// Wait, for this reason.
    NotYet(&'static str),
}

/// A client's place in the line for a process.
pub(crate) struct InLine(Arc<Sessions>);

impl Drop for InLine {
    fn drop(&mut self) {
        lock(&self.0.state).wanted -= 1;
    }
}

#[derive(Default)]
struct State {
    spares: Vec<Arc<SessionChild>>,
    /// Processes set aside for clients that come back under these names, until then.
    tickets: HashMap<SessionName, (Arc<SessionChild>, Instant)>,
    /// Processes that were started and are not ready yet.
    starting: usize,
    serving: HashMap<SessionName, Serving>,
    /// All processes, by number.
    processes: usize,
    /// Clients that wait for a process because no spare was ready.
    wanted: usize,
    stopping: bool,
    pause_until: Option<Instant>,
    /// Processes that could not prepare themselves, since the last that could.
    failures: u32,
    /// Until then a spare that was taken is not replaced, unless it was the last.
    rest_until: Option<Instant>,
}

impl State {
    /// Places that clients have, or are to take at once.
    fn in_use(&self) -> usize {
        self.serving.len() + self.tickets.len()
    }
}

struct Serving {
    child: Arc<SessionChild>,
    peer: String,
    authenticated: bool,
}

/// Beside the first sessions, which can do without.
fn make_ready(content: Option<&OwnedFd>) {
    let Some(Ok(content)) = content.map(OwnedFd::try_clone) else { return };
    let make = move || {
        if let Err(error) = content::make_ready(content.as_fd()) {
            tracing::warn!(%error, "the memory for what clients send cannot be made ahead");
        }
    };
    let _ = std::thread::Builder::new().name("dxpu-content-ready".to_owned()).spawn(make);
}

impl Sessions {
    pub(crate) fn start(
        config: Arc<FrontConfig>,
        bells: Vec<Arc<Bell>>,
        on_event: OnEvent,
    ) -> io::Result<Arc<Self>> {
        let state = Mutex::default();
        let content = content::make(config.session.content_bytes_max).unwrap_or_else(|error| {
            tracing::warn!(%error, "no memory for what clients send; the next program sends it again");
            None
        });
        if config.session.content_is_made_ready {
            make_ready(content.as_ref());
        }
        let sessions = Arc::new(Self { config, state, changed: Condvar::new(), on_event, content, bells });
        let keeper = Arc::downgrade(&sessions);
        // Children are tied to the thread that starts them, so one thread starts them all and lives as long as any.
        std::thread::Builder::new().name("dxpu-spares".to_owned()).spawn(move || keep_spares(&keeper))?;
        Ok(sessions)
    }

    pub(crate) fn pids(&self) -> Vec<u32> {
        lock(&self.state).serving.values().map(|serving| serving.child.pid).collect()
    }

    /// A client that was let in begins to wait. `None` when too many do.
    pub(crate) fn line_up(self: &Arc<Self>) -> Option<InLine> {
        let mut state = lock(&self.state);
        if state.wanted >= IN_LINE_MAX {
            return None;
        }
        state.wanted += 1;
        self.changed.notify_all();
        Some(InLine(self.clone()))
    }

    /// Sets a process aside for a client that was let in.
    pub(crate) fn ask(&self) -> Asked {
        let mut state = lock(&self.state);
        if state.stopping {
            return Asked::NotYet("this worker is shutting down");
        }
        if state.in_use() >= self.config.sessions_max {
            return Asked::NotYet(ALL_IN_USE);
        }
        let Some(child) = state.spares.pop() else {
            return Asked::NotYet("this worker is still starting a session");
        };
        let Some(name) = random_name() else {
            state.spares.push(child);
            return Asked::NotYet("this worker has no randomness");
        };
        let now = Instant::now();
        state.rest_until = Some(now + REPLACE_AFTER);
        state.tickets.insert(name, (child, now + TICKET_GOOD_FOR));
        self.changed.notify_all();
        Asked::Ticket(name)
    }

    /// Whether a client that was let in would be served now, or as soon as a process is started. Takes nothing.
    pub(crate) fn look(&self) -> Asked {
        let state = lock(&self.state);
        if state.in_use() >= self.config.sessions_max {
            return Asked::NotYet(ALL_IN_USE);
        }
        match state.in_use() > 0 || !state.spares.is_empty() {
            true => Asked::Ticket(SessionName::default()),
            false => Asked::NotYet("this worker cannot start a session; its log says why"),
        }
    }

    /// Makes spares of the processes whose clients did not come back with their tickets.
    pub(crate) fn take_back_tickets(&self) {
        let now = Instant::now();
        let mut state = lock(&self.state);
        let late = |(name, (_, until)): (&SessionName, &(_, Instant))| (*until <= now).then_some(*name);
        let late: Vec<SessionName> = state.tickets.iter().filter_map(late).collect();
        for name in late {
            let Some((child, _)) = state.tickets.remove(&name) else { continue };
            match state.spares.len() + state.starting < self.config.spares.max(state.wanted) {
                true => state.spares.push(child),
                // Another has taken its place meanwhile.
                false => child.stop(),
            }
        }
    }

    /// When the next unused ticket ends.
    pub(crate) fn next_ticket_end(&self) -> Option<Instant> {
        lock(&self.state).tickets.values().map(|(_, until)| *until).min()
    }

    /// A client comes back with its ticket.
    pub(crate) fn begin(&self, name: SessionName, raw: RawConnection) -> Result<(), Refused> {
        let mut state = lock(&self.state);
        let Some((child, _)) = state.tickets.remove(&name) else {
            drop(state);
            refuse_ticket(raw);
            return Err((Reason::NoTicket, "there is no such ticket"));
        };
        let peer = raw.peer().to_owned();
        state.serving.insert(name, Serving { child: child.clone(), peer, authenticated: false });
        drop(state);
        if let Err(error) = child.give(raw) {
            tracing::warn!(pid = child.pid, %error, "a session process did not take its client");
            child.stop();
        }
        Ok(())
    }

    /// A client opens another connection of its session.
    pub(crate) fn join(&self, name: SessionName, raw: RawConnection) -> Result<(), Refused> {
        let child = lock(&self.state).serving.get(&name).map(|serving| serving.child.clone());
        let Some(child) = child else {
            raw.refuse("there is no such session");
            return Err((Reason::NoSession, "there is no such session"));
        };
        if let Err(error) = child.give(raw) {
            tracing::debug!(pid = child.pid, %error, "a session process did not take a connection");
        }
        Ok(())
    }

    fn ring(&self) {
        self.bells.iter().for_each(|bell| bell.ring());
    }

    /// Ends everything and waits until all processes are gone.
    pub(crate) fn stop(&self) {
        let deadline = Instant::now() + self.config.session.leave_within();
        let mut state = lock(&self.state);
        state.stopping = true;
        self.changed.notify_all();
        for child in state.spares.drain(..) {
            child.stop();
        }
        for serving in state.serving.values() {
            serving.child.stop();
        }
        for (child, _) in state.tickets.values() {
            child.stop();
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
                state.failures = 0;
                if state.stopping {
                    child.stop()
                } else {
                    state.spares.push(child.clone())
                }
                self.changed.notify_all();
                drop(state);
                self.ring();
                (self.on_event)(SessionEvent::Ready { pid: child.pid });
            }
            Line::Authenticated(client) => self.authenticated(child, client),
            Line::Ended(reason) => said = Some(reason),
        });
        // A thread that still wants to give it a connection hears that it is gone.
        child.stop();
        let end = child::end_of(said, reap(&mut process, self.config.session.leave_within()));
        release();
        let mut state = lock(&self.state);
        state.processes -= 1;
        state.spares.retain(|spare| !Arc::ptr_eq(spare, child));
        state.tickets.retain(|_, (spare, _)| !Arc::ptr_eq(spare, child));
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
            state.failures += 1;
            state.pause_until = Some(Instant::now() + self.retry_pause());
        }
        let is_told = state.failures >= self.failures_untold();
        self.changed.notify_all();
        drop(state);
        self.ring();
        let pid = child.pid;
        (self.on_event)(SessionEvent::Reaped { pid });
        match served {
            Some(Serving { peer, authenticated, .. }) => {
                (self.on_event)(SessionEvent::Ended { pid, peer, authenticated, end });
            }
            None if (broken && is_told) || (!broken && end.kind == EndKind::Internal) => {
                (self.on_event)(SessionEvent::Broken { reason: end.to_string() });
            }
            None => {}
        }
    }

    /// After a process that could not prepare itself.
    fn retry_pause(&self) -> Duration {
        if self.config.session.is_merged { RETRY_PAUSE / 10 } else { RETRY_PAUSE }
    }

    /// With merged contexts no process can prepare itself after a fault, until all that were there before it have left.
    fn failures_untold(&self) -> u32 {
        if self.config.session.is_merged { 30 } else { 1 }
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

/// Refuses a client whose ticket is gone: it came too late, or the process set aside for it has ended. Its driver knocks once more when it
/// reads `try again`.
pub(super) fn refuse_ticket(raw: RawConnection) {
    raw.refuse("no such ticket: used, late or ended; try again");
}

/// Waits for a process that has closed its control socket, and makes it leave if it does not.
pub(super) fn reap(process: &mut Child, within: Duration) -> io::Result<std::process::ExitStatus> {
    let deadline = Instant::now() + within;
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
            let room = sessions.config.sessions_max.saturating_sub(state.in_use());
            let spares = Spares {
                ready: state.spares.len() + state.starting,
                starting: state.starting,
                target: sessions.config.spares.max(state.wanted.min(room)),
                wanted: state.wanted,
                starting_max: STARTING_MAX,
                pause_until: state.pause_until,
                rest_until: state.rest_until,
            };
            let next = if state.stopping { Next::WaitForChange } else { spares.next(Instant::now()) };
            state = match next {
                Next::Start => break,
                Next::Wait(left) => wait_for(&sessions.changed, state, left),
                Next::WaitForChange => wait(&sessions.changed, state),
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
        Err(error) => {
            return sessions.not_started(&format!("cannot get devices for one more session: {error}"));
        }
    };
    let started = SessionChild::start(&sessions.config, &grant, Role::Session, sessions.content.as_ref());
    let (child, process, lines) = match started {
        Ok(started) => started,
        Err(error) => {
            (grant.release)();
            return sessions.not_started(&format!("cannot start a session process: {error}"));
        }
    };
    let (attended, release) = (sessions.clone(), grant.release);
    let attend = std::thread::Builder::new().name("dxpu-attend".to_owned()).stack_size(256 << 10);
    let stopper = child.clone();
    let thread = attend.spawn(move || attended.attend(&child, process, lines, release));
    if let Err(error) = thread {
        // Its control socket closes, so the process leaves by itself; no thread waits for it.
        stopper.stop();
        sessions.not_started(&format!("cannot start the thread that attends a session process: {error}"));
    }
}

/// A name that cannot be guessed: it stands for a token that was shown.
pub(crate) fn random_name() -> Option<SessionName> {
    let mut name = SessionName::default();
    let got = rustix::rand::getrandom(&mut name[..], rustix::rand::GetRandomFlags::empty());
    (got == Ok(name.len())).then_some(name)
}
