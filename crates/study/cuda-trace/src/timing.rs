//! Pairs of events around sampled operations.
//!
//! A pair around an operation on an idle GPU would see the time in which the program had not launched it yet. So a filler goes
//! first: while it runs, both events and the operation are queued, and the pair sees the operation alone. That may still fail: the
//! first launch of a kernel loads its code, which takes milliseconds, and a thread may lose its processor. So the first event is
//! asked about once the second is queued: only if the GPU has not come to it yet, the pair is *clean*.

#![allow(unsafe_code)]

use crate::context::Context;
use crate::driver;
use crate::state;
use crate::streams::{self, Stream};
use std::collections::VecDeque;
use std::sync::PoisonError;
use trace_log::entry::{Entry, Kind};

/// How long the filler before a sample lasts: two events, a launch and a question take the calling thread about 12 us.
const AHEAD_NS: f64 = 30_000.0;
/// CUDA_ERROR_NOT_READY
const NOT_READY: u32 = 600;
/// Pairs that may be under way; more are not begun.
const UNDER_WAY_MAX: usize = 256;
/// After each sample, so many older ones are looked at.
const COLLECTED_AT_ONCE: usize = 3;

#[derive(Clone, Copy)]
struct Pair {
    before: usize,
    after: usize,
}

/// An operation between the events of a pair.
#[derive(Clone, Copy)]
struct UnderWay {
    pair: Pair,
    operation: u64,
    kind: Kind,
    alike: u64,
    is_clean: bool,
}

/// The pairs of one context.
#[derive(Default)]
pub(crate) struct Timing {
    free: Vec<Pair>,
    under_way: VecDeque<UnderWay>,
}

/// A pair whose first event is recorded.
pub(crate) struct Begun(Pair);

/// Begins to time the next operation of a stream, if that can be done now.
pub(crate) fn begin(context: &Context, stream: Stream) -> Option<Begun> {
    let filler = context.filler.as_ref()?;
    if streams::is_any_capturing() {
        return None;
    }
    let pair = context.timing.lock().unwrap_or_else(PoisonError::into_inner).pair()?;
    context.fill(filler, stream, AHEAD_NS, 0);
    // SAFETY: the event is ours, the stream one that the program just used.
    let code = unsafe { driver::event_record(pair.before, stream.handle()) };
    (code == 0).then_some(Begun(pair))
}

/// The operation is queued; whether the pair will see it alone.
pub(crate) fn end(
    context: &Context,
    begun: Begun,
    stream: Stream,
    operation: u64,
    kind: Kind,
    alike: u64,
) -> bool {
    // SAFETY: as in `begin`.
    let code = unsafe { driver::event_record(begun.0.after, stream.handle()) };
    // SAFETY: the event is ours.
    let is_clean =
        !streams::is_any_capturing() && unsafe { driver::event_query(begun.0.before) } == NOT_READY;
    let mut timing = context.timing.lock().unwrap_or_else(PoisonError::into_inner);
    if code != 0 {
        timing.free.push(begun.0);
        return false;
    }
    timing.under_way.push_back(UnderWay { pair: begun.0, operation, kind, alike, is_clean });
    if !streams::is_any_capturing() {
        timing.collect(COLLECTED_AT_ONCE);
    }
    is_clean
}

impl Timing {
    fn pair(&mut self) -> Option<Pair> {
        if let Some(pair) = self.free.pop() {
            return Some(pair);
        }
        if self.under_way.len() >= UNDER_WAY_MAX {
            self.collect(COLLECTED_AT_ONCE);
            return self.free.pop();
        }
        let mut pair = Pair { before: 0, after: 0 };
        // SAFETY: both are places for handles.
        let is_made = unsafe {
            driver::event_create(&mut pair.before, 0) == 0 && driver::event_create(&mut pair.after, 0) == 0
        };
        is_made.then_some(pair)
    }

    /// Writes down up to `limit` samples that are over, the oldest first.
    pub(crate) fn collect(&mut self, limit: usize) {
        for _ in 0..limit {
            let Some(&UnderWay { pair, operation, kind, alike, is_clean }) = self.under_way.front() else {
                return;
            };
            // SAFETY: the events are ours.
            if unsafe { driver::event_query(pair.after) } != 0 {
                return;
            }
            self.under_way.pop_front();
            self.free.push(pair);
            let mut ms = 0.0;
            // SAFETY: as above, and `ms` is a place for the answer.
            if unsafe { driver::event_elapsed(&mut ms, pair.before, pair.after) } == 0 {
                let ns = (f64::from(ms) * 1e6).max(0.0) as u64;
                let count = u32::from(is_clean);
                let sample =
                    Entry { count, object: operation, bytes: alike, extra: ns, ..Entry::new(Kind::Sample) };
                crate::log::append(None, Entry { flags: kind as u8, ..sample });
            }
        }
    }
}

/// Whether anything can be timed here: nothing while a graph is captured, whose thread may be another.
pub(crate) fn is_possible() -> bool {
    state::mode().traces() && !streams::is_any_capturing()
}
