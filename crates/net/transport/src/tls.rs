//! TLS 1.3, and nothing older, with rustls and ring.

mod config;
mod handshake;
mod renewed;
mod stream;
mod verify;

pub(crate) use config::{client_config, server_config, sha256};
pub(crate) use handshake::{HandshakeError, connect, serve};
pub(crate) use stream::{TlsRx, TlsTx, extract};
