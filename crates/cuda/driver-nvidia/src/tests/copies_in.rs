//! Copies from the client.

use super::{
    link::{byte, bytes, until},
    session::*,
};
use crate::pinned::SLOT_BYTES;
use cuda_abi::CudaError;
use cuda_driver::Driver;
use cuda_wire::*;
use std::sync::atomic::Ordering;

const PART: u64 = SLOT_BYTES as u64;

#[test]
fn inline_bytes_are_taken_at_the_call_and_land_in_stream_order() {
    let session = Session::new();
    session.fake.hold();
    let mut data = vec![7; 1000];
    let op = Op::CopyIn {
        target: Plane::line(DATA),
        shape: Shape::line(1000),
        data: HostData::Inline { bytes: Bytes(&data) },
    };
    session.enqueue(STREAM, op).unwrap();
    data.fill(9);
    session.enqueue(STREAM, fill(DATA + 10, 5, 1)).unwrap();
    assert_eq!(session.fake.peek(DATA, 2), [0, 0], "the stream is held");
    session.drain();
    assert_eq!(session.fake.peek(DATA + 8, 4), [7, 7, 1, 1]);
    session.check_nothing_left();
}

#[test]
fn inline_bytes_must_fill_the_shape() {
    let session = Session::new();
    let data = HostData::Inline { bytes: Bytes(&[1, 2, 3]) };
    let op = Op::CopyIn { target: Plane::line(DATA), shape: Shape::line(4), data };
    assert_eq!(session.enqueue(STREAM, op), Err(CudaError::INVALID_VALUE));
    assert_eq!(session.fake.backlog(), 0);
}

#[test]
fn pushed_and_pulled_copies_of_every_length_around_a_slot_arrive() {
    for count in [1, PART - 1, PART, PART + 1, 2 * PART + 5] {
        for pull in [false, true] {
            let session = Session::new();
            session.fake.poke(DATA + count, &[0xee]);
            let op = if pull { pulled } else { pushed };
            session.enqueue(STREAM, op(Plane::line(DATA), Shape::line(count), 3)).unwrap();
            session.drain();
            assert!(session.fake.peek(DATA, count as usize) == bytes(TransferId(3), count), "{count} {pull}");
            assert_eq!(session.fake.peek(DATA + count, 1), [0xee], "a byte too many");
            assert_eq!(*session.link.asked.lock().unwrap(), [(3, pull)]);
            session.check_nothing_left();
        }
    }
}

#[test]
fn a_pulled_copy_longer_than_its_ring_uses_its_slots_in_turn() {
    let session = Session::new();
    let count = 11 * PART + 77;
    session.enqueue(STREAM, pulled(Plane::line(DATA), Shape::line(count), 5)).unwrap();
    session.drain();
    assert!(session.fake.peek(DATA, count as usize) == bytes(TransferId(5), count));
    session.check_nothing_left();
}

/// The library's calls block when a stream holds about 1,000 pieces of work. A copy of 2 GiB has more of them, so its
/// bytes must begin to flow before its last order is given.
#[test]
fn a_pulled_copy_with_more_orders_than_a_stream_holds_arrives() {
    let session = Session::new();
    session.fake.limit_queues(6);
    let count = 14 * PART + 77;
    session.enqueue(STREAM, pulled(Plane::line(DATA), Shape::line(count), 5)).unwrap();
    session.drain();
    assert!(session.fake.peek(DATA, count as usize) == bytes(TransferId(5), count));
    session.check_nothing_left();
}

#[test]
fn the_client_is_asked_for_a_pulled_copy_when_the_stream_is_there() {
    let session = Session::new();
    session.fake.hold();
    session.enqueue(STREAM, fill(DATA, 64, 2)).unwrap();
    session.enqueue(STREAM, pulled(Plane::line(DATA), Shape::line(64), 1)).unwrap();
    assert!(session.link.asked.lock().unwrap().is_empty());
    let stream = session.fake.streams()[0];
    assert!(session.fake.step(stream).unwrap().starts_with("Fill"));
    assert!(session.link.asked.lock().unwrap().is_empty());
    assert!(session.fake.step(stream).unwrap().starts_with("WriteWord"));
    until("the client is asked", || !session.link.asked.lock().unwrap().is_empty());
    session.drain();
    assert_eq!(session.fake.peek(DATA, 64), bytes(TransferId(1), 64));
}

#[test]
fn the_stream_waits_for_bytes_that_have_not_come() {
    let session = Session::new();
    session.link.is_slow.store(true, Ordering::SeqCst);
    session.enqueue(STREAM, pushed(Plane::line(DATA), Shape::line(64), 1)).unwrap();
    session.enqueue(STREAM, fill(DATA + 1, 1, 0xff)).unwrap();
    session.fake.hold();
    let stream = session.fake.streams()[0];
    while session.fake.step(stream).is_some() {}
    assert_eq!(session.poll(cuda_driver::WaitTarget::Stream(STREAM)), Ok(false));
    assert_eq!(session.fake.peek(DATA, 2), [0, 0], "nothing has come");
    session.check_pinned();
    session.link.deliver();
    session.drain();
    assert_eq!(session.fake.peek(DATA, 2), [byte(TransferId(1), 0), 0xff]);
    session.check_nothing_left();
}

#[test]
fn rows_and_slices_land_with_their_pitches() {
    let session = Session::new();
    let shape = Shape { width: 10, height: 4, depth: 3 };
    let target = Plane { address: DATA, row_pitch: 16, slice_pitch: 100 };
    session.fake.poke(DATA, &[0xee; 300]);
    session.enqueue(STREAM, pushed(target, shape, 2)).unwrap();
    session.drain();
    let mut expected = vec![0xee; 300];
    for at in 0..120 {
        let (row, column) = (at / 10, at % 10);
        expected[row / 4 * 100 + row % 4 * 16 + column] = byte(TransferId(2), at as u64);
    }
    assert_eq!(session.fake.peek(DATA, 300), expected);
    session.check_nothing_left();
}

#[test]
fn a_copy_of_nothing_is_no_work() {
    let session = Session::new();
    session.enqueue(STREAM, pushed(Plane::line(DATA), Shape::line(0), 2)).unwrap();
    session.enqueue(STREAM, out(Plane::line(DATA), Shape::line(0), 2)).unwrap();
    assert!(session.link.asked.lock().unwrap().is_empty());
    assert_eq!(session.fake.backlog(), 0);
}

#[test]
fn a_lost_client_lets_the_stream_go_on_and_is_reported() {
    let session = Session::new();
    session.link.is_lost.store(true, Ordering::SeqCst);
    session.enqueue(STREAM, pulled(Plane::line(DATA), Shape::line(2 * PART), 2)).unwrap();
    session.drain();
    assert_eq!(session.take_deferred(), Some((CONTEXT, CudaError::DEVICE_UNAVAILABLE)));
    assert_eq!(session.take_deferred(), None);
    session.check_nothing_left();
}

/// Every call of a copy of three parts fails once: the caller hears it, no slot is handed out that the stream will still
/// read, and all slots and words come back.
#[test]
fn a_copy_that_fails_in_the_middle_keeps_its_slots_until_the_stream_has_passed() {
    for pull in [false, true] {
        for nth in 1.. {
            let session = Session::new();
            session.fake.hold();
            session.enqueue(STREAM, fill(DATA, 64, 2)).unwrap();
            session.fake.fail_nth(nth, CudaError::LAUNCH_FAILED);
            let op = if pull { pulled } else { pushed };
            let result = session.enqueue(STREAM, op(Plane::line(DATA), Shape::line(2 * PART + 1), 4));
            let failed = session.fake.take_failed();
            assert_eq!(result, if failed.is_some() { Err(CudaError::LAUNCH_FAILED) } else { Ok(()) });
            session.check_pinned();
            session.check_nothing_left();
            if failed.is_none() {
                assert_eq!(nth, 11, "one word, three parts of three calls, and nothing failed");
                break;
            }
        }
    }
}
