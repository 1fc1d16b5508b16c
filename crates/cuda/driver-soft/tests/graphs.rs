//! Executable graphs.

mod common;

use common::*;
use cuda_abi::CudaError;
use cuda_wire::*;

const EXEC: ExecId = ExecId(1);

fn node<'a>(op: Op<'a>, after: &[u32]) -> GraphNode<'a> {
    GraphNode { op, after: after.to_vec(), enabled: true }
}

#[test]
fn branches_meet_again_every_time() {
    let session = Session::new();
    let memory = session.alloc_with(&[0; 64]);
    let stream = session.stream(1);
    session.driver.stream_synchronize(LEGACY).unwrap();
    let word = |index: u64| memory + 4 * index;
    let wait = |index, value| {
        let op = MemoryOp { kind: 1, flags: 1, address: word(index), value };
        Op::MemoryOps { ops: vec![op] }
    };
    // Two branches that wait for each other, so they must run beside each other; the last node joins them.
    let nodes = vec![
        node(fill32(memory, 8, 0), &[]),
        node(wait(1, 7), &[0]),
        node(fill32(word(0), 1, 5), &[1]),
        node(fill32(word(1), 1, 7), &[0]),
        node(wait(0, 5), &[3]),
        node(copy(word(2), word(0), 8), &[2, 4]),
    ];
    session.driver.graph_instantiate(EXEC, CONTEXT, nodes).unwrap();
    for run in 0..300 {
        session.driver.graph_launch(EXEC, stream, run).unwrap();
        assert_eq!(session.words(stream, memory, 4), [5, 7, 5, 7]);
        session.driver.enqueue(stream, fill32(memory, 4, 9)).unwrap();
    }
}

#[test]
fn a_launch_is_one_place_in_its_stream_and_launches_follow_each_other() {
    let session = Session::new();
    let memory = session.alloc_with(&[0; 64]);
    session.driver.stream_synchronize(LEGACY).unwrap();
    let (first, second, free) = (session.stream(1), session.stream(1), session.stream(1));
    let wait = MemoryOp { kind: 1, flags: 1, address: memory, value: 1 };
    let nodes = vec![
        node(Op::MemoryOps { ops: vec![wait] }, &[]),
        node(copy(memory + 8, memory + 4, 4), &[0]),
        node(copy(memory + 4, memory, 4), &[1]),
    ];
    session.driver.graph_instantiate(EXEC, CONTEXT, nodes).unwrap();
    session.driver.graph_upload(EXEC, first).unwrap();
    session.driver.graph_launch(EXEC, first, 1).unwrap();
    session.driver.graph_launch(EXEC, second, 2).unwrap();
    session.driver.graph_destroy(EXEC).unwrap();
    assert_eq!(session.driver.stream_query(first), Err(CudaError::NOT_READY));
    session.write_value(free, memory, 1);
    // Only the second launch sees what the first one wrote last.
    assert_eq!(session.words(second, memory, 3), [1, 1, 1]);
    assert_eq!(session.driver.graph_launch(EXEC, first, 3), Err(CudaError::INVALID_HANDLE));
}

#[test]
fn nodes_can_be_replaced_and_switched_off() {
    let session = Session::new();
    let memory = session.alloc_with(&[0; 64]);
    let fill = |index: u64, value| fill32(memory + 4 * index, 1, value);
    let nodes = || vec![node(fill(0, 1), &[]), node(fill(1, 1), &[0]), node(Op::Empty {}, &[1])];
    session.driver.graph_instantiate(EXEC, CONTEXT, nodes()).unwrap();
    session.driver.graph_set_node(EXEC, 0, fill(0, 4), true).unwrap();
    session.driver.graph_set_node(EXEC, 1, fill(1, 4), false).unwrap();
    session.driver.graph_launch(EXEC, LEGACY, 1).unwrap();
    assert_eq!(session.words(LEGACY, memory, 2), [4, 0]);
    session.driver.graph_update(EXEC, nodes()).unwrap();
    session.driver.graph_launch(EXEC, LEGACY, 2).unwrap();
    assert_eq!(session.words(LEGACY, memory, 2), [1, 1]);
    let driver = &session.driver;
    assert_eq!(driver.graph_set_node(EXEC, 0, Op::Empty {}, true), Err(CudaError::INVALID_VALUE));
    assert_eq!(driver.graph_set_node(EXEC, 9, fill(0, 0), true), Err(CudaError::INVALID_VALUE));
    let other = vec![node(fill(0, 1), &[])];
    assert_eq!(driver.graph_update(EXEC, other), Err(CudaError::GRAPH_EXEC_UPDATE_FAILURE));
    let circle = vec![node(fill(0, 1), &[0])];
    assert_eq!(driver.graph_instantiate(ExecId(2), CONTEXT, circle), Err(CudaError::INVALID_VALUE));
}

#[test]
fn data_travels_both_ways_in_every_launch() {
    let session = Session::new();
    let memory = session.alloc(3000);
    let (plane, shape) = (Plane::line(memory), Shape::line(3000));
    let nodes = vec![
        node(Op::CopyIn { target: plane, shape, data: HostData::Pulled { transfer: TransferId(5) } }, &[]),
        node(Op::CopyOut { source: plane, shape, transfer: TransferId(6) }, &[0]),
        node(Op::HostCall { token: 77 }, &[1]),
    ];
    session.driver.graph_instantiate(EXEC, CONTEXT, nodes).unwrap();
    for run in 1..4 {
        session.link.push(TransferId(5), &vec![run as u8; 3000]);
        session.driver.graph_launch(EXEC, LEGACY, run).unwrap();
        session.driver.stream_synchronize(LEGACY).unwrap();
        let sent = session.link.sent(transfer_of_run(TransferId(6), run)).unwrap();
        assert_eq!(sent, vec![run as u8; 3000]);
    }
    assert_eq!(session.link.called(), [77, 77, 77]);
    assert_eq!(session.link.pulls(), 3);
}

#[test]
fn events_and_memory_work_inside_graphs() {
    let session = Session::new();
    let kept = session.alloc(64);
    let address = session.place(4096);
    let event = session.event();
    let nodes = vec![
        node(Op::Allocate { address, bytes: 4096 }, &[]),
        node(fill32(address, 1024, 6), &[0]),
        node(copy(kept, address + 4000, 64), &[1]),
        node(Op::Record { event, flags: 0 }, &[2]),
        node(Op::Free { address }, &[2]),
    ];
    session.driver.graph_instantiate(EXEC, CONTEXT, nodes).unwrap();
    for run in 0..20 {
        session.driver.graph_launch(EXEC, LEGACY, run).unwrap();
        session.driver.event_synchronize(event).unwrap();
        assert_eq!(session.words(LEGACY, kept, 16), [6; 16]);
    }
    session.driver.context_synchronize(CONTEXT).unwrap();
    assert_eq!(session.write(LEGACY, address, &[1]), Err(CudaError::INVALID_VALUE));

    // A launch that is refused half-way leaves nothing behind.
    let nodes = vec![node(Op::Allocate { address, bytes: 4096 }, &[]), node(fill32(address, 1025, 6), &[0])];
    session.driver.graph_instantiate(ExecId(2), CONTEXT, nodes).unwrap();
    assert_eq!(session.driver.graph_launch(ExecId(2), LEGACY, 1), Err(CudaError::INVALID_VALUE));
    session.driver.memory_allocate(CONTEXT, address, 4096).unwrap();
}
