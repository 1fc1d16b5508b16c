//! Device memory.

use super::{link::until, session::*};
use crate::memory::GRANULE;
use cuda_abi::CudaError;
use cuda_driver::Driver;
use cuda_wire::*;

/// Addresses behind those that a session begins with.
const FREE: u64 = DATA + DATA_BYTES;
const HANDLE: MemoryHandleId = MemoryHandleId(1);

#[test]
fn small_allocations_share_a_step_that_ends_with_the_last() {
    let session = Session::new();
    session.memory_allocate(CONTEXT, FREE, 100).unwrap();
    session.memory_allocate(CONTEXT, FREE + 512, 100).unwrap();
    assert_eq!(session.fake.live().mappings, 2, "one for the session's own, one for both");
    session.memory_free(FREE).unwrap();
    session.work.memory.settle();
    assert!(session.fake.is_mapped(FREE + 512));
    session.memory_free(FREE + 512).unwrap();
    session.work.memory.settle();
    assert!(!session.fake.is_mapped(FREE + 512));
    session.check_nothing_left();
}

#[test]
fn memory_is_unmapped_when_the_work_before_is_done() {
    let session = Session::new();
    session.memory_allocate(CONTEXT, FREE, 100).unwrap();
    session.fake.hold();
    session.enqueue(STREAM, fill(FREE, 100, 1)).unwrap();
    session.enqueue(STREAM, Op::Free { address: FREE }).unwrap();
    until("the unmap thread waits", || session.fake.blocked() == ["cuCtxSynchronize"]);
    assert!(session.fake.is_mapped(FREE));
    session.check_nothing_left();
}

#[test]
fn an_allocation_over_steps_in_use_maps_the_rest() {
    let session = Session::new();
    session.memory_allocate(CONTEXT, FREE + GRANULE, 100).unwrap();
    session.memory_allocate(CONTEXT, FREE + 5, 3 * GRANULE).unwrap();
    session.enqueue(STREAM, fill(FREE + 5, 3 * GRANULE, 1)).unwrap();
    session.drain();
    session.memory_free(FREE + 5).unwrap();
    session.work.memory.settle();
    assert!(session.fake.is_mapped(FREE + GRANULE) && !session.fake.is_mapped(FREE));
    session.memory_free(FREE + GRANULE).unwrap();
    session.check_nothing_left();
}

#[test]
fn an_allocation_that_fails_in_the_middle_leaves_nothing() {
    for nth in 1..=6 {
        let session = Session::new();
        // A step in use in the middle: two mappings of three calls each.
        session.memory_allocate(CONTEXT, FREE + GRANULE, 100).unwrap();
        let before = session.fake.live();
        session.fake.fail_nth(nth, CudaError::LAUNCH_FAILED);
        let result = session.memory_allocate(CONTEXT, FREE, 3 * GRANULE);
        assert_eq!(result, Err(CudaError::LAUNCH_FAILED), "call {nth}");
        assert_eq!(session.fake.live(), before);
        session.memory_allocate(CONTEXT, FREE, 3 * GRANULE).unwrap();
        session.memory_free(FREE).unwrap();
        session.memory_free(FREE + GRANULE).unwrap();
        session.check_nothing_left();
    }
}

#[test]
fn the_limit_is_of_all_memory_and_what_is_freed_counts_no_more() {
    let session = Session::bare(Some(8 * GRANULE));
    assert_eq!(session.devices()[0].memory_bytes, 8 * GRANULE);
    session.memory_allocate(CONTEXT, DATA, 6 * GRANULE).unwrap();
    assert_eq!(session.memory_allocate(CONTEXT, FREE, 3 * GRANULE), Err(CudaError::OUT_OF_MEMORY));
    assert_eq!(session.memory_info(0), Ok((2 * GRANULE, 8 * GRANULE)));
    assert_eq!(session.physical_create(HANDLE, 0, 3 * GRANULE), Err(CudaError::OUT_OF_MEMORY));
    session.physical_create(HANDLE, 1, 3 * GRANULE).unwrap();
    session.memory_free(DATA).unwrap();
    // What was freed is on its way back: the allocation waits for it.
    session.memory_allocate(CONTEXT, FREE, 8 * GRANULE).unwrap();
    session.memory_free(FREE).unwrap();
    session.physical_release(HANDLE).unwrap();
    session.check_nothing_left();
}

#[test]
fn memory_that_was_promised_is_there_when_the_device_is_full() {
    let session = Session::bare(None);
    let credit = session.grant_memory_credit();
    assert_eq!(credit, 32 << 20);
    assert_eq!(session.grant_memory_credit(), 0, "nothing of it was used");
    session.fake.take_memory(0, 0);
    session.memory_allocate(CONTEXT, DATA, credit / 2).unwrap();
    assert_eq!(session.memory_info(0).unwrap().0, credit / 2);
    session.memory_allocate(CONTEXT, FREE, credit / 2).unwrap();
    assert_eq!(session.memory_allocate(CONTEXT, FREE + credit, GRANULE), Err(CudaError::OUT_OF_MEMORY));
}

#[test]
fn physical_memory_lives_until_it_is_unmapped_and_released() {
    let session = Session::new();
    session.physical_create(HANDLE, 0, GRANULE).unwrap();
    session.physical_map(FREE, GRANULE, 0, HANDLE).unwrap();
    assert!(!session.fake.is_mapped(FREE), "no access yet");
    session.physical_set_access(FREE, GRANULE, 0, 3).unwrap();
    session.physical_release(HANDLE).unwrap();
    assert_eq!(session.physical_release(HANDLE), Err(CudaError::INVALID_HANDLE));
    session.enqueue(STREAM, fill(FREE, 8, 4)).unwrap();
    session.drain();
    session.physical_unmap(FREE, GRANULE).unwrap();
    session.check_nothing_left();
}

#[test]
fn what_is_not_there_is_refused() {
    let session = Session::new();
    assert_eq!(session.memory_free(FREE), Err(CudaError::INVALID_VALUE));
    assert_eq!(session.memory_allocate(CONTEXT, FREE, 0), Err(CudaError::INVALID_VALUE));
    assert_eq!(
        session.memory_allocate(CONTEXT, 0x1000_0000, 1),
        Err(CudaError::INVALID_VALUE),
        "not reserved"
    );
    assert_eq!(session.memory_info(2), Err(CudaError::INVALID_DEVICE));
    assert_eq!(session.physical_map(FREE, GRANULE, 0, HANDLE), Err(CudaError::INVALID_HANDLE));
    session.check_nothing_left();
}

#[test]
fn an_occupied_range_of_addresses_is_not_taken_and_not_kept() {
    let session = Session::bare(None);
    let next = VaRange { base: ADDRESSES.base + ADDRESSES.bytes, bytes: GRANULE };
    assert_eq!(session.reserve_addresses(&[ADDRESSES, next]), Some(next));
    assert_eq!(session.fake.count("cuMemAddressFree"), 1);
}

#[test]
fn addresses_beside_the_first_range_are_kept_where_they_are_free() {
    let session = Session::bare(None);
    let further = VaRange { base: 0x7f00_0000_0000, bytes: 2 * GRANULE };
    let page = further.base + 4096;
    assert_eq!(session.memory_allocate(CONTEXT, page, 8192), Err(CudaError::INVALID_VALUE), "not kept yet");
    session.addresses_reserve(further).unwrap();
    session.memory_allocate(CONTEXT, page, 8192).unwrap();
    session.memory_allocate(CONTEXT, page + 8192, GRANULE).unwrap();
    session.memory_free(page).unwrap();
    session.memory_free(page + 8192).unwrap();
    let refused = |base, bytes| session.addresses_reserve(VaRange { base, bytes }).unwrap_err();
    assert_eq!(refused(further.base, GRANULE), CudaError::OUT_OF_MEMORY, "kept already");
    assert_eq!(refused(ADDRESSES.base, GRANULE), CudaError::OUT_OF_MEMORY, "in the first range");
    assert_eq!(refused(further.base + 8 * GRANULE, 0), CudaError::INVALID_VALUE);
    assert_eq!(refused(further.base + 8 * GRANULE, 4096), CudaError::INVALID_VALUE);
    assert_eq!(refused(further.base + 4096, GRANULE), CudaError::INVALID_VALUE);
    assert_eq!(refused(0, u64::MAX / GRANULE * GRANULE), CudaError::INVALID_VALUE);
}
