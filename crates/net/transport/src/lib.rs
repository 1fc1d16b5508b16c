//! Connections that carry the api plane: TCP, TLS, Unix sockets, shared-memory rings, PCI functions, a delay emulator.
//!
//! Blocking and made for threads: one sends, one receives, any closes. No policy: no retries, no heartbeats, no idea
//! of what the bytes mean. Every connection begins with a 64-byte [`Preamble`] in the clear, so that a listener can
//! hand it to the process that owns its session before any secret is exchanged.
//!
//! Client: [`connect()`]. Server: [`Listener`], [`RawConnection`]. Both end in a [`Connection`]. A server that attends many
//! strangers with one thread asks them their first questions as [`Newcomer`]s, which never block.

#![deny(unsafe_code)] // Allowed in `fd`, `pcie::map` and `shm::map` alone.

mod address;
mod answer;
mod connect;
mod connection;
mod delay;
pub mod fd;
mod listen;
mod newcomer;
mod pcie;
mod preamble;
mod raw;
mod security;
mod shm;
mod socket;
mod spare;
mod tls;

pub use address::{Address, AddressError, HostPort, PciAddress, Scheme};
pub use answer::{AnswerError, REFUSAL_TEXT_BYTES_MAX};
pub use connect::{ConnectError, connect, pass_of};
pub use connection::{Closer, Connection, Courier, Inbox, Rx, Tx};
pub use listen::{Listener, Stopper};
pub use newcomer::Newcomer;
pub use preamble::{ConnectionKind, PREAMBLE_BYTES, PROTOCOL_VERSION, Preamble, PreambleError};
pub use raw::{Origin, RawConnection, ServeError};
pub use security::{
    ClientSecurity, Fingerprint, FingerprintError, IdentityError, ServerIdentity, ServerSecurity,
};
pub use spare::has_cores_to_spare;
