//! What pools know about the order of streams; every record, wait and synchronise of the program updates it.
//!
//! The rules are in `cuda_client::stream_order`. While no more than one stream uses pools, records and waits pay one load.

use super::{Context, Event, Stream, StreamKind, all_pools, client, lock, pools_are_used, settle_pools};
use cuda_abi::{CU_EVENT_DISABLE_TIMING, CuResult};
use cuda_client::stream_order::{self, Clock, Expected};
use cuda_wire::{Command, EventId, Op, StreamId};
use std::{
    collections::HashMap,
    sync::{Mutex, atomic::Ordering},
};

/// For each stream that uses pools, the event that other streams wait for.
static FENCES: Mutex<Option<HashMap<u32, Fence>>> = Mutex::new(None);

struct Fence {
    context: u64,
    /// Made when it is needed.
    event: Option<EventId>,
    /// The stream is destroyed: the event is behind its last work and stays there.
    is_last: bool,
}

/// A stream begins to use pools.
#[inline]
pub(super) fn join(stream: &Stream) {
    if !stream.uses_pools.load(Ordering::Acquire) {
        join_now(stream);
    }
}

#[cold]
fn join_now(stream: &Stream) {
    let Ok(client) = client() else { return };
    let kind = match stream.kind {
        StreamKind::Legacy => stream_order::StreamKind::Legacy,
        StreamKind::Blocking | StreamKind::PerThread => stream_order::StreamKind::Blocking,
        StreamKind::NonBlocking => stream_order::StreamKind::NonBlocking,
    };
    client.stream_order.add_stream(stream.id.0, stream.context.handle, kind);
    let mut fences = lock(&FENCES);
    let fence = Fence { context: stream.context.handle, event: None, is_last: false };
    fences.get_or_insert_default().entry(stream.id.0).or_insert(fence);
    stream.uses_pools.store(true, Ordering::Release);
}

/// Makes a stream wait for all work that another one was given so far.
pub(super) fn wait_for(stream: &Stream, freed_in: u32) -> CuResult<()> {
    let client = client()?;
    let context = &stream.context;
    let order = &client.stream_order;
    let mut fences = lock(&FENCES);
    // Without a fence the stream is gone and its work is done: there is nothing to wait for.
    let Some(fence) = fences.get_or_insert_default().get_mut(&freed_in) else { return Ok(()) };
    let event = record_fence(fence, freed_in, context)?;
    let expected = order.expect(event.0);
    context.post(&Command::Enqueue { stream: stream.id, op: Op::Wait { event, flags: 0 } })?;
    if let Some(expected) = expected {
        order.waited(&expected, stream.id.0);
    }
    Ok(())
}

/// Records the fence of a stream, unless it is behind the stream's last work already.
fn record_fence(fence: &mut Fence, stream: u32, context: &Context) -> CuResult<EventId> {
    let client = client()?;
    if fence.is_last
        && let Some(event) = fence.event
    {
        return Ok(event);
    }
    let event = match fence.event {
        Some(event) => event,
        None => {
            let event = EventId(client.next_id());
            let flags = CU_EVENT_DISABLE_TIMING;
            context.post(&Command::EventCreate { event, context: context.id, flags })?;
            *fence.event.insert(event)
        }
    };
    client.stream_order.record(event.0, stream);
    context.post(&Command::Enqueue { stream: StreamId(stream), op: Op::Record { event, flags: 0 } })?;
    Ok(event)
}

/// A stream is about to be destroyed. If memory was freed in it behind work that may not be done, its fence stays,
/// recorded behind its last work.
pub(super) fn end_stream(stream: &Stream) -> CuResult<()> {
    if !stream.uses_pools.load(Ordering::Acquire) {
        return Ok(());
    }
    let order = &client()?.stream_order;
    let (context, number) = (stream.context.handle, stream.id.0);
    let pools = all_pools();
    let mut fences = lock(&FENCES);
    let newest = pools.iter().map(|pool| pool.books.newest_free_in(context, number)).max().unwrap_or(0);
    if order.end_stream(number, newest) {
        let fence = fences.get_or_insert_default().remove(&number);
        pools.iter().for_each(|pool| pool.books.end_lane(context, number, order));
        return forget_fence(fence, &stream.context);
    }
    if let Some(fence) = fences.get_or_insert_default().get_mut(&number) {
        record_fence(fence, number, &stream.context)?;
        fence.is_last = true;
    }
    Ok(())
}

fn forget_fence(fence: Option<Fence>, context: &Context) -> CuResult<()> {
    let Some(event) = fence.and_then(|fence| fence.event) else { return Ok(()) };
    client()?.stream_order.remove_event(event.0);
    context.post(&Command::EventDestroy { event })
}

/// A context is gone, with its streams and events.
pub(super) fn end_context(context: &Context) {
    let Ok(client) = client() else { return };
    client.stream_order.end_context(context.handle);
    if let Some(fences) = &mut *lock(&FENCES) {
        fences.retain(|_, fence| {
            let goes = fence.context == context.handle;
            if let Some(event) = fence.event.filter(|_| goes) {
                client.stream_order.remove_event(event.0);
            }
            !goes
        });
    }
}

/// A stream is about to record an event.
#[inline]
pub(super) fn before_record(event: &Event, stream: &Stream) {
    if let Ok(client) = client()
        && client.stream_order.is_shared()
    {
        client.stream_order.record(event.id.0, stream.id.0);
    }
}

/// An event is recorded inside a launch, at a time of its own: nothing is known of the work before the record.
#[inline]
pub(crate) fn recorded_elsewhere(event: &Event) {
    if let Ok(client) = client()
        && client.stream_order.is_shared()
    {
        client.stream_order.forget_record(event.id.0);
    }
}

/// An event is gone.
#[inline]
pub(super) fn forget_event(event: &Event) {
    if let Ok(client) = client()
        && client.stream_order.is_shared()
    {
        client.stream_order.remove_event(event.id.0);
    }
}

/// Before a wait for an event, of a stream or of the host: notes what the wait will prove about the order of streams.
#[inline]
pub(crate) fn before_wait(event: &Event) -> Option<Expected> {
    let order = &client().ok()?.stream_order;
    if order.is_shared() { order.expect(event.id.0) } else { None }
}

/// A stream's wait for an event was sent.
#[inline]
pub(super) fn stream_waited(expected: Option<Expected>, stream: &Stream) {
    if let Some(expected) = expected
        && let Ok(client) = client()
    {
        join(stream);
        client.stream_order.waited(&expected, stream.id.0);
    }
}

/// The host has seen that an event is done.
#[inline]
pub(crate) fn event_done(expected: Option<Expected>) {
    if let Some(expected) = expected
        && let Ok(client) = client()
    {
        client.stream_order.event_done(&expected);
    }
}

/// Before the host waits for a stream, or asks whether it is done.
#[inline]
pub(crate) fn before_stream_wait(stream: &Stream) -> Option<Clock> {
    pools_are_used().then(|| Some(client().ok()?.stream_order.mark(stream.id.0))).flatten()
}

/// The host has waited for a stream, and pools may give memory back.
#[inline]
pub(crate) fn stream_done(mark: Option<Clock>) {
    if let Some(mark) = mark
        && let Ok(client) = client()
    {
        client.stream_order.done(&mark);
        settle_pools();
    }
}

/// The host has seen that a stream has nothing to do.
#[inline]
pub(crate) fn stream_idle(mark: Option<Clock>) {
    if let Some(mark) = mark
        && let Ok(client) = client()
    {
        client.stream_order.done(&mark);
    }
}

/// Before the host waits for a context.
#[inline]
pub(crate) fn before_context_wait() -> Option<u64> {
    pools_are_used().then(|| Some(client().ok()?.stream_order.mark_all())).flatten()
}

/// The host has waited for a context, and pools may give memory back.
pub(crate) fn context_done(mark: Option<u64>, context: &Context) -> CuResult<()> {
    let Some(mark) = mark else { return Ok(()) };
    let order = &client()?.stream_order;
    let over = order.context_done(context.handle, mark);
    if !over.is_empty() {
        let pools = all_pools();
        for stream in over {
            let fence = lock(&FENCES).get_or_insert_default().remove(&stream);
            pools.iter().for_each(|pool| pool.books.end_lane(context.handle, stream, order));
            forget_fence(fence, context)?;
        }
    }
    settle_pools();
    Ok(())
}
