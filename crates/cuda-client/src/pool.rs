//! The books of memory pools: what cuMemPoolGetAttribute answers.
//!
//! The memory itself is the worker's. A program sees of a pool how much it uses, how much the pool keeps, the highest
//! of both, and when it lets go; these numbers move as they do on driver 580. There a pool takes memory from the
//! device in steps of 32 MiB, counts bytes as used from the call on, not from their turn in the stream, and gives
//! back what is beyond the release threshold when the program synchronises.

use cuda_abi::{CuResult, CudaError};
use std::sync::{Mutex, MutexGuard, PoisonError};

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

/// A pool. Shared by threads.
#[derive(Debug)]
pub struct Pool {
    device: u32,
    is_default: bool,
    /// The most it may use; 0 for no bound.
    max_bytes: u64,
    books: Mutex<Books>,
}

#[derive(Debug)]
struct Books {
    /// Follow event dependencies, allow opportunistic reuse, allow internal dependencies.
    reuse: [bool; 3],
    release_threshold: u64,
    reserved: Level,
    used: Level,
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

impl Pool {
    /// The pool that every device has from the start and that cannot be destroyed.
    pub fn default_of(device: u32) -> Self {
        Self::with(device, true, 0)
    }

    /// A pool of cuMemPoolCreate. `max_bytes` 0 is no bound.
    pub fn created(device: u32, max_bytes: u64) -> Self {
        Self::with(device, false, max_bytes)
    }

    fn with(device: u32, is_default: bool, max_bytes: u64) -> Self {
        let books = Books {
            reuse: [true; 3],
            release_threshold: 0,
            reserved: Level::default(),
            used: Level::default(),
        };
        Self { device, is_default, max_bytes, books: Mutex::new(books) }
    }

    /// The device whose memory it hands out.
    pub fn device(&self) -> u32 {
        self.device
    }

    /// Whether it is a device's own pool, which cuMemPoolDestroy refuses.
    pub fn is_default(&self) -> bool {
        self.is_default
    }

    /// Books an allocation, or refuses it beyond the pool's bound.
    pub fn allocate(&self, bytes: u64) -> CuResult<()> {
        let mut books = self.books();
        let used = books.used.current.checked_add(bytes).ok_or(CudaError::OUT_OF_MEMORY)?;
        if self.max_bytes != 0 && used > self.max_bytes {
            return Err(CudaError::OUT_OF_MEMORY);
        }
        books.used.set(used);
        let reserved = books.reserved.current.max(stepped(used));
        books.reserved.set(reserved);
        Ok(())
    }

    /// Books a free.
    pub fn free(&self, bytes: u64) {
        let mut books = self.books();
        let used = books.used.current.saturating_sub(bytes);
        books.used.set(used);
    }

    /// The program synchronised with the device: what is beyond the threshold goes back.
    pub fn synchronized(&self) {
        let mut books = self.books();
        let kept = books.release_threshold / STEP_BYTES * STEP_BYTES;
        books.shrink_to(kept);
    }

    /// cuMemPoolTrimTo: gives back what is not used, but keeps at least `bytes`.
    pub fn trim_to(&self, bytes: u64) {
        self.books().shrink_to(stepped(bytes));
    }

    /// The value of a `CUmemPool_attribute`.
    pub fn attribute(&self, attribute: u32) -> CuResult<u64> {
        let books = self.books();
        Ok(match attribute {
            REUSE_FOLLOW_EVENT_DEPENDENCIES..=REUSE_ALLOW_INTERNAL_DEPENDENCIES => {
                books.reuse[(attribute - REUSE_FOLLOW_EVENT_DEPENDENCIES) as usize].into()
            }
            RELEASE_THRESHOLD => books.release_threshold,
            RESERVED_CURRENT => books.reserved.current,
            RESERVED_HIGH => books.reserved.high,
            USED_CURRENT => books.used.current,
            USED_HIGH => books.used.high,
            _ => return Err(CudaError::INVALID_VALUE),
        })
    }

    /// Sets a `CUmemPool_attribute`. The highs can be set to 0 only, which makes them the current values.
    pub fn set_attribute(&self, attribute: u32, value: u64) -> CuResult<()> {
        let mut books = self.books();
        match attribute {
            REUSE_FOLLOW_EVENT_DEPENDENCIES..=REUSE_ALLOW_INTERNAL_DEPENDENCIES => {
                books.reuse[(attribute - REUSE_FOLLOW_EVENT_DEPENDENCIES) as usize] = value != 0;
            }
            RELEASE_THRESHOLD => books.release_threshold = value,
            RESERVED_HIGH if value == 0 => books.reserved.high = books.reserved.current,
            USED_HIGH if value == 0 => books.used.high = books.used.current,
            _ => return Err(CudaError::INVALID_VALUE),
        }
        Ok(())
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Books {
    fn shrink_to(&mut self, kept: u64) {
        let reserved = self.reserved.current.min(kept.max(stepped(self.used.current)));
        self.reserved.set(reserved);
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
        let pool = Pool::default_of(0);
        assert_eq!(levels(&pool), [0; 5]);
        pool.allocate(1000).unwrap();
        assert_eq!(levels(&pool), [0, 32 * MIB, 32 * MIB, 1000, 1000]);
        pool.allocate(100 * MIB).unwrap();
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
        let pool = Pool::default_of(0);
        pool.set_attribute(4, u64::MAX).unwrap();
        pool.allocate(100 * MIB).unwrap();
        pool.free(100 * MIB);
        pool.synchronized();
        assert_eq!(levels(&pool), [u64::MAX, 128 * MIB, 128 * MIB, 0, 100 * MIB]);
        pool.trim_to(40 * MIB);
        assert_eq!(levels(&pool)[1], 64 * MIB);
        pool.trim_to(0);
        assert_eq!(levels(&pool), [u64::MAX, 0, 128 * MIB, 0, 100 * MIB]);
    }

    /// What driver 580 answers for the same attributes.
    #[test]
    fn attributes_are_set_as_on_the_driver() {
        let pool = Pool::default_of(0);
        pool.allocate(1000).unwrap();
        pool.free(1000);
        let set = |attribute, value| pool.set_attribute(attribute, value).is_ok();
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
        let pool = Pool::created(1, 1000);
        assert_eq!(pool.allocate(1001), Err(CudaError::OUT_OF_MEMORY));
        assert_eq!(pool.allocate(1000), Ok(()));
        assert_eq!(pool.allocate(u64::MAX), Err(CudaError::OUT_OF_MEMORY));
        assert_eq!(pool.attribute(7), Ok(1000), "a refused allocation is not booked");
        assert!(!pool.is_default() && Pool::default_of(0).is_default());
    }
}
