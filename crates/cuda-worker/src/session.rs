//! One session, in a process of its own.
//!
//! ```text
//!   configuration ─▶ driver made ─▶ command connection ─▶ Hello, Welcome ─▶ events and lanes join ─▶ command loop
//! ```
//!
//! The process may wait a long time between the second and the third step: then it is a spare.

mod command_loop;
mod events;
mod gate;
pub(crate) mod handshake;
mod holdings;
mod input;
mod joins;
mod link;
mod names;
mod pending;
mod replies;
mod waiters;

use crate::{
    admission::Admitted,
    config::{Role, SessionConfig, Startup},
    end::{EndKind, Ending, SessionEnd},
    images::ImageCache,
    status::{self, StatusFactory},
};
use bulk::{Fault, Lanes, LanesConfig};
use command_loop::CommandLoop;
use cuda_abi::CudaError;
use cuda_driver::Driver;
use cuda_wire::{Handshake, Hello, Notice, PROTOCOL_VERSION, Welcome};
use events::Events;
use gate::Gate;
use handshake::{HandshakeError, read_hello, refused, say_no};
use input::Input;
use joins::{Joined, Joins};
use link::Link;
use replies::Replies;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use transport::{Connection, RawConnection, Tx};

/// Makes the driver of a session from what its [`crate::Grant`] holds.
pub type DriverFactory<'a> = dyn Fn(&serde_json::Value, Vec<OwnedFd>) -> Result<Box<dyn Driver>, String> + 'a;

/// The main function of a session process: `control` is its end of the socket pair to the front. The front may also
/// want it to be the one that answers clients who only look; then `make_status` makes what answers.
pub fn run_session_process(
    control: OwnedFd,
    make_driver: &DriverFactory<'_>,
    make_status: &StatusFactory<'_>,
) -> SessionEnd {
    // The kernel ends us with the front, should we ever hang too hard to see its socket close.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let mut control = UnixStream::from(control);
    let (startup, fds) = match read_startup(&mut control) {
        Ok(startup) => startup,
        Err(error) => {
            let reason = format!("cannot read the configuration: {error}");
            return report(&mut control, SessionEnd::new(EndKind::Internal, reason));
        }
    };
    let config = startup.session;
    if startup.role == Role::Status {
        let end = match make_status(&startup.driver, fds) {
            Ok(source) => status::run(&control, source, config),
            Err(reason) => SessionEnd::new(EndKind::Internal, reason),
        };
        return report(&mut control, end);
    }
    let driver = match make_driver(&startup.driver, fds) {
        Ok(driver) => driver,
        Err(reason) => return report(&mut control, SessionEnd::new(EndKind::Internal, reason)),
    };
    say(&mut control, "ready");
    let raw = match RawConnection::take_over(control.as_fd()) {
        Ok(raw) => raw,
        Err(_) => return SessionEnd::new(EndKind::Finished, "never used"),
    };
    let driver: Arc<dyn Driver> = driver.into();
    let end = serve(raw, &mut control, &driver, &config);
    report(&mut control, end)
}

/// Tells the front something, as a line. It may be gone; then there is nobody to tell.
pub(crate) fn say(control: &mut UnixStream, line: &str) {
    let _ = control.write_all(format!("{}\n", line.replace('\n', " ")).as_bytes());
}

fn report(control: &mut UnixStream, end: SessionEnd) -> SessionEnd {
    say(control, &format!("ended {}", end.reason));
    end
}

fn read_startup(control: &mut UnixStream) -> io::Result<(Startup, Vec<OwnedFd>)> {
    let mut length = [0; 4];
    control.read_exact(&mut length)?;
    let mut text = vec![0; u32::from_le_bytes(length) as usize];
    control.read_exact(&mut text)?;
    let startup: Startup = serde_json::from_slice(&text)?;
    let fds = if startup.fds == 0 { Vec::new() } else { transport::fd::recv_fds(control.as_fd())?.0 };
    Ok((startup, fds))
}

fn serve(
    raw: RawConnection,
    control: &mut UnixStream,
    driver: &Arc<dyn Driver>,
    config: &SessionConfig,
) -> SessionEnd {
    let deadline = Instant::now() + config.handshake_timeout;
    let internal = |what: &str, error: &dyn std::fmt::Display| {
        SessionEnd::new(EndKind::Internal, format!("{what}: {error}"))
    };
    let security = match config.security() {
        Ok(security) => security,
        Err(error) => return internal("the TLS identity", &error),
    };
    let (security, ending, joins) =
        (Arc::new(security), Arc::new(Ending::default()), Arc::new(Joins::default()));
    let secret = match random_secret() {
        Ok(secret) => secret,
        Err(error) => return internal("no randomness", &error),
    };
    let from_front = match control.try_clone() {
        Ok(stream) => OwnedFd::from(stream),
        Err(error) => return internal("the control socket", &error),
    };
    {
        let (joins, security, ending) = (joins.clone(), security.clone(), ending.clone());
        let timeout = config.handshake_timeout;
        spawn("dxpu-control", move || {
            joins::take_connections(from_front, &joins, &security, secret, timeout, &ending);
        });
    }

    let mut connection = match raw.serve(&security, deadline) {
        Ok(connection) => connection,
        Err(error) => return SessionEnd::new(EndKind::Refused, full_text(&error)),
    };
    let welcomed = welcome(&mut connection, driver, config, secret, deadline);
    let (hello, admitted, credit_bytes) = match welcomed {
        Ok(welcomed) => welcomed,
        Err(HandshakeError::Refused(refusal)) => {
            let end = SessionEnd::new(EndKind::Refused, refusal.text.clone());
            say_no(connection, refusal);
            return end;
        }
        Err(error) => return SessionEnd::new(EndKind::Refused, full_text(&error)),
    };
    let lease = admitted.lease.as_ref().map(|lease| format!(", lease {lease}")).unwrap_or_default();
    say(control, &format!("authenticated {} (process {}){lease}", hello.program.escape_debug(), hello.pid));

    let (tx, rx, closer) = connection.split();
    let mut input = Input::new(rx);
    let joined = match gather(&joins, usize::from(hello.lanes), &mut input, &ending, deadline) {
        Ok(joined) => joined,
        Err(end) => return end,
    };
    let images = config.image_cache.as_deref().and_then(|directory| {
        ImageCache::open(directory, &config.admission.tenant(&admitted), config.image_cache_bytes_max)
            .inspect_err(|error| tracing::warn!(%error, "module images are not kept"))
            .ok()
    });
    let (events_tx, events_rx, events_closer) = joined.events.split();
    let events = Arc::new(Events::new(events_tx, events_closer));
    let lanes = lanes(joined.lanes, config, &ending);
    let link = Arc::new(Link::new(Arc::new(lanes), events.clone(), config.push_window_bytes));
    driver.attach(link.clone());
    let gate = Gate::new(driver.clone(), link.clone(), images, credit_bytes, config.host_bytes_max);
    let gate = Arc::new(gate);
    let replies = Arc::new(Replies::new(tx, closer, gate.clone(), link.clone()));
    link.use_replies(&replies);
    let mut commands = CommandLoop {
        driver: driver.clone(),
        gate,
        link: link.clone(),
        replies: replies.clone(),
        waiters: waiters::Waiters::default(),
        spin: config.spin().unwrap_or_default(),
        answer: Vec::new(),
    };
    if let Some(spin) = config.spin() {
        input.set_spin(spin);
    }
    events.heard().touch();
    {
        let (link, ending) = (link.clone(), ending.clone());
        spawn("dxpu-events", move || events::read_events(events_rx, &link.events, &link, &ending));
    }
    {
        let ending = ending.clone();
        spawn("dxpu-commands", move || {
            // A panic in the driver is its own fault, never the client's; it ends this one session.
            let run = std::panic::AssertUnwindSafe(|| commands.run(input));
            let end = std::panic::catch_unwind(run)
                .unwrap_or_else(|_| SessionEnd::new(EndKind::Internal, "the driver panicked"));
            ending.end_of_commands(end);
        });
    }
    {
        let (events, stall_timeout) = (events.clone(), config.stall_timeout);
        spawn("dxpu-pulse", move || feel_pulse(&events, stall_timeout));
    }
    let end = watch(&ending, &events, config.stall_timeout);
    wind_up(&end, driver, &link, &replies);
    end
}

/// An error with all its causes.
pub(crate) fn full_text(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(body);
    // A process that cannot have three threads cannot serve; its end is noticed by everybody.
    thread.expect("a session process can start its threads");
}

fn random_secret() -> io::Result<[u8; 32]> {
    let mut secret = [0; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut secret)?;
    Ok(secret)
}

/// Hears the client's hello and welcomes it. Returns what it said, what it may have, and the memory credit it was given.
fn welcome(
    connection: &mut Connection,
    driver: &Arc<dyn Driver>,
    config: &SessionConfig,
    secret: [u8; 32],
    deadline: Instant,
) -> Result<(Hello, Admitted, u64), HandshakeError> {
    let (hello, admitted) = read_hello(&mut connection.rx, config, deadline)?;
    if let Some(bytes) = admitted.memory_limit_bytes {
        driver.limit_memory(bytes);
    }
    let Some(va) = driver.reserve_addresses(&hello.va_candidates) else {
        let text = "none of the client's address ranges is free in the worker; start the program again, or start \
                    it without memory limits (ulimit -v) that keep it from reserving large ranges";
        return Err(refused(CudaError::OUT_OF_MEMORY, text));
    };
    let credit_bytes = driver.grant_memory_credit();
    let welcome = Welcome {
        protocol: PROTOCOL_VERSION,
        session_secret: secret,
        cuda_version: driver.cuda_version(),
        devices: driver.devices(),
        va,
        push_window_bytes: config.push_window_bytes,
        memory_credit_bytes: credit_bytes,
    };
    send_handshake(&mut connection.tx, &Handshake::Welcome(Box::new(welcome)))?;
    Ok((hello, admitted, credit_bytes))
}

fn send_handshake(tx: &mut Tx, handshake: &Handshake) -> io::Result<()> {
    tx.send(&[&handshake.to_frame()])
}

/// Waits for the other connections. The client may already send commands, or go away.
fn gather(
    joins: &Joins,
    lanes: usize,
    input: &mut Input,
    ending: &Ending,
    deadline: Instant,
) -> Result<Joined, SessionEnd> {
    /// How long a client that goes away meanwhile stays unnoticed.
    const LOOK_EVERY: Duration = Duration::from_millis(20);
    /// Commands that may wait here before the loop begins; the rest waits in the socket.
    const EARLY_BYTES_MAX: usize = 1 << 20;
    loop {
        if let Some(joined) = joins.take(lanes, LOOK_EVERY) {
            return Ok(joined);
        }
        if let Some(end) = ending.get() {
            return Err(end);
        }
        if input.held() < EARLY_BYTES_MAX {
            match input.try_receive() {
                Ok(Some(0)) => {
                    return Err(SessionEnd::new(EndKind::Finished, "the client only asked who is here"));
                }
                Ok(_) => {}
                Err(error) => return Err(SessionEnd::new(EndKind::PeerLost, error.to_string())),
            }
        }
        if Instant::now() >= deadline {
            return Err(SessionEnd::new(EndKind::PeerLost, "the client did not open its other connections"));
        }
    }
}

fn lanes(connections: Vec<Connection>, config: &SessionConfig, ending: &Arc<Ending>) -> Lanes {
    let ending = ending.clone();
    let on_fault = move |fault: &Fault| match fault {
        Fault::Protocol { .. } => ending.end(EndKind::Protocol, fault.to_string()),
        Fault::Internal { .. } => ending.end(EndKind::Internal, fault.to_string()),
        Fault::Closed | Fault::Connection { .. } => ending.end(EndKind::PeerLost, fault.to_string()),
    };
    Lanes::new(connections, LanesConfig { early_window_bytes: config.push_window_bytes }, on_fault)
}

/// Asks a client that has nothing to say whether it is there. How often it speaks by itself is its own affair.
///
/// On a thread of its own: a client that is frozen may not even take the question.
fn feel_pulse(events: &Events, stall_timeout: Duration) {
    let silence_max = stall_timeout / 4;
    loop {
        let silence = events.heard().silence();
        let asked = if silence >= silence_max { events.send(&Notice::Ping { nonce: 0 }) } else { Ok(()) };
        if asked.is_err() {
            return;
        }
        std::thread::sleep(silence_max.saturating_sub(silence).max(silence_max / 2));
    }
}

/// Waits for the end, whoever brings it.
fn watch(ending: &Ending, events: &Events, stall_timeout: Duration) -> SessionEnd {
    /// How long the command loop has to find the goodbye of a client whose other connections have ended.
    const GOODBYE_WITHIN: Duration = Duration::from_millis(200);
    let look_every = (stall_timeout / 4).clamp(Duration::from_millis(10), Duration::from_secs(1));
    loop {
        if let Some(end) = ending.wait(look_every) {
            return ending.explained(GOODBYE_WITHIN).unwrap_or(end);
        }
        if events.heard().silence() > stall_timeout {
            ending.end(EndKind::Stalled, format!("nothing was heard from the client for {stall_timeout:?}"));
        }
    }
}

/// Tells the client, wakes everybody who waits for it, and stops the device.
fn wind_up(end: &SessionEnd, driver: &Arc<dyn Driver>, link: &Arc<Link>, replies: &Arc<Replies>) {
    /// A client that does not take its last notice is not waited for.
    const TOLD_WITHIN: Duration = Duration::from_millis(500);
    /// A kernel that does not stop ends with the process.
    const STOPPED_WITHIN: Duration = Duration::from_secs(5);
    if end.kind.is_told() {
        let (link, reason) = (link.clone(), end.reason.clone());
        within(TOLD_WITHIN, move || {
            let _ = link.events.send(&Notice::Closing { text: cuda_wire::Bytes(reason.as_bytes()) });
        });
    }
    replies.close();
    link.close();
    let driver = driver.clone();
    within(STOPPED_WITHIN, move || driver.abort());
}

/// Runs `body` on a thread and waits for it, but not longer than `timeout`.
fn within(timeout: Duration, body: impl FnOnce() + Send + 'static) {
    let (sender, receiver) = std::sync::mpsc::channel();
    let run = move || {
        body();
        let _ = sender.send(());
    };
    if std::thread::Builder::new().spawn(run).is_ok() {
        let _ = receiver.recv_timeout(timeout);
    }
}
