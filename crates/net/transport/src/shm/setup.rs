//! How the rings come to be: the server makes them and passes them over the Unix socket.
//!
//! ```text
//!   client                         server
//!   preamble         ────────────▶
//!                    ◀────────────  answer: accepted, and whether memory is taken later on
//!                    ◀────────────  capacity; two memfds, four eventfds
//!   1                ────────────▶
//! ```
//!
//! The memory is made and sealed by the server, so it need not trust the client; the client checks the seals and the
//! size before it maps anything. One thing is left to a hostile peer: it shares the eventfds' flags, so it can make a
//! wake-up of ours block and thereby stop this one connection, which it could stop anyway by not reading.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use super::half::{self, Direction};
use super::map::{HEADER_BYTES, Ring};
use super::memory::Memory;
use crate::answer::Answer;
use crate::connection::Connection;
use crate::fd;
use crate::preamble::ConnectionKind;
use crate::socket::Socket;

/// Commands are small and must stay near the caches.
const COMMAND_RING_BYTES: usize = 1 << 20;
/// Bulk: enough to keep both sides copying while one of them is off its core for a few milliseconds.
const LANE_RING_BYTES: usize = 16 << 20;
/// What a client maps at most, whatever a server says.
const RING_BYTES_MAX: usize = 1 << 30;
/// What the client says when it has mapped the rings.
const READY: u8 = 1;

fn ring_bytes(kind: ConnectionKind) -> usize {
    match kind {
        ConnectionKind::Lane => LANE_RING_BYTES,
        // A door has no rings: a question and an answer are not worth them.
        ConnectionKind::Command | ConnectionKind::Events | ConnectionKind::Status | ConnectionKind::Door => {
            COMMAND_RING_BYTES
        }
    }
}

/// The server's side.
pub(crate) fn offer_rings(socket: Socket, kind: ConnectionKind, deadline: Instant) -> io::Result<Connection> {
    let capacity = ring_bytes(kind);
    let make = || -> io::Result<(OwnedFd, Direction)> {
        let memory = fd::memfd((HEADER_BYTES + capacity) as u64)?;
        let ring = Ring::map(&memory, capacity)?;
        Ok((memory, Direction { ring, data: fd::eventfd()?, space: fd::eventfd()? }))
    };
    let (out_memory, out) = make()?;
    let (into_memory, into) = make()?;
    let takes_memory = kind == ConnectionKind::Command;
    let answer = if takes_memory { Answer::TakesMemory } else { Answer::Accepted };
    socket.send_all_by(&answer.encode(), deadline)?;
    let fds = [
        out_memory.as_fd(),
        out.data.as_fd(),
        out.space.as_fd(),
        into_memory.as_fd(),
        into.data.as_fd(),
        into.space.as_fd(),
    ];
    fd::send_fds(socket.as_fd(), &fds, &(capacity as u64).to_le_bytes())?;
    let mut ready = [0];
    socket.recv_exact_by(&mut ready, deadline)?;
    if ready != [READY] {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the client did not take the shared memory"));
    }
    let memory = if takes_memory { Memory::Taken(Default::default()) } else { Memory::Refused };
    Ok(half::connection(socket, out, into, memory))
}

/// The client's side, after the answer, which said whether the server takes memory.
pub(crate) fn accept_rings(socket: Socket, takes_memory: bool, deadline: Instant) -> io::Result<Connection> {
    let (fds, payload) = socket.with_read_deadline(deadline, |socket| fd::recv_fds(socket.as_fd()))?;
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "the server's shared memory is malformed");
    let capacity = u64::from_le_bytes(payload.try_into().map_err(|_| malformed())?);
    let capacity = usize::try_from(capacity).map_err(|_| malformed())?;
    if !capacity.is_power_of_two() || !(HEADER_BYTES..=RING_BYTES_MAX).contains(&capacity) {
        return Err(malformed());
    }
    let fds: [OwnedFd; 6] = fds.try_into().map_err(|_| malformed())?;
    let [into_memory, into_data, into_space, out_memory, out_data, out_space] = fds;
    let map = |memory: OwnedFd, data, space| -> io::Result<Direction> {
        if fd::sealed_size(&memory)? != (HEADER_BYTES + capacity) as u64 {
            return Err(malformed());
        }
        Ok(Direction { ring: Ring::map(&memory, capacity)?, data, space })
    };
    let into = map(into_memory, into_data, into_space)?;
    let out = map(out_memory, out_data, out_space)?;
    socket.send_all_by(&[READY], deadline)?;
    let memory = if takes_memory { Memory::Offered } else { Memory::Refused };
    Ok(half::connection(socket, out, into, memory))
}
