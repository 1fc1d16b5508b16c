//! Copies to the client.

use super::{
    link::{bytes, until},
    session::*,
};
use crate::pinned::SLOT_BYTES;
use cuda_abi::CudaError;
use cuda_driver::{Driver, WaitTarget};
use cuda_wire::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PART: u64 = SLOT_BYTES as u64;
/// More than goes with a reply.
const LARGE: u64 = 100 << 10;

#[test]
fn copies_of_every_length_around_a_slot_leave_whole() {
    for count in [LARGE, PART - 1, PART, PART + 1, 10 * PART + 3] {
        let session = Session::new();
        let data = bytes(TransferId(9), count);
        session.fake.poke(DATA, &data);
        session.enqueue(STREAM, out(Plane::line(DATA), Shape::line(count), 9)).unwrap();
        session.drain();
        assert!(session.link.sent(TransferId(9)) == data, "{count}");
        session.check_nothing_left();
    }
}

/// As for copies to the device: the first bytes must leave before the last order is given. The network is slow here, so
/// that the driver looks after its streams meanwhile: no thread that sends parts may wait for a call of the library, which
/// may be waiting for the room that only the next part gives.
#[test]
fn a_copy_with_more_orders_than_a_stream_holds_leaves_whole() {
    const LONG: u64 = DATA + DATA_BYTES;
    let session = Session::new();
    // Several times the slots that a copy uses in turn, each of which needs a part to leave.
    let count = 40 * PART + 3;
    session.memory_allocate(CONTEXT, LONG, 41 * PART).unwrap();
    let data = bytes(TransferId(9), count);
    session.fake.poke(LONG, &data);
    session.fake.limit_queues(6);
    session.link.is_slow.store(true, Ordering::SeqCst);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
                session.link.deliver();
            }
        });
        let result = session.enqueue(STREAM, out(Plane::line(LONG), Shape::line(count), 9));
        until("the last part has left", || session.poll(WaitTarget::Stream(STREAM)) == Ok(true));
        is_over.store(true, Ordering::SeqCst);
        result.unwrap();
    });
    assert!(session.link.sent(TransferId(9)) == data);
    session.memory_free(LONG).unwrap();
    session.check_nothing_left();
}

#[test]
fn parts_that_leave_in_another_order_free_the_right_slots() {
    let session = Session::new();
    let count = 10 * PART;
    let data = bytes(TransferId(9), count);
    session.fake.poke(DATA, &data);
    session.link.is_slow.store(true, Ordering::SeqCst);
    session.enqueue(STREAM, out(Plane::line(DATA), Shape::line(count), 9)).unwrap();
    until("the ring is full", || session.link.waiting() == 8);
    session.check_pinned();
    session.link.deliver_backwards();
    until("the last parts are there", || session.link.waiting() == 2);
    session.link.deliver_backwards();
    session.drain();
    assert!(session.link.sent(TransferId(9)) == data);
    session.check_nothing_left();
}

#[test]
fn the_stream_is_over_only_when_the_last_byte_has_left() {
    let session = Session::new();
    session.link.is_slow.store(true, Ordering::SeqCst);
    session.enqueue(STREAM, out(Plane::line(DATA), Shape::line(LARGE), 9)).unwrap();
    until("the part is there", || session.link.waiting() == 1);
    assert_eq!(session.poll(WaitTarget::Stream(STREAM)), Ok(false));
    session.link.deliver();
    session.drain();
    assert_eq!(session.poll(WaitTarget::Stream(STREAM)), Ok(true));
    session.check_nothing_left();
}

#[test]
fn rows_leave_packed() {
    let session = Session::new();
    let (width, height) = (300u64, 400u64);
    let source = Plane { address: DATA, row_pitch: 512, slice_pitch: 0 };
    let packed = bytes(TransferId(1), width * height);
    for row in 0..height {
        let line = &packed[(row * width) as usize..((row + 1) * width) as usize];
        session.fake.poke(DATA + row * 512, line);
    }
    session.enqueue(STREAM, out(source, Shape { width, height, depth: 1 }, 4)).unwrap();
    session.drain();
    assert!(session.link.sent(TransferId(4)) == packed);
}

#[test]
fn a_small_copy_goes_with_the_next_reply() {
    let session = Session::new();
    session.link.takes_reads.store(true, Ordering::SeqCst);
    session.fake.poke(DATA, &[5; 100]);
    session.fake.hold();
    session.enqueue(STREAM, out(Plane::line(DATA), Shape::line(100), 4)).unwrap();
    let (transfer, mut read) = session.link.reads.lock().unwrap().pop().unwrap();
    let mut got = Vec::new();
    assert_eq!((transfer, read.poll(&mut got)), (TransferId(4), Ok(false)));
    session.fake.release();
    until("the stream is there", || session.fake.backlog() == 0);
    assert_eq!(read.poll(&mut got), Ok(true));
    assert_eq!(got, [5; 100]);
    drop(read);
    session.check_nothing_left();
}

#[test]
fn a_small_copy_that_the_link_does_not_take_leaves_by_itself() {
    let session = Session::new();
    session.fake.poke(DATA, &[5; 100]);
    session.enqueue(STREAM, out(Plane::line(DATA), Shape::line(100), 4)).unwrap();
    session.drain();
    assert_eq!(session.link.sent(TransferId(4)), [5; 100]);
    session.check_nothing_left();
}

#[test]
fn a_lost_client_does_not_hold_the_stream() {
    let session = Session::new();
    session.link.is_lost.store(true, Ordering::SeqCst);
    session.enqueue(STREAM, out(Plane::line(DATA), Shape::line(10 * PART), 9)).unwrap();
    session.drain();
    session.check_nothing_left();
}

#[test]
fn a_copy_that_fails_in_the_middle_keeps_its_slots_until_the_stream_has_passed() {
    for nth in 1.. {
        let session = Session::new();
        session.fake.hold();
        session.enqueue(STREAM, fill(DATA, 64, 2)).unwrap();
        session.fake.fail_nth(nth, CudaError::LAUNCH_FAILED);
        let result = session.enqueue(STREAM, out(Plane::line(DATA), Shape::line(2 * PART + 1), 4));
        let failed = session.fake.take_failed();
        assert_eq!(result, if failed.is_some() { Err(CudaError::LAUNCH_FAILED) } else { Ok(()) });
        session.check_pinned();
        session.check_nothing_left();
        if failed.is_none() {
            assert_eq!(nth, 9, "three parts of two calls, two at the end, and nothing failed");
            break;
        }
    }
}

#[test]
fn a_dead_context_gives_the_slots_back() {
    let session = Session::new();
    session.fake.hold();
    session.enqueue(STREAM, out(Plane::line(DATA), Shape::line(3 * PART), 9)).unwrap();
    session.enqueue(STREAM, pulled(Plane::line(DATA), Shape::line(3 * PART), 8)).unwrap();
    session.fake.kill(session.raw(CONTEXT), CudaError::ILLEGAL_ADDRESS);
    session.drain();
    assert_eq!(session.enqueue(STREAM, fill(DATA, 1, 1)), Err(CudaError::ILLEGAL_ADDRESS));
}
