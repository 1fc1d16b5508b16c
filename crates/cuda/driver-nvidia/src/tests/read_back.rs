//! Small reads.

use super::{link::until, session::*};
use crate::pinned::SLOT_BYTES;
use cuda_abi::CudaError;
use cuda_driver::Driver;
use cuda_wire::*;

#[test]
fn a_read_has_the_bytes_of_its_point_of_the_stream() {
    let session = Session::new();
    session.fake.hold();
    session.enqueue(STREAM, fill(DATA, 64, 1)).unwrap();
    let mut read = session.read_back_begin(STREAM, Plane::line(DATA), Shape::line(64)).unwrap();
    session.enqueue(STREAM, fill(DATA, 64, 2)).unwrap();
    let mut got = vec![9];
    assert_eq!(read.poll(&mut got), Ok(false));
    assert_eq!(got, [9], "not yet");
    session.fake.release();
    until("the stream is over", || session.fake.backlog() == 0);
    assert_eq!(read.poll(&mut got), Ok(true));
    assert_eq!(got[1..], [1; 64]);
    drop(read);
    session.check_nothing_left();
}

#[test]
fn read_back_waits_and_returns_packed_rows() {
    let session = Session::new();
    for row in 0..3 {
        session.fake.poke(DATA + row * 16, &[row as u8 + 1; 10]);
    }
    let source = Plane { address: DATA, row_pitch: 16, slice_pitch: 0 };
    let mut got = Vec::new();
    let shape = Shape { width: 10, height: 3, depth: 1 };
    session.read_back_begin(STREAM, source, shape).unwrap().wait(&mut got).unwrap();
    assert_eq!(got, [[1; 10], [2; 10], [3; 10]].concat());
    session.check_nothing_left();
}

#[test]
fn a_read_larger_than_a_slot_is_refused() {
    let session = Session::new();
    let shape = Shape::line(SLOT_BYTES as u64 + 1);
    let refused = session.read_back_begin(STREAM, Plane::line(DATA), shape).map(drop);
    assert_eq!(refused, Err(CudaError::INVALID_VALUE));
    let (shape, mut whole) = (Shape::line(SLOT_BYTES as u64), Vec::new());
    session.read_back_begin(STREAM, Plane::line(DATA), shape).unwrap().wait(&mut whole).unwrap();
    assert_eq!(whole.len(), SLOT_BYTES);
}

#[test]
fn a_read_that_nobody_awaits_keeps_its_slot_until_the_stream_was_there() {
    let session = Session::new();
    session.fake.hold();
    drop(session.read_back_begin(STREAM, Plane::line(DATA), Shape::line(64)).unwrap());
    session.check_pinned();
    session.check_nothing_left();
}

/// The copy is in the stream when the write of its word fails: the slot is not free before the stream has passed.
#[test]
fn a_read_that_fails_in_the_middle_keeps_its_slot_until_the_stream_has_passed() {
    let rows = Shape { width: 10, height: 2, depth: 3 };
    for (plane, shape, calls) in [
        (Plane::line(DATA), Shape::line(64), 2),
        (Plane { address: DATA, row_pitch: 16, slice_pitch: 64 }, rows, 4),
    ] {
        for nth in 1..=calls {
            let session = Session::new();
            session.fake.hold();
            session.enqueue(STREAM, fill(DATA, 64, 1)).unwrap();
            session.fake.fail_nth(nth, CudaError::LAUNCH_FAILED);
            let begun = session.read_back_begin(STREAM, plane, shape).map(drop);
            assert_eq!(begun, Err(CudaError::LAUNCH_FAILED));
            session.check_pinned();
            let other = session.read_back_begin(STREAM, Plane::line(DATA + 64), Shape::line(8)).unwrap();
            session.check_pinned();
            drop(other);
            session.check_nothing_left();
        }
    }
}

#[test]
fn a_wait_for_a_read_ends_with_the_error_that_killed_the_context() {
    let session = Session::new();
    session.fake.hold();
    let read = session.read_back_begin(STREAM, Plane::line(DATA), Shape::line(64)).unwrap();
    session.fake.kill(session.raw(CONTEXT), CudaError::ILLEGAL_ADDRESS);
    assert_eq!(read.wait(&mut Vec::new()), Err(CudaError::ILLEGAL_ADDRESS));
    session.drain();
}

#[test]
fn an_abort_ends_the_wait_for_a_read() {
    let session = Session::new();
    session.fake.hold();
    let read = session.read_back_begin(STREAM, Plane::line(DATA), Shape::line(64)).unwrap();
    session.abort();
    assert_eq!(read.wait(&mut Vec::new()), Err(CudaError::DEVICE_UNAVAILABLE));
}
