//! Cuts: what is in and what is out, when they are given up, what comes back.

mod common;

use common::{guard::*, *};
use cuda_abi::CudaError;
use cuda_driver::{Abandon, Cut, CutState, Driver};
use cuda_wire::*;
use driver_soft::SoftConfig;
use snapshot::{Extent, Extents};
use std::time::{Duration, Instant};

const SHORT: Duration = Duration::from_millis(50);

fn session() -> Session {
    let session = Session::new();
    session.cuts().protect(key()).unwrap();
    session
}

fn again(base: u64) -> Session {
    let session = Session::at(base, SoftConfig { memory_bytes: 1 << 30, ..SoftConfig::default() });
    session.cuts().protect(key()).unwrap();
    session
}

/// What the image has at an address.
fn saved(guardian: &Guardian, number: u64, address: u64, bytes: usize) -> Vec<u8> {
    let image = guardian.image.lock().unwrap();
    let mut found = Vec::new();
    for entry in image.blocks(number).unwrap() {
        if entry.block.address >= address && found.len() < bytes {
            found.extend_from_slice(&image.read(number, entry.block).unwrap());
        }
    }
    found.truncate(bytes);
    found
}

const VARIABLES: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .global .align 4 .u32 zebra = 7;
.visible .const .align 4 .u32 apple = 9;
.visible .entry nothing() { ret; }
";

#[test]
fn a_cut_needs_protection_and_one_is_on_its_way_at_a_time() {
    let plain = Session::new();
    let cut = |number| Cut {
        number,
        dead: Extents::default(),
        patience: PATIENT,
        on_taken: std::sync::Arc::new(|_| {}),
    };
    assert_eq!(plain.cuts().cut(cut(1)).err(), Some(CudaError::NOT_INITIALIZED));
    let session = session();
    assert_eq!(session.cuts().cut(cut(0)).err(), Some(CudaError::INVALID_VALUE), "numbers begin with 1");
    let guardian = Guardian::new();
    let first = session.cut(1, PATIENT);
    assert_eq!(session.cuts().cut(cut(2)).err(), Some(CudaError::NOT_READY));
    guardian.finish(&session, first);
    assert_eq!(session.cuts().cut(cut(1)).err(), Some(CudaError::INVALID_VALUE), "numbers grow");
    // A cut that is dropped never was.
    drop(session.cut(2, PATIENT));
    let until = Instant::now() + PATIENT;
    let pending = loop {
        match session.cuts().cut(cut(2)) {
            Ok(pending) => break pending,
            Err(error) => assert!(error == CudaError::NOT_READY && Instant::now() < until),
        }
    };
    assert_eq!(guardian.finish(&session, pending).delta.base, 1);
}

#[test]
fn commands_before_a_cut_are_in_and_commands_after_it_are_out() {
    let session = session();
    let guardian = Guardian::new();
    let (kept, freed) = (session.alloc_with(&[1; 4096]), session.alloc_with(&[2; 4096]));
    session.driver.context_synchronize(CONTEXT).unwrap();
    let (one, other) = (session.stream(1), session.stream(1));
    session.link.hold(5);
    session.driver.enqueue(one, Op::HostCall { token: 5 }).unwrap();
    session.driver.enqueue(one, fill32(kept, 512, 0x0303_0303)).unwrap();
    let mut pending = session.cut(1, PATIENT);
    // All of this comes after the cut, though nothing before it is done.
    session.driver.enqueue(other, fill32(kept + 2048, 512, 0x0404_0404)).unwrap();
    session.driver.memory_free(freed).unwrap();
    let later = session.alloc(4096);
    assert_eq!(pending.poll(), CutState::Waiting);
    session.link.let_go(5);
    guardian.finish(&session, pending);
    assert_eq!(saved(&guardian, 1, kept, 4096), [[3; 2048], [1; 2048]].concat());
    assert_eq!(saved(&guardian, 1, freed, 4096), [2; 4096]);
    let blocks = guardian.image.lock().unwrap().blocks(1).unwrap();
    assert!(blocks.iter().all(|entry| entry.block.address != later));
    session.driver.context_synchronize(CONTEXT).unwrap();
    assert_eq!(session.read(LEGACY, kept, 4096).unwrap(), [[3; 2048], [4; 2048]].concat());
    // The next cut has the new memory and buries the old.
    let taken = guardian.finish(&session, session.cut(2, PATIENT));
    assert_eq!(taken.delta.dead, [freed]);
    assert_eq!(taken.dirty_bytes, 2 * 4096);
}

#[test]
fn streams_that_are_made_while_a_cut_is_under_way_wait_at_it() {
    let session = session();
    let guardian = Guardian::new();
    let address = session.alloc_with(&[1; 4096]);
    session.driver.context_synchronize(CONTEXT).unwrap();
    let one = session.stream(1);
    session.link.hold(5);
    session.driver.enqueue(one, Op::HostCall { token: 5 }).unwrap();
    let mut pending = session.cut(1, PATIENT);
    // Of each kind, in a context that was there and in one that was not.
    let late = ContextId(0x100);
    session.driver.context_create(late, 0, 0).unwrap();
    let streams = [(CONTEXT, 0), (CONTEXT, 1), (late, 1), (late, 2)];
    for (at, (context, kind)) in streams.into_iter().enumerate() {
        let stream = StreamId(900 + at as u32);
        session.driver.stream_create(stream, context, kind, 0).unwrap();
        session.driver.enqueue(stream, Op::HostCall { token: 10 + at as u64 }).unwrap();
        session.driver.enqueue(stream, fill32(address + 1024 * at as u64, 256, 0x0202_0202)).unwrap();
    }
    std::thread::sleep(SHORT);
    assert_eq!((pending.poll(), session.link.called()), (CutState::Waiting, vec![]));
    session.link.let_go(5);
    guardian.finish(&session, pending);
    assert!(saved(&guardian, 1, address, 4096) == [1; 4096]);
    for context in [CONTEXT, late] {
        session.driver.context_synchronize(context).unwrap();
    }
    assert_eq!(session.read(LEGACY, address, 4096).unwrap(), [2; 4096]);
    assert_eq!(session.link.called().len(), 5);
}

#[test]
fn memory_that_is_freed_and_used_again_after_a_cut_does_not_change_it() {
    let session = session();
    let guardian = Guardian::new();
    let address = session.alloc_with(&[1; 300_000]);
    session.link.hold(5);
    let one = session.stream(1);
    session.driver.enqueue(one, Op::HostCall { token: 5 }).unwrap();
    let pending = session.cut(1, PATIENT);
    session.driver.memory_free(address).unwrap();
    session.link.let_go(5);
    // The same addresses: this call waits until the cut has its copy.
    session.driver.memory_allocate(CONTEXT, address, 300_000).unwrap();
    session.driver.enqueue(LEGACY, fill32(address, 75_000, 9)).unwrap();
    guardian.finish(&session, pending);
    assert!(saved(&guardian, 1, address, 300_000) == vec![1; 300_000]);
}

#[test]
fn only_what_changed_travels() {
    let session = session();
    let guardian = Guardian::new();
    let address = session.alloc_with(&[1; 1 << 20]);
    let first = guardian.finish(&session, session.cut(1, PATIENT));
    assert_eq!((first.live_bytes, first.dirty_bytes), (1 << 20, 1 << 20));
    assert_eq!(guardian.finish(&session, session.cut(2, PATIENT)).dirty_bytes, 0);
    session.write(LEGACY, address + 500_000, &[7]).unwrap();
    let third = guardian.finish(&session, session.cut(3, PATIENT));
    assert!((1..=65536).contains(&third.dirty_bytes));
    assert_eq!(saved(&guardian, 3, address, 1 << 20)[499_999..500_002], [1, 7, 1]);
    // Another session's digests are another session's: everything travels again.
    session.cuts().protect(key()).unwrap();
    let CutState::Taken(taken) = session.cut(4, PATIENT).wait() else { panic!() };
    assert_eq!((taken.delta.base, taken.dirty_bytes), (0, 1 << 20));
}

#[test]
fn a_cut_that_is_abandoned_forgets_nothing() {
    let session = session();
    let guardian = Guardian::new();
    let address = session.alloc_with(&[1; 100_000]);
    guardian.finish(&session, session.cut(1, PATIENT));
    session.write(LEGACY, address, &[2; 10]).unwrap();
    let mut taken = session.cut(2, PATIENT);
    assert!(matches!(taken.wait(), CutState::Taken(_)));
    drop(taken);
    let third = guardian.finish(&session, session.cut(3, PATIENT));
    assert_eq!(third.delta.base, 1);
    assert_eq!(saved(&guardian, 3, address, 12), [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1]);
}

#[test]
fn work_that_waits_for_a_later_command_abandons_the_cut_and_is_not_hurt() {
    let session = session();
    let guardian = Guardian::new();
    let flag = session.alloc_with(&[0; 64]);
    let info = session.load(1, include_bytes!("samples/kernels.ptx")).unwrap();
    let wait_for = info.kernels.iter().position(|kernel| kernel.name == "wait_for").unwrap() as u32;
    let (one, two, three) = (session.stream(1), session.stream(1), session.stream(1));
    session.driver.context_synchronize(CONTEXT).unwrap();
    // A wait for a word, and a kernel that spins: both for words that later commands write.
    session.wait_value(one, flag, 1);
    session.write_value(one, flag + 16, 11);
    let arguments = [flag + 32, 5, flag + 48].map(u64::to_le_bytes).concat();
    session.driver.enqueue(two, launch(1, wait_for, 1, 1, &arguments)).unwrap();
    let mut pending = session.cut(1, SHORT);
    session.write_value(three, flag, 1);
    session.write_value(three, flag + 32, 5);
    assert_eq!(pending.wait(), CutState::Abandoned(Abandon::Patience));
    session.driver.context_synchronize(CONTEXT).unwrap();
    assert_eq!(session.driver.take_deferred(), None);
    assert_eq!((session.read_u32(LEGACY, flag + 16), session.read_u32(LEGACY, flag + 48)), (11, 5));
    let taken = guardian.finish(&session, session.cut(1, PATIENT));
    assert_eq!(taken.delta.base, 0);
}

#[test]
fn patience_does_not_run_while_no_work_is_held_back() {
    let session = session();
    let one = session.stream(1);
    session.link.hold(5);
    session.driver.enqueue(one, Op::HostCall { token: 5 }).unwrap();
    let mut pending = session.cut(1, Duration::ZERO);
    std::thread::sleep(SHORT);
    assert_eq!(pending.poll(), CutState::Waiting);
    session.link.let_go(5);
    assert!(matches!(pending.wait(), CutState::Taken(_)));
}

#[test]
fn a_free_that_another_allocation_waits_for_runs_patience_too() {
    let session = session();
    let address = session.alloc_with(&[1; 4096]);
    let one = session.stream(1);
    session.driver.context_synchronize(CONTEXT).unwrap();
    session.wait_value(one, address, 1);
    let mut pending = session.cut(1, SHORT);
    let other = session.alloc(512);
    session.driver.memory_free(other).unwrap();
    // Waits for the free of `other`, which waits for the gate.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| session.driver.memory_allocate(CONTEXT, other, 512));
        assert_eq!(pending.wait(), CutState::Abandoned(Abandon::Patience));
        let two = session.stream(1);
        session.write_value(two, address, 1);
        waiting.join().unwrap().unwrap();
    });
}

#[test]
fn the_end_of_a_session_ends_its_cut() {
    let session = session();
    let one = session.stream(1);
    let address = session.alloc_with(&[0; 512]);
    session.driver.context_synchronize(CONTEXT).unwrap();
    session.wait_value(one, address, 1);
    let mut pending = session.cut(1, PATIENT);
    let two = session.stream(1);
    session.driver.enqueue(two, fill32(address, 1, 3)).unwrap();
    session.driver.abort();
    assert_eq!(pending.wait(), CutState::Abandoned(Abandon::Ended));
    drop(session);
    drop(pending);
}

#[test]
fn variables_come_back_by_module_and_name() {
    let base = Session::some_base();
    let guardian = Guardian::new();
    let first = again(base);
    let info = first.load(3, VARIABLES.as_bytes()).unwrap();
    let place = |info: &ModuleInfo, name: &str| {
        info.variables.iter().find(|variable| variable.name == name).unwrap().address
    };
    first.write(LEGACY, place(&info, "zebra"), &77u32.to_le_bytes()).unwrap();
    first.write(LEGACY, place(&info, "apple"), &99u32.to_le_bytes()).unwrap();
    guardian.finish(&first, first.cut(1, PATIENT));
    let old = place(&info, "zebra");
    drop(first);
    let second = again(base);
    // Another module lies where the first one lay: their names choose the same slot.
    second.load(3 + (32 << 10), VARIABLES.as_bytes()).unwrap();
    let info = second.load(3, VARIABLES.as_bytes()).unwrap();
    assert_ne!(place(&info, "zebra"), old);
    second.restore(&guardian, 1).unwrap();
    assert_eq!(second.read_u32(LEGACY, place(&info, "zebra")), 77);
    assert_eq!(second.read_u32(LEGACY, place(&info, "apple")), 99);
    assert_eq!(second.read_u32(LEGACY, old), 7, "the other module's");
}

#[test]
fn events_keep_their_times() {
    let base = Session::some_base();
    let guardian = Guardian::new();
    let first = again(base);
    let (start, end) = (first.event(), first.event());
    first.driver.enqueue(LEGACY, Op::Record { event: start, flags: 0 }).unwrap();
    first.driver.event_synchronize(start).unwrap();
    std::thread::sleep(Duration::from_millis(5));
    first.driver.enqueue(LEGACY, Op::Record { event: end, flags: 0 }).unwrap();
    guardian.finish(&first, first.cut(1, PATIENT));
    let elapsed = first.driver.event_elapsed(start, end).unwrap();
    drop(first);
    let second = again(base);
    let events = [second.event(), second.event(), second.event()];
    assert_eq!(events[..2], [start, end]);
    second.restore(&guardian, 1).unwrap();
    assert_eq!(second.driver.event_elapsed(start, end).unwrap(), elapsed);
    second.driver.event_synchronize(end).unwrap();
    // Recorded anew, it has a time of this device, later than what was restored.
    second.driver.enqueue(LEGACY, Op::Record { event: events[2], flags: 0 }).unwrap();
    second.driver.event_synchronize(events[2]).unwrap();
    assert!(second.driver.event_elapsed(end, events[2]).unwrap() > 0.0);
}

#[test]
fn after_a_restore_the_next_cut_is_small() {
    let base = Session::some_base();
    let guardian = Guardian::new();
    let first = again(base);
    let address = first.alloc_with(&[1; 1 << 20]);
    guardian.finish(&first, first.cut(1, PATIENT));
    drop(first);
    let second = again(base);
    second.driver.memory_allocate(CONTEXT, address, 1 << 20).unwrap();
    let restored = second.restore(&guardian, 1).unwrap();
    assert_eq!((restored.blocks, restored.bytes), (16, 1 << 20));
    second.write(LEGACY, address, &[5]).unwrap();
    let taken = guardian.finish(&second, second.cut(2, PATIENT));
    assert_eq!((taken.delta.base, taken.dirty_bytes), (1, 65536));
}

#[test]
fn an_image_that_does_not_fit_is_refused_in_words() {
    let base = Session::some_base();
    let guardian = Guardian::new();
    let first = again(base);
    let address = first.alloc_with(&[1; 100_000]);
    guardian.finish(&first, first.cut(1, PATIENT));
    drop(first);
    let second = again(base);
    second.driver.memory_allocate(CONTEXT, address, 50_000).unwrap();
    assert_eq!(second.restore(&guardian, 1).err(), Some(CudaError::INVALID_VALUE));
    let words = second.driver.take_message().unwrap();
    assert!(words.contains("not allocated again"), "{words}");
    let unprotected = Session::new();
    assert_eq!(unprotected.restore(&guardian, 1).err(), Some(CudaError::NOT_INITIALIZED));
    // With another key nothing is what it should be.
    drop(second);
    let third = Session::at(base, SoftConfig { memory_bytes: 1 << 30, ..SoftConfig::default() });
    third.cuts().protect(std::sync::Arc::new(snapshot::Key::from_seed(&[6; 32]))).unwrap();
    third.driver.memory_allocate(CONTEXT, address, 100_000).unwrap();
    assert_eq!(third.restore(&guardian, 1).err(), Some(CudaError::INVALID_VALUE));
    assert!(third.driver.take_message().unwrap().contains("is not what the worker saved"));
}

#[test]
fn memory_that_the_client_calls_dead_is_not_saved() {
    let session = session();
    let address = session.alloc_with(&[1; 200_000]);
    // Dead memory that is not mapped is no news.
    let dead = [(address, 512), (address + 1536, 198_656), (address + (1 << 30), 4096)];
    let dead = Extents::new(dead.map(|(address, bytes)| Extent { address, bytes })).unwrap();
    let mut pending = session.cut_without(1, dead.clone()).unwrap();
    let CutState::Taken(taken) = pending.wait() else { panic!() };
    assert_eq!((taken.live_bytes, taken.delta.dirty.len()), (1024, 1));
    drop(pending);
    // What an image cannot name is not cut, whatever is dead.
    session.driver.physical_create(MemoryHandleId(1), 0, 2 << 20).unwrap();
    let mut hidden = session.cut_without(1, dead).unwrap();
    assert_eq!(hidden.wait(), CutState::Abandoned(Abandon::UnmappedMemory));
}

#[test]
fn what_an_image_cannot_name_is_not_cut() {
    // Physical memory that is mapped nowhere.
    let physical = session();
    let (driver, handle) = (&physical.driver, MemoryHandleId(1));
    let (step, at) = (2u64 << 20, physical.base + (1 << 30));
    driver.physical_create(handle, 0, 2 * step).unwrap();
    assert_eq!(physical.cut(1, PATIENT).wait(), CutState::Abandoned(Abandon::UnmappedMemory));
    driver.physical_map(at, step, 0, handle).unwrap();
    assert_eq!(physical.cut(1, PATIENT).wait(), CutState::Abandoned(Abandon::UnmappedMemory));
    driver.physical_map(at + step, step, step, handle).unwrap();
    let guardian = Guardian::new();
    let taken = guardian.finish(&physical, physical.cut(1, PATIENT));
    assert_eq!(taken.live_bytes, 2 * step, "though no access was given yet");
    // The heap of malloc in kernels.
    let heap = session();
    let info = heap.load(1, include_bytes!("samples/kernels.ptx")).unwrap();
    let kernel = |name: &str| info.kernels.iter().position(|kernel| kernel.name == name).unwrap() as u32;
    let out = heap.alloc(4096);
    let arguments = parameters(&[out, 16]);
    heap.driver.enqueue(LEGACY, launch(1, kernel("heap"), 1, 32, &arguments)).unwrap();
    assert_eq!(heap.cut(1, PATIENT).wait(), CutState::Abandoned(Abandon::DeviceHeap));
    // A context that an error of the program killed.
    let dead = session();
    dead.load(1, include_bytes!("samples/kernels.ptx")).unwrap();
    let arguments = parameters(&[0x10, 1]);
    dead.driver.enqueue(LEGACY, launch(1, kernel("poke"), 1, 1, &arguments)).unwrap();
    assert_eq!(dead.cut(1, PATIENT).wait(), CutState::Abandoned(Abandon::ContextLost));
}
