//! The streams that an online session has put work into and that were not found idle since.
//!
//! The thread that puts work remembers the stream **after** the work is in it; another thread asks. A stream is forgotten only if
//! it was idle and was not touched between the look at the list and the answer. So work that is in a stream is either seen by the
//! question, or its touch keeps the stream in the list.

use crate::stream::LiveStream;
use locks::lock;
use std::sync::{Arc, Mutex};

#[derive(Default)]
pub(crate) struct Touched(Mutex<List>);

#[derive(Default)]
struct List {
    touches: u64,
    streams: Vec<Entry>,
}

#[derive(Clone)]
struct Entry {
    stream: Arc<LiveStream>,
    /// The number of the last touch.
    touch: u64,
}

impl Touched {
    /// Work was put into a stream.
    pub(crate) fn touch(&self, stream: &Arc<LiveStream>) {
        let mut list = lock(&self.0);
        list.touches += 1;
        let touch = list.touches;
        match list.streams.iter_mut().find(|entry| Arc::ptr_eq(&entry.stream, stream)) {
            Some(entry) => entry.touch = touch,
            None => list.streams.push(Entry { stream: Arc::clone(stream), touch }),
        }
    }

    /// Whether none of them has work. Never blocks for the device.
    pub(crate) fn are_idle(&self) -> bool {
        let asked = lock(&self.0).streams.clone();
        for entry in &asked {
            // A dead stream has no work.
            if !entry.stream.is_idle().unwrap_or(true) {
                return false;
            }
        }
        let is_same =
            |now: &Entry, then: &Entry| now.touch == then.touch && Arc::ptr_eq(&now.stream, &then.stream);
        let mut list = lock(&self.0);
        list.streams.retain(|now| !asked.iter().any(|then| is_same(now, then)));
        let is_quiet = list.streams.is_empty();
        drop(list);
        // The last owner of a stream destroys it, which calls the library: without the lock.
        drop(asked);
        is_quiet
    }
}
