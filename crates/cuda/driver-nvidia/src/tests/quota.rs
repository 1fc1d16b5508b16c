//! Memory that sessions have together.

use super::session::*;
use crate::{Quota, memory::GRANULE};
use cuda_abi::CudaError;
use cuda_driver::{Driver, LimitOf};
use cuda_wire::*;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::SeqCst},
};

const FREE: u64 = DATA + DATA_BYTES;
const HANDLE: MemoryHandleId = MemoryHandleId(1);

/// What all have together of each of two devices. The real one is in memory that processes share.
#[derive(Debug)]
struct Counted {
    most: AtomicU64,
    used: [AtomicU64; 2],
}

impl Counted {
    fn new(most: u64) -> Arc<Self> {
        Arc::new(Self { most: AtomicU64::new(most), used: Default::default() })
    }

    fn used(&self) -> [u64; 2] {
        self.used.each_ref().map(|used| used.load(SeqCst))
    }
}

impl Quota for Counted {
    fn limit(&self, bytes: u64) {
        self.most.fetch_min(bytes, SeqCst);
    }

    fn free(&self, device: usize) -> u64 {
        self.most.load(SeqCst).saturating_sub(self.used[device].load(SeqCst))
    }

    fn charge(&self, device: usize, bytes: u64) -> bool {
        let is_there = self.free(device) >= bytes;
        if is_there {
            self.used[device].fetch_add(bytes, SeqCst);
        }
        is_there
    }

    fn release(&self, device: usize, bytes: u64) {
        assert!(self.used[device].fetch_sub(bytes, SeqCst) >= bytes, "more is given back than was taken");
    }
}

#[test]
fn two_sessions_have_no_more_than_one() {
    let quota = Counted::new(10 * GRANULE);
    let (one, other) = (Session::with_quota(quota.clone()), Session::with_quota(quota.clone()));
    one.memory_allocate(CONTEXT, DATA, 6 * GRANULE).unwrap();
    other.memory_allocate(CONTEXT, DATA, 3 * GRANULE).unwrap();
    assert_eq!(other.memory_info(0).unwrap().0, GRANULE);
    assert_eq!(other.memory_allocate(CONTEXT, FREE, 2 * GRANULE), Err(CudaError::OUT_OF_MEMORY));
    assert_eq!(one.physical_create(HANDLE, 0, 2 * GRANULE), Err(CudaError::OUT_OF_MEMORY));
    one.physical_create(HANDLE, 1, 2 * GRANULE).unwrap();
    assert_eq!(quota.used(), [9 * GRANULE, 2 * GRANULE]);
    one.memory_free(DATA).unwrap();
    one.work.memory.settle();
    other.memory_allocate(CONTEXT, FREE, 7 * GRANULE).unwrap();
    other.memory_free(FREE).unwrap();
    other.memory_free(DATA).unwrap();
    other.work.memory.settle();
    one.physical_release(HANDLE).unwrap();
    assert_eq!(quota.used(), [0, 0], "all of it is back");
}

#[test]
fn the_limit_of_a_lease_is_that_of_all_and_a_session_s_its_own() {
    let quota = Counted::new(u64::MAX);
    let one = Session::with_quota(quota.clone());
    one.limit_memory(4 * GRANULE, LimitOf::Session);
    assert_eq!(quota.free(0), u64::MAX);
    one.limit_memory(8 * GRANULE, LimitOf::Lease);
    assert_eq!(quota.free(0), 8 * GRANULE);
    assert_eq!(one.memory_allocate(CONTEXT, DATA, 5 * GRANULE), Err(CudaError::OUT_OF_MEMORY));
}

#[test]
fn what_is_promised_counts_and_is_there() {
    let credit = 32 << 20;
    let quota = Counted::new(credit + GRANULE);
    let (one, other) = (Session::with_quota(quota.clone()), Session::with_quota(quota.clone()));
    assert_eq!(one.grant_memory_credit(), credit);
    assert_eq!(quota.used()[0], credit, "what is set aside is taken");
    assert_eq!(other.grant_memory_credit(), 0, "nothing is left to promise");
    assert_eq!(one.memory_info(0).unwrap().0, credit + GRANULE, "to the session that has it, it is free");
    one.memory_allocate(CONTEXT, DATA, credit / 2).unwrap();
    one.memory_allocate(CONTEXT, FREE, credit / 2).unwrap();
    assert!(quota.used()[0] <= credit + GRANULE);
    assert_eq!(other.memory_allocate(CONTEXT, DATA, 2 * GRANULE), Err(CudaError::OUT_OF_MEMORY));
}

#[test]
fn an_allocation_that_fails_counts_for_nothing() {
    for nth in 1..=3 {
        let quota = Counted::new(100 * GRANULE);
        let session = Session::with_quota(quota.clone());
        session.fake.fail_nth(nth, CudaError::LAUNCH_FAILED);
        assert_eq!(session.memory_allocate(CONTEXT, DATA, 3 * GRANULE), Err(CudaError::LAUNCH_FAILED));
        assert_eq!(quota.used(), [0, 0], "call {nth}");
    }
}
