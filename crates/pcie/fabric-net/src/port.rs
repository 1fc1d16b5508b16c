//! What moves datagrams.

use fabric::{NodeId, PathId};
use std::io;
use std::time::Duration;

/// Ways to other proxies. Datagrams may be lost; the links above send again what was.
pub trait Port {
    /// Where the next datagram is to be written: room for the longest there is. It leaves from there, without
    /// another copy.
    fn place(&mut self) -> &mut [u8];

    /// Takes the first `bytes` of [`Port::place`] for a proxy over a path; they may wait for company until
    /// [`Port::flush`]. An address that is not known, or a network that takes no more, loses them.
    fn send(&mut self, to: NodeId, path: PathId, bytes: usize) -> io::Result<()>;

    /// Sends whatever waits.
    fn flush(&mut self) -> io::Result<()>;

    /// Hands every datagram that is there to `take`, which may change it; waits for the first one for at most `wait`.
    /// Gives how many there were.
    fn receive(&mut self, wait: Duration, take: &mut dyn FnMut(&mut [u8])) -> io::Result<usize>;
}
