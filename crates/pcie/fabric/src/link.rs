//! A link: one slot of a box, its host at one end and its box at the other.
//!
//! ```text
//!                  hello answered (host), hello heard (box)
//!   greeting ─────────────────────────────────────────────▶ established ──▶ (dropped with its lease)
//! ```
//!
//! The caller moves bytes and tells the time; the link decides. After [`Link::send`], [`Link::receive`],
//! [`Link::on_datagram`] and at [`Link::wake_at`] the caller asks [`Link::transmit`] for datagrams until there are none.

mod config;
mod greet;
mod intake;
mod transmit;

pub use config::{LinkConfig, LinkConfigError, Role};
pub use transmit::{Allowance, Transmit};

use crate::assembly::Assembly;
use crate::credit::Credits;
use crate::flight::Flight;
use crate::ids::Endpoint;
use crate::inbox::{Inbox, Willing};
use crate::outbox::Outbox;
use crate::path::{Change, Paths, Patience};
use crate::requests::{RequestError, Requests};
use crate::seal::{GreetingKey, ReplayWindow, Session};
use crate::wire::EpochField;
use crate::{Counters, wire};
use std::collections::VecDeque;
use std::time::Duration;
use tlp::{Class, EncodeError, Tlp, TransactionId};
use units::{Epoch, LinkName, PathId, Time};

/// Something that the owner of the link should know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Both ends have greeted each other; TLPs flow.
    Established,
    /// A path does not answer; another one is used.
    PathDown(PathId),
    /// A path answers again.
    PathUp(PathId),
    /// The other end has owed an answer for [`LinkConfig::silent_after`] and said nothing in all that time. Said once; the
    /// link goes on trying.
    Silent,
}

/// Why a TLP was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// Too many of its class wait, or too much payload. Try again after [`Link::transmit`].
    #[error("too many TLPs of class {0:?} wait")]
    Full(Class),
    /// The request cannot be opened.
    #[error("the request cannot be opened")]
    Request(#[source] RequestError),
    /// The TLP cannot be written.
    #[error("the TLP cannot be written")]
    Encode(#[source] EncodeError),
}

/// Where the greeting stands.
#[derive(Debug, PartialEq, Eq)]
enum Phase {
    /// The host greets until it is answered.
    Greeting {
        next_at: Time,
        turn: u32,
    },
    /// The box waits for the host.
    Waiting,
    Established,
}

/// What must be said about what arrived.
#[derive(Debug, Default)]
struct Acks {
    /// Something that the peer does not know we know.
    is_pending: bool,
    is_urgent: bool,
    /// Datagrams since the last acknowledgement.
    datagrams: u32,
    /// When it must be said; set when the time is next known.
    deadline: Option<Time>,
    /// Where the newest datagram came from, and its number.
    path: PathId,
    echo: u64,
    /// A ping to answer, where it came from.
    pong: Option<(PathId, u64)>,
}

/// A TLP of which the payload is not complete.
#[derive(Clone, Copy, Debug)]
struct Partial {
    /// Its place in the inbox.
    tlp: u32,
    tlp_crc: u32,
    /// Of the payload, when it came in one packet whose CRC was looked at.
    payload_crc: Option<u32>,
}

/// A TLP that is being cut into packets.
#[derive(Clone, Copy, Debug)]
struct Current {
    tlp: u32,
    /// Payload that is in packets already; None before the header packet.
    offset: Option<u16>,
}

/// When a datagram went out and where.
#[derive(Clone, Copy, Debug)]
struct Departure {
    number: u64,
    at: Time,
    path: PathId,
}

/// The other end owes an answer, and nothing has been heard since it began to. A link that is owed nothing has none of this,
/// so that no amount of idleness counts as silence.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// How much of the wait counts: the time in which this end looked, see [`Link::check_silence`].
    waited: Duration,
    /// When this end last looked; before the first look, when it sent what has not been answered.
    looked_at: Time,
}

/// Departures that are remembered, to measure round trips with.
const DEPARTURES: usize = 256;

/// One end of a link.
pub struct Link {
    config: LinkConfig,
    patience: Patience,
    /// The configuration's epoch, which is known to fit.
    epoch_field: EpochField,
    greeting_key: GreetingKey,
    phase: Phase,
    session: Option<Session>,
    /// Of the peer, once it has greeted.
    peer_random: Option<[u8; wire::RANDOM_BYTES]>,
    answer_due: Option<PathId>,

    // Out.
    outbox: Outbox,
    flight: Flight,
    current: Option<Current>,
    used: Credits,
    limit: Credits,
    peer_window: u64,
    peer_datagram_bytes: usize,
    next_number: u64,
    departures: Vec<Departure>,
    ping_at: Option<Time>,

    // In.
    replay: ReplayWindow,
    assembly: Assembly,
    partial: Option<Partial>,
    /// The TLP that these data packets belong to was dropped.
    is_skipping: bool,
    inbox: Inbox,
    charged: Credits,
    freed: Credits,
    told: Credits,
    acks: Acks,
    /// Set by the first timeout after the last datagram that was heard.
    waiting: Option<Waiting>,

    requests: Requests,
    paths: Paths,
    is_silent: bool,
    /// There is nothing to say before this time, unless something happens.
    quiet_until: Option<Time>,
    counters: Counters,
    events: VecDeque<Event>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { config, phase, flight, counters, .. } = self;
        f.debug_struct("Link")
            .field("name", &config.name)
            .field("epoch", &config.epoch)
            .field("phase", phase)
            .field("in_flight_bytes", &flight.in_flight_bytes())
            .field("counters", counters)
            .finish_non_exhaustive()
    }
}

impl Link {
    /// One end of a link, which greets or waits to be greeted.
    pub fn new(config: LinkConfig, now: Time) -> Result<Self, LinkConfigError> {
        config.check()?;
        let epoch_field = EpochField::try_from(config.epoch)?;
        let phase = match config.role {
            Role::Host => Phase::Greeting { next_at: now, turn: 0 },
            Role::Box => Phase::Waiting,
        };
        let granted = Credits::limit_of(&config.room, &Credits::default());
        let (window, patience) = (config.window as usize, config.patience());
        Ok(Self {
            greeting_key: GreetingKey::new(&config.secret, config.name, epoch_field),
            epoch_field,
            phase,
            session: None,
            peer_random: None,
            answer_due: None,
            outbox: Outbox::new(config.queued_max, config.queued_bytes_max),
            flight: Flight::new(window),
            current: None,
            used: Credits::default(),
            limit: Credits::default(),
            peer_window: 0,
            peer_datagram_bytes: 0,
            next_number: 0,
            departures: vec![Departure { number: u64::MAX, at: now, path: PathId(0) }; DEPARTURES],
            ping_at: None,
            replay: ReplayWindow::new(),
            assembly: Assembly::new(window),
            partial: None,
            is_skipping: false,
            inbox: Inbox::default(),
            charged: Credits::default(),
            freed: Credits::default(),
            told: granted,
            acks: Acks::default(),
            waiting: None,
            requests: Requests::default(),
            paths: Paths::new(&config.paths, &patience),
            is_silent: false,
            quiet_until: None,
            counters: Counters::default(),
            events: VecDeque::new(),
            patience,
            config,
        })
    }

    /// Its name on the network.
    pub fn name(&self) -> LinkName {
        self.config.name
    }

    /// In which pairing of its slot.
    pub fn epoch(&self) -> Epoch {
        self.config.epoch
    }

    /// The other end.
    pub fn remote(&self) -> Endpoint {
        self.config.remote
    }

    /// Whether both ends have greeted each other.
    pub fn is_established(&self) -> bool {
        self.phase == Phase::Established
    }

    /// What was counted so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How long an answer takes on the path in use, as far as that is known.
    pub fn round_trip(&self) -> Option<Duration> {
        self.paths.round_trip()
    }

    /// The path in use.
    pub fn active_path(&self) -> PathId {
        self.paths.active().id
    }

    /// Bytes of packets that were sent and are not known to have arrived.
    pub fn in_flight_bytes(&self) -> usize {
        self.flight.in_flight_bytes()
    }

    /// TLPs of which something was sent and not everything is known to have arrived.
    pub fn in_flight_tlps(&self) -> usize {
        self.outbox.on_their_way()
    }

    /// Whether everything that was sent has arrived and everything that arrived was taken.
    pub fn is_idle(&self) -> bool {
        self.flight.is_idle() && self.current.is_none() && self.outbox.is_empty() && self.inbox.is_empty()
    }

    /// Requests of this end that have no answer yet.
    pub fn open_requests(&self) -> usize {
        self.requests.count()
    }

    /// Takes a TLP for the other end. It is copied; nothing is written before [`Link::transmit`].
    pub fn send(&mut self, tlp: &Tlp<'_>) -> Result<(), SendError> {
        let class = tlp.class();
        if !self.outbox.has_room(class) {
            return Err(SendError::Full(class));
        }
        let id = tlp.header.id();
        if class == Class::NonPosted {
            self.requests.check(id).map_err(SendError::Request)?;
        }
        self.outbox.push(tlp).map_err(SendError::Encode)?;
        if class == Class::NonPosted {
            self.requests.open(id);
        }
        self.counters.tlps_sent += 1;
        self.quiet_until = None;
        Ok(())
    }

    /// The next TLP from the other end among those the caller is willing to take.
    #[inline]
    pub fn receive(&mut self, willing: Willing) -> Option<Tlp<'_>> {
        // Callers take TLPs until there are none: the last question is as frequent as a datagram.
        self.inbox.give_back();
        if self.inbox.is_empty() { None } else { self.receive_one(willing) }
    }

    fn receive_one(&mut self, willing: Willing) -> Option<Tlp<'_>> {
        let tlp = self.inbox.take(willing, &mut self.freed)?;
        self.counters.tlps_received += 1;
        self.acks.is_pending = true;
        if !self.acks.is_urgent {
            self.acks.is_urgent = self.freed.is_worth_telling(&self.told, &self.config.room, tlp.class);
        }
        // An acknowledgement that may wait has the time of its end already, or must be given one.
        if self.acks.is_urgent || self.acks.deadline.is_none() {
            self.quiet_until = None;
        }
        Some(tlp.view())
    }

    /// The requester gave up: the tag may be used again, and an answer that still comes is dropped. True when the
    /// request was open.
    ///
    /// An answer to the old request that is on its way cannot be told from one to a new request with the same tag. So
    /// a tag that timed out should rest for as long as a packet can live.
    pub fn forget_request(&mut self, id: TransactionId) -> bool {
        self.requests.close(id)
    }

    /// What happened since the last call.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Link::transmit`] must be called at the latest; None when only an event can change anything.
    pub fn wake_at(&mut self) -> Option<Time> {
        match self.phase {
            Phase::Greeting { next_at, .. } => return Some(next_at),
            Phase::Waiting => return self.answer_due.map(|_| Time(0)),
            Phase::Established => {}
        }
        // All ones for never: this is asked after every datagram, and options in a row are slow to compare.
        let or_never = |at: Option<Time>| at.map_or(u64::MAX, |at| at.0);
        let timeout = self.paths.active().timeout();
        let resend = or_never(self.flight.oldest().map(|at| at.after(timeout)));
        // Without a deadline the time of the acknowledgement was not known yet: it is found by the next transmit.
        let ack = if self.acks.is_pending { self.acks.deadline.map_or(0, |at| at.0) } else { u64::MAX };
        let ping = or_never(self.ping_at).min(or_never(self.paths.next_ping()));
        let at = resend.min(ack).min(ping);
        (at != u64::MAX).then_some(Time(at))
    }

    fn note(&mut self, change: Option<Change>) {
        match change {
            Some(Change::Up(path)) => self.events.push_back(Event::PathUp(path)),
            Some(Change::Down(path)) => {
                self.counters.failovers += 1;
                self.events.push_back(Event::PathDown(path));
            }
            None => {}
        }
    }
}
