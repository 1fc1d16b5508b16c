//! What waits to be sent, and how lanes share it.
//!
//! Lanes take one chunk at a time from the front; a transfer that is not through goes to the back. So transfers
//! share the lanes evenly, and a small one never waits for a large one to end.

use crate::{buffer::Buffer, ends::Done};
use cuda_wire::{LinkLost, Source, TransferId};
use locks::{lock, wait};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};

#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<QueueState>,
    ready: Condvar,
}

#[derive(Default)]
struct QueueState {
    jobs: VecDeque<Job>,
    /// Sending threads that wait for a job.
    idle: usize,
    /// Sending threads that were started.
    started: usize,
    closed: bool,
}

pub(crate) enum Job {
    /// A transfer that owns its source.
    Transfer(Arc<Outgoing>),
    /// A chunk that a blocked caller has filled.
    Filled { transfer: TransferId, offset: u64, bytes: usize, buffer: Buffer, batch: Arc<Batch> },
}

impl Queue {
    /// Adds a job. Returns the number of the sending thread to start, if one more is needed for it.
    pub(crate) fn push(&self, job: Job, threads_max: usize) -> Result<Option<usize>, Job> {
        let mut state = lock(&self.state);
        if state.closed {
            return Err(job);
        }
        state.jobs.push_back(job);
        if state.idle >= state.jobs.len() || state.started == threads_max {
            let is_awaited = state.idle > 0;
            drop(state);
            // A notification is a system call, whether or not a thread waits. Those that are busy look at the queue next.
            if is_awaited {
                self.ready.notify_one();
            }
            return Ok(None);
        }
        state.started += 1;
        Ok(Some(state.started - 1))
    }

    /// Blocks until there is a job; `None` when the queue was closed.
    pub(crate) fn pop(&self) -> Option<Job> {
        let mut state = lock(&self.state);
        loop {
            if state.closed {
                return None;
            }
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            state.idle += 1;
            state = wait(&self.ready, state);
            state.idle -= 1;
        }
    }

    /// Ends the queue. Returns what was left in it.
    pub(crate) fn close(&self) -> Vec<Job> {
        let mut state = lock(&self.state);
        state.closed = true;
        let left = state.jobs.drain(..).collect();
        self.ready.notify_all();
        left
    }
}

/// A transfer, or a part of one, that lanes take chunks of.
pub(crate) struct Outgoing {
    pub(crate) transfer: TransferId,
    /// Where it starts in its transfer.
    start: u64,
    pub(crate) bytes: u64,
    pub(crate) chunk_bytes: u32,
    pub(crate) source: Box<dyn Source + Send + Sync>,
    progress: Mutex<Progress>,
}

struct Progress {
    next: u64,
    sent: u64,
    /// Lanes that are using the source right now: `done` waits for them.
    active: u32,
    failed: bool,
    done: Option<Done>,
}

impl Outgoing {
    pub(crate) fn new(
        transfer: TransferId,
        start: u64,
        bytes: u64,
        chunk_bytes: u32,
        source: Box<dyn Source + Send + Sync>,
        done: Done,
    ) -> Self {
        let progress = Progress { next: 0, sent: 0, active: 0, failed: false, done: Some(done) };
        Self { transfer, start, bytes, chunk_bytes, source, progress: Mutex::new(progress) }
    }

    /// The next chunk (place and length), and whether there is another one after it.
    pub(crate) fn claim(&self) -> Option<(u64, u32, bool)> {
        let mut progress = lock(&self.progress);
        let left = self.bytes - progress.next;
        if left == 0 || progress.failed {
            return None;
        }
        let (offset, bytes) = (self.start + progress.next, left.min(self.chunk_bytes.into()));
        progress.next += bytes;
        progress.active += 1;
        Some((offset, bytes as u32, bytes < left))
    }

    /// A claimed chunk is through.
    pub(crate) fn release(&self, sent: Option<u32>) {
        let mut progress = lock(&self.progress);
        progress.active -= 1;
        match sent {
            Some(bytes) => progress.sent += u64::from(bytes),
            None => progress.failed = true,
        }
        self.finish(progress);
    }

    pub(crate) fn fail(&self) {
        let mut progress = lock(&self.progress);
        progress.failed = true;
        self.finish(progress);
    }

    fn finish(&self, mut progress: std::sync::MutexGuard<'_, Progress>) {
        let complete = progress.sent == self.bytes;
        if progress.active != 0 || !(complete || progress.failed) {
            return;
        }
        let done = progress.done.take();
        drop(progress);
        if let Some(done) = done {
            done(if complete { Ok(()) } else { Err(LinkLost) });
        }
    }
}

/// The chunks of a blocked caller that are with the lanes.
#[derive(Default)]
pub(crate) struct Batch {
    state: Mutex<BatchState>,
    changed: Condvar,
}

#[derive(Default)]
struct BatchState {
    in_flight: usize,
    failed: bool,
    /// The caller sleeps until so few chunks are with the lanes.
    awaited: Option<usize>,
}

impl BatchState {
    fn is_reached(&self, in_flight_max: usize) -> bool {
        self.in_flight <= in_flight_max || self.failed
    }
}

impl Batch {
    pub(crate) fn begin(&self) {
        lock(&self.state).in_flight += 1;
    }

    /// A chunk is through. The caller is woken when it can go on, not by every chunk: each time costs both threads a system call.
    pub(crate) fn end(&self, sent: bool) {
        let mut state = lock(&self.state);
        state.in_flight -= 1;
        state.failed |= !sent;
        if state.awaited.is_some_and(|in_flight_max| state.is_reached(in_flight_max)) {
            state.awaited = None;
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Blocks until at most `in_flight_max` chunks are with the lanes. Only one thread may wait: the one whose batch it is.
    pub(crate) fn wait(&self, in_flight_max: usize) -> Result<(), LinkLost> {
        let mut state = lock(&self.state);
        while !state.is_reached(in_flight_max) {
            state.awaited = Some(in_flight_max);
            state = wait(&self.changed, state);
        }
        state.awaited = None;
        if state.failed { Err(LinkLost) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_awaited(batch: &Batch) -> bool {
        lock(&batch.state).awaited.is_some()
    }

    #[test]
    fn a_caller_is_woken_by_the_chunk_that_it_waits_for_and_by_no_other() {
        let batch = Batch::default();
        (0..4).for_each(|_| batch.begin());
        std::thread::scope(|scope| {
            let caller = scope.spawn(|| batch.wait(1));
            while !is_awaited(&batch) {
                std::thread::yield_now();
            }
            batch.end(true);
            batch.end(true);
            assert!(is_awaited(&batch), "two are left, and it waits for one");
            batch.end(true);
            assert!(!is_awaited(&batch), "it was woken");
            assert_eq!(caller.join().unwrap(), Ok(()));
        });
        batch.end(true);
        assert_eq!(batch.wait(0), Ok(()));
    }

    #[test]
    fn a_chunk_that_failed_wakes_the_caller_at_once() {
        let batch = Batch::default();
        (0..3).for_each(|_| batch.begin());
        std::thread::scope(|scope| {
            let caller = scope.spawn(|| batch.wait(0));
            while !is_awaited(&batch) {
                std::thread::yield_now();
            }
            batch.end(false);
            assert_eq!(caller.join().unwrap(), Err(LinkLost));
        });
    }

    #[test]
    fn no_wake_up_is_lost_between_a_caller_and_its_lanes() {
        for _ in 0..2_000 {
            let batch = Batch::default();
            (0..3).for_each(|_| batch.begin());
            std::thread::scope(|scope| {
                scope.spawn(|| (0..3).for_each(|_| batch.end(true)));
                assert_eq!(batch.wait(1), Ok(()));
                assert_eq!(batch.wait(0), Ok(()));
            });
        }
    }
}
