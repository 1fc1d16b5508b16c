//! Streams, events and the work in them.

use super::session::*;
use cuda_abi::CudaError;
use cuda_wire::*;

const OTHER: StreamId = StreamId(2);
const LEGACY: StreamId = StreamId(3);
const EVENT: EventId = EventId(1);

#[test]
fn a_stream_waits_for_the_event_of_another() {
    let session = Session::new();
    session.stream_create(OTHER, CONTEXT, 1, 0).unwrap();
    session.event_create(EVENT, CONTEXT, 0).unwrap();
    session.fake.hold();
    session.enqueue(STREAM, fill(DATA, 8, 1)).unwrap();
    session.enqueue(STREAM, Op::Record { event: EVENT, flags: 0 }).unwrap();
    session.enqueue(OTHER, Op::Wait { event: EVENT, flags: 0 }).unwrap();
    session.enqueue(OTHER, fill(DATA, 4, 2)).unwrap();
    let [first, second] = session.fake.streams()[..] else { panic!("two streams") };
    assert_eq!(session.fake.step(second), None, "it waits for the event");
    while session.fake.step(first).is_some() {}
    while session.fake.step(second).is_some() {}
    assert_eq!(session.fake.peek(DATA, 8), [2, 2, 2, 2, 1, 1, 1, 1]);
    session.check_rules();
}

#[test]
fn the_legacy_stream_is_its_contexts() {
    let session = Session::new();
    session.stream_create(OTHER, CONTEXT, 0, 0).unwrap();
    session.stream_create(LEGACY, CONTEXT, 2, 0).unwrap();
    session.fake.hold();
    session.enqueue(OTHER, fill(DATA, 4, 1)).unwrap();
    session.enqueue(LEGACY, fill(DATA, 2, 2)).unwrap();
    session.enqueue(OTHER, fill(DATA, 1, 3)).unwrap();
    session.drain();
    assert_eq!(session.fake.peek(DATA, 4), [3, 2, 1, 1]);
    session.stream_destroy(LEGACY).unwrap();
    session.stream_destroy(OTHER).unwrap();
    session.check_nothing_left();
}

#[test]
fn fills_have_every_element_size_and_rows() {
    let session = Session::new();
    let target = Plane { address: DATA, row_pitch: 8, slice_pitch: 16 };
    for (element_bytes, value, row) in
        [(1, 0x7, [7; 4]), (2, 0x201, [1, 2, 1, 2]), (4, 0x0403_0201, [1, 2, 3, 4])]
    {
        for height in [1, 2] {
            session.fake.poke(DATA, &[0; 32]);
            let shape = Shape { width: 4, height, depth: 2 };
            session.enqueue(STREAM, Op::Fill { target, shape, element_bytes, value }).unwrap();
            session.drain();
            let second = if height == 2 { row } else { [0; 4] };
            let slice = [row, [0; 4], second, [0; 4]].concat();
            assert_eq!(
                session.fake.peek(DATA, 32),
                [slice.clone(), slice].concat(),
                "{element_bytes} {height}"
            );
        }
    }
    let bad = Op::Fill { target, shape: Shape::line(3), element_bytes: 3, value: 0 };
    assert_eq!(session.enqueue(STREAM, bad), Err(CudaError::INVALID_VALUE));
}

#[test]
fn device_copies_keep_their_pitches() {
    let session = Session::new();
    session.fake.poke(DATA, &(0..64).collect::<Vec<u8>>());
    let source = Plane { address: DATA, row_pitch: 16, slice_pitch: 32 };
    let target = Plane { address: DATA + 4096, row_pitch: 4, slice_pitch: 8 };
    let shape = Shape { width: 4, height: 2, depth: 2 };
    session.enqueue(STREAM, Op::CopyDevice { target, source, shape }).unwrap();
    let line = Op::CopyDevice {
        target: Plane::line(DATA + 8192),
        source: Plane::line(DATA + 5),
        shape: Shape::line(3),
    };
    session.enqueue(STREAM, line).unwrap();
    session.drain();
    let expected: Vec<u8> = [0, 16, 32, 48].iter().flat_map(|&at| at..at + 4).collect();
    assert_eq!(session.fake.peek(DATA + 4096, 16), expected);
    assert_eq!(session.fake.peek(DATA + 8192, 4), [5, 6, 7, 0]);
}

#[test]
fn memory_operations_write_and_wait_in_order() {
    let session = Session::new();
    session.stream_create(OTHER, CONTEXT, 1, 0).unwrap();
    let op = |kind, value| MemoryOp { kind, flags: 0, address: DATA + 64, value };
    session.fake.hold();
    session.enqueue(OTHER, Op::MemoryOps { ops: vec![op(4, 5)] }).unwrap();
    session.enqueue(OTHER, fill(DATA, 1, 9)).unwrap();
    let second = session.fake.streams()[1];
    assert_eq!(session.fake.step(second), None, "the word is 0");
    session.enqueue(STREAM, Op::MemoryOps { ops: vec![op(5, 4), op(5, 6)] }).unwrap();
    session.drain();
    assert_eq!(session.fake.peek(DATA, 1), [9]);
    assert_eq!(session.fake.peek(DATA + 64, 8), 6u64.to_le_bytes());
}

#[test]
fn a_host_function_holds_its_stream_and_a_refused_one_is_not_called() {
    let session = Session::new();
    session.fake.hold();
    session.enqueue(STREAM, Op::HostCall { token: 7 }).unwrap();
    session.fake.fail("cuLaunchHostFunc", 1, CudaError::LAUNCH_FAILED);
    assert_eq!(session.enqueue(STREAM, Op::HostCall { token: 8 }), Err(CudaError::LAUNCH_FAILED));
    assert!(session.link.host_calls.lock().unwrap().is_empty());
    session.drain();
    assert_eq!(*session.link.host_calls.lock().unwrap(), [7]);
}

#[test]
fn launches_carry_parameters_and_attributes() {
    let session = Session::new();
    let info = session.load(ModuleId(1), CONTEXT).unwrap();
    let names: Vec<&str> = info.kernels.iter().map(|kernel| kernel.name.as_str()).collect();
    assert_eq!(names, ["lazy_one", "nothing", "store"]);
    session.event_create(EVENT, CONTEXT, 2).unwrap();
    let parameters = store(DATA + 8, 0x1122);
    let Op::Launch { kernel, grid, block, shared_bytes, parameters, .. } =
        launch(ModuleId(1), STORE, &parameters)
    else {
        unreachable!()
    };
    let mut value = [0; 64];
    value[..4].copy_from_slice(&EVENT.0.to_le_bytes());
    let attributes = vec![LaunchAttribute { id: 12, value }];
    let op = Op::Launch { kernel, grid, block, shared_bytes, cooperative: true, attributes, parameters };
    session.enqueue(STREAM, op).unwrap();
    session.drain();
    assert_eq!(session.fake.peek(DATA + 8, 8), 0x1122u64.to_le_bytes());
    let launched = session.fake.launched();
    assert_eq!((launched[0].grid, launched[0].attributes.clone()), ([1, 2, 3], vec![12, 2]));
    let unknown = session.enqueue(STREAM, launch(ModuleId(1), 3, &[]));
    assert_eq!(unknown, Err(CudaError::INVALID_HANDLE));
}

#[test]
fn events_measure_and_are_of_their_context() {
    let session = Session::new();
    session.event_create(EVENT, CONTEXT, 0).unwrap();
    session.event_create(EventId(2), SECOND, 0).unwrap();
    assert_eq!(session.event_elapsed(EVENT, EVENT), Err(CudaError::INVALID_HANDLE), "never recorded");
    session.enqueue(STREAM, Op::Record { event: EVENT, flags: 0 }).unwrap();
    let foreign = session.enqueue(STREAM, Op::Record { event: EventId(2), flags: 0 });
    assert_eq!(foreign, Err(CudaError::INVALID_HANDLE));
    session.drain();
    assert_eq!(session.event_elapsed(EVENT, EVENT), Ok(0.0));
    session.event_destroy(EVENT).unwrap();
    assert_eq!(session.event_destroy(EVENT), Err(CudaError::INVALID_HANDLE));
}

#[test]
fn streams_of_a_green_context_work_and_outlive_it() {
    const GREEN: GreenId = GreenId(7);
    let session = Session::new();
    let whole = session.sm_resource(0, None).unwrap();
    assert_eq!((whole.count, whole.least), (132, 8));
    let split = SmSplit { groups: 2, flags: 0, least: 20 };
    let groups = session.sm_split(0, None, split).unwrap();
    assert_eq!((groups.groups, groups.group.count, groups.rest.unwrap().count), (2, 24, 84));
    let counted = session.sm_split(0, None, SmSplit { groups: 0, ..split }).unwrap();
    assert_eq!(counted.groups, 5);
    assert!(session.sm_split(0, None, SmSplit { groups: SM_GROUPS_MAX + 1, ..split }).is_err());
    assert!(session.sm_resource(0, Some(GREEN)).is_err());

    let part = |group| SmPart { of: None, split: Some(split), group };
    assert!(session.green_create(GREEN, ContextId(0), vec![part(Some(2))], 1).is_err());
    assert!(session.green_create(GREEN, ContextId(0), Vec::new(), 1).is_err());
    let made = session.green_create(GREEN, ContextId(0), vec![part(Some(1)), part(None)], 1).unwrap();
    assert_eq!(made.count, 108);
    assert_eq!(session.sm_resource(0, Some(GREEN)).unwrap().count, 108);
    assert!(session.green_stream_create(StreamId(20), ContextId(0), GreenId(8), 1, 0).is_err());
    for (stream, kind) in [(20, 0), (21, 1), (22, 2)] {
        session.green_stream_create(StreamId(stream), ContextId(0), GREEN, kind, 0).unwrap();
        session.enqueue(StreamId(stream), fill(DATA + u64::from(stream), 1, stream)).unwrap();
    }
    session.green_destroy(GREEN).unwrap();
    assert!(session.green_destroy(GREEN).is_err());
    session.enqueue(StreamId(21), fill(DATA + 23, 1, 23)).unwrap();
    session.drain();
    assert_eq!(session.fake.peek(DATA + 20, 4), [20, 21, 22, 23]);
    for stream in [20, 21, 22] {
        session.stream_destroy(StreamId(stream)).unwrap();
    }
    session.drain();
    session.check_rules();
}
