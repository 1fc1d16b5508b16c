//! Cuts and restores in which every call of the driver fails once, on whatever thread: nothing hangs, no image is wrong,
//! no stream is left waiting, and the driver has everything back.

use super::{guard::*, link::until, session::*};
use cuda_abi::CudaError;
use cuda_driver::{CutState, Driver, PendingCut, Snapshots, TakenCut};
use cuda_wire::*;

const ONE: StreamId = StreamId(11);
const OTHER: StreamId = StreamId(12);
const EVENT: EventId = EventId(1);
const BYTES: u64 = 200_000;
const ERROR: CudaError = CudaError::LAUNCH_FAILED;

/// Calls that give something back: when they fail, the driver keeps it.
const RETURNS: [&str; 6] = [
    "cuMemUnmap",
    "cuMemAddressFree",
    "cuMemRelease",
    "cuMemHostUnregister",
    "cuStreamDestroy_v2",
    "cuEventDestroy_v2",
];

/// A session whose first cut a guardian has.
fn session() -> (Session, Guardian) {
    let mut session = Session::protected();
    session.stream_create(ONE, CONTEXT, 1, 0).unwrap();
    session.stream_create(OTHER, CONTEXT, 0, 0).unwrap();
    session.event_create(EVENT, CONTEXT, 0).unwrap();
    session.memory_allocate(CONTEXT, DATA, BYTES).unwrap();
    session.enqueue(ONE, fill(DATA, BYTES, 1)).unwrap();
    session.enqueue(ONE, Op::Record { event: EVENT, flags: 0 }).unwrap();
    session.drain();
    // What lanes keep for as long as the session lives.
    let guardian = Guardian::new();
    take(&session, &guardian, 1).unwrap();
    session.drain();
    session.note_live();
    (session, guardian)
}

/// Takes a cut and sends it. `None` if it came to nothing.
fn take(session: &Session, guardian: &Guardian, number: u64) -> Option<TakenCut> {
    let mut pending: Box<dyn PendingCut> = session.try_cut(number, PATIENT).ok()?;
    match pending.wait() {
        CutState::Taken(taken) => guardian.keep(session, pending, &taken).is_ok().then_some(*taken),
        _ => None,
    }
}

/// Waits until nothing of a cut is left in streams, and takes another.
fn take_another(session: &Session, guardian: &Guardian, number: u64) -> TakenCut {
    let mut taken = None;
    for round in 0.. {
        taken = take(session, guardian, number);
        if taken.is_some() {
            break;
        }
        assert!(round < 10_000, "no cut is taken any more");
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
    taken.unwrap()
}

#[test]
fn whatever_call_fails_in_a_cut_no_image_is_wrong() {
    let mut nth = 1;
    let mut came_to_nothing = 0;
    loop {
        let (session, guardian) = session();
        session.enqueue(ONE, fill(DATA, 10, 2)).unwrap();
        session.fake.fail_any_nth(nth, ERROR);
        let taken = take(&session, &guardian, 2);
        let failed = session.fake.take_failed();
        came_to_nothing += usize::from(taken.is_none());
        if taken.is_some() {
            assert_eq!(guardian.saved(2, DATA, 12), [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1], "the {nth}th call");
        }
        // Whatever became of it, the program goes on.
        session.enqueue(OTHER, fill(DATA + 100_000, 10, 3)).unwrap();
        session.enqueue(ONE, fill(DATA + 100_010, 10, 3)).unwrap();
        session.drain();
        assert_eq!(session.fake.peek(DATA + 100_000, 20), [3; 20]);
        take_another(&session, &guardian, 3);
        let saved = guardian.saved(3, DATA, BYTES as usize);
        let expected = session.fake.peek(DATA, BYTES as usize);
        assert!(saved == expected, "{failed:?}, the {nth}th call");
        if failed.is_none_or(|call| !RETURNS.contains(&call)) {
            session.check_nothing_left();
        }
        assert_eq!(session.fake.violations(), [""; 0], "{failed:?}, the {nth}th call");
        if failed.is_none() {
            assert!(nth > 40 && came_to_nothing > 30, "only {nth} calls, {came_to_nothing} came to nothing");
            return;
        }
        nth += 1;
    }
}

#[test]
fn whatever_call_fails_in_a_restore_is_heard() {
    let (saved, guardian) = session();
    saved.enqueue(ONE, fill(DATA + 100, 1000, 9)).unwrap();
    assert!(take(&saved, &guardian, 2).is_some());
    let expected = saved.fake.peek(DATA, BYTES as usize);
    drop(saved);
    let mut nth = 1;
    let mut refused = 0;
    loop {
        let (session, _) = session();
        session.fake.fail_any_nth(nth, ERROR);
        let restored = session.restore_from(&guardian, 2);
        let failed = session.fake.take_failed();
        refused += usize::from(restored.is_err());
        if restored.is_err() {
            // It can be tried again.
            session.restore_from(&guardian, 2).unwrap();
        }
        assert!(session.fake.peek(DATA, BYTES as usize) == expected, "{failed:?}, the {nth}th call");
        assert_eq!(take(&session, &guardian_of(&guardian), 3).map(|taken| taken.dirty_bytes), Some(0));
        session.drain();
        session.check_rules();
        if failed.is_none() {
            assert!(nth > 20 && refused > 10, "only {nth} calls, {refused} refused");
            return;
        }
        nth += 1;
    }
}

/// Another guardian with the same image, for a cut of its own.
fn guardian_of(guardian: &Guardian) -> Guardian {
    let copy = Guardian::new();
    let image = guardian.image.lock().unwrap();
    let mut into = copy.image.lock().unwrap();
    into.begin(1, 0, 2).unwrap();
    let blocks = image.blocks(2).unwrap();
    for entry in &blocks {
        into.put(1, 2, *entry, image.read(2, entry.block).unwrap()).unwrap();
    }
    into.commit(1, 2, snapshot::Seal::of(blocks), Vec::new()).unwrap();
    drop((image, into));
    copy
}

/// A sink that breaks leaves nothing behind, wherever it breaks.
#[test]
fn a_link_that_is_lost_while_a_cut_is_sent_leaves_nothing() {
    struct Breaks(std::sync::atomic::AtomicUsize);
    impl cuda_driver::BlockSink for Breaks {
        fn put(&self, _: &snapshot::BlockDigest, _: &[u8]) -> Result<(), cuda_driver::LinkLost> {
            let left = self.0.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
            if left == 0 { Err(cuda_driver::LinkLost) } else { Ok(()) }
        }
    }
    let (session, _guardian) = session();
    for puts in 0..4usize {
        session.enqueue(ONE, fill(DATA, BYTES, puts as u32 + 7)).unwrap();
        let mut pending = session.cut(2, PATIENT);
        assert!(matches!(pending.wait(), CutState::Taken(_)));
        assert!(pending.send(&Breaks(puts.into())).is_err(), "at the block with this number: {puts}");
        session.settle(2, false).unwrap();
        session.check_nothing_left();
    }
    until("nothing waits", || session.poll(cuda_driver::WaitTarget::Context(CONTEXT)).unwrap());
}
