//! The books of memory pools: what cuMemPoolGetAttribute answers.
//!
//! The memory itself is the worker's. A program sees of a pool how much it uses, how much the pool keeps, the highest
//! of both, and when it lets go; these numbers move as they do on driver 580. There a pool takes memory from the
//! device in steps of 32 MiB, counts bytes as used from the call on, not from their turn in the stream, and gives
//! back what is beyond the release threshold when the program synchronises.

use cuda_abi::{CuResult, CudaError};
use std::collections::BTreeSet;

/// What a pool takes from the device at a time.
const STEP_BYTES: u64 = 32 << 20;

/// `CUmemPool_attribute`.
mod attribute {
    pub(super) const REUSE_FOLLOW_EVENT_DEPENDENCIES: u32 = 1;
    pub(super) const REUSE_ALLOW_INTERNAL_DEPENDENCIES: u32 = 3;
    pub(super) const RELEASE_THRESHOLD: u32 = 4;
    pub(super) const RESERVED_CURRENT: u32 = 5;
    pub(super) const RESERVED_HIGH: u32 = 6;
    pub(super) const USED_CURRENT: u32 = 7;
    pub(super) const USED_HIGH: u32 = 8;
}
use attribute::*;

/// `CU_MEM_ACCESS_FLAGS_PROT_NONE` and `_READWRITE`, the only ones a pool can have.
const ACCESS_NONE: u32 = 0;
const ACCESS_READ_WRITE: u32 = 3;

/// The books of a pool. Callers on several threads put them behind a lock.
#[derive(Debug)]
pub struct Pool {
    /// The most it may use; 0 for no bound.
    max_bytes: u64,
    /// Follow event dependencies, allow opportunistic reuse, allow internal dependencies.
    reuse: [bool; 3],
    release_threshold: u64,
    reserved: Level,
    used: Level,
    /// Other devices that may reach its memory.
    peers: BTreeSet<usize>,
}

/// A number of bytes and the highest it was since the last reset.
#[derive(Clone, Copy, Debug, Default)]
struct Level {
    current: u64,
    high: u64,
}

impl Level {
    fn set(&mut self, current: u64) {
        self.current = current;
        self.high = self.high.max(current);
    }
}

impl Default for Pool {
    fn default() -> Self {
        Self::bounded(0)
    }
}

impl Pool {
    /// A pool that hands out at most `max_bytes` at a time; 0 is no bound.
    pub fn bounded(max_bytes: u64) -> Self {
        Self {
            max_bytes,
            reuse: [true; 3],
            release_threshold: 0,
            reserved: Level::default(),
            used: Level::default(),
            peers: BTreeSet::new(),
        }
    }

    /// Whether the pool's bound has room for an allocation. Callers ask before they allocate.
    pub fn check_room(&self, bytes: u64) -> CuResult<()> {
        let used = self.used.current.checked_add(bytes).ok_or(CudaError::OUT_OF_MEMORY)?;
        if self.max_bytes != 0 && used > self.max_bytes { Err(CudaError::OUT_OF_MEMORY) } else { Ok(()) }
    }

    /// Books an allocation.
    pub fn allocate(&mut self, bytes: u64) {
        let used = self.used.current.saturating_add(bytes);
        self.used.set(used);
        self.reserved.set(self.reserved.current.max(stepped(used)));
    }

    /// Books a free.
    pub fn free(&mut self, bytes: u64) {
        self.used.set(self.used.current.saturating_sub(bytes));
    }

    /// The program synchronised with the device: what is beyond the threshold goes back.
    pub fn synchronized(&mut self) {
        self.shrink_to(self.release_threshold / STEP_BYTES * STEP_BYTES);
    }

    /// cuMemPoolTrimTo: gives back what is not used, but keeps at least `bytes`.
    pub fn trim(&mut self, bytes: u64) {
        self.shrink_to(stepped(bytes));
    }

    fn shrink_to(&mut self, kept: u64) {
        self.reserved.set(self.reserved.current.min(kept.max(stepped(self.used.current))));
    }

    /// The value of a `CUmemPool_attribute`.
    pub fn attribute(&self, attribute: u32) -> CuResult<u64> {
        Ok(match attribute {
            REUSE_FOLLOW_EVENT_DEPENDENCIES..=REUSE_ALLOW_INTERNAL_DEPENDENCIES => {
                self.reuse[(attribute - REUSE_FOLLOW_EVENT_DEPENDENCIES) as usize].into()
            }
            RELEASE_THRESHOLD => self.release_threshold,
            RESERVED_CURRENT => self.reserved.current,
            RESERVED_HIGH => self.reserved.high,
            USED_CURRENT => self.used.current,
            USED_HIGH => self.used.high,
            _ => return Err(CudaError::INVALID_VALUE),
        })
    }

    /// Sets a `CUmemPool_attribute`. The highs can be set to 0 only, which makes them the current values.
    pub fn set_attribute(&mut self, attribute: u32, value: u64) -> CuResult<()> {
        match attribute {
            REUSE_FOLLOW_EVENT_DEPENDENCIES..=REUSE_ALLOW_INTERNAL_DEPENDENCIES => {
                self.reuse[(attribute - REUSE_FOLLOW_EVENT_DEPENDENCIES) as usize] = value != 0;
            }
            RELEASE_THRESHOLD => self.release_threshold = value,
            RESERVED_HIGH if value == 0 => self.reserved.high = self.reserved.current,
            USED_HIGH if value == 0 => self.used.high = self.used.current,
            _ => return Err(CudaError::INVALID_VALUE),
        }
        Ok(())
    }

    /// cuMemPoolGetAccess for a device other than the pool's own.
    pub fn access(&self, device: usize) -> u32 {
        if self.peers.contains(&device) { ACCESS_READ_WRITE } else { ACCESS_NONE }
    }

    /// cuMemPoolSetAccess for a device other than the pool's own: all or nothing.
    pub fn set_access(&mut self, device: usize, flags: u32) -> CuResult<()> {
        match flags {
            ACCESS_READ_WRITE => self.peers.insert(device),
            ACCESS_NONE => self.peers.remove(&device),
            _ => return Err(CudaError::INVALID_VALUE),
        };
        Ok(())
    }
}

/// Whole steps that hold `bytes`.
fn stepped(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(STEP_BYTES).unwrap_or(u64::MAX)
}

/// Bytes of an attribute's value in C: an `int` or a `cuuint64_t`.
pub fn attribute_bytes(attribute: u32) -> CuResult<usize> {
    match attribute {
        REUSE_FOLLOW_EVENT_DEPENDENCIES..=REUSE_ALLOW_INTERNAL_DEPENDENCIES => Ok(4),
        RELEASE_THRESHOLD..=USED_HIGH => Ok(8),
        _ => Err(CudaError::INVALID_VALUE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Attributes 4 to 8.
    fn levels(pool: &Pool) -> [u64; 5] {
        [4, 5, 6, 7, 8].map(|attribute| pool.attribute(attribute).unwrap())
    }

    /// What driver 580 answers for the same steps.
    #[test]
    fn levels_move_as_on_the_driver() {
        let mut pool = Pool::default();
        assert_eq!(levels(&pool), [0; 5]);
        pool.allocate(1000);
        assert_eq!(levels(&pool), [0, 32 * MIB, 32 * MIB, 1000, 1000]);
        pool.allocate(100 * MIB);
        assert_eq!(levels(&pool), [0, 128 * MIB, 128 * MIB, 104_858_600, 104_858_600]);
        pool.free(1000);
        pool.synchronized();
        assert_eq!(levels(&pool), [0, 128 * MIB, 128 * MIB, 100 * MIB, 104_858_600]);
        pool.free(100 * MIB);
        assert_eq!(levels(&pool), [0, 128 * MIB, 128 * MIB, 0, 104_858_600]);
        pool.synchronized();
        assert_eq!(levels(&pool), [0, 0, 128 * MIB, 0, 104_858_600]);
    }

    /// What driver 580 answers for the same steps.
    #[test]
    fn a_threshold_keeps_memory_until_it_is_trimmed() {
        let mut pool = Pool::default();
        pool.set_attribute(4, u64::MAX).unwrap();
        pool.allocate(100 * MIB);
        pool.free(100 * MIB);
        pool.synchronized();
        assert_eq!(levels(&pool), [u64::MAX, 128 * MIB, 128 * MIB, 0, 100 * MIB]);
        pool.trim(40 * MIB);
        assert_eq!(levels(&pool)[1], 64 * MIB);
        pool.trim(0);
        assert_eq!(levels(&pool), [u64::MAX, 0, 128 * MIB, 0, 100 * MIB]);
    }

    /// What driver 580 answers for the same attributes.
    #[test]
    fn attributes_are_set_as_on_the_driver() {
        let mut pool = Pool::default();
        pool.allocate(1000);
        pool.free(1000);
        let mut set = |attribute, value| pool.set_attribute(attribute, value).is_ok();
        assert!(
            set(4, 1 << 20) && !set(5, 0) && set(6, 0) && !set(6, 5) && !set(7, 0) && set(8, 0) && !set(8, 5)
        );
        assert!(set(1, 2) && set(2, 0) && set(3, 0) && !set(0, 1) && !set(9, 1) && !set(99, 0));
        assert_eq!(
            [1, 2, 3, 4].map(|attribute| pool.attribute(attribute)),
            [Ok(1), Ok(0), Ok(0), Ok(1 << 20)]
        );
        assert_eq!(
            (pool.attribute(0), pool.attribute(9)),
            (Err(CudaError::INVALID_VALUE), Err(CudaError::INVALID_VALUE))
        );
        assert_eq!(pool.attribute(8), Ok(0), "a reset high is what is used now");
        assert_eq!((attribute_bytes(3), attribute_bytes(4)), (Ok(4), Ok(8)));
    }

    #[test]
    fn a_bound_is_kept() {
        let mut pool = Pool::bounded(1000);
        assert_eq!(pool.check_room(1001), Err(CudaError::OUT_OF_MEMORY));
        assert_eq!(pool.check_room(1000), Ok(()));
        pool.allocate(1000);
        assert_eq!(pool.check_room(1), Err(CudaError::OUT_OF_MEMORY));
        assert_eq!(pool.check_room(u64::MAX), Err(CudaError::OUT_OF_MEMORY));
        assert_eq!(Pool::default().check_room(u64::MAX), Ok(()));
    }

    #[test]
    fn other_devices_have_all_access_or_none() {
        let mut pool = Pool::default();
        assert_eq!(pool.access(1), 0);
        pool.set_access(1, 3).unwrap();
        assert_eq!((pool.access(1), pool.access(2)), (3, 0));
        assert_eq!(pool.set_access(1, 1), Err(CudaError::INVALID_VALUE));
        pool.set_access(1, 0).unwrap();
        assert_eq!(pool.access(1), 0);
    }
}
