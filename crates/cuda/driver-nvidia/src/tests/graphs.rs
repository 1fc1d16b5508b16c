//! Graphs.

use super::{
    link::{bytes, until},
    session::*,
};
use crate::pinned::SLOT_BYTES;
use cuda_abi::CudaError;
use cuda_wire::*;

const EXEC: ExecId = ExecId(1);
const MODULE: ModuleId = ModuleId(1);
const COUNT: u64 = 1000;

/// Pull bytes in, copy them on the device, send them out; a fill and a host function beside.
fn round_trip() -> Vec<GraphNode<'static>> {
    let copy = Op::CopyDevice {
        target: Plane::line(DATA + 8192),
        source: Plane::line(DATA),
        shape: Shape::line(COUNT),
    };
    vec![
        node(pulled(Plane::line(DATA), Shape::line(COUNT), 1), &[]),
        node(copy, &[0]),
        node(fill(DATA + 8192, 1, 0xff), &[1]),
        node(out(Plane::line(DATA + 8192), Shape::line(COUNT), 2), &[2]),
        node(Op::HostCall { token: 5 }, &[3]),
    ]
}

fn expected() -> Vec<u8> {
    let mut expected = bytes(TransferId(1), COUNT);
    expected[0] = 0xff;
    expected
}

#[test]
fn nodes_run_in_the_order_of_their_edges_each_time() {
    let session = Session::new();
    session.graph_instantiate(EXEC, CONTEXT, round_trip()).unwrap();
    session.graph_upload(EXEC, STREAM).unwrap();
    for run in [1, 2, 3] {
        session.graph_launch(EXEC, STREAM, run).unwrap();
    }
    until("the streams are empty", || session.fake.backlog() == 0);
    for run in [1, 2, 3] {
        assert!(session.link.sent(transfer_of_run(TransferId(2), run)) == expected(), "run {run}");
    }
    assert_eq!(*session.link.host_calls.lock().unwrap(), [5, 5, 5]);
    session.graph_destroy(EXEC).unwrap();
    session.check_nothing_left();
}

#[test]
fn launches_in_two_streams_follow_each_other() {
    let session = Session::new();
    session.stream_create(StreamId(2), CONTEXT, 1, 0).unwrap();
    session.graph_instantiate(EXEC, CONTEXT, round_trip()).unwrap();
    session.fake.hold();
    session.graph_launch(EXEC, STREAM, 1).unwrap();
    session.graph_launch(EXEC, StreamId(2), 2).unwrap();
    let second = session.fake.streams()[1];
    assert_eq!(session.fake.step(second), None, "the first launch is not over");
    session.fake.release();
    until("the streams are empty", || session.fake.backlog() == 0);
    assert!(session.link.sent(transfer_of_run(TransferId(2), 2)) == expected());
    session.graph_destroy(EXEC).unwrap();
    session.stream_destroy(StreamId(2)).unwrap();
    session.check_nothing_left();
}

#[test]
fn a_graph_that_is_destroyed_while_it_runs_keeps_its_memory_to_the_end() {
    let session = Session::new();
    session.graph_instantiate(EXEC, CONTEXT, round_trip()).unwrap();
    session.fake.hold();
    session.graph_launch(EXEC, STREAM, 1).unwrap();
    session.graph_destroy(EXEC).unwrap();
    session.check_pinned();
    session.drain();
    assert!(session.link.sent(transfer_of_run(TransferId(2), 1)) == expected());
    session.check_nothing_left();
}

/// Whatever call of a launch fails: its nodes may stand in the stream, so their memory stays until the stream is idle.
#[test]
fn a_launch_that_fails_in_the_middle_keeps_the_memory_of_its_nodes() {
    for earlier in [0, 1] {
        for nth in 1.. {
            let session = Session::new();
            session.graph_instantiate(EXEC, CONTEXT, round_trip()).unwrap();
            session.fake.hold();
            (0..earlier).for_each(|run| session.graph_launch(EXEC, STREAM, run).unwrap());
            session.fake.fail_nth(nth, CudaError::LAUNCH_FAILED);
            let result = session.graph_launch(EXEC, STREAM, 7);
            let failed = session.fake.take_failed();
            assert_eq!(result, if failed.is_some() { Err(CudaError::LAUNCH_FAILED) } else { Ok(()) });
            session.check_pinned();
            // The next one works, and its memory is not that of one which may still run.
            session.graph_launch(EXEC, STREAM, 8).unwrap();
            session.graph_destroy(EXEC).unwrap();
            session.check_pinned();
            session.drain();
            assert!(session.link.sent(transfer_of_run(TransferId(2), 8)) == expected(), "{failed:?}");
            session.check_nothing_left();
            if failed.is_none() {
                break;
            }
        }
    }
}

#[test]
fn a_graph_that_cannot_be_built_leaves_nothing() {
    for nth in 1.. {
        let session = Session::new();
        session.fake.fail_nth(nth, CudaError::LAUNCH_FAILED);
        let result = session.graph_instantiate(EXEC, CONTEXT, round_trip());
        let Some(failed) = session.fake.take_failed() else {
            assert!(nth > 8, "eight nodes or more");
            break;
        };
        // What was made executable does not need the graph it was made from.
        let is_ignored = failed == "cuGraphDestroy";
        assert_eq!(result.is_ok(), is_ignored, "{failed}");
        if !is_ignored {
            session.check_nothing_left();
        }
    }
}

#[test]
fn large_copies_of_a_graph_have_pages_of_their_own() {
    let session = Session::new();
    let count = SLOT_BYTES as u64 + 17;
    let nodes = vec![
        node(pulled(Plane::line(DATA), Shape::line(count), 1), &[]),
        node(out(Plane::line(DATA), Shape::line(count), 2), &[0]),
    ];
    session.graph_instantiate(EXEC, CONTEXT, nodes).unwrap();
    session.fake.hold();
    session.graph_launch(EXEC, STREAM, 3).unwrap();
    session.graph_destroy(EXEC).unwrap();
    assert_eq!(session.fake.count("cuMemHostUnregister"), 0, "the launch is under way");
    session.drain();
    assert!(session.link.sent(transfer_of_run(TransferId(2), 3)) == bytes(TransferId(1), count));
    until("the pages are back", || session.fake.count("cuMemHostUnregister") == 2);
    session.check_nothing_left();
}

/// The fake runs the first body of a conditional node once.
#[test]
fn bodies_are_filled_and_kernels_get_the_driver_s_handles() {
    const HANDLE: u64 = 0x1234_5678_9abc_def0;
    let session = Session::new();
    session.load(MODULE, CONTEXT).unwrap();
    let (told, inner) = (store(DATA + 64, HANDLE), store(DATA + 128, HANDLE + 1));
    let conditional =
        |handle, first, bodies: &[u32]| Op::Conditional { handle, kind: 0, first, bodies: bodies.to_vec() };
    let nodes = || {
        vec![
            node(launch(MODULE, STORE, &told), &[]),
            node(launch(MODULE, STORE, &inner), &[]),
            node(conditional(HANDLE + 1, None, &[1]), &[]),
            node(fill(DATA, 1, 7), &[2]),
            node(fill(DATA + 1, 1, 8), &[]),
            node(conditional(HANDLE, Some(3), &[3, 1]), &[0]),
            node(fill(DATA + 2, 1, 9), &[5]),
        ]
    };
    session.graph_instantiate(EXEC, CONTEXT, nodes()).unwrap();
    session.graph_launch(EXEC, STREAM, 0).unwrap();
    until("the streams are empty", || session.fake.backlog() == 0);
    assert_eq!(session.fake.peek(DATA, 3), [7, 0, 9], "the second body does not run");
    assert_eq!(session.fake.peek(DATA + 64, 3), [0xc0, 3, 1], "told its first value");
    assert_eq!(session.fake.peek(DATA + 128, 3), [0xc0, 0, 0]);
    let refused = |change: &dyn Fn(&mut Vec<GraphNode<'_>>)| {
        let mut nodes = nodes();
        change(&mut nodes);
        assert!(session.graph_instantiate(ExecId(9), CONTEXT, nodes).is_err());
    };
    refused(&|nodes| nodes[5].op = conditional(HANDLE, None, &[9]));
    refused(&|nodes| nodes[5].op = conditional(HANDLE + 1, None, &[3, 1]));
    refused(&|nodes| nodes[3].after = vec![0]);
    refused(&|nodes| nodes[6].after = vec![4]);
    session.check_rules();
}

#[test]
fn every_kind_of_node_does_its_work() {
    let session = Session::new();
    session.load(MODULE, CONTEXT).unwrap();
    session.event_create(EventId(1), CONTEXT, 2).unwrap();
    let (stored, address) = (store(DATA + 64, 0x55), DATA + DATA_BYTES);
    let inline = HostData::Inline { bytes: Bytes(&[1, 2, 3, 4]) };
    let rows = Shape { width: 2, height: 2, depth: 1 };
    let target = Plane { address: DATA, row_pitch: 8, slice_pitch: 0 };
    let Op::Launch { kernel, grid, block, cooperative, attributes, parameters, .. } =
        launch(MODULE, STORE, &stored)
    else {
        unreachable!()
    };
    let shared_bytes = 100 << 10;
    let kernel = Op::Launch { kernel, grid, block, shared_bytes, cooperative, attributes, parameters };
    let words = vec![MemoryOp { kind: 5, flags: 0, address: DATA + 128, value: 9 }];
    let nodes = vec![
        node(Op::Empty {}, &[]),
        node(Op::CopyIn { target, shape: rows, data: inline }, &[0]),
        node(kernel, &[0]),
        node(Op::Record { event: EventId(1), flags: 0 }, &[1, 2]),
        node(Op::Wait { event: EventId(1), flags: 0 }, &[3]),
        node(Op::MemoryOps { ops: words }, &[4]),
        node(Op::Allocate { address, bytes: 64 }, &[5]),
        node(fill(address, 64, 3), &[6]),
        node(Op::Free { address }, &[7]),
        GraphNode { op: fill(DATA, 64, 0xee), after: vec![8], enabled: false },
    ];
    session.graph_instantiate(EXEC, CONTEXT, nodes).unwrap();
    assert_eq!(session.fake.shared_limit("store"), 48 << 10, "raised for the node alone");
    session.graph_launch(EXEC, STREAM, 0).unwrap();
    until("the streams are empty", || session.fake.backlog() == 0);
    assert_eq!(session.fake.peek(DATA, 10), [1, 2, 0, 0, 0, 0, 0, 0, 3, 4]);
    assert_eq!(session.fake.peek(DATA + 64, 1), [0x55]);
    assert_eq!(session.fake.peek(DATA + 128, 1), [9]);
    assert_eq!(session.fake.peek(address, 1), [3]);
    session.check_rules();
}

#[test]
fn a_changed_node_counts_from_the_next_launch_on() {
    let session = Session::new();
    session.graph_instantiate(EXEC, CONTEXT, vec![node(fill(DATA, 4, 1), &[])]).unwrap();
    session.fake.hold();
    session.graph_launch(EXEC, STREAM, 0).unwrap();
    session.graph_set_node(EXEC, 0, fill(DATA + 2, 4, 2), true).unwrap();
    session.graph_launch(EXEC, STREAM, 1).unwrap();
    session.drain();
    assert_eq!(session.fake.peek(DATA, 6), [1, 1, 2, 2, 2, 2]);
    session.graph_set_node(EXEC, 0, fill(DATA, 4, 3), false).unwrap();
    session.graph_launch(EXEC, STREAM, 2).unwrap();
    session.graph_update(EXEC, vec![node(fill(DATA, 1, 4), &[])]).unwrap();
    session.graph_launch(EXEC, STREAM, 3).unwrap();
    session.drain();
    assert_eq!(session.fake.peek(DATA, 2), [4, 1]);
    let beyond = session.graph_set_node(EXEC, 1, fill(DATA, 4, 3), true);
    assert_eq!(beyond, Err(CudaError::INVALID_VALUE));
    session.graph_destroy(EXEC).unwrap();
    session.check_nothing_left();
}

#[test]
fn pushed_bytes_and_edges_forward_are_refused() {
    let session = Session::new();
    for nodes in [
        vec![node(pushed(Plane::line(DATA), Shape::line(8), 1), &[])],
        vec![node(Op::Empty {}, &[1]), node(Op::Empty {}, &[])],
    ] {
        let refused = session.graph_instantiate(EXEC, CONTEXT, nodes);
        assert_eq!(refused, Err(CudaError::INVALID_VALUE));
    }
    session.check_nothing_left();
}
