//! Host memory that the program made known to the driver, and bytes that are still on their way into it.
//!
//! Two questions decide how a copy treats host memory. *Is it pinned?* A copy into pageable memory has happened when
//! the call returns; one into pinned memory may happen later. *Will it still be written?* A copy from pinned memory
//! that an earlier copy is yet to fill must read it then, not now.
//!
//! Both are asked in nearly every copy, and most programs that ask have few ranges and no copy under way; so both
//! answer "no" from one atomic number when there is nothing.

mod pending;

use cuda_abi::{CuResult, CudaError};
use pending::PendingWrites;
use std::{
    collections::BTreeMap,
    sync::{
        RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicUsize, Ordering},
    },
};

/// How host memory became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HostKind {
    /// cuMemHostAlloc and its relatives: we made it.
    Allocated,
    /// cuMemHostRegister: the program made it.
    Registered,
}

/// A known range of host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostRange {
    /// First address.
    pub base: u64,
    /// Bytes.
    pub bytes: u64,
    /// `CU_MEMHOSTALLOC_*` or `CU_MEMHOSTREGISTER_*`, as cuMemHostGetFlags reports them.
    pub flags: u32,
    /// How it became known.
    pub kind: HostKind,
    /// The address under which kernels reach it.
    pub device_address: u64,
    /// Whatever the owner wants to know about it, such as the context that made it.
    pub tag: u64,
}

impl HostRange {
    /// One past the last address; a range that would wrap ends at the top.
    fn end(&self) -> u64 {
        self.base.saturating_add(self.bytes)
    }
}

/// All known host memory. Shared by threads.
#[derive(Debug, Default)]
pub struct HostMemory {
    ranges: RwLock<BTreeMap<u64, HostRange>>,
    count: AtomicUsize,
    writes: PendingWrites,
}

impl HostMemory {
    /// Nothing known yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a range known.
    ///
    /// As driver 580: registering what is registered is `HOST_MEMORY_ALREADY_REGISTERED`, even in part; registering
    /// what we allocated, or nothing, is `INVALID_VALUE`. An allocation that meets a registration replaces it: the
    /// program has unmapped that memory behind our back, or it could not have been allocated again.
    pub fn insert(&self, range: HostRange) -> CuResult<()> {
        if range.base == 0 || range.bytes == 0 || range.base.checked_add(range.bytes).is_none() {
            return Err(CudaError::INVALID_VALUE);
        }
        let mut ranges = self.writing();
        let met: Vec<HostRange> = overlapping(&ranges, range.base, range.bytes).copied().collect();
        if met.iter().any(|other| other.kind == HostKind::Allocated) {
            return Err(CudaError::INVALID_VALUE);
        }
        if !met.is_empty() && range.kind == HostKind::Registered {
            return Err(CudaError::HOST_MEMORY_ALREADY_REGISTERED);
        }
        for stale in met {
            ranges.remove(&stale.base);
        }
        ranges.insert(range.base, range);
        self.count.store(ranges.len(), Ordering::Release);
        Ok(())
    }

    /// Forgets the range that starts at `base`.
    ///
    /// As driver 580: the start of an unknown registration is `HOST_MEMORY_NOT_REGISTERED`; an address inside a
    /// known range, a range of the other kind and an unknown allocation are `INVALID_VALUE`.
    pub fn remove(&self, base: u64, kind: HostKind) -> CuResult<HostRange> {
        let mut ranges = self.writing();
        match ranges.get(&base) {
            Some(range) if range.kind == kind => {
                let range = *range;
                ranges.remove(&base);
                self.count.store(ranges.len(), Ordering::Release);
                Ok(range)
            }
            None if kind == HostKind::Registered && overlapping(&ranges, base, 1).next().is_none() => {
                Err(CudaError::HOST_MEMORY_NOT_REGISTERED)
            }
            _ => Err(CudaError::INVALID_VALUE),
        }
    }

    /// The range that holds all of `bytes` from `address` on (0 bytes count as one).
    #[inline]
    pub fn find(&self, address: u64, bytes: u64) -> Option<HostRange> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let last = address.checked_add(bytes.saturating_sub(1))?;
        let ranges = self.reading();
        let (_, range) = ranges.range(..=address).next_back()?;
        (last < range.end()).then_some(*range)
    }

    /// Every known range, ascending by address.
    pub fn snapshot(&self) -> Vec<HostRange> {
        self.reading().values().copied().collect()
    }

    /// Notes that a transfer will write host memory some time from now on.
    pub fn begin_write(&self, transfer: u64, address: u64, bytes: u64) {
        self.writes.begin(transfer, address, bytes);
    }

    /// Notes that all bytes of a transfer have arrived, or never will. One that was not noted does not matter.
    pub fn end_write(&self, transfer: u64) {
        self.writes.end(transfer);
    }

    /// Whether any of `bytes` from `address` on will still be written by a transfer under way.
    #[inline]
    pub fn hazard(&self, address: u64, bytes: u64) -> bool {
        self.writes_under_way(address, bytes) > 0
    }

    /// How many transfers under way will still write any of `bytes` from `address` on.
    #[inline]
    pub fn writes_under_way(&self, address: u64, bytes: u64) -> usize {
        self.writes.under_way(address, bytes)
    }

    /// Has `read` fill memory of a transfer straight from the network, if no other transfer writes any of it. False: another one may, and
    /// [`HostMemory::land`] is to be used.
    pub fn land_directly(&self, transfer: u64, read: impl FnOnce()) -> bool {
        self.writes.land_directly(transfer, read)
    }

    /// Bytes of a transfer are here, for `bytes` of memory from `address` on: has `write` write those parts of them that no later
    /// transfer has written. Transfers are later in the order of their numbers.
    pub fn land(&self, transfer: u64, address: u64, bytes: u64, write: impl FnMut(u64, u64)) {
        self.writes.land(transfer, address, bytes, write);
    }

    fn reading(&self) -> RwLockReadGuard<'_, BTreeMap<u64, HostRange>> {
        locks::read(&self.ranges)
    }

    fn writing(&self) -> RwLockWriteGuard<'_, BTreeMap<u64, HostRange>> {
        locks::write(&self.ranges)
    }
}

/// The ranges that share a byte with `bytes` from `address` on. Ranges do not overlap, so they end as they start:
/// in order.
fn overlapping(
    ranges: &BTreeMap<u64, HostRange>,
    address: u64,
    bytes: u64,
) -> impl Iterator<Item = &HostRange> {
    let end = address.saturating_add(bytes);
    ranges.range(..end).rev().map(|(_, range)| range).take_while(move |range| range.end() > address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: u64 = 4096;

    fn range(kind: HostKind, base: u64, bytes: u64) -> HostRange {
        HostRange { base, bytes, flags: 2, kind, device_address: base, tag: 0 }
    }

    fn register(memory: &HostMemory, base: u64, bytes: u64) -> CuResult<()> {
        memory.insert(range(HostKind::Registered, base, bytes))
    }

    fn unregister(memory: &HostMemory, base: u64) -> CuResult<()> {
        memory.remove(base, HostKind::Registered).map(drop)
    }

    /// Each line as driver 580 answers it.
    #[test]
    fn registration_follows_the_driver() {
        let memory = HostMemory::new();
        assert_eq!(register(&memory, PAGE, 2 * PAGE), Ok(()));
        assert_eq!(register(&memory, PAGE, 2 * PAGE), Err(CudaError::HOST_MEMORY_ALREADY_REGISTERED));
        assert_eq!(register(&memory, 1, 2 * PAGE), Err(CudaError::HOST_MEMORY_ALREADY_REGISTERED));
        assert_eq!(register(&memory, 2 * PAGE, 100), Err(CudaError::HOST_MEMORY_ALREADY_REGISTERED));
        assert_eq!(register(&memory, 3 * PAGE, PAGE), Ok(()), "the next byte is free");
        assert_eq!(unregister(&memory, 2 * PAGE), Err(CudaError::INVALID_VALUE), "inside");
        assert_eq!(unregister(&memory, PAGE), Ok(()));
        assert_eq!(unregister(&memory, PAGE), Err(CudaError::HOST_MEMORY_NOT_REGISTERED));
        assert_eq!(register(&memory, 100, 50), Ok(()), "pages do not matter");
        assert_eq!(register(&memory, 1000, 50), Ok(()), "pages do not matter");
        assert_eq!(register(&memory, PAGE, 0), Err(CudaError::INVALID_VALUE));
        assert_eq!(register(&memory, 0, PAGE), Err(CudaError::INVALID_VALUE));
        assert_eq!(register(&memory, u64::MAX, PAGE), Err(CudaError::INVALID_VALUE));
    }

    /// Each line as driver 580 answers it.
    #[test]
    fn allocation_follows_the_driver() {
        let memory = HostMemory::new();
        let free = |base| memory.remove(base, HostKind::Allocated).map(drop);
        memory.insert(range(HostKind::Allocated, PAGE, 5000)).unwrap();
        assert_eq!(free(PAGE + 8), Err(CudaError::INVALID_VALUE));
        assert_eq!(unregister(&memory, PAGE), Err(CudaError::INVALID_VALUE));
        assert_eq!(register(&memory, PAGE, PAGE), Err(CudaError::INVALID_VALUE));
        assert_eq!(free(PAGE), Ok(()));
        assert_eq!(free(PAGE), Err(CudaError::INVALID_VALUE));
        register(&memory, PAGE, PAGE).unwrap();
        assert_eq!(free(PAGE), Err(CudaError::INVALID_VALUE));
        assert_eq!(unregister(&memory, PAGE), Ok(()));
    }

    #[test]
    fn a_copy_is_pinned_only_if_all_of_it_is() {
        let memory = HostMemory::new();
        assert_eq!(memory.find(PAGE, 1), None);
        let known = range(HostKind::Registered, PAGE, 100);
        memory.insert(known).unwrap();
        assert_eq!(memory.find(PAGE, 100), Some(known));
        assert_eq!(memory.find(PAGE + 99, 1), Some(known));
        assert_eq!(memory.find(PAGE + 99, 0), Some(known));
        assert_eq!(memory.find(PAGE + 99, 2), None);
        assert_eq!(memory.find(PAGE - 1, 2), None);
        assert_eq!(memory.find(PAGE + 100, 0), None);
        assert_eq!(memory.find(PAGE, u64::MAX), None);
    }

    #[test]
    fn memory_that_was_allocated_over_a_registration_replaces_it() {
        let memory = HostMemory::new();
        register(&memory, PAGE, 100).unwrap();
        register(&memory, PAGE + 200, 100).unwrap();
        let fresh = range(HostKind::Allocated, PAGE, PAGE);
        memory.insert(fresh).unwrap();
        assert_eq!(memory.snapshot(), [fresh]);
    }

    #[test]
    fn a_source_that_is_still_being_written_is_a_hazard_until_the_bytes_arrived() {
        let memory = HostMemory::new();
        assert!(!memory.hazard(0, u64::MAX));
        memory.begin_write(1, 1000, 100);
        memory.begin_write(2, 1050, 10);
        assert!(memory.hazard(1099, 1) && memory.hazard(900, 101) && memory.hazard(0, u64::MAX));
        assert!(!memory.hazard(1100, 50) && !memory.hazard(900, 100) && !memory.hazard(1050, 0));
        memory.end_write(1);
        assert!(memory.hazard(1055, 1) && !memory.hazard(1000, 50) && !memory.hazard(1060, 40));
        memory.end_write(2);
        memory.end_write(2);
        assert!(!memory.hazard(0, u64::MAX));
    }

    proptest! {
        #[test]
        fn hazards_are_exactly_the_overlaps(
            writes in prop::collection::vec((0..200u64, 1..60u64), 0..12),
            ended in 0..12u64,
            (address, bytes) in (0..200u64, 1..60u64),
        ) {
            let memory = HostMemory::new();
            for (transfer, &(start, length)) in (0..).zip(&writes) {
                memory.begin_write(transfer, start, length);
            }
            memory.end_write(ended);
            let expected = (0..).zip(&writes).any(|(transfer, &(start, length))| {
                transfer != ended && start < address + bytes && address < start + length
            });
            prop_assert_eq!(memory.hazard(address, bytes), expected);
        }
    }
}
