//! Meeting a worker: connect, show the token, learn its devices, open the other connections.

use super::{
    Config, Link, NO_DESCRIPTOR, SharedLink,
    credit::Credit,
    end::LinkEnd,
    events::{self, Events, Helpers},
    places::Place,
    queue::Queue,
    replies::Replies,
    shared::Sharing,
    survival::{Protection, Survival},
    wires::{FIRST_SESSION, SessionNumber, Wires},
};
use crate::{reserve::Reserved, timeline::LinkTimeline};
use bulk::{Lanes, LanesConfig};
use cuda_wire::{DeviceInfo, Handshake, Join, VaRange, Welcome, purpose};
use std::{
    sync::{
        Arc, Mutex, OnceLock, Weak,
        atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU32, AtomicU64},
    },
    thread,
    time::Duration,
};
use transport::{Address, Connection, ConnectionKind, Rx, Tx};
use worker_link::{CONNECT_TIMEOUT, Caller, Failure};

/// Address ranges offered to the worker: a few, in case some are taken there.
const RANGES_OFFERED: usize = 4;

/// A worker that accepted us.
pub(crate) struct Session {
    /// The way to it.
    pub(crate) link: SharedLink,
    /// Its devices.
    pub(crate) devices: Vec<DeviceInfo>,
    /// `CUDA_VERSION` it serves.
    pub(crate) cuda_version: i32,
    /// Where device memory lies.
    pub(crate) addresses: Reserved,
}

/// The connections of a session that a worker has just opened for us.
pub(super) struct Opened {
    pub(super) command: Connection,
    pub(super) events: Connection,
    pub(super) lanes: Vec<Connection>,
    pub(super) welcome: Welcome,
}

/// Connects to `address`.
pub(crate) fn connect(address: &Address, config: &Config) -> Result<Session, Failure> {
    let mut ranges = Reserved::some(RANGES_OFFERED);
    let offered = ranges.iter().map(Reserved::range).collect();
    let timeline = crate::timeline::open(config.timeline.as_deref());
    let mut opened = open_timed_session(address, config, offered, CONNECT_TIMEOUT, timeline.is_some())?;
    let protection = match config.survive {
        // A session that is lost here has told the program nothing: the next attempt is as good.
        Some(way) => {
            let first = Protection::first(&mut opened).map_err(|error| Failure::Busy {
                address: address.clone(),
                why: format!("the session was lost when it began: {error}"),
            })?;
            if way.is_required && !first.has_images() {
                let why =
                    "it keeps no images, and --survive=required asks for them from the start".to_owned();
                return Err(Failure::Unusable { address: address.clone(), why });
            }
            Some(first)
        }
        None => None,
    };
    let welcome = opened.welcome.clone();
    // `open_session` has checked that it is one of ours.
    let chosen = ranges.iter().position(|range| range.range() == welcome.va).unwrap_or_default();
    let addresses = ranges.swap_remove(chosen);
    let link = build(opened, protection, config, address)
        .map_err(|error| Failure::Unusable { address: address.clone(), why: error.to_string() })?;
    Ok(Session { link, devices: welcome.devices, cuda_version: welcome.cuda_version, addresses })
}

/// Opens a session whose device memory lies in one of `ranges`. The worker may take `timeout` for each answer.
pub(super) fn open_session(
    address: &Address,
    config: &Config,
    ranges: Vec<VaRange>,
    timeout: Duration,
) -> Result<Opened, Failure> {
    open_with(address, config, ranges, timeout, Wishes::default())
}

/// The same for a session that the program uses. If it writes a timeline, the worker is to say what runs; and it may keep what the
/// program sends. One that is too old for that turns such a client away, and is asked again without.
pub(super) fn open_timed_session(
    address: &Address,
    config: &Config,
    ranges: Vec<VaRange>,
    timeout: Duration,
    timeline: bool,
) -> Result<Opened, Failure> {
    // Over memory of one machine a copy costs less than a hash.
    let content = config.content && matches!(address, Address::Tls(_) | Address::Tcp(_));
    match open_with(address, config, ranges.clone(), timeout, Wishes { timeline, content }) {
        Err(Failure::Refused { .. } | Failure::Unusable { .. }) if timeline || content => {
            let opened = open_with(address, config, ranges, timeout, Wishes::default())?;
            if timeline {
                crate::timeline::warn_of_old_worker(&address.to_string());
            }
            Ok(opened)
        }
        opened => opened,
    }
}

/// What a session is to have that an old worker may not know.
#[derive(Clone, Copy, Default)]
struct Wishes {
    timeline: bool,
    content: bool,
}

fn open_with(
    address: &Address,
    config: &Config,
    ranges: Vec<VaRange>,
    timeout: Duration,
    wishes: Wishes,
) -> Result<Opened, Failure> {
    let caller = Caller::knock(address, config, purpose::SESSION, timeout)?;
    let unreachable = |error: String| caller.unreachable(error);
    let open = |kind, lane| caller.open(kind, lane, timeout);

    let mut command = open(ConnectionKind::Command, 0)?;
    let lanes = config.lanes_to(address);
    let mut hello = config.hello(ranges.clone(), lanes);
    (hello.wish.timeline, hello.wish.content) = (wishes.timeline, wishes.content);
    let welcome = match caller.greet(&mut command, hello, timeout)? {
        Handshake::Welcome(welcome) => *welcome,
        _ => {
            return Err(unreachable(
                "its answer to the hello is no welcome; install the same dxpu on both machines".to_owned(),
            ));
        }
    };
    if !ranges.contains(&welcome.va) {
        return Err(unreachable("it chose an address range that was not offered".to_owned()));
    }

    // Opened at the same time: over a long way each takes round trips of its own.
    let join = Handshake::Join(Join { session_secret: welcome.session_secret }).to_frame();
    let opened: Result<Vec<Connection>, Failure> = thread::scope(|scope| {
        let kinds = (0..=lanes as u16).map(|n| match n {
            0 => (ConnectionKind::Events, 0),
            n => (ConnectionKind::Lane, n - 1),
        });
        let (open, join, unreachable) = (&open, &join, &unreachable);
        let threads: Vec<_> = kinds
            .map(|(kind, lane)| {
                scope.spawn(move || {
                    let mut connection = open(kind, lane)?;
                    connection.tx.send(&[join]).map_err(|error| unreachable(error.to_string()))?;
                    Ok(connection)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(unreachable("a thread panicked".into()))))
            .collect()
    });
    let mut opened = opened?;
    let lanes = opened.split_off(1);
    let events = opened.pop().ok_or_else(|| unreachable("no events connection".to_owned()))?;

    Ok(Opened { command, events, lanes, welcome })
}

/// The halves of a session's connections, and what they are to a link.
pub(super) struct Parts {
    pub(super) command_tx: Tx,
    pub(super) command_rx: Rx,
    pub(super) events_rx: Rx,
    pub(super) wires: Wires,
}

/// Takes the connections of session `number` apart. `link` is told when a lane breaks.
pub(super) fn take_apart(opened: Opened, number: SessionNumber, link: &Arc<OnceLock<Weak<Link>>>) -> Parts {
    let Opened { command, events, lanes, .. } = opened;
    let all = || [&command, &events].into_iter().chain(&lanes);
    let descriptors = all().flat_map(Connection::raw_fds).collect();
    let closers = all().map(|connection| connection.closer.clone()).collect();
    let (command_tx, command_rx, _) = command.split();
    let (events_tx, events_rx, _) = events.split();
    let link = Arc::clone(link);
    let lanes = Lanes::new(lanes, LanesConfig::default(), move |fault| {
        if let Some(link) = link.get().and_then(Weak::upgrade) {
            link.broke(number, &LinkEnd::Lanes(fault.clone()));
        }
    });
    let wires = Wires::new(number, lanes, events_tx, closers, descriptors);
    Parts { command_tx, command_rx, events_rx, wires }
}

pub(super) fn build(
    opened: Opened,
    protection: Option<Protection>,
    config: &Config,
    address: &Address,
) -> std::io::Result<SharedLink> {
    let welcome = opened.welcome.clone();
    let courier = opened.command.courier().filter(|_| protection.is_none());
    let me: Arc<OnceLock<Weak<Link>>> = Arc::default();
    let Parts { command_tx, command_rx, events_rx, wires } = take_apart(opened, FIRST_SESSION, &me);
    let wires = Arc::new(wires);
    let survival =
        protection.map(|protection| Survival::new(Place::first(address, config), protection, &welcome, &me));
    let keeper = survival.as_ref().map(Survival::keeper);
    let timeline = crate::timeline::open(config.timeline.as_deref());
    let link = Arc::new_cyclic(|me| Link {
        me: me.clone(),
        queue: Queue::new(command_tx, config.sender_spin(), keeper),
        replies: Replies::new(command_rx, config.reply_spin(), survival.is_some()),
        events: Events::default(),
        wires: Mutex::new(Arc::clone(&wires)),
        descriptors: std::array::from_fn(|_| AtomicI32::new(NO_DESCRIPTOR)),
        survival,
        lost: AtomicBool::new(false),
        next_call: AtomicU32::new(1),
        next_transfer: AtomicU64::new(1),
        credit: Credit::new(welcome.memory_credit_bytes),
        push_window_bytes: welcome.push_window_bytes,
        push_window: AtomicI64::new(welcome.push_window_bytes.min(i64::MAX as u64) as i64),
        on_deferred: OnceLock::new(),
        pools: OnceLock::new(),
        sharing: courier.map(Sharing::new),
        timeline: timeline.map(|timeline| LinkTimeline::new(&timeline, me.clone(), address.to_string())),
        await_all: config.await_all,
        address: address.to_string(),
    });
    link.install(Arc::clone(&wires));
    let _ = me.set(Arc::downgrade(&link));
    let landing = Arc::downgrade(&link);
    link.replies.land_with(move |transfer, bytes| {
        landing.upgrade().is_some_and(|link| link.wires().lanes.land_aside(transfer, bytes).is_ok())
    });
    let weak = Arc::downgrade(&link);
    link.queue.start(move |error| {
        if let Some(link) = weak.upgrade() {
            link.lose(&error.into());
        }
    })?;
    let helpers = Helpers::start(&link)?;
    if let Some(survival) = &link.survival {
        survival.keep_helpers(helpers.clone());
        survival.start(&link)?;
    }
    events::listen(&link, &wires, events_rx, config.stall_timeout, helpers)?;
    Ok(link)
}
