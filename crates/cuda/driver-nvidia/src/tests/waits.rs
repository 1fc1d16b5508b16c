//! Polls and waits.

use super::session::*;
use cuda_abi::CudaError;
use cuda_driver::{Driver, WaitTarget};
use cuda_wire::*;

const EVENT: EventId = EventId(1);

#[test]
fn a_poll_never_blocks() {
    let session = Session::new();
    session.event_create(EVENT, CONTEXT, 0).unwrap();
    session.fake.hold();
    session.enqueue(STREAM, fill(DATA, 64, 1)).unwrap();
    session.enqueue(STREAM, Op::Record { event: EVENT, flags: 0 }).unwrap();
    let targets = [WaitTarget::Stream(STREAM), WaitTarget::Event(EVENT), WaitTarget::Context(CONTEXT)];
    for target in targets {
        assert_eq!(session.fake.without_blocking(|| session.poll(target)), Ok(false), "{target:?}");
    }
    session.drain();
    for target in targets {
        assert_eq!(session.fake.without_blocking(|| session.poll(target)), Ok(true), "{target:?}");
    }
    assert_eq!(session.fake.blocked(), [""; 0]);
}

/// A destroyed stream still works; the program that waits for its context waits for that, too.
#[test]
fn a_poll_of_a_context_sees_work_of_destroyed_streams_without_blocking() {
    let session = Session::new();
    let other = StreamId(2);
    session.stream_create(other, CONTEXT, 1, 0).unwrap();
    session.fake.hold();
    session.enqueue(other, fill(DATA, 64, 1)).unwrap();
    session.stream_destroy(other).unwrap();
    assert_eq!(session.enqueue(other, fill(DATA, 64, 1)), Err(CudaError::INVALID_HANDLE));
    let poll = || session.fake.without_blocking(|| session.poll(WaitTarget::Context(CONTEXT)));
    assert_eq!(poll(), Ok(false));
    session.drain();
    assert_eq!(poll(), Ok(true));
    assert_eq!(session.fake.peek(DATA, 1), [1]);
    session.check_nothing_left();
}

#[test]
fn a_poll_of_a_context_makes_no_call_that_may_block() {
    let session = Session::new();
    session.enqueue(STREAM, fill(DATA, 64, 1)).unwrap();
    session.drain();
    assert_eq!(session.poll(WaitTarget::Context(CONTEXT)), Ok(true));
    assert_eq!(session.fake.count("cuCtxSynchronize"), 0);
    assert_eq!(session.fake.count("cuStreamSynchronize"), 0);
}

/// The driver hands over what kernels printed at documented points; cuCtxSynchronize is one, a query is none.
#[test]
fn a_poll_of_a_context_that_prints_has_the_text_flushed() {
    let session = Session::new();
    let image = format!("{PTX}// vprintf\n");
    let image = ImageSource::Inline { bytes: Bytes(image.as_bytes()) };
    session.module_load(ModuleId(1), CONTEXT, [0; 32], image, Vec::new()).unwrap();
    session.fake.hold();
    session.enqueue(STREAM, launch(ModuleId(1), NOTHING, &[])).unwrap();
    let poll = || session.fake.without_blocking(|| session.poll(WaitTarget::Context(CONTEXT)));
    assert_eq!(poll(), Ok(false));
    assert_eq!(session.fake.count("cuCtxSynchronize"), 0, "there is work to wait for");
    session.drain();
    assert_eq!(poll(), Ok(true));
    assert_eq!(session.fake.count("cuCtxSynchronize"), 1);
    session.module_unload(ModuleId(1)).unwrap();
}

#[test]
fn a_poll_is_of_its_own_context_alone() {
    let session = Session::new();
    session.stream_create(StreamId(2), SECOND, 1, 0).unwrap();
    session.fake.hold();
    session.enqueue(STREAM, fill(DATA, 64, 1)).unwrap();
    assert_eq!(session.poll(WaitTarget::Context(SECOND)), Ok(true));
    assert_eq!(session.poll(WaitTarget::Context(CONTEXT)), Ok(false));
    assert_eq!(session.poll(WaitTarget::Context(ContextId(7))), Err(CudaError::INVALID_CONTEXT));
}

#[test]
fn waits_end_when_the_work_does() {
    let session = Session::new();
    session.event_create(EVENT, CONTEXT, 0).unwrap();
    let targets = [WaitTarget::Stream(STREAM), WaitTarget::Event(EVENT), WaitTarget::Context(CONTEXT)];
    for (round, target) in targets.into_iter().enumerate() {
        session.fake.hold();
        session.enqueue(STREAM, fill(DATA, 64, round as u32 + 1)).unwrap();
        session.enqueue(STREAM, Op::Record { event: EVENT, flags: 0 }).unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| session.wait(target));
            super::link::until("the wait blocks", || session.fake.blocked().len() == round + 1);
            assert!(!waiter.is_finished());
            session.fake.release();
            assert_eq!(waiter.join().unwrap(), Ok(()));
        });
        assert_eq!(session.fake.peek(DATA, 1), [round as u8 + 1]);
    }
    assert_eq!(session.fake.blocked(), ["cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize"]);
}

#[test]
fn queries_say_not_ready_until_the_work_is_over() {
    let session = Session::new();
    session.event_create(EVENT, CONTEXT, 0).unwrap();
    assert_eq!(session.event_query(EVENT), Ok(()), "never recorded");
    session.fake.hold();
    session.enqueue(STREAM, Op::Record { event: EVENT, flags: 0 }).unwrap();
    assert_eq!(session.stream_query(STREAM), Err(CudaError::NOT_READY));
    assert_eq!(session.event_query(EVENT), Err(CudaError::NOT_READY));
    session.drain();
    assert_eq!((session.stream_query(STREAM), session.event_query(EVENT)), (Ok(()), Ok(())));
}

#[test]
fn errors_of_a_dead_context_reach_every_poll_and_wait() {
    let session = Session::new();
    session.event_create(EVENT, CONTEXT, 0).unwrap();
    session.fake.kill(session.raw(CONTEXT), CudaError::ILLEGAL_ADDRESS);
    for target in [WaitTarget::Stream(STREAM), WaitTarget::Event(EVENT), WaitTarget::Context(CONTEXT)] {
        assert_eq!(session.poll(target), Err(CudaError::ILLEGAL_ADDRESS), "{target:?}");
        assert_eq!(session.wait(target), Err(CudaError::ILLEGAL_ADDRESS), "{target:?}");
    }
    assert_eq!(session.poll(WaitTarget::Context(SECOND)), Ok(true), "the other device lives");
}

/// No stream of the client's is there to tell; the context's legacy stream does.
#[test]
fn a_dead_context_without_streams_is_told_by_its_poll() {
    let session = Session::new();
    assert_eq!(session.poll(WaitTarget::Context(SECOND)), Ok(true));
    session.fake.kill(session.raw(SECOND), CudaError::ILLEGAL_ADDRESS);
    assert_eq!(session.poll(WaitTarget::Context(SECOND)), Err(CudaError::ILLEGAL_ADDRESS));
}
