//! The door: one thread for each address, which hears every newcomer's first words and blocks on none of them.
//!
//! ```text
//!   accept ─▶ preamble ─┬─ a door connection ─▶ TLS ─▶ token ─▶ in line ─▶ ticket ─▶ (the client comes back with it)
//!                       ├─ a command or status connection with a ticket ─▶ its process
//!                       └─ an events or lane connection ─▶ the process of its session
//! ```
//!
//! Nothing but a descriptor and a few kilobytes is spent on a client that has not shown its token, and only so many such
//! clients stand at each door: see [`Strangers`]. Clients that were let in wait in line for a session process; they count
//! as strangers no more.

use super::sessions::{Asked, InLine, Sessions};
use super::strangers::Strangers;
use super::turned_away::{Reason, TurnedAway};
use super::watchers::Watchers;
use super::{OnEvent, SessionEvent, bell::Bell};
use crate::config::FrontConfig;
use crate::session::full_text;
use crate::session::handshake::{HandshakeError, check_version};
use cuda_abi::CudaError;
use cuda_wire::{Handshake, Knock, Refusal, Ticket, purpose};
use locks::lock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use transport::{ConnectionKind, Listener, Newcomer, Preamble, ServeError, ServerSecurity};

/// A knock is a token and little else.
const KNOCK_BYTES_MAX: usize = 16 << 10;
/// Newcomers that are taken in before the clients that are here are heard again: each client is heard several times before
/// a crowd pushes it out.
const ARRIVALS_PER_TURN: usize = 32;
/// How long a client has to take its answer.
const HEARD_WITHIN: Duration = Duration::from_secs(1);
/// What a client is told that had to make room. Clients know the last two words.
const CROWDED: &str = "too many connections at once, try again";

/// What all doors of a worker share.
pub(super) struct Hall {
    pub(super) config: Arc<FrontConfig>,
    pub(super) security: ServerSecurity,
    pub(super) sessions: Arc<Sessions>,
    pub(super) watchers: Arc<Watchers>,
    pub(super) turned_away: Mutex<TurnedAway>,
    pub(super) on_event: OnEvent,
}

impl Hall {
    fn turn_away(&self, peer: &str, reason: Reason, details: &str) {
        tracing::debug!(peer, details, "a stranger was turned away");
        lock(&self.turned_away).note(reason);
    }

    fn tell(&self, now: Instant) {
        let due = lock(&self.turned_away).due(now);
        for (reason, count) in due {
            (self.on_event)(SessionEvent::TurnedAway { reason, count });
        }
    }
}

/// One address, and the connections that wait there.
pub(super) struct Door {
    hall: Arc<Hall>,
    listener: Listener,
    bell: Arc<Bell>,
    guests: BTreeMap<u64, Guest>,
    strangers: Strangers,
    arrivals: u64,
}

struct Guest {
    newcomer: Newcomer,
    stage: Stage,
    /// Until then it must have come to its next stage.
    deadline: Instant,
}

enum Stage {
    /// Its preamble is awaited.
    Arrived,
    /// Its token is awaited.
    Knocks,
    /// It was let in and waits for what it wants.
    Waits { _place: InLine, looks: bool },
    /// It has its answer.
    Told { let_in: bool },
}

impl Door {
    pub(super) fn new(hall: Arc<Hall>, listener: Listener, bell: Arc<Bell>) -> Self {
        let strangers = Strangers::new(hall.config.unauthenticated_max);
        Self { hall, listener, bell, guests: BTreeMap::new(), strangers, arrivals: 0 }
    }

    /// Attends all connections that come until the listener is stopped.
    pub(super) fn attend(mut self) {
        if let Err(error) = self.turns() {
            tracing::error!(address = %self.listener.address(), %error, "cannot accept connections any more; restart the worker");
        }
    }

    fn turns(&mut self) -> io::Result<()> {
        loop {
            let Some(ready) = self.wait()? else { return Ok(()) };
            for number in ready {
                self.hear(number);
            }
            for _ in 0..ARRIVALS_PER_TURN {
                let Some(raw) = self.listener.accept_now()? else { break };
                self.welcome(Newcomer::new(raw));
            }
            self.hall.sessions.take_back_tickets();
            self.serve_line();
            let now = Instant::now();
            self.end_patience(now);
            self.hall.tell(now);
        }
    }

    /// Sleeps until something happens. Returns the guests that have something to say; `None` when this is the end.
    fn wait(&self) -> io::Result<Option<Vec<u64>>> {
        let told = lock(&self.hall.turned_away).next();
        let unused = self.hall.sessions.next_ticket_end();
        let deadline = self.guests.values().map(|guest| guest.deadline).chain(told).chain(unused).min();
        let fixed = [self.listener.stop_fd(), self.bell.as_fd(), self.listener.as_fd()];
        let guests = self.guests.values().map(|guest| guest.newcomer.as_fd());
        let mut fds: Vec<PollFd<'_>> = fixed.into_iter().chain(guests).map(readable).collect();
        let timeout = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let timeout =
            timeout.map(|left| Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 }));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut is_ready = fds.iter().map(|fd| !fd.revents().is_empty());
        if is_ready.next() == Some(true) {
            return Ok(None);
        }
        if is_ready.next() == Some(true) {
            self.bell.silence();
        }
        let ready = self.guests.keys().zip(is_ready.skip(1)).filter(|(_, is_ready)| *is_ready);
        Ok(Some(ready.map(|(number, _)| *number).collect()))
    }

    fn welcome(&mut self, newcomer: Newcomer) {
        self.arrivals += 1;
        let number = self.arrivals;
        let leaves = self.strangers.arrive(number, newcomer.origin());
        if let Some(guest) = leaves.and_then(|leaves| self.guests.remove(&leaves)) {
            self.hall.turn_away(guest.newcomer.peer(), Reason::Crowded, "it was the oldest");
            guest.newcomer.refuse(CROWDED);
        }
        let deadline = Instant::now() + self.hall.config.preamble_timeout;
        self.guests.insert(number, Guest { newcomer, stage: Stage::Arrived, deadline });
        // Most have said something before they are accepted.
        self.hear(number);
    }

    /// Hears what a guest has to say, if anything.
    fn hear(&mut self, number: u64) {
        let Some(guest) = self.guests.remove(&number) else { return };
        let peer = guest.newcomer.peer().to_owned();
        let stays = match guest.stage {
            Stage::Arrived => self.hear_preamble(guest),
            Stage::Knocks => self.hear_knock(guest),
            Stage::Waits { .. } | Stage::Told { .. } => {
                let mut guest = guest;
                Ok((!guest.newcomer.drain()).then_some(guest))
            }
        };
        let stays = stays.unwrap_or_else(|(reason, details)| {
            self.hall.turn_away(&peer, reason, &details);
            None
        });
        let is_stranger = match stays.as_ref().map(|guest| &guest.stage) {
            Some(Stage::Arrived | Stage::Knocks) => true,
            Some(Stage::Told { let_in }) => !let_in,
            Some(Stage::Waits { .. }) | None => false,
        };
        if !is_stranger {
            self.strangers.leave(number);
        }
        if let Some(guest) = stays {
            self.guests.insert(number, guest);
        }
    }

    fn hear_preamble(&self, mut guest: Guest) -> Heard {
        let preamble = match guest.newcomer.read_preamble() {
            Ok(Some(preamble)) => preamble,
            Ok(None) => return Ok(Some(guest)),
            Err(error) => return Err(not_set_up(&error)),
        };
        if preamble.kind != ConnectionKind::Door {
            return self.route(preamble, guest.newcomer).map(|()| None);
        }
        guest.newcomer.open(&self.hall.security).map_err(|error| not_set_up(&error))?;
        guest.stage = Stage::Knocks;
        guest.deadline = Instant::now() + self.hall.config.session.handshake_timeout;
        self.hear_knock(guest)
    }

    fn route(&self, preamble: Preamble, newcomer: Newcomer) -> Result<(), Away> {
        let raw = newcomer.into_raw();
        match preamble.kind {
            ConnectionKind::Command => self.hall.sessions.begin(preamble.session, raw),
            ConnectionKind::Events | ConnectionKind::Lane => self.hall.sessions.join(preamble.session, raw),
            ConnectionKind::Status => self.hall.watchers.begin(preamble.session, raw),
            ConnectionKind::Door => Ok(()),
        }
        .map_err(|(reason, details)| (reason, details.to_owned()))
    }

    fn hear_knock(&self, mut guest: Guest) -> Heard {
        guest.newcomer.listen(KNOCK_BYTES_MAX).map_err(|error| not_set_up(&error))?;
        let malformed = |error: cuda_wire::DecodeError| (Reason::Malformed, error.to_string());
        let Some((prefix, body)) = guest.newcomer.words().split_first_chunk::<4>() else {
            return Ok(Some(guest));
        };
        let length = Handshake::body_length(*prefix).map_err(malformed)?;
        if length > KNOCK_BYTES_MAX {
            let details = format!("a knock of {length} is over the bound of {KNOCK_BYTES_MAX}");
            return Err((Reason::Malformed, details));
        }
        let Some(body) = body.get(..length) else { return Ok(Some(guest)) };
        let wants = match self.judge(body) {
            Ok(wants) => wants,
            Err(HandshakeError::Refused(refusal)) => {
                // A token may be good and its GPU not be clean yet.
                let is_early = refusal.code == CudaError::SYSTEM_NOT_READY.code();
                let reason = if is_early { Reason::Busy } else { Reason::Token };
                self.hall.turn_away(guest.newcomer.peer(), reason, &refusal.text);
                return Ok(told(guest, &Handshake::Refusal(refusal)));
            }
            Err(error) => return Err((Reason::Malformed, full_text(&error))),
        };
        if wants == purpose::STATUS {
            return Ok(match self.hall.watchers.ask() {
                Some(session) => told(guest, &Handshake::Ticket(self.ticket(session))),
                None => self.send_away_busy(guest, "too many clients look at the devices of this worker"),
            });
        }
        let Some(place) = self.hall.sessions.line_up() else {
            return Ok(self.send_away_busy(guest, "too many clients wait for a session of this worker"));
        };
        guest.stage = Stage::Waits { _place: place, looks: wants == purpose::LOOK };
        guest.deadline = Instant::now() + self.hall.config.hold;
        Ok(self.serve(guest))
    }

    /// Looks at a client's token. Returns what it wants.
    fn judge(&self, body: &[u8]) -> Result<u8, HandshakeError> {
        // The kind and the version come first in every version; the rest may differ.
        if let [6, low, high, ..] = body[..] {
            check_version(u16::from_le_bytes([low, high]))?;
        }
        let Knock { token, purpose: wants, .. } = match Handshake::from_body(body) {
            Ok(Handshake::Knock(knock)) => knock,
            Ok(_) => return Err(HandshakeError::Malformed("not a knock".to_owned())),
            Err(error) => return Err(HandshakeError::Malformed(error.to_string())),
        };
        if !(purpose::SESSION..=purpose::LOOK).contains(&wants) {
            return Err(HandshakeError::Malformed(format!("purpose {wants} is unknown")));
        }
        self.hall.config.session.admission.admit(&token)?;
        Ok(wants)
    }

    fn ticket(&self, session: [u8; 16]) -> Ticket {
        Ticket { session, executes_ptx_only: self.hall.config.executes_ptx_only }
    }

    /// Gives a client that was let in what it waits for, if it is there.
    fn serve(&self, guest: Guest) -> Option<Guest> {
        let Stage::Waits { looks, .. } = guest.stage else { return Some(guest) };
        let asked = if looks { self.hall.sessions.look() } else { self.hall.sessions.ask() };
        match asked {
            Asked::Ticket(session) => told(guest, &Handshake::Ticket(self.ticket(session))),
            Asked::NotYet(_) if Instant::now() < guest.deadline => Some(guest),
            Asked::NotYet(text) => self.send_away_busy(guest, text),
        }
    }

    fn serve_line(&mut self) {
        let waits = |(number, guest): (&u64, &Guest)| match guest.stage {
            Stage::Waits { .. } => Some(*number),
            _ => None,
        };
        let line: Vec<u64> = self.guests.iter().filter_map(waits).collect();
        for number in line {
            if let Some(guest) = self.guests.remove(&number).and_then(|guest| self.serve(guest)) {
                self.guests.insert(number, guest);
            }
        }
    }

    /// Tells a client that was let in to come again.
    fn send_away_busy(&self, guest: Guest, text: &str) -> Option<Guest> {
        self.hall.turn_away(guest.newcomer.peer(), Reason::Busy, text);
        let refusal = Refusal { code: CudaError::SYSTEM_NOT_READY.code(), text: text.to_owned() };
        told(guest, &Handshake::Refusal(refusal))
    }

    /// Ends guests whose time is over, except those in line: [`Door::serve_line`] ends these.
    fn end_patience(&mut self, now: Instant) {
        let late = |(number, guest): (&u64, &Guest)| match guest.stage {
            Stage::Waits { .. } => None,
            _ => (guest.deadline <= now).then_some(*number),
        };
        let late: Vec<u64> = self.guests.iter().filter_map(late).collect();
        for number in late {
            self.strangers.leave(number);
            let Some(guest) = self.guests.remove(&number) else { continue };
            if !matches!(guest.stage, Stage::Told { .. }) {
                self.hall.turn_away(guest.newcomer.peer(), Reason::Slow, "its time is over");
            }
        }
    }
}

/// Why a guest is turned away, with details for finding a fault.
type Away = (Reason, String);
/// The guest if it stays.
type Heard = Result<Option<Guest>, Away>;

fn readable(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(fd, PollFlags::IN | PollFlags::RDHUP)
}

/// Answers a guest. It stays until it has taken the answer; one that is gone already does not.
fn told(mut guest: Guest, answer: &Handshake) -> Option<Guest> {
    guest.newcomer.answer(&answer.to_frame()).ok()?;
    guest.stage = Stage::Told { let_in: matches!(answer, Handshake::Ticket(_)) };
    guest.deadline = Instant::now() + HEARD_WITHIN;
    Some(guest)
}

fn not_set_up(error: &ServeError) -> Away {
    let reason = match error {
        ServeError::Tls { .. } | ServeError::NoIdentity => Reason::Tls,
        ServeError::Preamble { .. } | ServeError::Mismatch { .. } => Reason::Malformed,
        ServeError::SetUp { source, .. } if source.kind() == io::ErrorKind::InvalidData => Reason::Malformed,
        ServeError::SetUp { .. } => Reason::Left,
    };
    (reason, full_text(error))
}
