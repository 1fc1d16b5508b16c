//! Cuts: what is in and what is out, when they are given up, what comes back.

use super::{guard::*, link::until, session::*};
use crate::memory::GRANULE;
use cuda_abi::CudaError;
use cuda_driver::{Abandon, BlockSink, Cut, CutState, Driver, LinkLost, Snapshots, WaitTarget};
use cuda_wire::*;
use snapshot::{BlockDigest, Extent, Extents, Key};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SHORT: Duration = Duration::from_millis(30);
const MODULE: ModuleId = ModuleId(1);
const ONE: StreamId = StreamId(11);
const OTHER: StreamId = StreamId(12);
const LEGACY: StreamId = StreamId(13);
/// Bytes of the memory that tests work on: no whole number of blocks.
const BYTES: u64 = 300_000;

/// A session with two streams of its own, the legacy one, and some memory.
fn session() -> Session {
    let session = Session::protected();
    for (stream, kind) in [(ONE, 1), (OTHER, 1), (LEGACY, 2)] {
        session.stream_create(stream, CONTEXT, kind, 0).unwrap();
    }
    session.memory_allocate(CONTEXT, DATA, BYTES).unwrap();
    session
}

fn write(session: &Session, stream: StreamId, address: u64, bytes: &[u8]) {
    let data = HostData::Inline { bytes: Bytes(bytes) };
    let op = Op::CopyIn { target: Plane::line(address), shape: Shape::line(bytes.len() as u64), data };
    session.enqueue(stream, op).unwrap();
}

/// A wait of a stream for a word in device memory, and its write.
fn word(kind: u32, address: u64) -> Op<'static> {
    Op::MemoryOps { ops: vec![MemoryOp { kind, address, value: 1, flags: 0 }] }
}

/// Asks for a cut until the one before has been cleared away.
fn cut_again(session: &Session, number: u64) -> cuda_driver::TakenCut {
    let taken = Mutex::new(None);
    until("a cut is taken", || match session.try_cut(number, PATIENT).map(|mut pending| pending.wait()) {
        Ok(CutState::Taken(it)) => {
            *taken.lock().unwrap() = Some(*it);
            true
        }
        _ => false,
    });
    taken.into_inner().unwrap().unwrap()
}

#[test]
fn a_cut_needs_protection_and_one_is_on_its_way_at_a_time() {
    let plain = Session::new();
    assert_eq!(plain.try_cut(1, PATIENT).err(), Some(CudaError::NOT_INITIALIZED));
    let session = session();
    assert_eq!(session.try_cut(0, PATIENT).err(), Some(CudaError::INVALID_VALUE), "numbers begin with 1");
    let guardian = Guardian::new();
    let first = session.cut(1, PATIENT);
    assert_eq!(session.try_cut(2, PATIENT).err(), Some(CudaError::NOT_READY));
    assert_eq!(session.protect(key()), Err(CudaError::NOT_READY));
    guardian.finish(&session, first);
    assert_eq!(session.try_cut(1, PATIENT).err(), Some(CudaError::INVALID_VALUE), "numbers grow");
    assert_eq!(session.settle(7, true), Err(CudaError::INVALID_VALUE));
    session.check_rules();
}

#[test]
fn commands_before_a_cut_are_in_and_commands_after_it_are_out() {
    let session = session();
    let guardian = Guardian::new();
    let freed = DATA + 4 * GRANULE;
    session.memory_allocate(CONTEXT, freed, 4096).unwrap();
    session.enqueue(ONE, fill(DATA, BYTES, 1)).unwrap();
    session.enqueue(ONE, fill(freed, 4096, 2)).unwrap();
    session.drain();
    session.fake.hold();
    session.enqueue(ONE, fill(DATA, 2048, 3)).unwrap();
    session.enqueue(LEGACY, fill(DATA + 100_000, 10, 8)).unwrap();
    let mut pending = session.cut(1, PATIENT);
    // All of this comes after the cut, though nothing before it is done.
    session.enqueue(OTHER, fill(DATA + 2048, 2048, 4)).unwrap();
    session.memory_free(freed).unwrap();
    let later = DATA + 8 * GRANULE;
    session.memory_allocate(CONTEXT, later, 4096).unwrap();
    assert_eq!(pending.poll(), CutState::Waiting);
    session.fake.release();
    let taken = guardian.finish(&session, pending);
    assert_eq!((taken.live_bytes, taken.dirty_bytes), (BYTES + 4096, BYTES + 4096));
    assert_eq!(guardian.saved(1, DATA, 4096), [[3; 2048], [1; 2048]].concat());
    assert_eq!(guardian.saved(1, freed, 4096), [2; 4096]);
    assert_eq!(
        guardian.saved(1, DATA, BYTES as usize)[99_999..100_011],
        [1, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 1]
    );
    let blocks = guardian.image.lock().unwrap().blocks(1).unwrap();
    assert!(blocks.iter().all(|entry| entry.block.address != later));
    session.drain();
    assert_eq!(session.fake.peek(DATA, 4096), [[3; 2048], [4; 2048]].concat());
    // The next cut has the new memory and buries the old.
    let taken = guardian.finish(&session, session.cut(2, PATIENT));
    assert_eq!(taken.delta.dead, [freed]);
    assert_eq!(taken.dirty_bytes, 65536 + 4096);
    session.check_rules();
}

#[test]
fn only_what_changed_travels_and_a_lost_cut_forgets_nothing() {
    let session = session();
    let guardian = Guardian::new();
    let first = guardian.finish(&session, session.cut(1, PATIENT));
    assert_eq!((first.live_bytes, first.dirty_bytes, first.delta.base), (BYTES, BYTES, 0));
    assert_eq!(guardian.finish(&session, session.cut(2, PATIENT)).dirty_bytes, 0);
    write(&session, ONE, DATA + 200_000, &[7]);
    // Taken, but never sent.
    let CutState::Taken(lost) = session.cut(3, PATIENT).wait() else { panic!() };
    assert_eq!(lost.dirty_bytes, 65536);
    write(&session, ONE, DATA, &[9]);
    let third = guardian.finish(&session, session.cut(3, PATIENT));
    assert_eq!((third.delta.base, third.dirty_bytes), (2, 2 * 65536));
    assert_eq!(guardian.saved(3, DATA, BYTES as usize)[199_999..200_002], [0, 7, 0]);
    // With a new key everything travels again.
    session.protect(key()).unwrap();
    let CutState::Taken(taken) = session.cut(4, PATIENT).wait() else { panic!() };
    assert_eq!((taken.delta.base, taken.dirty_bytes), (0, BYTES));
    session.check_rules();
}

#[test]
fn the_cut_is_told_before_later_work_goes_on() {
    let session = session();
    session.fake.hold();
    let (told, tell) = (Arc::new(Mutex::new(None)), Arc::new(AtomicBool::new(false)));
    let (fake, of_callback, let_go) = (session.fake, told.clone(), tell.clone());
    let on_taken = move |taken: &cuda_driver::TakenCut| {
        until("the test has looked", || let_go.load(Ordering::SeqCst));
        *of_callback.lock().unwrap() = Some((taken.delta.number, fake.peek(DATA, 1)));
    };
    let cut = Cut { number: 1, dead: Extents::default(), patience: PATIENT, on_taken: Arc::new(on_taken) };
    let mut pending = Snapshots::cut(&*session, cut).unwrap();
    session.enqueue(ONE, fill(DATA, 1, 5)).unwrap();
    session.fake.release();
    std::thread::sleep(SHORT);
    assert_eq!((session.fake.peek(DATA, 1), pending.poll()), (vec![0], CutState::Waiting));
    tell.store(true, Ordering::SeqCst);
    let CutState::Taken(taken) = pending.wait() else { panic!() };
    assert_eq!(*told.lock().unwrap(), Some((1, vec![0])));
    assert!(taken.pause >= SHORT / 2, "{:?}: work was held back", taken.pause);
    drop(pending);
    session.drain();
    assert_eq!(session.fake.peek(DATA, 1), [5]);
    session.check_rules();
}

/// The first stream waits for a word that a command behind the cut writes.
#[test]
fn work_that_waits_for_a_later_command_ends_the_cut_and_not_the_program() {
    let session = session();
    let guardian = Guardian::new();
    guardian.finish(&session, session.cut(1, PATIENT));
    session.enqueue(ONE, word(1, DATA)).unwrap();
    let mut pending = session.cut(2, SHORT);
    std::thread::sleep(3 * SHORT);
    assert_eq!(pending.poll(), CutState::Waiting, "nothing is held back yet");
    session.enqueue(OTHER, word(2, DATA)).unwrap();
    assert_eq!(pending.wait(), CutState::Abandoned(Abandon::Patience));
    drop(pending);
    session.drain();
    let taken = cut_again(&session, 3);
    assert_eq!((taken.delta.base, taken.dirty_bytes), (1, 65536));
    session.check_rules();
}

/// A thread that waits for a stream, or for memory that streams still use, is held back like work.
#[test]
fn waits_behind_a_cut_count_as_held_back() {
    for what in 0..4 {
        let session = session();
        session.memory_allocate(CONTEXT, DATA + 4 * GRANULE, 100).unwrap();
        session.enqueue(ONE, word(1, DATA)).unwrap();
        let mut pending = session.cut(1, SHORT);
        std::thread::scope(|scope| {
            let held = scope.spawn(|| match what {
                0 => session.wait(WaitTarget::Stream(OTHER)),
                1 => {
                    until("it is done", || session.poll(WaitTarget::Stream(OTHER)).unwrap());
                    Ok(())
                }
                2 => {
                    session.memory_free(DATA + 4 * GRANULE).unwrap();
                    session.memory_allocate(CONTEXT, DATA + 4 * GRANULE, 100)
                }
                _ => session.context_reset(CONTEXT),
            });
            if what >= 2 {
                // These wait for the first stream, too.
                until("it is given up", || session.cuts.barrier().is_none());
                session.fake.poke(DATA, &[1]);
            }
            assert_eq!(pending.wait(), CutState::Abandoned(Abandon::Patience), "{what}");
            held.join().unwrap().unwrap();
        });
        if what < 2 {
            session.fake.poke(DATA, &[1]);
        }
        session.drain();
        session.check_rules();
    }
}

#[test]
fn a_cut_that_is_dropped_leaves_no_stream_waiting() {
    let session = session();
    for round in 1..20 {
        session.enqueue(ONE, word(1, DATA)).unwrap();
        let pending = loop {
            // The thread of the one before may not have seen yet that it is given up.
            match session.try_cut(round, PATIENT) {
                Ok(mut pending) => {
                    if pending.poll() == CutState::Waiting {
                        break pending;
                    }
                }
                Err(error) => assert_eq!(error, CudaError::NOT_READY),
            }
        };
        session.enqueue(OTHER, fill(DATA + 8, 8, round as u32)).unwrap();
        if round % 2 == 0 {
            // All streams are there, or nearly.
            session.fake.poke(DATA, &[1]);
        }
        drop(pending);
        until("work goes on", || session.fake.peek(DATA + 8, 1) == [round as u8]);
        session.fake.poke(DATA, &[1]);
        session.drain();
        session.fake.poke(DATA, &[0]);
    }
    cut_again(&session, 20);
    session.check_rules();
}

/// The kernels of such a cut come late, when memory that the cut knew is gone.
#[test]
fn kernels_of_a_cut_that_was_given_up_touch_nothing() {
    let session = session();
    let (handle, at) = (MemoryHandleId(1), DATA + (1 << 30));
    session.physical_create(handle, 1, GRANULE).unwrap();
    session.physical_map(at, GRANULE, 0, handle).unwrap();
    session.physical_set_access(at, GRANULE, 1, 3).unwrap();
    cut_again(&session, 1);
    session.fake.hold();
    session.enqueue(ONE, fill(DATA, 1, 1)).unwrap();
    drop(session.cut(2, PATIENT));
    // Everything runs but the second device's part of the cut; so the memory of the second device is unmapped.
    session.physical_unmap(at, GRANULE).unwrap();
    let late = session.cuts.stream_of(SECOND.0);
    until("it is unmapped", || {
        let others = session.fake.streams().into_iter().filter(|&stream| stream != late);
        others.for_each(|stream| while session.fake.step(stream).is_some() {});
        !session.fake.is_mapped(at)
    });
    until("a cut is given up because they are still there", || {
        let again = session.try_cut(2, PATIENT);
        again.is_ok_and(|mut again| again.wait() == CutState::Abandoned(Abandon::Patience))
    });
    session.fake.release();
    session.drain();
    session.physical_release(handle).unwrap();
    assert_eq!(cut_again(&session, 2).live_bytes, BYTES);
    session.check_rules();
}

#[test]
fn an_ended_session_ends_its_cut() {
    let session = session();
    session.enqueue(ONE, word(1, DATA)).unwrap();
    let mut pending = session.cut(1, PATIENT);
    session.abort();
    assert_eq!(pending.wait(), CutState::Abandoned(Abandon::Ended));
}

#[test]
fn what_comes_to_be_behind_a_cut_waits_for_it() {
    let session = session();
    let guardian = Guardian::new();
    session.load(MODULE, CONTEXT).unwrap();
    let info = session.load(ModuleId(2), CONTEXT).unwrap();
    session.enqueue(ONE, fill(info.variables[0].address, 64, 3)).unwrap();
    session.drain();
    session.enqueue(ONE, word(1, DATA)).unwrap();
    let pending = session.cut(1, PATIENT);
    // A new stream, a new context with its legacy stream, a captured graph; and a module goes.
    session.stream_create(StreamId(20), CONTEXT, 1, 0).unwrap();
    session.context_create(CREATED, 0, 0).unwrap();
    session.stream_create(StreamId(21), CREATED, 2, 0).unwrap();
    session.graph_instantiate(ExecId(1), CONTEXT, vec![node(fill(DATA + 64, 8, 6), &[])]).unwrap();
    session.enqueue(StreamId(20), fill(DATA + 72, 8, 6)).unwrap();
    session.enqueue(StreamId(21), fill(DATA + 80, 8, 6)).unwrap();
    session.graph_launch(ExecId(1), OTHER, 1).unwrap();
    session.module_unload(ModuleId(2)).unwrap();
    std::thread::sleep(SHORT);
    assert_eq!(session.fake.peek(DATA + 64, 24), [0; 24]);
    assert!(session.fake.is_mapped(info.variables[0].address));
    session.fake.poke(DATA, &[1]);
    guardian.finish(&session, pending);
    assert_eq!(guardian.saved(1, DATA, 88), [vec![1], vec![0; 87]].concat());
    let image = guardian.image.lock().unwrap();
    let last = image.blocks(1).unwrap().last().copied().unwrap();
    assert_eq!(image.read(1, last.block).unwrap()[..], [3; 64], "the variable as it was");
    drop(image);
    session.drain();
    assert_eq!(session.fake.peek(DATA + 64, 24), [6; 24]);
    assert!(!session.fake.is_mapped(info.variables[0].address));
    session.context_destroy(CREATED).unwrap();
    session.check_rules();
}

#[test]
fn what_an_image_cannot_name_is_not_cut() {
    // Physical memory that is mapped nowhere, or that its device may not use yet.
    let physical = session();
    let (handle, at) = (MemoryHandleId(1), DATA + (1 << 30));
    physical.physical_create(handle, 0, 2 * GRANULE).unwrap();
    assert_eq!(physical.cut(1, PATIENT).wait(), CutState::Abandoned(Abandon::UnmappedMemory));
    physical.physical_map(at, 2 * GRANULE, 0, handle).unwrap();
    assert_eq!(physical.cut(1, PATIENT).wait(), CutState::Abandoned(Abandon::UnmappedMemory));
    physical.physical_set_access(at, 2 * GRANULE, 0, 3).unwrap();
    let guardian = Guardian::new();
    assert_eq!(guardian.finish(&physical, physical.cut(1, PATIENT)).live_bytes, BYTES + 2 * GRANULE);
    // Unmapped before the cut, though the GPU has not come to it.
    physical.fake.hold();
    physical.enqueue(ONE, fill(DATA, 1, 1)).unwrap();
    physical.physical_unmap(at, 2 * GRANULE).unwrap();
    physical.physical_release(handle).unwrap();
    let pending = physical.cut(2, PATIENT);
    physical.fake.release();
    assert_eq!(guardian.finish(&physical, pending).live_bytes, BYTES);
    physical.check_rules();
    // The heap of malloc in kernels.
    let heap = session();
    let text = format!("{PTX}.extern .func (.param .b64 out) malloc(.param .b64 bytes);\n");
    let image = ImageSource::Inline { bytes: Bytes(text.as_bytes()) };
    heap.module_load(MODULE, CONTEXT, [0; 32], image, Vec::new()).unwrap();
    assert_eq!(heap.cut(1, PATIENT).wait(), CutState::Abandoned(Abandon::DeviceHeap));
    // A context that an error of the program has killed, before the cut and behind it.
    for is_before in [true, false] {
        let dead = session();
        dead.fake.hold();
        dead.enqueue(ONE, fill(DATA, 1, 1)).unwrap();
        let kill = || dead.fake.kill(dead.raw(CONTEXT), CudaError::ILLEGAL_ADDRESS);
        if is_before {
            kill();
        }
        let mut pending = dead.cut(1, PATIENT);
        if !is_before {
            kill();
        }
        dead.fake.release();
        assert_eq!(pending.wait(), CutState::Abandoned(Abandon::ContextLost));
    }
}

#[test]
fn memory_that_the_client_calls_dead_is_not_saved() {
    let session = session();
    // Dead memory that is not mapped is no news.
    let dead = [(DATA, 512), (DATA + 1536, BYTES - 1536), (DATA + (1 << 30), 4096)];
    let dead = Extents::new(dead.map(|(address, bytes)| Extent { address, bytes })).unwrap();
    let cut = Cut { number: 1, dead, patience: PATIENT, on_taken: Arc::new(|_| {}) };
    let CutState::Taken(taken) = Snapshots::cut(&*session, cut).unwrap().wait() else { panic!() };
    assert_eq!((taken.live_bytes, taken.delta.dirty.len()), (1024, 1));
    cut_again(&session, 1);
}

#[test]
fn variables_that_are_neighbours_come_back_one_by_one() {
    let session = session();
    let guardian = Guardian::new();
    let modules = [MODULE, ModuleId(MODULE.0 + 1)];
    let variables = modules.map(|module| session.load(module, CONTEXT).unwrap().variables[0].address);
    assert_eq!(variables[1], variables[0] + 64, "the second begins where the first ends");
    for (address, value) in variables.into_iter().zip([3, 4]) {
        session.enqueue(ONE, fill(address, 64, value)).unwrap();
    }
    guardian.finish(&session, session.cut(1, PATIENT));
    let again = Session::protected();
    again.memory_allocate(CONTEXT, DATA, BYTES).unwrap();
    modules.iter().for_each(|module| drop(again.load(*module, CONTEXT).unwrap()));
    again.restore_from(&guardian, 1).map_err(|error| (error, again.take_message())).unwrap();
    assert_eq!(variables.map(|address| again.fake.peek(address, 64)[0]), [3, 4]);
    again.check_rules();
}

#[test]
fn a_cut_before_the_first_module_does_not_move_its_variables() {
    let places = [false, true].map(|has_cut| {
        let session = session();
        session.enqueue(ONE, fill(DATA, BYTES, 1)).unwrap();
        if has_cut {
            Guardian::new().finish(&session, session.cut(1, PATIENT));
        }
        // The second does not fit into the piece of memory that the driver has for variables.
        let large = ".visible .global .align 8 .b8 large[3000000];";
        let image = ImageSource::Inline { bytes: Bytes(large.as_bytes()) };
        let large = session.module_load(ModuleId(9), CONTEXT, [0; 32], image, Vec::new()).unwrap();
        [session.load(MODULE, CONTEXT).unwrap(), large].map(|module| module.variables[0].address)
    });
    assert_eq!(places[0], places[1]);
}

#[test]
fn streams_before_the_first_module_do_not_move_its_variables() {
    let places = [0, 5].map(|streams| {
        let session = session();
        for stream in 0..streams {
            session.stream_create(StreamId(40 + stream), CONTEXT, 1, 0).unwrap();
        }
        session.load(MODULE, CONTEXT).unwrap().variables[0].address
    });
    assert_eq!(places[0], places[1]);
}

#[test]
fn streams_of_a_program_do_not_move_variables_of_its_own_context() {
    const OWN: ContextId = ContextId(70_000);
    let places = [0, 5].map(|streams| {
        let session = session();
        session.context_create(OWN, 0, 0).unwrap();
        for stream in 0..streams {
            session.stream_create(StreamId(40 + stream), OWN, 1, 0).unwrap();
        }
        session.load(MODULE, OWN).unwrap().variables[0].address
    });
    assert_eq!(places[0], places[1]);
}

#[test]
fn memory_of_two_devices_and_variables_come_back_elsewhere() {
    let session = session();
    let guardian = Guardian::new();
    let second = DATA + (1 << 30);
    session.memory_allocate(SECOND, second, 70_000).unwrap();
    session.stream_create(StreamId(30), SECOND, 1, 0).unwrap();
    let info = session.load(MODULE, CONTEXT).unwrap();
    session.enqueue(ONE, fill(DATA, BYTES, 1)).unwrap();
    session.enqueue(StreamId(30), fill(second, 70_000, 2)).unwrap();
    session.enqueue(ONE, fill(info.variables[0].address, 64, 3)).unwrap();
    let taken = guardian.finish(&session, session.cut(1, PATIENT));
    assert_eq!(taken.live_bytes, BYTES + 70_000 + 64);
    assert_eq!(session.extents().unwrap().bytes(), taken.live_bytes);
    session.check_rules();
    let again = Session::protected();
    again.load(ModuleId(9), CONTEXT).unwrap();
    let moved = again.load(MODULE, CONTEXT).unwrap();
    assert_ne!(moved.variables[0].address, info.variables[0].address);
    again.memory_allocate(CONTEXT, DATA, BYTES).unwrap();
    assert_eq!(again.restore_from(&guardian, 1).err(), Some(CudaError::INVALID_VALUE));
    assert!(again.take_message().unwrap().contains("was not allocated again"));
    again.memory_allocate(SECOND, second, 70_000).unwrap();
    let restored = again.restore_from(&guardian, 1).unwrap();
    assert_eq!(restored.bytes, BYTES + 70_000 + 64);
    assert_eq!(again.fake.peek(DATA, BYTES as usize), vec![1; BYTES as usize]);
    assert_eq!(again.fake.peek(second, 70_000), vec![2; 70_000]);
    assert_eq!(again.fake.peek(moved.variables[0].address, 64), [3; 64]);
    // The next cut is relative to the image; only the module that the image does not know is new.
    let taken = guardian.finish(&again, again.cut(2, PATIENT));
    assert_eq!((taken.delta.base, taken.dirty_bytes), (1, 64));
    again.check_rules();
}

#[test]
fn an_image_that_is_not_what_was_saved_is_refused() {
    let session = session();
    let guardian = Guardian::new();
    guardian.finish(&session, session.cut(1, PATIENT));
    let other = Session::bare(None);
    assert_eq!(other.restore_from(&guardian, 1).err(), Some(CudaError::NOT_INITIALIZED));
    other.protect(Arc::new(Key::from_seed(&[6; 32]))).unwrap();
    other.memory_allocate(CONTEXT, DATA, BYTES).unwrap();
    assert_eq!(other.restore_from(&guardian, 1).err(), Some(CudaError::INVALID_VALUE));
    assert!(other.take_message().unwrap().contains("is not what the worker saved"));
    other.check_rules();
}

#[test]
fn events_keep_their_times_until_they_are_recorded_again() {
    let session = session();
    let guardian = Guardian::new();
    let (first, second, bare) = (EventId(1), EventId(2), EventId(3));
    for (event, flags) in [(first, 0), (second, 0), (bare, 2), (EventId(4), 0)] {
        session.event_create(event, CONTEXT, flags).unwrap();
    }
    for event in [first, second, bare] {
        session.enqueue(ONE, Op::Record { event, flags: 0 }).unwrap();
        session.enqueue(ONE, fill(DATA, 1, 1)).unwrap();
    }
    session.drain();
    let between = session.event_elapsed(first, second).unwrap();
    assert!(between > 0.0);
    let mut events = guardian.finish(&session, session.cut(1, PATIENT)).events;
    events.sort_by_key(|age| age.event);
    let [one, two] = events[..] else { panic!("{events:?}: those with times that were recorded") };
    assert_eq!((one.event, two.event, one.age_ns > two.age_ns), (1, 2, true));
    let again = Session::protected();
    again.stream_create(ONE, CONTEXT, 1, 0).unwrap();
    again.memory_allocate(CONTEXT, DATA, BYTES).unwrap();
    for event in [first, second, EventId(4)] {
        again.event_create(event, CONTEXT, 0).unwrap();
    }
    again.restore_from(&guardian, 1).unwrap();
    assert!((again.event_elapsed(first, second).unwrap() - between).abs() < 1e-3);
    assert_eq!(again.event_elapsed(first, EventId(4)), Err(CudaError::INVALID_HANDLE), "never recorded");
    // An image of the restored session has them still.
    let kept = guardian.finish(&again, again.cut(2, PATIENT)).events;
    assert_eq!(kept.len(), 2);
    again.enqueue(ONE, Op::Record { event: second, flags: 0 }).unwrap();
    again.drain();
    assert!(again.event_elapsed(first, second).unwrap() > between, "over the gap");
    // A record in a graph counts as well.
    let nodes = vec![node(Op::Record { event: first, flags: 0 }, &[])];
    again.graph_instantiate(ExecId(1), CONTEXT, nodes).unwrap();
    assert!(again.event_elapsed(first, second).unwrap() > 0.0);
    again.graph_launch(ExecId(1), ONE, 1).unwrap();
    again.drain();
    assert!(again.event_elapsed(first, second).unwrap() < 0.0, "the first is the later one now");
    again.check_rules();
}

/// The shadow does not fit: what changed goes to the host while the streams stand still.
#[test]
fn a_full_device_spills() {
    let bytes = 40u64 << 20;
    for free in [0usize, (256 << 20) + (10 << 20), 1 << 30] {
        let session = Session::protected();
        let guardian = Guardian::new();
        session.stream_create(ONE, CONTEXT, 1, 0).unwrap();
        session.memory_allocate(CONTEXT, DATA, bytes).unwrap();
        for part in 0..40 {
            session.enqueue(ONE, fill(DATA + (part << 20), 1 << 20, part as u32 + 1)).unwrap();
        }
        // Tables are there before the device is full.
        drop(cut_again(&session, 1));
        session.fake.take_memory(0, free);
        guardian.finish(&session, session.cut(1, PATIENT));
        let saved = guardian.saved(1, DATA, bytes as usize);
        for part in 0..40usize {
            assert!(saved[part << 20..(part + 1) << 20].iter().all(|&byte| byte == part as u8 + 1));
        }
        session.enqueue(ONE, fill(DATA + (30 << 20), 1, 0)).unwrap();
        assert_eq!(guardian.finish(&session, session.cut(2, PATIENT)).dirty_bytes, 65536);
        assert_eq!(guardian.saved(2, DATA, bytes as usize)[30 << 20], 0);
        session.check_rules();
    }
}

/// A sink that waits until it is let go.
#[derive(Default)]
struct SlowSink {
    is_free: AtomicBool,
    blocks: AtomicUsize,
}

impl BlockSink for SlowSink {
    fn put(&self, _: &BlockDigest, bytes: &[u8]) -> Result<(), LinkLost> {
        assert!(bytes.iter().all(|&byte| byte == 7));
        self.blocks.fetch_add(1, Ordering::SeqCst);
        until("the sink is let go", || self.is_free.load(Ordering::SeqCst));
        Ok(())
    }
}

#[test]
fn the_program_gets_the_shadows_memory_when_it_needs_it() {
    let bytes = 16u64 << 20;
    let session = Session::bare(Some(40 << 20));
    session.protect(key()).unwrap();
    session.stream_create(ONE, CONTEXT, 1, 0).unwrap();
    session.memory_allocate(CONTEXT, DATA, bytes).unwrap();
    session.enqueue(ONE, fill(DATA, bytes, 7)).unwrap();
    let free = session.memory_info(0).unwrap();
    let mut pending = session.cut(1, PATIENT);
    let CutState::Taken(_) = pending.wait() else { panic!() };
    assert_eq!(session.memory_info(0).unwrap(), free, "what was lent is free for the program");
    let sink = SlowSink::default();
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| pending.send(&sink));
        until("the first block is there", || sink.blocks.load(Ordering::SeqCst) == 1);
        let more = scope.spawn(|| session.memory_allocate(CONTEXT, DATA + (1 << 30), 20 << 20));
        until("it waits", || session.work.memory.is_lent_wanted());
        sink.is_free.store(true, Ordering::SeqCst);
        more.join().unwrap().unwrap();
        sender.join().unwrap().unwrap();
    });
    assert_eq!(sink.blocks.load(Ordering::SeqCst), 256);
    session.settle(1, true).unwrap();
    // More than the limit is refused, whatever comes back.
    let mut pending = session.cut(2, PATIENT);
    assert!(matches!(pending.wait(), CutState::Taken(_)));
    assert_eq!(session.memory_allocate(CONTEXT, DATA + (2 << 30), 20 << 20), Err(CudaError::OUT_OF_MEMORY));
    drop(pending);
    session.check_rules();
}

/// The library blocks while a stream is full, and every other call of it with it: the barrier opens all the same.
#[test]
fn a_full_stream_behind_a_cut_does_not_keep_it_closed() {
    let session = session();
    let guardian = Guardian::new();
    guardian.finish(&session, session.cut(1, PATIENT));
    session.fake.limit_queues(24);
    for number in 2..6 {
        session.enqueue(ONE, fill(DATA, 1, number as u32)).unwrap();
        let pending = session.cut(number, PATIENT);
        for round in 0..200 {
            session.enqueue(OTHER, fill(DATA + 65536, 1, round)).unwrap();
        }
        guardian.finish(&session, pending);
        assert_eq!(guardian.saved(number, DATA, 1), [number as u8]);
    }
    session.drain();
    session.check_rules();
}

/// Text of what came before a cut is there before the cut is told.
#[test]
fn what_kernels_printed_before_a_cut_is_collected_before_it_is_told() {
    let session = session();
    let image = format!("{PTX}// vprintf\n");
    let image = ImageSource::Inline { bytes: Bytes(image.as_bytes()) };
    session.module_load(MODULE, CONTEXT, [0; 32], image, Vec::new()).unwrap();
    let waits = Arc::new(AtomicUsize::new(usize::MAX));
    let (fake, seen) = (session.fake, waits.clone());
    let on_taken = move |_: &cuda_driver::TakenCut| {
        seen.store(fake.count("cuStreamSynchronize"), Ordering::SeqCst);
    };
    let before = fake.count("cuStreamSynchronize");
    let cut = Cut { number: 1, dead: Extents::default(), patience: PATIENT, on_taken: Arc::new(on_taken) };
    assert!(matches!(Snapshots::cut(&*session, cut).unwrap().wait(), CutState::Taken(_)));
    assert_eq!(waits.load(Ordering::SeqCst), before + 1, "of the context that prints");
}
