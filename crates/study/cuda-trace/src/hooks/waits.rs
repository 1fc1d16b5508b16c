//! Waits, questions, and the order between streams.

use crate::operation::note;
use crate::streams::{Flavour, Stream};
use trace_log::entry::{Entry, Kind, flag};

hooks! {
    cuStreamSynchronize @ Legacy => wait_stream(stream: usize);
    cuStreamSynchronize_ptsz @ PerThread => wait_stream(stream: usize);
    cuStreamQuery @ Legacy => query_stream(stream: usize);
    cuStreamQuery_ptsz @ PerThread => query_stream(stream: usize);
    cuEventSynchronize @ Legacy => wait_event(event: usize);
    cuEventQuery @ Legacy => query_event(event: usize);
    cuCtxSynchronize @ Legacy => wait_all();
    cuCtxSynchronize_v2 @ Legacy => wait_all_of(context: usize);
    cuEventRecord @ Legacy => record_event(event: usize, stream: usize);
    cuEventRecord_ptsz @ PerThread => record_event(event: usize, stream: usize);
    cuEventRecordWithFlags @ Legacy => record_event_with(event: usize, stream: usize, flags: u32);
    cuEventRecordWithFlags_ptsz @ PerThread => record_event_with(event: usize, stream: usize, flags: u32);
    cuStreamWaitEvent @ Legacy => stream_waits(stream: usize, event: usize, flags: u32);
    cuStreamWaitEvent_ptsz @ PerThread => stream_waits(stream: usize, event: usize, flags: u32);
}

fn wait_stream(real: impl FnOnce() -> u32, flavour: Flavour, stream: usize) -> u32 {
    note(|_| Entry { stream: Stream::new(stream, flavour).name(), ..Entry::new(Kind::WaitStream) }, real)
}

fn wait_event(real: impl FnOnce() -> u32, _flavour: Flavour, event: usize) -> u32 {
    note(|_| Entry { object: event as u64, ..Entry::new(Kind::WaitEvent) }, real)
}

fn wait_all(real: impl FnOnce() -> u32, _flavour: Flavour) -> u32 {
    note(|_| Entry::new(Kind::WaitAll), real)
}

fn wait_all_of(real: impl FnOnce() -> u32, _flavour: Flavour, _context: usize) -> u32 {
    note(|_| Entry::new(Kind::WaitAll), real)
}

fn done(answer: u32) -> u8 {
    if answer == 0 { flag::DONE } else { 0 }
}

fn query_stream(real: impl FnOnce() -> u32, flavour: Flavour, stream: usize) -> u32 {
    let name = || Stream::new(stream, flavour).name();
    note(|answer| Entry { stream: name(), flags: done(answer), ..Entry::new(Kind::QueryStream) }, real)
}

fn query_event(real: impl FnOnce() -> u32, _flavour: Flavour, event: usize) -> u32 {
    note(|answer| Entry { object: event as u64, flags: done(answer), ..Entry::new(Kind::QueryEvent) }, real)
}

/// An order that concerns a stream; in a capture it only draws an arrow of the graph.
fn order(real: impl FnOnce() -> u32, kind: Kind, stream: Stream, event: usize) -> u32 {
    let kind = if stream.is_capturing() { Kind::Other } else { kind };
    note(|_| Entry { stream: stream.name(), object: event as u64, ..Entry::new(kind) }, real)
}

fn record_event(real: impl FnOnce() -> u32, flavour: Flavour, event: usize, stream: usize) -> u32 {
    order(real, Kind::EventRecord, Stream::new(stream, flavour), event)
}

fn record_event_with(
    real: impl FnOnce() -> u32,
    flavour: Flavour,
    event: usize,
    stream: usize,
    _flags: u32,
) -> u32 {
    order(real, Kind::EventRecord, Stream::new(stream, flavour), event)
}

fn stream_waits(
    real: impl FnOnce() -> u32,
    flavour: Flavour,
    stream: usize,
    event: usize,
    _flags: u32,
) -> u32 {
    order(real, Kind::StreamWait, Stream::new(stream, flavour), event)
}
