//! What other sessions use too. Both sides are one session here: the fake driver knows one process.

use super::session::*;
use crate::memory::GRANULE;
use cuda_abi::CudaError;
use cuda_driver::{Driver, Exported, Exports};
use cuda_wire::*;
use std::sync::Arc;

const FREE: u64 = DATA + DATA_BYTES;
const THERE: u64 = FREE + 64 * GRANULE;

fn exports(session: &Session) -> &dyn Exports {
    session.exports().unwrap()
}

/// Maps all that is shared at [`THERE`], and says where it begins.
fn import(session: &Session, shared: &Arc<dyn Exported>) -> u64 {
    let mut next = THERE;
    for piece in 0..shared.pieces() {
        let handle = MemoryHandleId(90 + piece);
        let parcel = shared.parcel(piece).unwrap();
        let Imported { offset, bytes, device } = exports(session).import_memory(handle, parcel).unwrap();
        session.physical_map(next, bytes, offset, handle).unwrap();
        session.physical_set_access(next, bytes, device, 3).unwrap();
        session.physical_release(handle).unwrap();
        next += bytes;
    }
    THERE + shared.offset()
}

#[test]
fn an_allocation_over_several_pieces_is_mapped_piece_by_piece() {
    let session = Session::new();
    session.memory_allocate(CONTEXT, FREE + GRANULE, 100).unwrap();
    session.memory_allocate(CONTEXT, FREE + 512, 3 * GRANULE).unwrap();
    let shared = exports(&session).share_memory(FREE + 512, 3 * GRANULE).unwrap();
    assert_eq!((shared.pieces(), shared.offset()), (3, 512));
    let before = session.memory_info(0).unwrap();
    let there = import(&session, &shared);
    assert_eq!(session.memory_info(0).unwrap(), before, "it is the other session's memory");
    session.enqueue(STREAM, fill(there, 3 * GRANULE, 7)).unwrap();
    session.drain();
    assert_eq!(session.fake.peek(FREE + 512 + 3 * GRANULE - 4, 4), [7; 4]);
    session.memory_free(FREE + 512).unwrap();
    session.memory_free(FREE + GRANULE).unwrap();
    session.work.memory.settle();
    assert_eq!(session.fake.peek(there, 4), [7; 4], "it stays while it is mapped");
    assert!(!shared.is_alive(), "its owner has freed it");
    session.physical_unmap(THERE, 4 * GRANULE).unwrap();
    session.work.memory.settle();
    session.check_nothing_left();
}

#[test]
fn what_is_freed_or_not_allocated_is_not_shared() {
    let session = Session::new();
    let share = |address, bytes| exports(&session).share_memory(address, bytes).err();
    assert_eq!(share(FREE, 512), Some(CudaError::INVALID_VALUE));
    assert_eq!(share(DATA, DATA_BYTES + 1), Some(CudaError::INVALID_VALUE));
    assert_eq!(share(DATA, 0), Some(CudaError::INVALID_VALUE));
    assert_eq!(share(DATA, u64::MAX), Some(CudaError::INVALID_VALUE));
    session.memory_allocate(CONTEXT, FREE, 512).unwrap();
    let shared = exports(&session).share_memory(FREE, 512).unwrap();
    session.memory_free(FREE).unwrap();
    session.work.memory.settle();
    assert!(!shared.is_alive() && shared.parcel(0).is_err());
    session.physical_create(MemoryHandleId(1), 0, GRANULE).unwrap();
    session.physical_map(FREE, GRANULE, 0, MemoryHandleId(1)).unwrap();
    assert_eq!(share(FREE, 512), Some(CudaError::INVALID_VALUE), "it goes by its handle");
    assert_eq!(exports(&session).share_physical(MemoryHandleId(2)).err(), Some(CudaError::INVALID_HANDLE));
    session.physical_unmap(FREE, GRANULE).unwrap();
    session.physical_release(MemoryHandleId(1)).unwrap();
    session.work.memory.settle();
    session.check_nothing_left();
}

#[test]
fn an_event_for_others_is_opened_by_the_drivers_own_bytes() {
    let session = Session::new();
    let (plain, shared, opened) = (EventId(1), EventId(2), EventId(3));
    session.event_create(plain, CONTEXT, 2).unwrap();
    assert!(exports(&session).share_event(plain).is_err());
    session.event_create(shared, CONTEXT, 2 | 4).unwrap();
    let parcel = exports(&session).share_event(shared).unwrap().parcel(0).unwrap();
    exports(&session).import_event(opened, CONTEXT, parcel).unwrap();
    session.fake.hold();
    session.enqueue(STREAM, Op::Record { event: shared, flags: 0 }).unwrap();
    assert_eq!(session.event_query(opened), Err(CudaError::NOT_READY));
    session.fake.release();
    session.drain();
    session.event_query(opened).unwrap();
    for event in [plain, shared, opened] {
        session.event_destroy(event).unwrap();
    }
    session.check_nothing_left();
}
