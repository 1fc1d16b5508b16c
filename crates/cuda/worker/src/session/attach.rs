//! From the command connection to a client that has all its connections.

use crate::{
    admission::Admitted,
    config::SessionConfig,
    end::{EndKind, Ending, SessionEnd, Unserved},
    session::{
        full_text,
        handshake::{HandshakeError, read_hello, refused, say_no},
        input::Input,
        joins::{self, Joined, Joins},
        place::{self, Place},
        presence::Rules,
        pulse, say, spawn,
    },
};
use cuda_abi::CudaError;
use cuda_driver::{Driver, LimitOf};
use cuda_wire::{Handshake, Hello, PROTOCOL_VERSION, Welcome};
use lease_fence::PartHeld;
use sharing::Contexts;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use transport::{Closer, Connection, Inbox, RawConnection, ServerSecurity, Tx};

/// A client that was let in, with all its connections.
pub(crate) struct Attached {
    pub(crate) admitted: Admitted,
    /// Its part of the lease, until it ends.
    pub(crate) part: Option<PartHeld>,
    /// Memory that the welcome allows the client to allocate without asking.
    pub(crate) credit_bytes: u64,
    /// Its client wishes for a timeline.
    pub(crate) wants_timeline: bool,
    /// The client wishes that what it sends is kept.
    pub(crate) wants_content: bool,
    /// Its place among those that share its GPU, unless it has that for itself.
    pub(crate) sharer: Option<Place>,
    /// The command connection.
    pub(crate) input: Input,
    pub(crate) tx: Tx,
    pub(crate) closer: Closer,
    /// Where memory of the client's program arrives, if the transport has a way for it.
    pub(crate) inbox: Option<Inbox>,
    /// The other connections.
    pub(crate) joined: Joined,
    pub(crate) ending: Arc<Ending>,
}

/// Serves the handshake and waits for the client's other connections, which the front hands over through `control`.
pub(crate) fn attach(
    raw: RawConnection,
    control: &mut UnixStream,
    driver: &Arc<dyn Driver>,
    config: &SessionConfig,
) -> Result<Attached, SessionEnd> {
    let deadline = Instant::now() + config.handshake_timeout;
    let security = Arc::new(config.security().map_err(Unserved::Identity)?);
    let secret = random_secret().map_err(Unserved::Randomness)?;
    let ending = Arc::new(Ending::default());
    let joins = take_joins(control, &security, secret, config.handshake_timeout, &ending)?;

    let refused = |error: &dyn std::error::Error| SessionEnd::new(EndKind::Refused, full_text(error));
    let mut connection = raw.serve(&security, deadline).map_err(|error| refused(&error))?;
    let Welcomed { hello, admitted, part, credit_bytes, sharer } =
        match welcome(&mut connection, driver, config, secret, deadline) {
            Ok(welcomed) => welcomed,
            Err(HandshakeError::Refused(refusal)) => {
                let end = SessionEnd::new(EndKind::Refused, refusal.text.clone());
                say_no(connection, refusal);
                return Err(end);
            }
            Err(error) => return Err(refused(&error)),
        };
    let lease = admitted.lease.as_ref().map(|lease| format!(", lease {lease}")).unwrap_or_default();
    say(control, &format!("authenticated {} (process {}){lease}", hello.program.escape_debug(), hello.pid));

    let inbox = connection.inbox();
    let (tx, rx, closer) = connection.split();
    let mut input = Input::new(rx);
    let joined = gather(&joins, usize::from(hello.lanes), &mut input, &ending, deadline)?;
    let (wants_timeline, wants_content) = (hello.wish.timeline, hello.wish.content);
    Ok(Attached {
        admitted,
        part,
        credit_bytes,
        wants_timeline,
        wants_content,
        sharer,
        input,
        tx,
        closer,
        inbox,
        joined,
        ending,
    })
}

/// Starts the thread that takes further connections from the front, and notices when the front is gone.
fn take_joins(
    control: &UnixStream,
    security: &Arc<ServerSecurity>,
    secret: [u8; 32],
    timeout: Duration,
    ending: &Arc<Ending>,
) -> Result<Arc<Joins>, SessionEnd> {
    let from_front = control.try_clone().map_err(Unserved::Control)?;
    let joins = Arc::new(Joins::default());
    let (taken, security, ending) = (joins.clone(), security.clone(), ending.clone());
    spawn("dxpu-control", move || {
        joins::take_connections(OwnedFd::from(from_front), &taken, &security, secret, timeout, &ending);
    });
    Ok(joins)
}

fn random_secret() -> io::Result<[u8; 32]> {
    let mut secret = [0; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut secret)?;
    Ok(secret)
}

/// What a client that was welcomed said and has.
struct Welcomed {
    hello: Hello,
    admitted: Admitted,
    part: Option<PartHeld>,
    credit_bytes: u64,
    sharer: Option<Place>,
}

/// Hears the client's hello and welcomes it.
fn welcome(
    connection: &mut Connection,
    driver: &Arc<dyn Driver>,
    config: &SessionConfig,
    secret: [u8; 32],
    deadline: Instant,
) -> Result<Welcomed, HandshakeError> {
    let (hello, admitted) = read_hello(&mut connection.rx, config, deadline)?;
    if config.is_merged && !pulse::is_alive(&**driver) {
        let text =
            "a fault of another program ended the context of this session before it was used; try again";
        return Err(refused(CudaError::SYSTEM_NOT_READY, text));
    }
    let part = config.admission.take(&admitted)?;
    let sharer = place::join(driver, &admitted, rules(config, &admitted))?;
    if let Some(bytes) = admitted.memory_limit_bytes {
        // Parts of a lease are beside each other.
        let of = if part.is_some() { LimitOf::Session } else { LimitOf::Lease };
        driver.limit_memory(bytes, of);
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
    Ok(Welcomed { hello, admitted, part, credit_bytes, sharer })
}

/// The slack of its lease, or else of its worker.
fn rules(config: &SessionConfig, admitted: &Admitted) -> Rules {
    let slack_percent = admitted.slack_percent.map_or(config.slack_percent, u32::from);
    let fault_wait_max = if config.is_merged { config.fault_wait_max } else { Duration::ZERO };
    Rules {
        slack: f64::from(slack_percent) / 100.0,
        offline_slice_us: config.offline_slice_us,
        fault_wait_max,
        contexts: if config.is_merged { Contexts::Merged } else { Contexts::Apart },
    }
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
                    return Err(SessionEnd::new(EndKind::Finished, "the client left after the welcome"));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slack_of_a_lease_comes_before_that_of_its_worker() {
        let config = SessionConfig { slack_percent: 25, ..SessionConfig::new(String::new()) };
        let of = |slack_percent| rules(&config, &Admitted { slack_percent, ..Admitted::default() }).slack;
        assert_eq!((of(None), of(Some(10))), (0.25, 0.10));
    }
}
