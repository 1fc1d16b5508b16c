//! From a raw socket to a TLS connection, before a deadline.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, ServerConnection};

use super::stream::{self, Incoming};
use crate::address::Address;
use crate::answer::Answer;
use crate::connect::{ConnectError, read_answer};
use crate::connection::Connection;
use crate::security::ServerIdentity;
use crate::socket::Socket;

/// Why a handshake did not end well.
pub(crate) enum HandshakeError {
    Io(io::Error),
    Tls(rustls::Error),
}

/// The client's side, after its preamble.
pub(crate) fn connect(
    socket: Socket,
    config: Arc<ClientConfig>,
    address: &Address,
    server_name: &str,
    deadline: Instant,
) -> Result<Connection, ConnectError> {
    let name = ServerName::try_from(server_name.to_owned())
        .map_err(|_| ConnectError::ServerName { address: address.clone() })?;
    let mut tls: rustls::Connection = ClientConnection::new(config, name).map_err(ConnectError::Tls)?.into();
    let failed = |error| match error {
        HandshakeError::Io(source) => ConnectError::SetUp { address: address.clone(), source },
        HandshakeError::Tls(source) => ConnectError::Tls(source),
    };
    // The hello leaves before the answer is read, so that both sides' first words cross: one round trip, not two.
    flush(&socket, &mut tls, deadline).map_err(failed)?;
    read_answer(&socket, address, deadline)?;
    let incoming = shake_hands(&socket, &mut tls, deadline).map_err(failed)?;
    Ok(stream::connection(socket, tls, incoming))
}

/// The server's side, after the client's preamble.
pub(crate) fn serve(
    socket: Socket,
    identity: &ServerIdentity,
    deadline: Instant,
) -> Result<Connection, HandshakeError> {
    let tls = ServerConnection::new(identity.config.clone()).map_err(HandshakeError::Tls)?;
    let mut tls = tls.into();
    socket.send_all_by(&Answer::Accepted.encode(), deadline).map_err(HandshakeError::Io)?;
    let incoming = shake_hands(&socket, &mut tls, deadline)?;
    Ok(stream::connection(socket, tls, incoming))
}

fn shake_hands(
    socket: &Socket,
    tls: &mut rustls::Connection,
    deadline: Instant,
) -> Result<Incoming, HandshakeError> {
    let mut incoming = Incoming::new();
    loop {
        flush(socket, tls, deadline)?;
        if !tls.is_handshaking() {
            return Ok(incoming);
        }
        let count = socket.recv_by(incoming.space(), deadline).map_err(HandshakeError::Io)?;
        if count == 0 {
            return Err(HandshakeError::Io(io::ErrorKind::UnexpectedEof.into()));
        }
        incoming.filled(count);
        // Only as far as the handshake goes: application data right behind it is for the receiving half.
        while tls.is_handshaking() && incoming.feed(tls).map_err(HandshakeError::Io)? > 0 {
            if let Err(error) = tls.process_new_packets() {
                // The peer learns why by an alert, if it still listens.
                let _ = flush(socket, tls, deadline);
                return Err(HandshakeError::Tls(error));
            }
        }
    }
}

fn flush(socket: &Socket, tls: &mut rustls::Connection, deadline: Instant) -> Result<(), HandshakeError> {
    let mut out = Vec::new();
    stream::extract(tls, &mut out);
    socket.send_all_by(&out, deadline).map_err(HandshakeError::Io)
}
