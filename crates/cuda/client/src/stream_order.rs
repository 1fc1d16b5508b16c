//! What comes after what: which frees of which streams other streams are ordered behind, and which the host has seen done.
//!
//! Frees are numbered, one counter for all streams. A stream that waits for an event is ordered behind everything that
//! was freed in the event's stream before its record, and behind all that stream was ordered behind itself:
//!
//! ```text
//! stream 1   free #1 ── free #2 ── record e ── free #3
//!                                       └──────────────┐
//! stream 2                                          wait e     sees stream 1 up to #2
//! ```
//!
//! Everything here errs on one side: an order that is not known is no order. The callers keep the same side by asking in
//! the right sequence: [`StreamOrder::record`] before the record is sent, [`StreamOrder::waited`] after the wait is, and
//! [`StreamOrder::mark`] before a wait of the host begins. Shared by threads; locks itself.

use locks::lock;
use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

/// How a stream is ordered against its context's legacy stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    /// It is the legacy stream.
    Legacy,
    /// It and the legacy stream wait for each other.
    Blocking,
    /// It does not care.
    NonBlocking,
}

/// A stream up to a free: `(stream, number)` pairs, each stream once.
pub type Clock = Vec<(u32, u64)>;

/// Which knowledge may be used to give one stream what another freed: `CU_MEMPOOL_ATTR_REUSE_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reuse {
    /// Waits for events.
    pub follow_events: bool,
    /// The host knows that the free is done.
    pub opportunistic: bool,
    /// A wait of one stream for the other may be made for it.
    pub internal_dependencies: bool,
}

/// See the module's words.
#[derive(Debug, Default)]
pub struct StreamOrder {
    frees: AtomicU64,
    /// Whether more than one stream uses pools: until then events need not be tracked.
    is_shared: AtomicBool,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    streams: HashMap<u32, Stream>,
    /// Frees that are done, by context: all streams of it.
    contexts: HashMap<u64, u64>,
    events: HashMap<u32, Event>,
}

#[derive(Debug)]
struct Stream {
    context: u64,
    kind: StreamKind,
    /// What its next work is ordered behind.
    seen: Clock,
    /// Its frees that are done.
    done: u64,
    /// Destroyed, after this free; kept because that may not be done.
    ended_at: Option<u64>,
}

#[derive(Debug)]
struct Event {
    /// Which record: counts up.
    record: u64,
    clock: Clock,
}

/// The record that a wait for an event relies on. The wait proves an order only if the event is not recorded again
/// meanwhile.
#[derive(Clone, Debug)]
pub struct Expected {
    event: u32,
    record: u64,
}

impl StreamOrder {
    fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.known)
    }

    /// A number for a free that is made now.
    #[inline]
    pub fn next_free(&self) -> u64 {
        self.frees.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn now(&self) -> u64 {
        self.frees.load(Ordering::SeqCst)
    }

    /// Whether events matter yet.
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.is_shared.load(Ordering::Acquire)
    }

    /// A stream begins to use pools.
    pub fn add_stream(&self, stream: u32, context: u64, kind: StreamKind) {
        let mut known = self.known();
        let fresh = Stream { context, kind, seen: Clock::new(), done: 0, ended_at: None };
        known.streams.entry(stream).or_insert(fresh);
        if known.streams.len() > 1 {
            self.is_shared.store(true, Ordering::Release);
        }
    }

    /// A stream is about to record an event.
    pub fn record(&self, event: u32, stream: u32) {
        let mut known = self.known();
        let clock = known.clock_of(stream, self.now());
        let event = known.events.entry(event).or_insert(Event { record: 0, clock: Clock::new() });
        event.record += 1;
        event.clock = clock;
    }

    /// An event is recorded inside a launch: its place in a stream is not known.
    pub fn forget_record(&self, event: u32) {
        if let Some(event) = self.known().events.get_mut(&event) {
            event.record += 1;
            event.clock.clear();
        }
    }

    /// An event is gone.
    pub fn remove_event(&self, event: u32) {
        self.known().events.remove(&event);
    }

    /// Before a wait for an event is sent. `None`: the wait will prove no order.
    pub fn expect(&self, event: u32) -> Option<Expected> {
        let known = self.known();
        let found = known.events.get(&event).filter(|found| !found.clock.is_empty())?;
        Some(Expected { event, record: found.record })
    }

    /// A stream's wait for an event was sent.
    pub fn waited(&self, expected: &Expected, stream: u32) {
        let mut known = self.known();
        let Some(clock) = known.clock_of_event(expected) else { return };
        if let Some(stream) = known.streams.get_mut(&stream) {
            merge(&mut stream.seen, &clock);
        }
    }

    /// The host has seen that an event is done.
    pub fn event_done(&self, expected: &Expected) {
        let mut known = self.known();
        if let Some(clock) = known.clock_of_event(expected) {
            known.done(&clock);
        }
    }

    /// Before the host waits for a stream: the frees that will be done after the wait.
    pub fn mark(&self, stream: u32) -> Clock {
        self.known().clock_of(stream, self.now())
    }

    /// Before the host waits for a whole context: the number of the last free that will be done after the wait.
    pub fn mark_all(&self) -> u64 {
        self.now()
    }

    /// The host has waited for what [`Self::mark`] returned.
    pub fn done(&self, clock: &Clock) {
        self.known().done(clock);
    }

    /// The host has waited for all work of a context, up to a [`Self::mark_all`]. Returns the streams that were destroyed
    /// before and of which nothing is left to know.
    pub fn context_done(&self, context: u64, free: u64) -> Vec<u32> {
        let mut known = self.known();
        let done = known.contexts.entry(context).or_default();
        *done = (*done).max(free);
        let is_over = |stream: &Stream| {
            stream.context == context && stream.ended_at.is_some_and(|newest| newest <= free)
        };
        let over: Vec<u32> =
            known.streams.iter().filter(|(_, stream)| is_over(stream)).map(|(number, _)| *number).collect();
        over.iter().for_each(|stream| drop(known.streams.remove(stream)));
        over
    }

    /// A stream is destroyed. Returns whether all that was freed in it so far is done.
    pub fn end_stream(&self, stream: u32, newest_free: u64) -> bool {
        let mut known = self.known();
        let Some(context) = known.streams.get(&stream).map(|stream| stream.context) else { return true };
        let is_done = known.is_done(context, stream, newest_free);
        if is_done {
            known.streams.remove(&stream);
        } else if let Some(stream) = known.streams.get_mut(&stream) {
            stream.ended_at = Some(newest_free);
        }
        is_done
    }

    /// A context is gone with all that was in it.
    pub fn end_context(&self, context: u64) {
        let mut known = self.known();
        known.contexts.remove(&context);
        known.streams.retain(|_, stream| stream.context != context);
    }

    /// Whether the host knows that a free is done.
    pub fn is_done(&self, context: u64, freed_in: u32, free: u64) -> bool {
        free == 0 || self.known().is_done(context, freed_in, free)
    }

    /// Whether work that `stream` is given from now on comes after a free.
    pub fn is_ordered(&self, context: u64, freed_in: u32, free: u64, stream: u32, reuse: Reuse) -> bool {
        if free == 0 || freed_in == stream {
            return true;
        }
        let known = self.known();
        if reuse.opportunistic && known.is_done(context, freed_in, free) {
            return true;
        }
        reuse.follow_events && known.follows(freed_in, free, stream)
    }

    /// Whether a stream waits for another one anyway, before its next work: one of them is the legacy stream. That is an order
    /// only when there is such work; a wait makes it one and costs nothing.
    pub fn waits_anyway(&self, freed_in: u32, stream: u32) -> bool {
        use StreamKind::{Blocking, Legacy};
        let known = self.known();
        let (Some(before), Some(after)) = (known.streams.get(&freed_in), known.streams.get(&stream)) else {
            return false;
        };
        before.context == after.context
            && matches!((before.kind, after.kind), (Legacy, Blocking) | (Blocking, Legacy))
    }
}

impl Known {
    fn clock_of(&self, stream: u32, now: u64) -> Clock {
        let mut clock = self.streams.get(&stream).map(|stream| stream.seen.clone()).unwrap_or_default();
        merge(&mut clock, &[(stream, now)]);
        clock
    }

    fn clock_of_event(&self, expected: &Expected) -> Option<Clock> {
        let event = self.events.get(&expected.event)?;
        (event.record == expected.record).then(|| event.clock.clone())
    }

    fn done(&mut self, clock: &[(u32, u64)]) {
        for (stream, free) in clock {
            if let Some(stream) = self.streams.get_mut(stream) {
                stream.done = stream.done.max(*free);
            }
        }
    }

    fn is_done(&self, context: u64, stream: u32, free: u64) -> bool {
        self.contexts.get(&context).is_some_and(|done| free <= *done)
            || self.streams.get(&stream).is_some_and(|stream| free <= stream.done)
    }

    fn follows(&self, freed_in: u32, free: u64, stream: u32) -> bool {
        let seen = self.streams.get(&stream).map(|stream| stream.seen.as_slice()).unwrap_or_default();
        seen.iter().any(|(seen, up_to)| *seen == freed_in && free <= *up_to)
    }
}

fn merge(clock: &mut Clock, other: &[(u32, u64)]) {
    for (stream, free) in other {
        match clock.iter_mut().find(|(known, _)| known == stream) {
            Some((_, known)) => *known = (*known).max(*free),
            None => clock.push((*stream, *free)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: u64 = 7;
    const ALL: Reuse = Reuse { follow_events: true, opportunistic: true, internal_dependencies: true };
    const NONE: Reuse = Reuse { follow_events: false, opportunistic: false, internal_dependencies: false };

    fn three_streams() -> StreamOrder {
        let order = StreamOrder::default();
        order.add_stream(1, CONTEXT, StreamKind::NonBlocking);
        assert!(!order.is_shared());
        order.add_stream(2, CONTEXT, StreamKind::NonBlocking);
        order.add_stream(3, CONTEXT, StreamKind::NonBlocking);
        assert!(order.is_shared());
        order
    }

    fn is_ordered(order: &StreamOrder, freed_in: u32, free: u64, stream: u32) -> bool {
        order.is_ordered(CONTEXT, freed_in, free, stream, ALL)
    }

    fn wait(order: &StreamOrder, event: u32, stream: u32) {
        if let Some(expected) = order.expect(event) {
            order.waited(&expected, stream);
        }
    }

    #[test]
    fn a_wait_orders_behind_what_was_freed_before_the_record() {
        let order = three_streams();
        let first = order.next_free();
        order.record(9, 1);
        let second = order.next_free();
        assert!(!is_ordered(&order, 1, first, 2));
        wait(&order, 9, 2);
        assert!(is_ordered(&order, 1, first, 2));
        assert!(!is_ordered(&order, 1, second, 2), "it was freed after the record");
        assert!(!is_ordered(&order, 1, first, 3));
        order.record(10, 2);
        wait(&order, 10, 3);
        assert!(is_ordered(&order, 1, first, 3), "order goes on from stream to stream");
        assert!(!order.is_ordered(CONTEXT, 1, first, 3, NONE), "a pool may refuse to follow events");
        assert!(is_ordered(&order, 1, second, 1), "a stream is ordered by itself");
    }

    #[test]
    fn a_record_that_is_overtaken_is_worth_nothing() {
        let order = three_streams();
        let free = order.next_free();
        order.record(9, 1);
        let expected = order.expect(9).unwrap();
        order.record(9, 3);
        order.waited(&expected, 2);
        assert!(!is_ordered(&order, 1, free, 2));
        order.record(9, 1);
        let expected = order.expect(9).unwrap();
        let later = order.next_free();
        order.record(9, 1);
        order.waited(&expected, 2);
        assert!(!is_ordered(&order, 1, later, 2), "the wait was for the record before");
        order.forget_record(9);
        assert!(order.expect(9).is_none());
        order.remove_event(9);
        assert!(order.expect(9).is_none());
    }

    #[test]
    fn what_the_host_waited_for_is_done_for_all() {
        let order = three_streams();
        let free = order.next_free();
        let mark = order.mark(1);
        let later = order.next_free();
        assert!(!order.is_done(CONTEXT, 1, free));
        order.done(&mark);
        assert!(order.is_done(CONTEXT, 1, free) && !order.is_done(CONTEXT, 1, later));
        assert!(is_ordered(&order, 1, free, 3) && !is_ordered(&order, 1, later, 3));
        assert!(!order.is_done(CONTEXT, 2, free), "another stream's");
        order.context_done(CONTEXT, order.mark_all());
        assert!(order.is_done(CONTEXT, 2, later) && !order.is_done(CONTEXT + 1, 2, later));
        assert!(order.is_done(CONTEXT, 99, 0), "what no work uses");
    }

    #[test]
    fn an_event_that_is_done_says_so_of_what_was_before_it() {
        let order = three_streams();
        let free = order.next_free();
        order.record(9, 1);
        order.event_done(&order.expect(9).unwrap());
        assert!(order.is_done(CONTEXT, 1, free));
    }

    #[test]
    fn the_legacy_stream_and_blocking_ones_wait_for_each_other() {
        let order = StreamOrder::default();
        for (stream, kind) in [
            (1, StreamKind::Legacy),
            (2, StreamKind::Blocking),
            (3, StreamKind::Blocking),
            (4, StreamKind::NonBlocking),
        ] {
            order.add_stream(stream, CONTEXT, kind);
        }
        let free = order.next_free();
        let waits = |from, to| order.waits_anyway(from, to);
        assert!(waits(1, 2) && waits(2, 1) && !waits(2, 3) && !waits(1, 4) && !waits(4, 1) && !waits(9, 1));
        assert!(!is_ordered(&order, 1, free, 2), "without work in between there is no order");
    }

    #[test]
    fn a_stream_that_ended_is_forgotten_when_its_work_is_done() {
        let order = three_streams();
        let free = order.next_free();
        assert!(!order.end_stream(1, free));
        assert!(!order.is_done(CONTEXT, 1, free));
        assert_eq!(order.context_done(CONTEXT, free - 1), [], "it ended after the wait began");
        assert_eq!(order.context_done(CONTEXT, order.mark_all()), [1]);
        assert!(order.is_done(CONTEXT, 1, free));
        assert_eq!(order.known().streams.len(), 2);
        assert!(order.end_stream(2, 0));
        order.end_context(CONTEXT);
        assert_eq!(order.known().streams.len(), 0);
    }
}
