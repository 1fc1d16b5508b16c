//! The client's side of a new connection.

use std::io;
use std::net::ToSocketAddrs;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Socket as Socket2, Type};

use crate::address::{Address, HostPort, Scheme};
use crate::answer::{ANSWER_BYTES, Answer, AnswerError};
use crate::connection::Connection;
use crate::fd;
use crate::pcie;
use crate::preamble::{ConnectionKind, Preamble};
use crate::security::ClientSecurity;
use crate::shm;
use crate::socket::Socket;
use crate::tls;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The address asks for TLS but nothing says which certificate to trust, or the other way round.
    #[error(
        "{address} and the given security do not fit: a tls: address needs a fingerprint or a CA, any other none"
    )]
    Security {
        /// The address.
        address: Address,
    },
    /// The host has no address.
    #[error("cannot find the host of {address}")]
    Resolve {
        /// The address.
        address: Address,
        /// What the resolver says.
        source: io::Error,
    },
    /// No process listens there, or the way there is broken.
    #[error("cannot connect to {address}")]
    Connect {
        /// The address.
        address: Address,
        /// What the kernel says.
        source: io::Error,
    },
    /// Connected, but the server went away or stayed silent during the set-up.
    #[error("{address} did not finish the set-up of a connection")]
    SetUp {
        /// The address.
        address: Address,
        /// What the kernel says; `TimedOut` for silence.
        source: io::Error,
    },
    /// Connected, but to something that is not a dxpu server.
    #[error("{address} did not answer as a dxpu server does")]
    Answer {
        /// The address.
        address: Address,
        /// What was wrong with the answer.
        source: AnswerError,
    },
    /// The server refused, with a reason.
    #[error("{address} refused the connection: {reason}")]
    Refused {
        /// The address.
        address: Address,
        /// The server's words.
        reason: String,
    },
    /// The process that listens at a Unix socket runs as a user that is not trusted.
    #[error(
        "{address} belongs to a process of user {uid}, which is neither root nor the user of this program; to trust that user, set \
             DXPU_WORKER_UID={uid}"
    )]
    Owner {
        /// The address.
        address: Address,
        /// The user of the process that listens there.
        uid: u32,
    },
    /// The host of the address cannot be a TLS server name.
    #[error("the host of {address} cannot be the name of a TLS server")]
    ServerName {
        /// The address.
        address: Address,
    },
    /// The CA is no valid PEM.
    #[error("the certificate authority is no valid PEM")]
    Ca(#[source] rustls::pki_types::pem::Error),
    /// The TLS handshake failed; most often, the server is not the one we trust.
    #[error("the TLS handshake failed")]
    Tls(#[source] rustls::Error),
}

/// Connects, says `preamble` (with the scheme of the address), and sets TLS or shared memory up. Returns when the
/// server has accepted the connection. The whole takes at most `timeout`, except for the name lookup, which takes as
/// long as the system's resolver does.
pub fn connect(
    address: &Address,
    security: &ClientSecurity,
    preamble: Preamble,
    timeout: Duration,
) -> Result<Connection, ConnectError> {
    let is_local = matches!(address, Address::Unix(_) | Address::Shm(_));
    let fits = match security {
        ClientSecurity::Plain => address.scheme() != Scheme::Tls,
        ClientSecurity::Users(_) => is_local,
        ClientSecurity::Fingerprint(_) | ClientSecurity::Ca(_) | ClientSecurity::CaNamed { .. } => {
            address.scheme() == Scheme::Tls
        }
    };
    if !fits {
        return Err(ConnectError::Security { address: address.clone() });
    }
    let config = tls::client_config(security)?;
    let preamble = Preamble { scheme: address.scheme(), ..preamble };
    let deadline = Instant::now() + timeout;

    let set_up = |source| ConnectError::SetUp { address: address.clone(), source };
    if let Address::Pcie(at) = address {
        let opened = pcie::open(*at, deadline);
        let mut connection =
            opened.map_err(|source| ConnectError::Connect { address: address.clone(), source })?;
        let answer = greet(&mut connection, &preamble, deadline).map_err(set_up)?;
        return accepted(&answer, address).map(|_| connection);
    }
    let socket = open(address, preamble.kind, deadline)?;
    if let ClientSecurity::Users(trusted) = security {
        // Before a byte is sent: these are the credentials of the process that called listen().
        let (_, uid) = fd::peer_credentials(socket.as_fd()).map_err(set_up)?;
        if !trusted.contains(&uid) {
            return Err(ConnectError::Owner { address: address.clone(), uid });
        }
    }
    socket.send_all_by(&preamble.encode(), deadline).map_err(set_up)?;
    match (address, config) {
        (Address::Tls(at), Some(config)) => {
            let name = match security {
                ClientSecurity::CaNamed { name, .. } => name,
                _ => &at.host,
            };
            tls::connect(socket, config, address, name, deadline)
        }
        (Address::Shm(_), _) if preamble.kind != ConnectionKind::Door => {
            let takes_memory = read_answer(&socket, address, deadline)?;
            shm::accept_rings(socket, takes_memory, deadline).map_err(set_up)
        }
        _ => {
            read_answer(&socket, address, deadline)?;
            Ok(Connection::over_socket(socket))
        }
    }
}

/// The server's 64 bytes, and what they mean: whether it takes descriptors of memory.
pub(crate) fn read_answer(
    socket: &Socket,
    address: &Address,
    deadline: Instant,
) -> Result<bool, ConnectError> {
    let mut bytes = [0; ANSWER_BYTES];
    socket
        .recv_exact_by(&mut bytes, deadline)
        .map_err(|source| ConnectError::SetUp { address: address.clone(), source })?;
    accepted(&bytes, address)
}

/// What the server's 64 bytes mean.
fn accepted(bytes: &[u8; ANSWER_BYTES], address: &Address) -> Result<bool, ConnectError> {
    match Answer::decode(bytes) {
        Ok(Answer::Accepted) => Ok(false),
        Ok(Answer::TakesMemory) => Ok(true),
        Ok(Answer::Refused { text }) => Err(ConnectError::Refused { address: address.clone(), reason: text }),
        Err(source) => Err(ConnectError::Answer { address: address.clone(), source }),
    }
}

/// Says the preamble on a connection that is no socket of ours, and gives the answer.
fn greet(
    connection: &mut Connection,
    preamble: &Preamble,
    deadline: Instant,
) -> io::Result<[u8; ANSWER_BYTES]> {
    connection.tx.send(&[&preamble.encode()])?;
    let (mut answer, mut have) = ([0; ANSWER_BYTES], 0);
    while have < answer.len() {
        if !connection.rx.wait(Some(deadline.saturating_duration_since(Instant::now())))? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match connection.rx.recv(&mut answer[have..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => have += count,
        }
    }
    Ok(answer)
}

fn open(address: &Address, kind: ConnectionKind, deadline: Instant) -> Result<Socket, ConnectError> {
    let connect_error = |source| ConnectError::Connect { address: address.clone(), source };
    match address {
        Address::Tcp(at) | Address::Tls(at) => {
            let places =
                resolve(at).map_err(|source| ConnectError::Resolve { address: address.clone(), source })?;
            let mut last = io::ErrorKind::AddrNotAvailable.into();
            for place in places {
                match open_tcp(&place, kind, deadline) {
                    Ok(socket) => return Ok(socket),
                    Err(error) => last = error,
                }
            }
            Err(connect_error(last))
        }
        Address::Unix(path) | Address::Shm(path) => {
            let place = SockAddr::unix(path).map_err(connect_error)?;
            open_unix(&place, kind, deadline).map_err(connect_error)
        }
        Address::Pcie(_) => Err(connect_error(io::ErrorKind::Unsupported.into())),
    }
}

/// Every address of a host, as the system orders them.
pub(crate) fn resolve(at: &HostPort) -> io::Result<Vec<SockAddr>> {
    Ok((at.host.as_str(), at.port).to_socket_addrs()?.map(SockAddr::from).collect())
}

fn open_tcp(place: &SockAddr, kind: ConnectionKind, deadline: Instant) -> io::Result<Socket> {
    let raw = Socket2::new(place.domain(), Type::STREAM, None)?;
    // Before connecting, since the window's scale is agreed on then.
    let socket = prepared(raw, kind, true);
    socket.connect_by(place, deadline)?;
    socket.set_no_delay()?;
    Ok(socket)
}

fn open_unix(place: &SockAddr, kind: ConnectionKind, deadline: Instant) -> io::Result<Socket> {
    let raw = Socket2::new(Domain::UNIX, Type::STREAM, None)?;
    raw.set_nonblocking(true)?;
    // A full queue of the listener answers EAGAIN at once; there is nothing to poll for.
    const FULL_QUEUE_PAUSE: Duration = Duration::from_millis(1);
    while let Err(error) = raw.connect(place) {
        if error.kind() != io::ErrorKind::WouldBlock {
            return Err(error);
        }
        if Instant::now() >= deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(FULL_QUEUE_PAUSE);
    }
    raw.set_nonblocking(false)?;
    Ok(prepared(raw, kind, false))
}

fn prepared(raw: Socket2, kind: ConnectionKind, is_tcp: bool) -> Socket {
    let socket = Socket::from(OwnedFd::from(raw));
    if kind == ConnectionKind::Lane {
        socket.widen(is_tcp);
    }
    socket
}
/// The pass that lies at an address, to show the worker there: a PCI function may have one for the machine that may use
/// it. Empty where there is none.
pub fn pass_of(address: &Address) -> io::Result<String> {
    match address {
        Address::Pcie(at) => pcie::pass(*at),
        Address::Tcp(_) | Address::Tls(_) | Address::Unix(_) | Address::Shm(_) => Ok(String::new()),
    }
}
