//! The status process: answers clients that only look at the devices.
//!
//! ```text
//!   connection ─▶ front ── fd ──▶ status process (one for all) ── TLS, token ─▶ DeviceStatus* ─▶ status source
//! ```
//!
//! A program that watches its GPUs (NVML) is no session: it takes no context, no device memory and no place among the
//! sessions, so watching never keeps a program from computing. All watching clients share one process, which knows no
//! driver but a [`StatusSource`]; it is started for the first and ends when no client has looked for a while.

use crate::{
    config::SessionConfig,
    end::{EndKind, NoDevices, SessionEnd, Unserved},
    session::handshake::{HandshakeError, read_hello, say_no},
    session::{full_text, say},
};
use cuda_abi::{CuResult, CudaError};
use cuda_driver::StatusSource;
use cuda_wire::{
    CommandHeader, DriverCommand, Handshake, PROTOCOL_VERSION, Received, ReplyHeader, SessionCommand,
    StatusWelcome, Wire, header,
};
use locks::lock;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};
use std::time::{Duration, Instant};
use transport::{Connection, RawConnection, ServerSecurity};

/// Makes what answers for the devices from what a [`crate::Grant`] holds.
pub type StatusFactory<'a> =
    dyn Fn(&serde_json::Value, Vec<OwnedFd>) -> Result<Box<dyn StatusSource>, NoDevices> + 'a;

/// The most connections at a time. Each costs a small thread; no sensible use needs more.
const CONNECTIONS_MAX: usize = 512;
/// The most of them that have not shown a token yet.
const UNAUTHENTICATED_MAX: usize = 64;
/// A client that has not asked for this long counts as gone; if it is still there, it comes back with a new connection.
const SILENCE_MAX: Duration = Duration::from_secs(600);
/// No question is longer.
const QUESTION_BYTES_MAX: u32 = 64;

/// What all connections share.
struct Desk {
    source: Box<dyn StatusSource>,
    security: ServerSecurity,
    config: SessionConfig,
    /// To the front, which counts the connections that are served.
    control: Mutex<UnixStream>,
    connections: AtomicUsize,
    unauthenticated: AtomicUsize,
}

/// Serves until the front goes away or closes the control socket.
pub(crate) fn run(control: &UnixStream, source: Box<dyn StatusSource>, config: SessionConfig) -> SessionEnd {
    let security = match config.security() {
        Ok(security) => security,
        Err(error) => return Unserved::Identity(error).into(),
    };
    let to_front = match control.try_clone() {
        Ok(stream) => Mutex::new(stream),
        Err(error) => return Unserved::Control(error).into(),
    };
    let (connections, unauthenticated) = Default::default();
    let desk = Arc::new(Desk { source, security, config, control: to_front, connections, unauthenticated });
    loop {
        let Ok(raw) = RawConnection::take_over(control.as_fd()) else {
            return SessionEnd::new(EndKind::Finished, "no client looks at the devices any more");
        };
        let served = Served(desk.clone());
        let is_full = desk.connections.fetch_add(1, Ordering::SeqCst) >= CONNECTIONS_MAX
            || desk.unauthenticated.load(Ordering::SeqCst) >= UNAUTHENTICATED_MAX;
        if is_full {
            raw.refuse("too many programs watch the devices (NVML)");
            continue;
        }
        let thread = std::thread::Builder::new().name("dxpu-status".to_owned()).stack_size(256 << 10);
        // If no thread can be started, the connection closes: there is no other way to serve it.
        let _ = thread.spawn(move || {
            if let Err(error) = served.0.serve(raw) {
                tracing::debug!(error = full_text(&error), "a client that looked is gone");
            }
        });
    }
}

/// A connection that the front gave. Its drop tells the front that it is over.
struct Served(Arc<Desk>);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::SeqCst);
        say(&mut lock(&self.0.control), "served");
    }
}

/// Counts a connection as unauthenticated while it lives.
struct Stranger<'a>(&'a AtomicUsize);

impl<'a> Stranger<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Stranger<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Desk {
    fn serve(&self, raw: RawConnection) -> Result<(), HandshakeError> {
        let stranger = Stranger::new(&self.unauthenticated);
        let deadline = Instant::now() + self.config.handshake_timeout;
        let mut connection = raw.serve(&self.security, deadline).map_err(io::Error::other)?;
        match read_hello(&mut connection.rx, &self.config, deadline) {
            Ok((hello, _)) => {
                tracing::debug!(program = hello.program, pid = hello.pid, "a client looks at the devices");
            }
            Err(HandshakeError::Refused(refusal)) => {
                say_no(connection, refusal.clone());
                return Err(HandshakeError::Refused(refusal));
            }
            Err(error) => return Err(error),
        }
        drop(stranger);
        let welcome = StatusWelcome { protocol: PROTOCOL_VERSION, devices: self.source.device_count() };
        connection.tx.send(&[&Handshake::StatusWelcome(welcome).to_frame()])?;
        self.answer(&mut connection)
    }

    fn answer(&self, connection: &mut Connection) -> Result<(), HandshakeError> {
        let malformed = |error: cuda_wire::DecodeError| HandshakeError::Malformed(error.to_string());
        while connection.rx.wait(Some(SILENCE_MAX))? {
            let mut head = [0; CommandHeader::BYTES];
            connection.rx.recv_exact(&mut head)?;
            let head: CommandHeader = header(&head).map_err(malformed)?;
            head.check().map_err(malformed)?;
            if head.bytes > QUESTION_BYTES_MAX {
                return Err(HandshakeError::Malformed(format!(
                    "a question of {} bytes, at most {QUESTION_BYTES_MAX} are allowed",
                    head.bytes
                )));
            }
            let mut body = vec![0; head.bytes as usize];
            connection.rx.recv_exact(&mut body)?;
            let answer = match Received::decode(head.opcode, &body).map_err(malformed)? {
                Received::Driver(DriverCommand::DeviceStatus { device }) => {
                    self.source.device_status(device).map(|status| status.to_bytes())
                }
                Received::Session(SessionCommand::Goodbye {}) => return Ok(()),
                // Everything else needs a session, and this is none.
                _ => Err(CudaError::NOT_PERMITTED),
            };
            if head.call != 0 {
                connection.tx.send(&[&reply(head.call, answer)])?;
            }
        }
        Ok(())
    }
}

/// A reply of a connection that has neither notices nor lanes.
fn reply(call: u32, answer: CuResult<Vec<u8>>) -> Vec<u8> {
    let (status, body) = match answer {
        Ok(body) => (0, body),
        Err(error) => (error.code(), Vec::new()),
    };
    let header = ReplyHeader {
        bytes: body.len() as u32,
        call,
        status,
        deferred: 0,
        deferred_context: 0,
        notices: 0,
        chunks: Default::default(),
        memory_credit_bytes: 0,
    };
    [header.to_bytes(), body].concat()
}
