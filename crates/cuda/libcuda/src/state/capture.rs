//! Stream capture: work that becomes a graph instead of running.
//!
//! The rules are in `cuda_client::graph::capture`; the functions here ask them. While nothing captures, asking is one
//! load.

use super::{
    CAPTURE_MODE, Context, Event, GraphGuard, Item, NodeOp, Stream, StreamKind, captures_exist, client,
    graphs, release_objects,
};
use cuda_abi::{CU_EVENT_RECORD_EXTERNAL, CU_EVENT_WAIT_EXTERNAL, CuResult, CudaError};
use cuda_client::graph::{
    GraphId,
    capture::{CaptureStream, CaptureThread, Ended, Mode, Record, StreamOrder, Wait},
    store::Objects,
};
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

/// A stream's place in a capture.
#[derive(Default)]
pub(crate) struct CaptureSlot {
    active: AtomicBool,
    /// What cuStreamGetCaptureInfo showed last: nodes and edge data, kept because the program gets their addresses.
    pub(crate) shown: Mutex<(Vec<u64>, Vec<u64>)>,
}

/// A graph inside a graph. The store knows which.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChildGraph;

static NEXT_THREAD: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static THREAD: u64 = NEXT_THREAD.fetch_add(1, Ordering::Relaxed);
}

/// The calling thread.
pub(crate) fn capture_thread() -> CaptureThread {
    // cuThreadExchangeStreamCaptureMode takes any number; one that means nothing is the strictest mode.
    let mode = CAPTURE_MODE.with(|mode| Mode::from_c(mode.get()).unwrap_or_default());
    CaptureThread { thread: THREAD.with(|thread| *thread), mode }
}

/// A stream as captures know it.
pub(crate) fn capture_stream(stream: &Stream) -> CaptureStream {
    let kind = match stream.kind {
        StreamKind::Legacy => StreamOrder::Legacy,
        StreamKind::Blocking | StreamKind::PerThread => StreamOrder::Blocking,
        StreamKind::NonBlocking => StreamOrder::NonBlocking,
    };
    CaptureStream { stream: stream.handle, context: stream.context.handle, kind }
}

/// A stream whose work must not run now: it is captured, or a capture blocks it. [`Capturing::add`] takes the work.
pub(crate) struct Capturing<'a>(pub(super) &'a Arc<Stream>);

/// Asks whether a stream is captured or blocked. `None`: its work runs now.
#[inline]
pub(crate) fn capturing(stream: &Arc<Stream>) -> Option<Capturing<'_>> {
    let is_taken =
        captures_exist() && (stream.capture.active.load(Ordering::Acquire) || legacy_rests(stream));
    is_taken.then_some(Capturing(stream))
}

/// Whether a capture blocks this stream. Only a legacy stream can be blocked.
fn legacy_rests(stream: &Stream) -> bool {
    stream.kind == StreamKind::Legacy && graphs().captures.info(capture_stream(stream)).is_err()
}

/// Gives work to the capture of its stream. Returns the work if no capture takes it: then it runs at once.
#[inline]
pub(crate) fn intercept(stream: &Arc<Stream>, op: NodeOp) -> CuResult<Option<NodeOp>> {
    if captures_exist() { give_to_capture(stream, op) } else { Ok(Some(op)) }
}

/// [`intercept`] while captures exist.
#[cold]
pub(super) fn give_to_capture(stream: &Arc<Stream>, op: NodeOp) -> CuResult<Option<NodeOp>> {
    let mut store = graphs();
    let key = capture_stream(stream);
    let captured = match &op {
        NodeOp::Copy { copy, .. } if copy.shape.bytes() == Some(0) => {
            return store.captures.admit(key).map(|_| None);
        }
        NodeOp::Record { event, flags } => {
            match store.captures.record(key, event.handle, flags & CU_EVENT_RECORD_EXTERNAL != 0)? {
                Record::Plain => false,
                Record::Noted => return Ok(None),
                Record::Node => true,
            }
        }
        NodeOp::Wait { event, flags } => {
            let external = flags & CU_EVENT_WAIT_EXTERNAL != 0;
            match store.captures.wait(key, event.handle, external, event.was_recorded())? {
                Wait::Plain => false,
                Wait::Noted => return Ok(None),
                Wait::Joined => {
                    stream.capture.active.store(true, Ordering::Release);
                    return Ok(None);
                }
                Wait::Node => true,
            }
        }
        _ => store.captures.admit(key)?.is_some(),
    };
    if !captured {
        return Ok(Some(op));
    }
    capture_node(&mut store, stream, op)?;
    Ok(None)
}

fn capture_node(store: &mut GraphGuard, stream: &Arc<Stream>, op: NodeOp) -> CuResult<()> {
    let key = capture_stream(stream);
    let graph = store.captures.graph_of(key)?;
    match &op {
        NodeOp::Allocate { address, bytes, .. } => {
            store.memory.add(*address, *bytes, stream.context.device, graph)
        }
        NodeOp::Free { address } => store.memory.add_free(*address, graph)?,
        _ => {}
    }
    let store = &mut **store;
    store.captures.capture(&mut store.graphs, key, Item::from(op)).map(drop)
}

/// Refuses external flags outside of captures. While captures exist, the rules of captures check this instead.
pub(crate) fn forbid_external(flags: u32) -> CuResult<()> {
    // Records and waits have the same flag.
    let external = flags & CU_EVENT_RECORD_EXTERNAL != 0;
    if external && !captures_exist() { Err(CudaError::ILLEGAL_STATE) } else { Ok(()) }
}

/// Refuses a call that cannot be captured while a capture of this process forbids it.
#[inline]
pub(crate) fn forbid_unsafe_call() -> CuResult<()> {
    if captures_exist() { graphs().captures.unsafe_call(capture_thread()) } else { Ok(()) }
}

/// Refuses a call that waits for, or asks about, a capturing stream; for any other stream it is an unsafe call.
#[inline]
pub(crate) fn forbid_wait(stream: &Stream) -> CuResult<()> {
    if !captures_exist() {
        return Ok(());
    }
    graphs().captures.stream_used_by_host(capture_stream(stream), capture_thread())
}

/// Refuses a call that cannot be captured on a capturing stream. On any other stream it is allowed.
#[inline]
pub(crate) fn forbid_on_capturing(stream: &Stream) -> CuResult<()> {
    if captures_exist() { graphs().captures.refuse_capturing(capture_stream(stream)) } else { Ok(()) }
}

/// Refuses a call that means all streams of a context while one of them captures.
#[inline]
pub(crate) fn forbid_context_wait(context: &Context) -> CuResult<()> {
    if !captures_exist() {
        return Ok(());
    }
    let mut store = graphs();
    store.captures.refuse_capturing_in(context.handle)?;
    store.captures.unsafe_call(capture_thread())
}

/// Refuses a call that waits for, or asks about, an event whose latest record was captured; for any other event it is
/// an unsafe call.
#[inline]
pub(crate) fn forbid_captured_event(event: &Event) -> CuResult<()> {
    if !captures_exist() {
        return Ok(());
    }
    let mut store = graphs();
    store.captures.event_used_by_host(event.handle)?;
    store.captures.unsafe_call(capture_thread())
}

/// Refuses to tell the time of an event whose latest record was captured.
#[inline]
pub(crate) fn forbid_captured_time(event: &Event) -> CuResult<()> {
    if captures_exist() { graphs().captures.event_timed(event.handle) } else { Ok(()) }
}

/// A launch into a stream was refused: that spoils the stream's capture.
#[cold]
pub(crate) fn spoil_capture(stream: &Stream) {
    if captures_exist() {
        let mut store = graphs();
        if let Ok(Some(capture)) = store.captures.admit(capture_stream(stream)) {
            store.captures.invalidate(capture);
        }
    }
}

/// Forgets an event that is destroyed.
pub(crate) fn forget_captured_event(event: &Event) {
    if captures_exist() {
        graphs().captures.event_destroyed(event.handle);
    }
}

/// A graph recorded an event outside of any capture.
pub(crate) fn recorded_by_graph(event: &Event) {
    event.note_record();
    super::pool_order::recorded_elsewhere(event);
    forget_captured_event(event);
}

/// Ends the capture of a stream that is destroyed.
pub(crate) fn end_capture_of(stream: &Stream) {
    if !captures_exist() {
        return;
    }
    let mut store = graphs();
    let ended = store.captures.stream_destroyed(stream.handle);
    let objects = ended.map(|ended| finish(&mut store, &ended));
    drop(store);
    objects.iter().for_each(release_objects);
}

/// Begins a capture.
pub(crate) fn begin_capture(
    store: &mut GraphGuard,
    stream: &Stream,
    graph: GraphId,
    frontier: Vec<cuda_client::graph::store::Edge>,
    mode: u32,
) -> CuResult<()> {
    store.captures.begin(capture_stream(stream), graph, frontier, mode, capture_thread())?;
    stream.capture.active.store(true, Ordering::Release);
    Ok(())
}

/// Ends a capture: its graph, or why there is none.
pub(crate) fn end_capture(stream: &Stream) -> CuResult<GraphId> {
    let mut store = graphs();
    let ended = store.captures.end(capture_stream(stream), capture_thread())?;
    let objects = finish(&mut store, &ended);
    drop(store);
    release_objects(&objects);
    ended.graph
}

/// Takes streams out of a capture that ended, and destroys its graph if the capture failed.
fn finish(store: &mut GraphGuard, ended: &Ended) -> Objects {
    if let Ok(client) = client() {
        for stream in ended.streams.iter().filter_map(|handle| client.streams.get(*handle)) {
            stream.capture.active.store(false, Ordering::Release);
        }
    }
    let Some(graph) = ended.discard else { return Objects::new() };
    let objects = store.graphs.destroy(graph).unwrap_or_default();
    store.memory.graph_ended(graph);
    objects
}
