//! Stream capture as the driver does it. Codes and consequences were seen on the real one.

use super::*;
use crate::graph::tests::{Work, empty, kernel};
use proptest::prelude::*;

const S: CaptureStream = stream(1);
const T: CaptureStream = stream(2);
const U: CaptureStream = stream(3);
const BLOCKING: CaptureStream = CaptureStream { stream: 4, context: 9, kind: StreamOrder::Blocking };
const LEGACY: CaptureStream = CaptureStream { stream: 5, context: 9, kind: StreamOrder::Legacy };
const E: u64 = 100;
const F: u64 = 101;
const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;
const RELAXED: u32 = 2;

const fn stream(stream: u64) -> CaptureStream {
    CaptureStream { stream, context: 9, kind: StreamOrder::NonBlocking }
}

const fn thread(thread: u64) -> CaptureThread {
    CaptureThread { thread, mode: Mode::Global }
}

/// Captures and the graphs they go to.
#[derive(Default)]
struct World {
    captures: Captures,
    graphs: Graphs<Work>,
}

impl World {
    fn begin(&mut self, stream: CaptureStream, mode: u32) -> CuResult<CaptureId> {
        self.begin_on(stream, mode, thread(1))
    }

    fn begin_on(&mut self, stream: CaptureStream, mode: u32, thread: CaptureThread) -> CuResult<CaptureId> {
        let graph = self.graphs.create();
        self.captures.begin(stream, graph, Vec::new(), mode, thread)
    }

    fn launch(&mut self, stream: CaptureStream) -> CuResult<NodeId> {
        self.captures.admit(stream)?;
        self.captures.capture(&mut self.graphs, stream, kernel(0))
    }

    fn end(&mut self, stream: CaptureStream) -> CuResult<GraphId> {
        self.end_on(stream, thread(1))
    }

    fn end_on(&mut self, stream: CaptureStream, thread: CaptureThread) -> CuResult<GraphId> {
        self.captures.end(stream, thread).and_then(|ended| ended.graph)
    }

    fn status(&self, stream: CaptureStream) -> Status {
        self.captures.info(stream).expect("not the legacy stream").status
    }

    fn frontier(&self, stream: CaptureStream) -> Vec<NodeId> {
        let info = self.captures.info(stream).expect("not the legacy stream");
        info.active.map_or(Vec::new(), |active| active.frontier.iter().map(|edge| edge.node).collect())
    }

    fn record(&mut self, event: u64, stream: CaptureStream) {
        assert_eq!(self.captures.record(stream, event, false), Ok(Record::Noted));
    }

    fn wait(&mut self, stream: CaptureStream, event: u64) -> CuResult<Wait> {
        self.captures.wait(stream, event, false, true)
    }

    /// S captures one kernel and T forks off behind it.
    fn forked() -> (Self, NodeId) {
        let mut world = Self::default();
        world.begin(S, GLOBAL).expect("begins");
        let node = world.launch(S).expect("captured");
        world.record(E, S);
        assert_eq!(world.wait(T, E), Ok(Wait::Joined));
        (world, node)
    }
}

#[test]
fn the_machine_is_this_and_no_other() {
    let expected = [
        ("break_rule", Phase::Active, Phase::Invalidated),
        ("end", Phase::Active, Phase::Ended),
        ("end", Phase::Invalidated, Phase::Ended),
    ];
    assert_eq!(Phase::ARROWS, expected);
}

#[test]
fn work_becomes_a_chain_of_nodes() {
    let mut world = World::default();
    world.begin(S, GLOBAL).expect("begins");
    let first = world.launch(S).expect("captured");
    let second = world.launch(S).expect("captured");
    assert_eq!(world.frontier(S), [second]);
    let graph = world.end(S).expect("a graph");
    assert_eq!(world.graphs.edges(graph).expect("a graph"), [(first, second, Default::default())]);
    assert_eq!(world.status(S), Status::None);
}

#[test]
fn a_capture_without_work_is_an_empty_graph() {
    let mut world = World::default();
    world.begin(S, GLOBAL).expect("begins");
    let graph = world.end(S).expect("a graph");
    assert_eq!(world.graphs.nodes(graph), Ok(&[][..]));
    assert!(world.captures.is_quiet());
}

#[test]
fn begin_is_refused() {
    let mut world = World::default();
    assert_eq!(world.begin(LEGACY, GLOBAL), Err(CudaError::STREAM_CAPTURE_UNSUPPORTED));
    assert_eq!(world.begin(S, 3), Err(CudaError::INVALID_VALUE));
    world.begin(S, GLOBAL).expect("begins");
    assert_eq!(world.begin(S, GLOBAL), Err(CudaError::ILLEGAL_STATE));
    assert_eq!(world.status(S), Status::Active);
    let graph = world.captures.graph_of(S).expect("captures");
    assert_eq!(world.captures.begin(T, graph, Vec::new(), GLOBAL, thread(1)), Err(CudaError::ILLEGAL_STATE));
}

#[test]
fn every_capture_has_a_number_of_its_own() {
    let mut world = World::default();
    let first = world.begin(S, GLOBAL).expect("begins");
    world.end(S).expect("a graph");
    assert_ne!(world.begin(S, GLOBAL), Ok(first));
}

#[test]
fn end_needs_a_capture_of_this_stream() {
    let mut world = World::default();
    assert_eq!(world.end(S), Err(CudaError::ILLEGAL_STATE));
    let (mut world, _) = World::forked();
    assert_eq!(world.end(T), Err(CudaError::STREAM_CAPTURE_UNMATCHED));
    assert_eq!((world.status(S), world.status(T)), (Status::Invalidated, Status::Invalidated));
    assert_eq!(world.end(S), Err(CudaError::STREAM_CAPTURE_INVALIDATED));
    assert_eq!((world.status(S), world.status(T)), (Status::None, Status::None));
}

#[test]
fn end_takes_all_streams_out_and_discards_a_bad_graph() {
    let (mut world, _) = World::forked();
    world.launch(T).expect("captured");
    let graph = world.captures.graph_of(S).expect("captures");
    let mut ended = world.captures.end(S, thread(1)).expect("ends");
    ended.streams.sort_unstable();
    let expected =
        Ended { graph: Err(CudaError::STREAM_CAPTURE_UNJOINED), streams: vec![1, 2], discard: Some(graph) };
    assert_eq!(ended, expected);
}

#[test]
fn a_capture_ends_on_its_thread_unless_it_is_relaxed() {
    let mut world = World::default();
    for (mode, result) in [(GLOBAL, false), (THREAD_LOCAL, false), (RELAXED, true)] {
        world.begin(S, mode).expect("begins");
        let ended = world.end_on(S, thread(2));
        assert_eq!(ended.is_ok(), result, "mode {mode}");
        assert!(result || ended == Err(CudaError::STREAM_CAPTURE_WRONG_THREAD));
        // Over it is in any case.
        assert_eq!(world.status(S), Status::None);
    }
}

#[test]
fn a_stream_forks_off_and_joins_by_events() {
    let (mut world, node) = World::forked();
    assert_eq!((world.status(T), world.frontier(T)), (Status::Active, vec![node]));
    let forked = world.launch(T).expect("captured");
    world.record(F, T);
    assert_eq!(world.wait(S, F), Ok(Wait::Noted));
    assert_eq!(world.wait(S, F), Ok(Wait::Noted));
    assert_eq!(world.frontier(S), [node, forked]);
    assert!(world.end(S).is_ok());
}

#[test]
fn a_fork_without_work_needs_no_join() {
    let (mut world, _) = World::forked();
    assert!(world.end(S).is_ok());
}

#[test]
fn work_after_the_join_is_unjoined() {
    let (mut world, _) = World::forked();
    world.launch(T).expect("captured");
    world.record(F, T);
    world.wait(S, F).expect("joins");
    world.launch(T).expect("captured");
    assert_eq!(world.end(S), Err(CudaError::STREAM_CAPTURE_UNJOINED));
}

#[test]
fn a_fork_may_come_before_any_work() {
    let mut world = World::default();
    world.begin(S, GLOBAL).expect("begins");
    world.record(E, S);
    assert_eq!(world.wait(T, E), Ok(Wait::Joined));
    world.launch(T).expect("captured");
    world.record(F, T);
    world.wait(S, F).expect("joins");
    assert!(world.end(S).is_ok());
}

#[test]
fn several_streams_join_in_the_order_of_the_waits() {
    let (mut world, _) = World::forked();
    world.wait(U, E).expect("joins");
    let [on_s, on_t, on_u] = [S, T, U].map(|stream| world.launch(stream).expect("captured"));
    world.record(E, T);
    world.record(F, U);
    world.wait(S, F).expect("joins");
    world.wait(S, E).expect("joins");
    assert_eq!(world.frontier(S), [on_s, on_u, on_t]);
    assert!(world.end(S).is_ok());
}

#[test]
fn waiting_for_an_own_earlier_event_keeps_both_nodes() {
    let mut world = World::default();
    world.begin(S, GLOBAL).expect("begins");
    let first = world.launch(S).expect("captured");
    world.record(E, S);
    let second = world.launch(S).expect("captured");
    world.wait(S, E).expect("noted");
    assert_eq!(world.frontier(S), [second, first]);
}

#[test]
fn a_destroyed_fork_still_owes_its_work() {
    let (mut world, _) = World::forked();
    assert_eq!(world.captures.stream_destroyed(T.stream), None);
    assert!(world.end(S).is_ok());
    let (mut world, _) = World::forked();
    world.launch(T).expect("captured");
    world.captures.stream_destroyed(T.stream);
    assert_eq!(world.end(S), Err(CudaError::STREAM_CAPTURE_UNJOINED));
}

#[test]
fn a_destroyed_origin_ends_the_capture() {
    let (mut world, _) = World::forked();
    let graph = world.captures.graph_of(S).expect("captures");
    let ended = world.captures.stream_destroyed(S.stream).expect("ends");
    assert_eq!((ended.discard, ended.streams), (Some(graph), vec![T.stream]));
    assert_eq!(world.status(T), Status::None);
}

#[test]
fn nodes_taken_out_of_a_frontier_need_no_join() {
    let (mut world, _) = World::forked();
    world.launch(T).expect("captured");
    assert_eq!(world.captures.update_frontier(T, &[], true), Ok(()));
    assert!(world.end(S).is_ok());

    let (mut world, _) = World::forked();
    world.launch(T).expect("captured");
    world.record(F, T);
    world.wait(S, F).expect("joins");
    assert_eq!(world.captures.update_frontier(S, &[], true), Ok(()));
    assert!(world.end(S).is_ok());
}

#[test]
fn a_frontier_is_added_to_or_replaced() {
    let mut world = World::default();
    assert_eq!(world.captures.update_frontier(S, &[], true), Err(CudaError::ILLEGAL_STATE));
    world.begin(S, GLOBAL).expect("begins");
    let first = world.launch(S).expect("captured");
    let graph = world.captures.graph_of(S).expect("captures");
    let second = world.graphs.add(graph, &[], empty()).expect("a good node");
    let edge = Edge { node: second, data: Default::default() };
    world.captures.update_frontier(S, &[edge], false).expect("captures");
    world.captures.update_frontier(S, &[edge], false).expect("captures");
    assert_eq!(world.frontier(S), [first, second]);
    world.captures.update_frontier(S, &[edge, edge], true).expect("captures");
    assert_eq!(world.frontier(S), [second]);
}

#[test]
fn an_event_from_outside_does_not_fit_in() {
    let mut world = World::default();
    world.begin(S, GLOBAL).expect("begins");
    assert_eq!(world.captures.wait(S, E, false, false), Ok(Wait::Noted), "never recorded");
    assert_eq!(world.captures.wait(S, E, true, true), Ok(Wait::Node), "external");
    assert_eq!(world.wait(S, E), Err(CudaError::STREAM_CAPTURE_ISOLATION));
    assert_eq!(world.status(S), Status::Invalidated);
}

#[test]
fn external_records_and_waits_belong_in_a_capture() {
    let mut world = World::default();
    assert_eq!(world.captures.record(S, E, true), Err(CudaError::ILLEGAL_STATE));
    assert_eq!(world.captures.wait(S, E, true, true), Err(CudaError::ILLEGAL_STATE));
    world.begin(S, GLOBAL).expect("begins");
    assert_eq!(world.captures.record(S, E, true), Ok(Record::Node));
}

#[test]
fn two_captures_never_merge() {
    let mut world = World::default();
    world.begin(S, GLOBAL).expect("begins");
    world.begin(T, GLOBAL).expect("begins");
    world.record(E, S);
    assert_eq!(world.wait(T, E), Err(CudaError::STREAM_CAPTURE_MERGE));
    assert_eq!((world.status(S), world.status(T)), (Status::Invalidated, Status::Invalidated));
}

#[test]
fn an_event_of_a_capture_dies_with_it() {
    let (mut world, _) = World::forked();
    world.end(S).expect("a graph");
    assert_eq!(world.captures.event_used_by_host(E), Err(CudaError::INVALID_VALUE));
    assert_eq!(world.wait(U, E), Err(CudaError::INVALID_VALUE));
    world.begin(U, GLOBAL).expect("begins");
    assert_eq!(world.wait(U, E), Err(CudaError::INVALID_VALUE));
    assert_eq!(world.status(U), Status::Invalidated);
    world.end(U).expect_err("invalidated");
    assert!(!world.captures.is_quiet(), "the event must still be refused");
    assert_eq!(world.captures.record(U, E, false), Ok(Record::Plain));
    assert_eq!(world.captures.event_used_by_host(E), Ok(()));
    assert!(world.captures.is_quiet());
}

#[test]
fn asking_for_a_captured_event_spoils_the_capture() {
    let (mut world, _) = World::forked();
    assert_eq!(world.captures.event_timed(E), Err(CudaError::CAPTURED_EVENT));
    assert_eq!(world.status(S), Status::Active);
    assert_eq!(world.captures.event_used_by_host(E), Err(CudaError::CAPTURED_EVENT));
    assert_eq!(world.status(S), Status::Invalidated);
    assert_eq!(world.captures.event_used_by_host(E), Err(CudaError::INVALID_VALUE));
}

#[test]
fn waiting_for_a_capturing_stream_spoils_its_capture_only() {
    let mut world = World::default();
    world.begin(S, GLOBAL).expect("begins");
    world.begin(T, GLOBAL).expect("begins");
    let unsupported = Err(CudaError::STREAM_CAPTURE_UNSUPPORTED);
    assert_eq!(world.captures.stream_used_by_host(S, thread(1)), unsupported);
    assert_eq!((world.status(S), world.status(T)), (Status::Invalidated, Status::Active));
    assert_eq!(world.captures.stream_used_by_host(S, thread(1)), unsupported);
}

#[test]
fn an_invalidated_capture_takes_nothing() {
    let (mut world, _) = World::forked();
    world.captures.refuse_capturing(S).expect_err("captures");
    let invalidated = CudaError::STREAM_CAPTURE_INVALIDATED;
    assert_eq!(world.launch(T), Err(invalidated));
    assert_eq!(world.captures.record(S, F, false), Err(invalidated));
    assert_eq!(world.captures.update_frontier(S, &[], true), Err(invalidated));
    assert_eq!(world.begin(S, GLOBAL), Err(CudaError::ILLEGAL_STATE));
    assert_eq!(world.wait(U, E), Err(CudaError::INVALID_VALUE));
}

#[test]
fn the_legacy_stream_rests_while_a_blocking_stream_captures() {
    let mut world = World::default();
    world.begin(S, GLOBAL).expect("begins");
    assert_eq!(world.captures.admit(LEGACY), Ok(None), "a non-blocking stream does not mind");
    world.begin(BLOCKING, RELAXED).expect("begins");
    let implicit = CudaError::STREAM_CAPTURE_IMPLICIT;
    assert_eq!(world.captures.info(LEGACY), Err(implicit));
    assert_eq!(world.status(BLOCKING), Status::Active, "asking is refused but harmless");
    assert_eq!(world.captures.admit(LEGACY), Err(implicit));
    assert_eq!((world.status(S), world.status(BLOCKING)), (Status::Active, Status::Invalidated));
    let elsewhere = CaptureStream { context: 10, ..LEGACY };
    assert_eq!(world.captures.admit(elsewhere), Ok(None));
}

#[test]
fn the_legacy_stream_never_joins() {
    let mut world = World::default();
    world.begin(S, GLOBAL).expect("begins");
    world.record(E, S);
    assert_eq!(world.wait(LEGACY, E), Err(CudaError::STREAM_CAPTURE_IMPLICIT));
    assert_eq!(world.status(S), Status::Invalidated);
}

#[test]
fn waiting_for_a_context_spoils_every_capture_in_it() {
    let mut world = World::default();
    world.begin(S, GLOBAL).expect("begins");
    world.begin(T, RELAXED).expect("begins");
    let elsewhere = CaptureStream { context: 10, ..U };
    world.begin(elsewhere, GLOBAL).expect("begins");
    assert_eq!(world.captures.refuse_capturing_in(9), Err(CudaError::STREAM_CAPTURE_UNSUPPORTED));
    assert_eq!((world.status(S), world.status(T)), (Status::Invalidated, Status::Invalidated));
    assert_eq!(world.status(elsewhere), Status::Active);
}

#[test]
fn a_graph_is_not_instantiated_while_it_is_captured() {
    let mut world = World::default();
    world.begin(S, GLOBAL).expect("begins");
    let graph = world.captures.graph_of(S).expect("captures");
    assert!(world.captures.is_capturing_into(graph));
    assert_eq!(world.captures.refuse_capturing_into(graph), Err(CudaError::STREAM_CAPTURE_UNSUPPORTED));
    assert_eq!(world.status(S), Status::Invalidated);
}

/// Thread's mode, capture's mode, whether the capturing thread may, whether another may.
const UNSAFE_CALLS: [(Mode, u32, bool, bool); 9] = [
    (Mode::Global, GLOBAL, false, false),
    (Mode::Global, THREAD_LOCAL, false, true),
    (Mode::Global, RELAXED, true, true),
    (Mode::ThreadLocal, GLOBAL, false, true),
    (Mode::ThreadLocal, THREAD_LOCAL, false, true),
    (Mode::ThreadLocal, RELAXED, true, true),
    (Mode::Relaxed, GLOBAL, true, true),
    (Mode::Relaxed, THREAD_LOCAL, true, true),
    (Mode::Relaxed, RELAXED, true, true),
];

#[test]
fn modes_say_who_may_make_unsafe_calls() {
    for (mode, capture, own, other) in UNSAFE_CALLS {
        for (number, allowed) in [(1, own), (2, other)] {
            let mut world = World::default();
            world.begin(S, capture).expect("begins");
            let caller = CaptureThread { thread: number, mode };
            assert_eq!(world.captures.unsafe_call(caller).is_ok(), allowed, "{mode:?} {capture} {number}");
            let expected = if allowed { Status::Active } else { Status::Invalidated };
            assert_eq!(world.status(S), expected);
        }
    }
}

#[test]
fn an_unsafe_call_spoils_the_captures_that_forbid_it() {
    for (first, second, expected) in [
        (GLOBAL, GLOBAL, [true, true]),
        (THREAD_LOCAL, THREAD_LOCAL, [true, false]),
        (THREAD_LOCAL, GLOBAL, [true, true]),
        (RELAXED, GLOBAL, [false, true]),
    ] {
        let mut world = World::default();
        world.begin(S, first).expect("begins");
        world.begin_on(T, second, thread(2)).expect("begins");
        assert_eq!(world.captures.unsafe_call(thread(1)), Err(CudaError::STREAM_CAPTURE_UNSUPPORTED));
        assert_eq!([S, T].map(|stream| world.status(stream) == Status::Invalidated), expected);
    }
}

#[test]
fn a_capture_into_a_graph_begins_behind_the_nodes_it_names() {
    let mut world = World::default();
    let graph = world.graphs.create();
    let first = world.graphs.add(graph, &[], kernel(0)).expect("a good node");
    let data = crate::graph::EdgeData { from_port: 1, to_port: 0, kind: 1 };
    let frontier = vec![Edge { node: first, data }];
    world.captures.begin(S, graph, frontier, GLOBAL, thread(1)).expect("begins");
    let next = world.launch(S).expect("captured");
    assert_eq!(world.end(S), Ok(graph));
    assert_eq!(world.graphs.edges(graph).expect("a graph"), [(first, next, data)]);
}

#[test]
fn what_an_edge_says_about_kernels_is_lost_on_other_nodes() {
    let mut world = World::default();
    let graph = world.graphs.create();
    let first = world.graphs.add(graph, &[], kernel(0)).expect("a good node");
    let data = crate::graph::EdgeData { from_port: 1, to_port: 0, kind: 1 };
    world.captures.begin(S, graph, vec![Edge { node: first, data }], GLOBAL, thread(1)).expect("begins");
    let next = world.captures.capture(&mut world.graphs, S, empty()).expect("captured");
    assert_eq!(world.graphs.edges(graph).expect("a graph"), [(first, next, Default::default())]);
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Begin(u64, u32),
    Launch(u64),
    Record(u64, u64),
    Wait(u64, u64),
    Replace(u64),
    Unsafe(u64),
    Host(u64),
    Destroy(u64),
    End(u64, u64),
}

fn call() -> impl Strategy<Value = Call> {
    let (stream, event, thread) = (1..5u64, 100..103u64, 1..3u64);
    prop_oneof![
        2 => (stream.clone(), 0..3u32).prop_map(|(stream, mode)| Call::Begin(stream, mode)),
        6 => stream.clone().prop_map(Call::Launch),
        4 => (stream.clone(), event.clone()).prop_map(|(stream, event)| Call::Record(stream, event)),
        4 => (stream.clone(), event).prop_map(|(stream, event)| Call::Wait(stream, event)),
        1 => stream.clone().prop_map(Call::Replace),
        1 => thread.clone().prop_map(Call::Unsafe),
        1 => stream.clone().prop_map(Call::Host),
        1 => stream.clone().prop_map(Call::Destroy),
        2 => (stream, thread).prop_map(|(stream, thread)| Call::End(stream, thread)),
    ]
}

proptest! {
    /// Whatever is called, captured graphs have no circles, each node is behind the ones captured before it in its
    /// stream, and ending every origin leaves nothing behind.
    #[test]
    fn captures_always_end(calls in prop::collection::vec(call(), 0..80)) {
        let mut world = World::default();
        let mut made = Vec::new();
        for call in calls {
            match call {
                Call::Begin(number, mode) => drop(world.begin(stream(number), mode)),
                Call::Launch(number) => {
                    let before = world.frontier(stream(number));
                    if let Ok(node) = world.launch(stream(number)) {
                        let edges = world.graphs.dependencies(node).expect("a node");
                        prop_assert_eq!(edges.iter().map(|edge| edge.node).collect::<Vec<_>>(), before);
                    }
                }
                Call::Record(number, event) => drop(world.captures.record(stream(number), event, false)),
                Call::Wait(number, event) => drop(world.wait(stream(number), event)),
                Call::Replace(number) => drop(world.captures.update_frontier(stream(number), &[], true)),
                Call::Unsafe(number) => drop(world.captures.unsafe_call(thread(number))),
                Call::Host(number) => drop(world.captures.stream_used_by_host(stream(number), thread(1))),
                Call::Destroy(number) => drop(world.captures.stream_destroyed(number)),
                Call::End(number, by) => made.extend(world.end_on(stream(number), thread(by))),
            }
        }
        // Ending from each stream, twice: forks are refused at first but go with their origin.
        for _ in 0..2 {
            for number in 1..5 {
                made.extend(world.end(stream(number)));
            }
        }
        for number in 1..5 {
            prop_assert_eq!(world.status(stream(number)), Status::None);
        }
        for graph in made {
            prop_assert!(world.graphs.snapshot(graph).expect("a graph").flatten().is_ok());
        }
    }
}
