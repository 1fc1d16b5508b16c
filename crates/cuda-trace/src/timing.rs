//! Pairs of events around sampled operations.
//!
//! A pair around an operation on an idle GPU would see the time in which the program had not launched it yet. So a filler goes
//! first: while it runs, both events and the operation are queued, and the pair sees the operation alone.

use crate::context::Context;
use crate::driver;
use crate::state;
use crate::streams::{self, Stream};
use std::collections::VecDeque;
use std::sync::PoisonError;
use trace_log::entry::{Entry, Kind};

/// How long the filler before a sample lasts: two events and a launch take the calling thread about 6 us.
const AHEAD_NS: f64 = 10_000.0;
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
    filler.fill(stream, AHEAD_NS, 0);
    // SAFETY: the event is ours, the stream one that the program just used.
    let code = unsafe { driver::event_record(pair.before, stream.handle()) };
    (code == 0).then_some(Begun(pair))
}

/// The operation is queued.
pub(crate) fn end(context: &Context, begun: Begun, stream: Stream, operation: u64, kind: Kind, alike: u64) {
    // SAFETY: as in `begin`.
    let code = unsafe { driver::event_record(begun.0.after, stream.handle()) };
    let mut timing = context.timing.lock().unwrap_or_else(PoisonError::into_inner);
    if code != 0 {
        timing.free.push(begun.0);
        return;
    }
    timing.under_way.push_back(UnderWay { pair: begun.0, operation, kind, alike });
    if !streams::is_any_capturing() {
        timing.collect(COLLECTED_AT_ONCE);
    }
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
            let Some(&UnderWay { pair, operation, kind, alike }) = self.under_way.front() else { return };
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
                let sample = Entry { object: operation, bytes: alike, extra: ns, ..Entry::new(Kind::Sample) };
                crate::log::append(None, Entry { flags: kind as u8, ..sample });
            }
        }
    }
}

/// Whether anything can be timed here: nothing while a graph is captured, whose thread may be another.
pub(crate) fn is_possible() -> bool {
    state::mode() == state::Mode::Trace && !streams::is_any_capturing()
}
