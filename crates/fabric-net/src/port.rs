//! What moves datagrams.

use fabric::{NodeId, PathId};
use std::io;
use std::time::Duration;

/// Ways to other proxies. Datagrams may be lost, and whoever sends them knows how to live with it.
pub trait Port {
    /// Takes a datagram for a proxy over a path; it may wait for company until [`Port::flush`]. An address that is not
    /// known, or a network that takes no more, loses it.
    fn send(&mut self, to: NodeId, path: PathId, datagram: &[u8]) -> io::Result<()>;

    /// Sends whatever waits.
    fn flush(&mut self) -> io::Result<()>;

    /// Hands every datagram that is there to `take`, which may change it; waits for the first one for at most `wait`.
    /// Gives how many there were.
    fn receive(&mut self, wait: Duration, take: &mut dyn FnMut(&mut [u8])) -> io::Result<usize>;
}
