//! The thread that does the work of streams.

use super::{
    Fake, State,
    work::{Item, Launched, Work},
};
use std::ffi::c_void;
use std::ops::Range;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

/// How long the thread sleeps while all work waits for words: writing a word wakes no thread.
const LOOK_EVERY: Duration = Duration::from_micros(50);

impl State {
    /// Whether a stream's first work may run now.
    fn is_ready(&mut self, key: usize) -> bool {
        let Some(stream) = self.streams.get(&key) else { return false };
        let Some(Item { number, work }) = stream.queue.front() else { return false };
        if stream.is_running {
            return false;
        }
        // The legacy stream and the blocking streams of its context do each other's earlier work first.
        let is_before = |other: &super::streams::StreamState| {
            let is_partner = match (stream.is_legacy, other.is_legacy) {
                (true, false) => other.is_blocking,
                (false, true) => stream.is_blocking,
                _ => false,
            };
            let is_earlier =
                other.is_running || other.queue.front().is_some_and(|item| item.number < *number);
            is_partner && other.context == stream.context && is_earlier
        };
        let work = work.clone();
        !self.streams.values().any(is_before) && self.is_due(&work)
    }

    fn finish(&mut self, key: usize) {
        if self.streams.get(&key).is_some_and(|stream| stream.is_destroyed && stream.is_idle()) {
            self.streams.remove(&key);
        }
    }
}

impl Fake {
    pub(super) fn run(&self) {
        let mut state = self.lock();
        while !state.is_closed {
            let keys: Vec<usize> = state.streams.keys().copied().collect();
            let ready = keys.into_iter().find(|&key| !state.is_held && state.is_ready(key));
            state = match ready {
                Some(key) => self.perform_first(state, key),
                None => {
                    self.changed.wait_timeout(state, LOOK_EVERY).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Runs the first work of a stream, if it is due. Says what it was.
    pub(crate) fn step(&self, key: usize) -> Option<String> {
        let mut state = self.lock();
        if !state.is_ready(key) {
            return None;
        }
        let what = format!("{:?}", state.streams.get(&key)?.queue.front()?.work);
        drop(self.perform_first(state, key));
        Some(what)
    }

    fn perform_first<'a>(&'a self, mut state: MutexGuard<'a, State>, key: usize) -> MutexGuard<'a, State> {
        let stream = state.streams.get_mut(&key).expect("a ready stream is there");
        let Item { work, .. } = stream.queue.pop_front().expect("a ready stream has work");
        if let Work::Host { function, argument } = work {
            stream.is_running = true;
            drop(state);
            let argument: *mut c_void = std::ptr::with_exposed_provenance_mut(argument);
            // SAFETY: the function and its argument were given for this one call.
            unsafe { function(argument) };
            state = self.lock();
            if let Some(stream) = state.streams.get_mut(&key) {
                stream.is_running = false;
            }
        } else {
            state.perform(work);
        }
        state.finish(key);
        self.changed.notify_all();
        state
    }

    /// The pinned bytes that work in streams will still read or write.
    pub(crate) fn outstanding(&self) -> Vec<Range<usize>> {
        let state = self.lock();
        let items = state.streams.values().flat_map(|stream| &stream.queue);
        items.filter_map(|item| item.work.pinned()).collect()
    }

    /// How much work waits in all streams.
    pub(crate) fn backlog(&self) -> usize {
        self.lock().streams.values().map(|stream| stream.queue.len() + usize::from(stream.is_running)).sum()
    }

    /// The kernels that have run.
    pub(crate) fn launched(&self) -> Vec<Launched> {
        self.lock().launched.clone()
    }
}
