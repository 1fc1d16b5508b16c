//! Meeting a worker: connect, show the token, learn its devices, open the other connections.

use super::{Config, Link, LinkEnd, SharedLink, events, events::Events, queue::Queue, replies::Replies};
use crate::reserve::Reserved;
use bulk::{Lanes, LanesConfig};
use cuda_wire::{DeviceInfo, Handshake, Join, Welcome, purpose};
use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64},
    },
    thread,
};
use transport::{Address, Connection, ConnectionKind};
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

/// Connects to `address`.
pub(crate) fn connect(address: &Address, config: &Config) -> Result<Session, Failure> {
    let caller = Caller::knock(address, config, purpose::SESSION, CONNECT_TIMEOUT)?;
    let unreachable = |error: String| caller.unreachable(error);
    let open = |kind, lane| caller.open(kind, lane, CONNECT_TIMEOUT);

    let mut command = open(ConnectionKind::Command, 0)?;
    let lanes = config.lanes_to(address);
    let mut ranges = Reserved::some(RANGES_OFFERED);
    let hello = config.hello(ranges.iter().map(Reserved::range).collect(), lanes);
    let welcome = match caller.greet(&mut command, hello, CONNECT_TIMEOUT)? {
        Handshake::Welcome(welcome) => *welcome,
        _ => {
            return Err(unreachable(
                "its answer to the hello is no welcome; install the same dxpu on both machines".to_owned(),
            ));
        }
    };
    let Some(chosen) = ranges.iter().position(|range| range.range() == welcome.va) else {
        return Err(unreachable("it chose an address range that was not offered".to_owned()));
    };
    let addresses = ranges.swap_remove(chosen);

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

    let link = build(command, events, lanes, &welcome, config, address)
        .map_err(|error| unreachable(error.to_string()))?;
    Ok(Session { link, devices: welcome.devices, cuda_version: welcome.cuda_version, addresses })
}

pub(super) fn build(
    command: Connection,
    events: Connection,
    lanes: Vec<Connection>,
    welcome: &Welcome,
    config: &Config,
    address: &Address,
) -> std::io::Result<SharedLink> {
    let all = || [&command, &events].into_iter().chain(&lanes);
    let descriptors = all().flat_map(Connection::raw_fds).collect();
    let closers = all().map(|connection| connection.closer.clone()).collect();
    let (command_tx, command_rx, _) = command.split();
    let (events_tx, events_rx, _) = events.split();
    let broken: Arc<OnceLock<std::sync::Weak<Link>>> = Arc::default();
    let lanes_broken = Arc::clone(&broken);
    let lanes = Lanes::new(lanes, LanesConfig::default(), move |fault| {
        if let Some(link) = lanes_broken.get().and_then(std::sync::Weak::upgrade) {
            link.lose(&LinkEnd::Lanes(fault.clone()));
        }
    });
    let link = Arc::new_cyclic(|me| Link {
        me: me.clone(),
        queue: Queue::new(command_tx, config.sender_spin()),
        replies: Replies::new(command_rx, config.reply_spin()),
        events: Events::new(events_tx),
        lanes,
        closers,
        descriptors,
        lost: AtomicBool::new(false),
        next_call: AtomicU32::new(1),
        next_transfer: AtomicU64::new(1),
        memory_credit: AtomicI64::new(welcome.memory_credit_bytes.min(i64::MAX as u64) as i64),
        push_window_bytes: welcome.push_window_bytes,
        push_window: AtomicI64::new(welcome.push_window_bytes.min(i64::MAX as u64) as i64),
        on_deferred: OnceLock::new(),
        await_all: config.await_all,
        address: address.to_string(),
    });
    let _ = broken.set(Arc::downgrade(&link));
    let landing = Arc::downgrade(&link);
    link.replies.land_with(move |transfer, bytes| {
        landing.upgrade().is_some_and(|link| link.lanes.land_aside(transfer, bytes).is_ok())
    });
    let weak = Arc::downgrade(&link);
    link.queue.start(move |error| {
        if let Some(link) = weak.upgrade() {
            link.lose(&error.into());
        }
    })?;
    events::start(&link, events_rx, config.stall_timeout)?;
    Ok(link)
}
