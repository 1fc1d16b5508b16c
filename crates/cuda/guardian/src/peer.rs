//! The way to a guardian of another box, and the certificates that both show.
//!
//! ```text
//! tls:HOST:PORT/NAME    NAME is what its certificate must be for, such as rack1-a.box.dxpu; without it HOST is
//! tcp:HOST:PORT         in the clear: only where it is allowed, for tests on one machine
//! ```
//!
//! Both sides show a certificate of the pool's authority, and both must be boxes. That lets a guardian speak; only the
//! secret of an image lets it have that image.

use crate::error::Broken;
use crate::stream::{Carrier, Stream};
use crate::talk::Talk;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use socket2::{Socket, TcpKeepalive};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, io};
use thiserror::Error;
use transport::{Address, HostPort};

/// How long another box may take to answer a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// A connection to a machine that has vanished ends after about three of these.
const ALIVE_EVERY: Duration = Duration::from_secs(5);

/// Where a guardian of another box is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerAddress {
    at: HostPort,
    /// What its certificate must be for; `None`: no TLS.
    name: Option<String>,
}

/// Not the address of a guardian.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is no address of a guardian; write tls:HOST:PORT/NAME, where NAME is in its certificate")]
pub struct PeerAddressError(String);

impl FromStr for PeerAddress {
    type Err = PeerAddressError;

    fn from_str(text: &str) -> Result<Self, PeerAddressError> {
        let wrong = || PeerAddressError(text.chars().take(200).collect());
        let (place, name) = text.split_once('/').map_or((text, None), |(place, name)| (place, Some(name)));
        match (place.parse::<Address>(), name) {
            (Ok(Address::Tls(at)), None) => Ok(Self { name: Some(at.host.clone()), at }),
            (Ok(Address::Tls(at)), Some(name)) if ServerName::try_from(name).is_ok() => {
                Ok(Self { at, name: Some(name.to_owned()) })
            }
            (Ok(Address::Tcp(at)), None) => Ok(Self { at, name: None }),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            None => write!(f, "tcp:{}", self.at),
            Some(name) if *name == self.at.host => write!(f, "tls:{}", self.at),
            Some(name) => write!(f, "tls:{}/{name}", self.at),
        }
    }
}

/// Files of this box's identity (PEM). They are read for each connection, because they are renewed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerFiles {
    /// The certificate of the pool's authority.
    pub authority: PathBuf,
    /// This box's certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// How guardians prove to each other what they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerSecurity {
    /// There are no other boxes.
    Alone,
    /// In the clear, without any proof: for tests on one machine.
    Plain,
    /// TLS, both sides with a certificate of a box.
    Mutual(PeerFiles),
}

/// Why a connection to or from another box did not come about.
#[derive(Debug, Error)]
pub enum PeerError {
    /// This guardian does not speak with addresses of that kind.
    #[error(
        "this guardian does not speak with {0}: it needs --peer-authority, --peer-cert and --peer-key for tls:"
    )]
    Security(String),
    /// A file of the identity.
    #[error("cannot use {path}: {reason}")]
    File {
        /// Which.
        path: String,
        /// Why not.
        reason: String,
    },
    /// The other side is no box of this pool.
    #[error("the other side is not a box of this pool")]
    NoBox,
    /// As the system says it.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// TLS failed.
    #[error("{0}")]
    Tls(#[from] rustls::Error),
    /// It broke off.
    #[error("{0}")]
    Broken(#[from] Broken),
}

impl PeerSecurity {
    /// Opens a connection to another guardian, whose reads and writes each end after `patience`.
    pub(crate) fn connect(&self, address: &PeerAddress, patience: Duration) -> Result<Talk, PeerError> {
        let socket = open(&address.at)?;
        let carrier = match (self, &address.name) {
            (Self::Plain, None) => Carrier::Tcp(socket),
            (Self::Mutual(files), Some(name)) => {
                let name = ServerName::try_from(name.clone()).map_err(|_| PeerError::NoBox)?;
                let mut tls = ClientConnection::new(files.client()?, name)?;
                let mut socket = socket;
                socket.set_write_timeout(Some(CONNECT_WITHIN))?;
                shake_hands(&mut tls, &mut socket)?;
                check_is_box(tls.peer_certificates())?;
                Carrier::TlsClient(Box::new(StreamOwned::new(tls, socket)))
            }
            _ => return Err(PeerError::Security(address.to_string())),
        };
        let mut talk = Talk::new(Stream::new(carrier, patience)?);
        talk.hello()?;
        Ok(talk)
    }

    /// Takes a connection of another guardian.
    pub(crate) fn accept(&self, socket: TcpStream, patience: Duration) -> Result<Stream, PeerError> {
        keep_alive(&socket)?;
        let carrier = match self {
            Self::Alone => return Err(PeerError::NoBox),
            Self::Plain => Carrier::Tcp(socket),
            Self::Mutual(files) => {
                let mut tls = ServerConnection::new(files.server()?)?;
                let mut socket = socket;
                socket.set_write_timeout(Some(CONNECT_WITHIN))?;
                shake_hands(&mut tls, &mut socket)?;
                check_is_box(tls.peer_certificates())?;
                Carrier::TlsServer(Box::new(StreamOwned::new(tls, socket)))
            }
        };
        Ok(Stream::new(carrier, patience)?)
    }
}

impl PeerFiles {
    fn roots(&self) -> Result<RootCertStore, PeerError> {
        let mut roots = RootCertStore::empty();
        for certificate in self.chain(&self.authority)? {
            roots.add(certificate)?;
        }
        Ok(roots)
    }

    fn chain(&self, path: &PathBuf) -> Result<Vec<CertificateDer<'static>>, PeerError> {
        let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        match read {
            Ok(chain) if !chain.is_empty() => Ok(chain),
            Ok(_) => Err(unusable(path, "there is no certificate in it")),
            Err(error) => Err(unusable(path, error)),
        }
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>, PeerError> {
        PrivateKeyDer::from_pem_file(&self.key).map_err(|error| unusable(&self.key, error))
    }

    fn client(&self) -> Result<Arc<ClientConfig>, PeerError> {
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(self.roots()?);
        let mut config = builder.with_client_auth_cert(self.chain(&self.certificate)?, self.key()?)?;
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Arc::new(config))
    }

    fn server(&self) -> Result<Arc<ServerConfig>, PeerError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(self.roots()?), provider.clone());
        let verifier = verifier.build().map_err(|error| unusable(&self.authority, error))?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(self.chain(&self.certificate)?, self.key()?)?;
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }
}

fn unusable(path: &std::path::Path, reason: impl fmt::Display) -> PeerError {
    PeerError::File { path: path.display().to_string(), reason: reason.to_string() }
}

/// Finishes the handshake, so that the other side's certificate is known before a word is said.
fn shake_hands<Side>(
    tls: &mut rustls::ConnectionCommon<Side>,
    socket: &mut TcpStream,
) -> Result<(), PeerError> {
    let until = Instant::now() + CONNECT_WITHIN;
    while tls.is_handshaking() || tls.wants_write() {
        if tls.wants_write() {
            tls.write_tls(socket)?;
            continue;
        }
        // One deadline for all of it: a stranger that sends a byte now and then does not keep a thread.
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::from(io::ErrorKind::TimedOut).into());
        }
        socket.set_read_timeout(Some(left))?;
        if tls.read_tls(socket)? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        if let Err(error) = tls.process_new_packets() {
            // The alert says why, if the other side still listens.
            let _ = tls.write_tls(socket);
            return Err(error.into());
        }
    }
    Ok(())
}

/// The authority certifies tenants and managers, too: those have no business here.
fn check_is_box(certificates: Option<&[CertificateDer<'_>]>) -> Result<(), PeerError> {
    let shown = certificates.and_then(<[_]>::first).and_then(|first| pool_auth::identity_of(first).ok());
    match shown {
        Some(pool_auth::Identity::Box(_)) => Ok(()),
        _ => Err(PeerError::NoBox),
    }
}

fn open(at: &HostPort) -> Result<TcpStream, PeerError> {
    let mut last = io::ErrorKind::AddrNotAvailable.into();
    for place in (at.host.as_str(), at.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&place, CONNECT_WITHIN) {
            Ok(socket) => {
                keep_alive(&socket)?;
                return Ok(socket);
            }
            Err(error) => last = error,
        }
    }
    Err(last.into())
}

/// A machine that loses its power says nothing; its connections must end all the same.
fn keep_alive(socket: &TcpStream) -> io::Result<()> {
    let socket = Socket::from(socket.try_clone()?);
    let alive = TcpKeepalive::new().with_time(ALIVE_EVERY).with_interval(ALIVE_EVERY).with_retries(3);
    socket.set_tcp_keepalive(&alive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_print_as_they_are_written() {
        for text in ["tcp:127.0.0.1:7500", "tls:gpu-a:7500", "tls:10.0.0.7:7500/rack1-a.box.dxpu"] {
            assert_eq!(text.parse::<PeerAddress>().unwrap().to_string(), text);
        }
        for text in ["", "unix:/x", "tls:a:1/", "tls:a:1/b c", "tcp:a:1/b"] {
            let error = text.parse::<PeerAddress>().unwrap_err().to_string();
            assert!(error.contains("tls:HOST:PORT/NAME"), "{error}");
        }
    }
}
