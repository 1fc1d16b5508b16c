//! Meeting a worker: connect, prove who we are, learn its devices, open the other connections.

use super::{Config, Link, SharedLink, events, events::Events, queue::Queue, replies::Replies};
use crate::reserve::Reserved;
use bulk::{Lanes, LanesConfig};
use cuda_abi::CudaError;
use cuda_wire::{DeviceInfo, Handshake, Hello, Join, PROTOCOL_VERSION, Welcome};
use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64},
    },
    thread,
    time::Duration,
};
use transport::{Address, Connection, ConnectionKind, Preamble, Rx};

/// How long a worker may take for each connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
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

/// Why there is no session: the code for cuInit and a sentence for the user.
pub(crate) type Failure = (CudaError, String);

/// Connects to `address`.
pub(crate) fn connect(address: &Address, config: &Config) -> Result<Session, Failure> {
    let unreachable =
        |error: String| (CudaError::DEVICE_UNAVAILABLE, format!("cannot use worker {address}: {error}"));
    let session_id = random_session_id();
    let open = |kind, lane| -> Result<Connection, String> {
        let preamble = Preamble::new(kind, lane, session_id);
        let connection = transport::connect(address, &config.security, preamble, CONNECT_TIMEOUT)
            .map_err(|error| chain(&error))?;
        match config.delay {
            Some(rtt) => connection.delayed(rtt).map_err(|error| error.to_string()),
            None => Ok(connection),
        }
    };

    let mut command = open(ConnectionKind::Command, 0).map_err(unreachable)?;
    let mut ranges = Reserved::some(RANGES_OFFERED);
    let welcome = shake_hands(&mut command, config, &ranges)
        .map_err(|(code, text)| (code, format!("worker {address}: {text}")))?;
    let Some(chosen) = ranges.iter().position(|range| range.range() == welcome.va) else {
        return Err(unreachable("it chose an address range that was not offered".to_owned()));
    };
    let addresses = ranges.swap_remove(chosen);

    // Opened at the same time: over a long way each takes round trips of its own.
    let join = Handshake::Join(Join { session_secret: welcome.session_secret }).to_frame();
    let opened: Result<Vec<Connection>, String> = thread::scope(|scope| {
        let kinds = (0..=config.lanes as u16).map(|n| match n {
            0 => (ConnectionKind::Events, 0),
            n => (ConnectionKind::Lane, n - 1),
        });
        let (open, join) = (&open, &join);
        let threads: Vec<_> = kinds
            .map(|(kind, lane)| {
                scope.spawn(move || {
                    let mut connection = open(kind, lane)?;
                    connection.tx.send(&[join]).map_err(|error| error.to_string())?;
                    Ok(connection)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".into())))
            .collect()
    });
    let mut opened = opened.map_err(unreachable)?;
    let lanes = opened.split_off(1);
    let events = opened.pop().ok_or_else(|| unreachable("no events connection".to_owned()))?;

    let link = build(command, events, lanes, &welcome, config, address)
        .map_err(|error| unreachable(error.to_string()))?;
    Ok(Session { link, devices: welcome.devices, cuda_version: welcome.cuda_version, addresses })
}

fn build(
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
            link.lose(&fault.to_string());
        }
    });
    let link = Arc::new_cyclic(|me| Link {
        me: me.clone(),
        queue: Queue::new(command_tx),
        replies: Replies::new(command_rx),
        events: Events::new(events_tx),
        lanes,
        closers,
        descriptors,
        lost: AtomicBool::new(false),
        next_call: AtomicU32::new(1),
        next_transfer: AtomicU64::new(1),
        memory_credit: AtomicI64::new(welcome.memory_credit_bytes.min(i64::MAX as u64) as i64),
        push_window: AtomicI64::new(welcome.push_window_bytes.min(i64::MAX as u64) as i64),
        on_deferred: OnceLock::new(),
        await_all: config.await_all,
        address: address.to_string(),
    });
    let _ = broken.set(Arc::downgrade(&link));
    let weak = Arc::downgrade(&link);
    link.queue.start(move |error| {
        if let Some(link) = weak.upgrade() {
            link.lose(&error.to_string());
        }
    })?;
    events::start(&link, events_rx, config.stall_timeout)?;
    Ok(link)
}

fn shake_hands(
    connection: &mut Connection,
    config: &Config,
    ranges: &[Reserved],
) -> Result<Welcome, Failure> {
    let broken = |error: String| (CudaError::DEVICE_UNAVAILABLE, error);
    let hello = Handshake::Hello(Hello {
        protocol: PROTOCOL_VERSION,
        token: config.token.clone(),
        program: program_name(),
        pid: std::process::id(),
        va_candidates: ranges.iter().map(Reserved::range).collect(),
        lanes: config.lanes as u8,
    });
    connection.tx.send(&[&hello.to_frame()]).map_err(|error| broken(error.to_string()))?;
    match read_handshake(&mut connection.rx).map_err(broken)? {
        Handshake::Welcome(welcome) => Ok(*welcome),
        Handshake::Refusal(refusal) => {
            Err((CudaError::from_code(refusal.code).unwrap_or(CudaError::DEVICE_UNAVAILABLE), refusal.text))
        }
        _ => Err(broken("it answered something else".to_owned())),
    }
}

fn read_handshake(rx: &mut Rx) -> Result<Handshake, String> {
    let ready = rx.wait(Some(CONNECT_TIMEOUT)).map_err(|error| error.to_string())?;
    if !ready {
        return Err(format!("it did not answer within {CONNECT_TIMEOUT:?}"));
    }
    let mut prefix = [0; 4];
    rx.recv_exact(&mut prefix)
        .map_err(|error| format!("it closed the connection during the handshake ({error})"))?;
    let length = Handshake::body_length(prefix).map_err(|error| error.to_string())?;
    let mut body = vec![0; length];
    rx.recv_exact(&mut body).map_err(|error| error.to_string())?;
    Handshake::from_body(&body).map_err(|error| error.to_string())
}

/// An error with everything behind it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}

fn program_name() -> String {
    std::env::args_os().next().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// A name nobody else uses; it is no secret.
fn random_session_id() -> [u8; 16] {
    let mut id = [0u8; 16];
    // SAFETY: `id` is writable for its 16 bytes.
    let got = unsafe { libc::getrandom(id.as_mut_ptr().cast(), id.len(), 0) };
    if got != id.len() as isize {
        // Without a random source, the process and the clock are still unique on one host.
        let now =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |t| t.as_nanos());
        id = (now ^ (u128::from(std::process::id()) << 96)).to_le_bytes();
    }
    id
}
