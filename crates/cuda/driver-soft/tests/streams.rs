//! Order: streams, the legacy stream, events.

mod common;

use common::*;
use cuda_abi::CudaError;
use cuda_driver::{Driver, WaitTarget};
use cuda_wire::*;
use std::time::{Duration, Instant};

#[test]
fn streams_run_beside_each_other() {
    let session = Session::new();
    let flags = session.alloc_with(&[0; 64]);
    session.driver.stream_synchronize(LEGACY).unwrap();
    let (first, second) = (session.stream(1), session.stream(1));
    // Each waits for the other twice; one after the other they would never end.
    session.wait_value(first, flags, 1);
    session.write_value(first, flags + 4, 2);
    session.wait_value(first, flags + 8, 3);
    session.write_value(second, flags, 1);
    session.wait_value(second, flags + 4, 2);
    session.write_value(second, flags + 8, 3);
    session.driver.stream_synchronize(first).unwrap();
    session.driver.stream_synchronize(second).unwrap();
}

#[test]
fn the_legacy_stream_waits_for_blocking_streams_and_they_for_it() {
    let session = Session::new();
    let memory = session.alloc_with(&[0; 64]);
    session.driver.stream_synchronize(LEGACY).unwrap();
    let (blocking, other, free) = (session.stream(0), session.stream(0), session.stream(1));
    session.wait_value(blocking, memory, 1);
    session.driver.enqueue(blocking, fill32(memory + 4, 1, 5)).unwrap();
    // The legacy stream copies what the blocking one writes; another blocking one copies that.
    session.driver.enqueue(LEGACY, copy(memory + 8, memory + 4, 4)).unwrap();
    session.driver.enqueue(other, copy(memory + 12, memory + 8, 4)).unwrap();
    assert_eq!(session.driver.stream_query(other), Err(CudaError::NOT_READY));
    assert_eq!(session.driver.stream_query(LEGACY), Err(CudaError::NOT_READY));
    // A non-blocking stream passes all of them.
    session.driver.enqueue(free, copy(memory + 16, memory + 12, 4)).unwrap();
    session.driver.stream_synchronize(free).unwrap();
    session.write_value(free, memory, 1);
    session.driver.context_synchronize(CONTEXT).unwrap();
    assert_eq!(session.words(free, memory, 5), [1, 5, 5, 5, 0]);
}

#[test]
fn an_event_stands_for_the_work_before_it() {
    let session = Session::new();
    let memory = session.alloc_with(&[0; 64]);
    session.driver.stream_synchronize(LEGACY).unwrap();
    let (first, second) = (session.stream(1), session.stream(1));
    let event = session.event();
    assert_eq!(session.driver.event_query(event), Ok(()), "never recorded means done");
    session.driver.enqueue(second, Op::Wait { event, flags: 0 }).unwrap();
    session.driver.stream_synchronize(second).unwrap();

    session.wait_value(first, memory, 1);
    session.driver.enqueue(first, fill32(memory + 4, 1, 9)).unwrap();
    session.driver.enqueue(first, Op::Record { event, flags: 0 }).unwrap();
    session.wait_value(first, memory, 2);
    session.driver.enqueue(second, Op::Wait { event, flags: 0 }).unwrap();
    session.driver.enqueue(second, copy(memory + 8, memory + 4, 4)).unwrap();
    assert_eq!(session.driver.event_query(event), Err(CudaError::NOT_READY));
    assert_eq!(session.driver.poll(WaitTarget::Stream(second)), Ok(false));
    let third = session.stream(1);
    session.write_value(third, memory, 1);
    session.driver.event_synchronize(event).unwrap();
    assert_eq!(session.read_u32(second, memory + 8), 9);
    assert_eq!(session.driver.stream_query(first), Err(CudaError::NOT_READY), "work after the event goes on");
    // A wait means the record at the time of the call, not a later one.
    session.driver.enqueue(first, Op::Record { event, flags: 0 }).unwrap();
    assert_eq!(session.driver.event_query(event), Err(CudaError::NOT_READY));
    session.write_value(third, memory, 2);
    session.driver.event_synchronize(event).unwrap();
}

#[test]
fn elapsed_time_is_real() {
    let session = Session::new();
    let memory = session.alloc_with(&[0; 64]);
    session.driver.stream_synchronize(LEGACY).unwrap();
    let stream = session.stream(1);
    let (start, end, never) = (session.event(), session.event(), session.event());
    let untimed = EventId(9000);
    session.driver.event_create(untimed, CONTEXT, 2).unwrap();
    for event in [start, untimed] {
        session.driver.enqueue(stream, Op::Record { event, flags: 0 }).unwrap();
    }
    session.wait_value(stream, memory, 1);
    session.driver.enqueue(stream, Op::Record { event: end, flags: 0 }).unwrap();
    session.driver.event_synchronize(start).unwrap();
    assert_eq!(session.driver.event_elapsed(start, end), Err(CudaError::NOT_READY));
    assert_eq!(session.driver.event_elapsed(start, never), Err(CudaError::INVALID_HANDLE));
    assert_eq!(session.driver.event_elapsed(untimed, end), Err(CudaError::INVALID_HANDLE));
    std::thread::sleep(Duration::from_millis(30));
    let free = session.stream(1);
    session.write_value(free, memory, 1);
    session.driver.stream_synchronize(stream).unwrap();
    let elapsed = session.driver.event_elapsed(start, end).unwrap();
    assert!((29.0..2000.0).contains(&elapsed), "{elapsed} ms");
    assert!(session.driver.event_elapsed(end, start).unwrap() < 0.0);
}

#[test]
fn a_destroyed_stream_finishes_its_work() {
    let session = Session::new();
    let memory = session.alloc_with(&[0; 64]);
    session.driver.stream_synchronize(LEGACY).unwrap();
    let (stream, free) = (session.stream(0), session.stream(1));
    session.wait_value(stream, memory, 1);
    session.driver.enqueue(stream, fill32(memory + 4, 1, 3)).unwrap();
    session.driver.stream_destroy(stream).unwrap();
    assert_eq!(session.driver.stream_query(stream), Err(CudaError::INVALID_HANDLE));
    // It still counts as earlier work of a blocking stream.
    session.driver.enqueue(LEGACY, copy(memory + 8, memory + 4, 4)).unwrap();
    session.write_value(free, memory, 1);
    assert_eq!(session.read_u32(LEGACY, memory + 8), 3);
}

#[test]
fn host_functions_run_in_order_and_hold_only_their_stream() {
    let session = Session::new();
    let memory = session.alloc_with(&[0; 64]);
    session.driver.stream_synchronize(LEGACY).unwrap();
    let (stream, other) = (session.stream(1), session.stream(1));
    session.link.hold(1);
    session.driver.enqueue(stream, Op::HostCall { token: 1 }).unwrap();
    session.driver.enqueue(stream, Op::HostCall { token: 2 }).unwrap();
    session.driver.enqueue(stream, fill32(memory, 1, 1)).unwrap();
    session.driver.enqueue(other, Op::HostCall { token: 3 }).unwrap();
    session.driver.stream_synchronize(other).unwrap();
    assert_eq!(session.read_u32(other, memory), 0);
    session.link.let_go(1);
    session.driver.stream_synchronize(stream).unwrap();
    assert_eq!(session.link.called(), [3, 1, 2]);
}

#[test]
fn waits_compare_as_cuda_does() {
    let session = Session::new();
    let memory = session.alloc_with(&[0; 64]);
    let stream = session.stream(1);
    session.driver.stream_synchronize(LEGACY).unwrap();
    // (word, flags, value) that must hold at once, or the stream would never end.
    for (word, flags, value) in [
        (5u32, 0, 5u32),
        (5, 0, 4),
        (3, 0, u32::MAX), // cyclic: 3 is after -1
        (0b1100, 2, 0b0100),
        (0xffff_fffe, 3, 0),
        (7, 1 | 1 << 30, 7),
    ] {
        session.write_value(stream, memory, word);
        let op = MemoryOp { kind: 1, flags, address: memory, value: value.into() };
        session.driver.enqueue(stream, Op::MemoryOps { ops: vec![op] }).unwrap();
        session.driver.stream_synchronize(stream).unwrap();
    }
    let wide = |kind, flags, value| MemoryOp { kind, flags, address: memory + 8, value };
    let ops = vec![wide(5, 0, 1 << 40), wide(4, 0, (1 << 40) - 1), wide(6, 0, 0), wide(4, 1, 1 << 40)];
    session.driver.enqueue(stream, Op::MemoryOps { ops }).unwrap();
    session.driver.stream_synchronize(stream).unwrap();
    let bad = |op| session.driver.enqueue(stream, Op::MemoryOps { ops: vec![op] });
    assert_eq!(
        bad(MemoryOp { kind: 1, flags: 1, address: memory + 2, value: 0 }),
        Err(CudaError::INVALID_VALUE)
    );
    assert_eq!(bad(MemoryOp { kind: 1, flags: 1, address: 64, value: 0 }), Err(CudaError::INVALID_VALUE));
    assert_eq!(
        bad(MemoryOp { kind: 99, flags: 1, address: memory, value: 0 }),
        Err(CudaError::NOT_SUPPORTED)
    );
}

#[test]
fn waiting_blocks_no_other_thread() {
    let session = Session::new();
    let memory = session.alloc_with(&[0; 64]);
    session.driver.stream_synchronize(LEGACY).unwrap();
    let (stream, free) = (session.stream(1), session.stream(1));
    session.wait_value(stream, memory, 1);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| session.driver.stream_synchronize(stream));
        std::thread::sleep(Duration::from_millis(10));
        assert!(!waiter.is_finished());
        session.write_value(free, memory, 1);
        waiter.join().unwrap().unwrap();
    });
}

#[test]
fn a_long_queue_holds_no_more_than_its_bound_and_loses_nothing() {
    let session = Session::new();
    let memory = session.alloc_with(&[0; 64]);
    let target = session.alloc(1 << 20);
    session.driver.stream_synchronize(LEGACY).unwrap();
    let (stream, free) = (session.stream(1), session.stream(1));
    session.wait_value(stream, memory, 1);
    let data = vec![1; 1 << 20];
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            for _ in 0..100 {
                session.write(stream, target, &data).unwrap();
            }
        });
        let until = Instant::now() + Duration::from_millis(100);
        while Instant::now() < until && !sender.is_finished() {
            std::thread::yield_now();
        }
        assert!(!sender.is_finished(), "100 MiB do not fit");
        session.write_value(free, memory, 1);
        sender.join().unwrap();
    });
    assert_eq!(session.read(stream, target, 1 << 20).unwrap(), data);
}

/// Begins a read of one word.
fn begin(session: &Session, stream: StreamId, address: u64) -> Box<dyn cuda_driver::PendingRead> {
    session.driver.read_back_begin(stream, Plane::line(address), Shape::line(4)).unwrap()
}

#[test]
fn a_read_that_was_begun_gives_what_its_stream_held_at_that_point() {
    let session = Session::new();
    let memory = session.alloc_with(&[0; 64]);
    session.driver.stream_synchronize(LEGACY).unwrap();
    let (stream, other) = (session.stream(1), session.stream(1));
    // Nothing before it: there at once.
    let mut out = vec![7];
    assert_eq!(begin(&session, stream, memory).poll(&mut out), Ok(true));
    assert_eq!(out, [7, 0, 0, 0, 0], "the bytes are appended");

    session.wait_value(stream, memory, 1);
    session.driver.enqueue(stream, fill32(memory + 4, 1, 5)).unwrap();
    let mut polled = begin(&session, stream, memory + 4);
    let waited = begin(&session, stream, memory + 4);
    session.driver.enqueue(stream, fill32(memory + 4, 1, 6)).unwrap();
    // Begun and dropped without a wait: the stream goes on.
    drop(begin(&session, stream, memory + 4));
    out.clear();
    assert_eq!((polled.poll(&mut out), out.len()), (Ok(false), 0));
    session.write_value(other, memory, 1);
    waited.wait(&mut out).unwrap();
    session.driver.stream_synchronize(stream).unwrap();
    assert_eq!(polled.poll(&mut out), Ok(true));
    assert_eq!(out, [5, 0, 0, 0, 5, 0, 0, 0]);
    assert_eq!(session.read_u32(stream, memory + 4), 6);
}

#[test]
fn a_read_that_was_begun_keeps_the_order_of_the_legacy_stream() {
    let session = Session::new();
    let memory = session.alloc_with(&[0; 64]);
    session.driver.stream_synchronize(LEGACY).unwrap();
    let (blocking, free) = (session.stream(0), session.stream(1));
    session.wait_value(blocking, memory, 1);
    session.driver.enqueue(blocking, fill32(memory + 4, 1, 5)).unwrap();
    // The legacy stream itself has nothing to do, and yet it must wait.
    let mut read = begin(&session, LEGACY, memory + 4);
    assert_eq!(read.poll(&mut Vec::new()), Ok(false));
    session.write_value(free, memory, 1);
    let mut out = Vec::new();
    read.wait(&mut out).unwrap();
    assert_eq!(out, [5, 0, 0, 0]);
}

#[test]
fn a_read_that_was_begun_ends_with_the_session() {
    let session = Session::new();
    let memory = session.alloc_with(&[0; 64]);
    session.driver.stream_synchronize(LEGACY).unwrap();
    session.link.hold(1);
    session.driver.enqueue(LEGACY, Op::HostCall { token: 1 }).unwrap();
    let (mut polled, waited) = (begin(&session, LEGACY, memory), begin(&session, LEGACY, memory));
    assert_eq!(polled.poll(&mut Vec::new()), Ok(false));
    // The client goes away: the session ends, and with it every wait.
    session.link.lose();
    assert_eq!(waited.wait(&mut Vec::new()), Err(CudaError::DEVICE_UNAVAILABLE));
    let refused = session.driver.read_back_begin(LEGACY, Plane::line(memory), Shape::line(4));
    assert_eq!(refused.err(), Some(CudaError::DEVICE_UNAVAILABLE));
}
