//! Memory and events that two sessions share.

mod common;

use common::*;
use cuda_abi::CudaError;
use cuda_driver::{Driver, Exported, Exports};
use cuda_wire::*;
use std::sync::Arc;

const STEP: u64 = 2 << 20;

fn exports(session: &Session) -> &dyn Exports {
    session.driver.exports().unwrap()
}

/// Maps all that `shared` is of in another session, at `at`, and says where it begins.
fn import(into: &Session, shared: &Arc<dyn Exported>, at: u64) -> u64 {
    let mut next = at;
    for piece in 0..shared.pieces() {
        let handle = MemoryHandleId(900 + piece);
        let parcel = shared.parcel(piece).unwrap();
        let Imported { offset, bytes, device } = exports(into).import_memory(handle, parcel).unwrap();
        into.driver.physical_map(next, bytes, offset, handle).unwrap();
        into.driver.physical_set_access(next, bytes, device, 3).unwrap();
        into.driver.physical_release(handle).unwrap();
        next += bytes;
    }
    at + shared.offset()
}

#[test]
fn plain_memory_is_the_same_memory_for_both_and_keeps_its_bytes() {
    let (a, b) = (Session::new(), Session::new());
    let data: Vec<u8> = (0..3 * STEP as u32).map(|value| (value / 7) as u8).collect();
    let small = a.alloc_with(&[7; 1000]);
    let large = a.alloc_with(&data);
    let shared = exports(&a).share_memory(large, data.len() as u64).unwrap();
    assert_eq!(a.read(LEGACY, small, 1000).unwrap(), [7; 1000], "what lies beside it stays");
    let there = import(&b, &shared, b.base + 64 * STEP);
    assert_eq!(b.read(LEGACY, there, data.len() as u64).unwrap(), data);
    b.driver.enqueue(LEGACY, fill32(there + 8, 2, 0x0a0b_0c0d)).unwrap();
    b.driver.stream_synchronize(LEGACY).unwrap();
    assert_eq!(a.read(LEGACY, large + 8, 4).unwrap(), 0x0a0b_0c0d_u32.to_le_bytes());
    a.driver.enqueue(LEGACY, fill32(large, 1, 5)).unwrap();
    a.driver.stream_synchronize(LEGACY).unwrap();
    assert_eq!(b.read(LEGACY, there, 4).unwrap(), 5u32.to_le_bytes());
}

#[test]
fn neighbours_in_one_step_are_shared_one_after_the_other() {
    let (a, b) = (Session::new(), Session::new());
    let (first, second) = (a.alloc_with(&[1; 700]), a.alloc_with(&[2; 700]));
    let one = exports(&a).share_memory(first, 700).unwrap();
    let two = exports(&a).share_memory(second, 700).unwrap();
    let there = import(&b, &one, b.base + 64 * STEP);
    assert_eq!(b.read(LEGACY, there, 700).unwrap(), [1; 700]);
    let there = import(&b, &two, b.base + 96 * STEP);
    assert_eq!(b.read(LEGACY, there, 700).unwrap(), [2; 700]);
}

#[test]
fn memory_lives_as_long_as_one_session_has_it_and_cannot_be_opened_after_its_owner_freed_it() {
    let (a, b) = (Session::new(), Session::new());
    let mine = a.alloc_with(&vec![9; 4 * STEP as usize]);
    let shared = exports(&a).share_memory(mine, 4 * STEP).unwrap();
    let there = import(&b, &shared, b.base + 64 * STEP);
    a.driver.memory_free(mine).unwrap();
    // A free is over when the work before it is.
    let _ = a.driver.memory_info(0).unwrap();
    assert!(!shared.is_alive());
    assert!(shared.parcel(0).is_err());
    assert_eq!(b.read(LEGACY, there + 3 * STEP, 100).unwrap(), [9; 100]);
    drop(a);
    assert_eq!(b.read(LEGACY, there, 100).unwrap(), [9; 100]);
}

#[test]
fn what_is_not_allocated_is_not_shared() {
    let a = Session::new();
    let address = a.alloc(1000);
    let share = |address, bytes| exports(&a).share_memory(address, bytes).err();
    assert_eq!(share(address + 32 * STEP, 512), Some(CudaError::INVALID_VALUE));
    assert_eq!(share(address, 64 * STEP), Some(CudaError::INVALID_VALUE));
    assert_eq!(share(address, 0), Some(CudaError::INVALID_VALUE));
    assert_eq!(share(8, 8), Some(CudaError::INVALID_VALUE));
    assert_eq!(exports(&a).share_physical(MemoryHandleId(1)).err(), Some(CudaError::INVALID_HANDLE));
    assert_eq!(exports(&a).share_event(EventId(1)).err(), Some(CudaError::INVALID_HANDLE));
    a.driver.event_create(EventId(2), CONTEXT, 2).unwrap();
    assert_eq!(exports(&a).share_event(EventId(2)).err(), Some(CudaError::INVALID_HANDLE), "not made for it");
}

#[test]
fn physical_memory_is_charged_to_the_session_that_made_it() {
    let (a, b) = (Session::new(), Session::new());
    a.driver.physical_create(MemoryHandleId(1), 0, 2 * STEP).unwrap();
    let shared = exports(&a).share_physical(MemoryHandleId(1)).unwrap();
    let free = b.driver.memory_info(0).unwrap();
    let there = import(&b, &shared, b.base + 64 * STEP);
    assert_eq!(b.driver.memory_info(0).unwrap(), free);
    b.driver.enqueue(LEGACY, fill32(there, 1, 77)).unwrap();
    b.driver.stream_synchronize(LEGACY).unwrap();
    let mine = a.base + 64 * STEP;
    a.driver.physical_map(mine, 2 * STEP, 0, MemoryHandleId(1)).unwrap();
    a.driver.physical_set_access(mine, 2 * STEP, 0, 3).unwrap();
    assert_eq!(a.read(LEGACY, mine, 4).unwrap(), 77u32.to_le_bytes());
}

#[test]
fn a_stream_of_one_session_waits_for_the_record_of_another() {
    let (a, b) = (Session::new(), Session::new());
    let (event, other) = (EventId(5), EventId(6));
    a.driver.event_create(event, CONTEXT, 2 | 4).unwrap();
    let shared = exports(&a).share_event(event).unwrap();
    exports(&b).import_event(other, CONTEXT, shared.parcel(0).unwrap()).unwrap();
    b.driver.event_query(other).unwrap();
    b.driver.enqueue(LEGACY, Op::Wait { event: other, flags: 0 }).unwrap();
    b.driver.stream_synchronize(LEGACY).unwrap();

    a.link.hold(1);
    a.driver.enqueue(LEGACY, Op::HostCall { token: 1 }).unwrap();
    a.driver.enqueue(LEGACY, Op::Record { event, flags: 0 }).unwrap();
    assert_eq!(b.driver.event_query(other), Err(CudaError::NOT_READY));
    b.driver.enqueue(LEGACY, Op::Wait { event: other, flags: 0 }).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(30));
    assert_eq!(b.driver.stream_query(LEGACY), Err(CudaError::NOT_READY));
    a.link.let_go(1);
    b.driver.stream_synchronize(LEGACY).unwrap();
    b.driver.event_synchronize(other).unwrap();

    // And the other way.
    b.driver.enqueue(LEGACY, Op::Record { event: other, flags: 0 }).unwrap();
    a.driver.event_synchronize(event).unwrap();
    a.driver.event_query(event).unwrap();
}

#[test]
fn a_session_that_ends_holds_nobody_up() {
    let (a, b) = (Session::new(), Session::new());
    let (event, other) = (EventId(5), EventId(6));
    a.driver.event_create(event, CONTEXT, 2 | 4).unwrap();
    let shared = exports(&a).share_event(event).unwrap();
    exports(&b).import_event(other, CONTEXT, shared.parcel(0).unwrap()).unwrap();
    a.link.hold(1);
    a.driver.enqueue(LEGACY, Op::HostCall { token: 1 }).unwrap();
    a.driver.enqueue(LEGACY, Op::Record { event, flags: 0 }).unwrap();
    b.driver.enqueue(LEGACY, Op::Wait { event: other, flags: 0 }).unwrap();
    a.driver.abort();
    b.driver.stream_synchronize(LEGACY).unwrap();
    a.link.lose();
    a.link.let_go(1);
}
