//! Memory that all sessions of a worker have together.

use std::fmt::Debug;

/// Counts what sessions, each a process of its own, use of each device. It never lets the sum go beyond what they have together.
pub trait Quota: Debug + Send + Sync {
    /// From now on they have at most this many bytes of each device together.
    fn limit(&self, bytes: u64);

    /// Bytes of a device that this session could take now.
    fn free(&self, device: usize) -> u64;

    /// Takes bytes for this session, unless there are not as many.
    fn charge(&self, device: usize, bytes: u64) -> bool;

    /// Gives bytes of this session back.
    fn release(&self, device: usize, bytes: u64);
}
