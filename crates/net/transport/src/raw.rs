//! A connection that a listener has accepted and that is not served yet.
//!
//! ```text
//!   accept ─▶ RawConnection ─ read_preamble ─▶ which session? ─ hand_over ─▶ (another process) take_over
//!                                                   │                                │
//!                                                   └────────────── serve ◀──────────┘ ─▶ Connection
//! ```

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use crate::address::Scheme;
use crate::answer::Answer;
use crate::connection::Connection;
use crate::fd;
use crate::preamble::{ConnectionKind, PREAMBLE_BYTES, Preamble, PreambleError};
use crate::security::ServerSecurity;
use crate::shm;
use crate::socket::Socket;
use crate::tls::{self, HandshakeError};

/// An accepted connection before its set-up. Dropping it closes it.
#[derive(Debug)]
pub struct RawConnection {
    socket: Socket,
    scheme: Scheme,
    peer: String,
    origin: Origin,
    preamble: Option<Preamble>,
}

/// From where a connection comes, as far as connections are counted by that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// A network: an IPv4 address (as IPv6 writes it), or the first 64 bits of an IPv6 address. One machine may have all
    /// addresses that begin so.
    Network(u128),
    /// A user of this machine.
    User(u32),
    /// Not known.
    Unknown,
}

impl From<std::net::IpAddr> for Origin {
    fn from(address: std::net::IpAddr) -> Self {
        match address.to_canonical() {
            std::net::IpAddr::V4(v4) => Self::Network(v4.to_ipv6_mapped().to_bits()),
            std::net::IpAddr::V6(v6) => Self::Network(v6.to_bits() >> 64 << 64),
        }
    }
}

/// Why an accepted connection cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The peer went away or stayed silent.
    #[error("{peer} did not finish the set-up of a connection")]
    SetUp {
        /// The client.
        peer: String,
        /// What the kernel says; `TimedOut` for silence.
        source: io::Error,
    },
    /// The peer's first bytes are wrong.
    #[error("{peer} did not begin as a dxpu client does")]
    Preamble {
        /// The client.
        peer: String,
        /// What was wrong.
        source: PreambleError,
    },
    /// The peer means to speak otherwise than this listener does.
    #[error("{peer} speaks {theirs}, but this address speaks {ours}")]
    Mismatch {
        /// The client.
        peer: String,
        /// What the client means to speak.
        theirs: Scheme,
        /// What the listener's address says.
        ours: Scheme,
    },
    /// A `tls:` address without an identity to show.
    #[error("a tls: address needs a server identity")]
    NoIdentity,
    /// The TLS handshake failed; most often, the client does not trust us.
    #[error("the TLS handshake with {peer} failed")]
    Tls {
        /// The client.
        peer: String,
        /// What rustls says.
        source: rustls::Error,
    },
}

impl RawConnection {
    /// Wraps an accepted socket again, for instance after it came from another process. `peer` is for people.
    pub fn from_fd(fd: OwnedFd, scheme: Scheme, peer: String, preamble: Option<Preamble>) -> Self {
        Self { socket: fd.into(), scheme, peer, origin: Origin::Unknown, preamble }
    }

    /// The same with what is known of where it comes from.
    pub(crate) fn coming_from(self, origin: Origin) -> Self {
        Self { origin, ..self }
    }

    /// From where it comes. Another process that takes the connection over does not know.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// The socket alone. Nothing is closed or sent.
    pub fn into_fd(self) -> OwnedFd {
        self.socket.into()
    }

    /// The client's address, for people.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// What kind of address it came in by.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// What [`Self::read_preamble`] read.
    pub fn preamble(&self) -> Option<&Preamble> {
        self.preamble.as_ref()
    }

    /// Reads the client's first 64 bytes, and not a byte more. A client that cannot be served is told why before the
    /// error returns.
    pub fn read_preamble(&mut self, deadline: Instant) -> Result<Preamble, ServeError> {
        if let Some(preamble) = self.preamble {
            return Ok(preamble);
        }
        let mut bytes = [0; PREAMBLE_BYTES];
        self.socket.recv_exact_by(&mut bytes, deadline).map_err(|source| self.set_up_error(source))?;
        self.judge_preamble(&bytes)
    }

    /// Takes the client's first 64 bytes, which the front has read.
    pub(crate) fn judge_preamble(&mut self, bytes: &[u8; PREAMBLE_BYTES]) -> Result<Preamble, ServeError> {
        let preamble = Preamble::decode(bytes).map_err(|source| {
            if let PreambleError::Version { theirs } = source {
                self.say_no(&format!("this server does not speak version {theirs}"));
            }
            ServeError::Preamble { peer: self.peer.clone(), source }
        })?;
        // A guest's connection comes through a PCI function, whose box brings it to a Unix socket.
        let is_guest = (preamble.scheme, self.scheme) == (Scheme::Pcie, Scheme::Unix);
        if preamble.scheme != self.scheme && !is_guest {
            self.say_no(&format!("client speaks {}, this address {}", preamble.scheme, self.scheme));
            return Err(ServeError::Mismatch {
                peer: self.peer.clone(),
                theirs: preamble.scheme,
                ours: self.scheme,
            });
        }
        self.preamble = Some(preamble);
        Ok(preamble)
    }

    /// Tells the client why it is not served, and closes. At most [`crate::REFUSAL_TEXT_BYTES_MAX`] bytes of printable
    /// ASCII travel.
    pub fn refuse(self, reason: &str) {
        self.say_no(reason);
    }

    pub(crate) fn say_no(&self, reason: &str) {
        // One small write into an empty buffer: it fits, or the peer has gone.
        let _ = self.socket.send_now(&Answer::Refused { text: reason.to_owned() }.encode());
        self.socket.shutdown(Shutdown::Write);
        // Closing a TCP socket with unread bytes resets it, and a reset may overtake the answer on its way. What the
        // client has sent by now is its hello at most.
        let mut rest = [0; 4096];
        for _ in 0..16 {
            if !matches!(self.socket.try_recv(&mut rest), Ok(Some(1..))) {
                break;
            }
        }
    }

    /// Sends this connection to another process over a Unix socket. The other end calls [`Self::take_over`]. Does not wait
    /// for a process that takes nothing: `WouldBlock`.
    pub fn hand_over(self, socket: BorrowedFd<'_>) -> io::Result<()> {
        if !fd::poll([(socket, fd::Interest::Writable)], Some(Instant::now()))?[0] {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut payload = vec![self.scheme as u8, u8::from(self.preamble.is_some())];
        if let Some(preamble) = self.preamble {
            payload.extend_from_slice(&preamble.encode());
        }
        payload.extend_from_slice(self.peer.as_bytes());
        fd::send_fd(socket, self.socket.as_fd(), &payload)
    }

    /// Receives a connection that another process handed over. Blocks; `UnexpectedEof` when that process has closed.
    pub fn take_over(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let (fd, payload) = fd::recv_fd(socket)?;
        let (scheme, preamble, peer) = read_hand_over(&payload).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "a handed-over connection is malformed")
        })?;
        Ok(Self::from_fd(fd, scheme, peer, preamble))
    }

    /// Accepts: does the TLS handshake or sets the shared memory up, as the address it came in by says. Reads the
    /// preamble first if that was not done.
    pub fn serve(mut self, security: &ServerSecurity, deadline: Instant) -> Result<Connection, ServeError> {
        let preamble = self.read_preamble(deadline)?;
        if preamble.kind == ConnectionKind::Lane {
            self.socket.widen(matches!(self.scheme, Scheme::Tcp | Scheme::Tls));
        }
        match (self.scheme, security) {
            (Scheme::Tls, ServerSecurity::Plain) => {
                self.say_no("this server has no TLS identity");
                Err(ServeError::NoIdentity)
            }
            (Scheme::Tls, ServerSecurity::Tls(identity)) => tls::serve(self.socket, identity, deadline)
                .map_err(|error| match error {
                    HandshakeError::Io(source) => ServeError::SetUp { peer: self.peer, source },
                    HandshakeError::Tls(source) => ServeError::Tls { peer: self.peer, source },
                }),
            (Scheme::Shm, _) => shm::offer_rings(self.socket, preamble.kind, deadline)
                .map_err(|source| ServeError::SetUp { peer: self.peer, source }),
            (Scheme::Tcp | Scheme::Unix | Scheme::Pcie, _) => {
                self.socket
                    .send_all_by(&Answer::Accepted.encode(), deadline)
                    .map_err(|source| self.set_up_error(source))?;
                Ok(Connection::over_socket(self.socket))
            }
        }
    }

    pub(crate) fn set_up_error(&self, source: io::Error) -> ServeError {
        ServeError::SetUp { peer: self.peer.clone(), source }
    }
}

fn read_hand_over(payload: &[u8]) -> Option<(Scheme, Option<Preamble>, String)> {
    let (scheme, rest) = payload.split_first()?;
    let (has_preamble, rest) = rest.split_first()?;
    let (preamble, peer) = match has_preamble {
        0 => (None, rest),
        _ => {
            let (preamble, peer) = rest.split_at_checked(PREAMBLE_BYTES)?;
            (Some(Preamble::decode(preamble).ok()?), peer)
        }
    };
    Some((Scheme::from_wire(*scheme)?, preamble, String::from_utf8_lossy(peer).into_owned()))
}
