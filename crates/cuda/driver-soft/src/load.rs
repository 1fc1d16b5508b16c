//! What the lines of a session take together: threads, and memory of queued work. Both are bounded.
//!
//! A program that queues more waits until there is room, as it waits on a real device that is far behind. What waits in
//! a line needs nothing that is queued later, so room comes by itself. Only a stream that waits for a value in memory
//! may wait for ever; then the call that queues is refused after `ROOM_WITHIN`.

use crate::sync::{Lock, lock};
use cuda_abi::{CuResult, CudaError};
use std::{
    sync::Condvar,
    time::{Duration, Instant},
};

/// Streams that work, or wait, at the same time. Each has a thread for as long.
const LINE_THREADS_MAX: usize = 128;
/// How long a thread stays when its line has nothing to do. Long against the pauses of a program between two calls, short
/// against the life of one.
const IDLE_MAX: Duration = Duration::from_millis(250);
/// The same where there are many threads: others may wait for one to end.
const IDLE_MAX_CROWDED: Duration = Duration::from_millis(1);
/// Threads beside them for branches of graphs.
const GRAPH_THREADS_MAX: usize = 32;
/// The most memory that queued work of all lines may hold, beside [`LINE_BYTES_FREE`] of each.
const QUEUED_BYTES_MAX: usize = 256 << 20;
/// What every line may hold, whatever the others do.
const LINE_BYTES_FREE: usize = 1 << 20;
/// A wait for room that lasts so long would never end.
const ROOM_WITHIN: Duration = Duration::from_secs(20);

pub(crate) struct Load {
    state: Lock<State>,
    changed: Condvar,
    room_within: Duration,
}

#[derive(Default)]
struct State {
    line_threads: usize,
    graph_threads: usize,
    queued_bytes: usize,
    is_over: bool,
}

impl Default for Load {
    fn default() -> Self {
        Self { state: Lock::default(), changed: Condvar::new(), room_within: ROOM_WITHIN }
    }
}

impl Load {
    /// Blocks until a line that holds `held_bytes` and has a thread or not may take more. Call it without any lock.
    pub(crate) fn wait_for_room(&self, has_thread: bool, held_bytes: usize) {
        let mut state = lock(&self.state);
        let has_room = |state: &State| {
            state.is_over
                || (has_thread || state.line_threads < LINE_THREADS_MAX)
                    && (held_bytes <= LINE_BYTES_FREE || state.queued_bytes <= QUEUED_BYTES_MAX)
        };
        if has_room(&state) {
            return;
        }
        let until = Instant::now() + self.room_within;
        while !has_room(&state) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = locks::wait_for(&self.changed, state, left);
        }
    }

    /// A line starts its thread.
    pub(crate) fn begin_line(&self) -> CuResult<()> {
        let mut state = lock(&self.state);
        if state.line_threads >= LINE_THREADS_MAX {
            return Err(CudaError::OUT_OF_MEMORY);
        }
        state.line_threads += 1;
        Ok(())
    }

    /// How long a line's thread stays when it has nothing to do.
    pub(crate) fn idle_max(&self) -> Duration {
        match lock(&self.state).line_threads > LINE_THREADS_MAX / 2 {
            true => IDLE_MAX_CROWDED,
            false => IDLE_MAX,
        }
    }

    pub(crate) fn end_line(&self) {
        lock(&self.state).line_threads -= 1;
        self.changed.notify_all();
    }

    /// A branch of a graph wants a thread of its own. False when it has to share one.
    pub(crate) fn begin_branch(&self) -> bool {
        let mut state = lock(&self.state);
        let has_room = state.graph_threads < GRAPH_THREADS_MAX;
        state.graph_threads += usize::from(has_room);
        has_room
    }

    pub(crate) fn end_branch(&self) {
        lock(&self.state).graph_threads -= 1;
    }

    pub(crate) fn queued(&self, bytes: usize) {
        lock(&self.state).queued_bytes += bytes;
    }

    pub(crate) fn done(&self, bytes: usize) {
        let mut state = lock(&self.state);
        let was_full = state.queued_bytes > QUEUED_BYTES_MAX;
        state.queued_bytes -= bytes.min(state.queued_bytes);
        drop(state);
        if was_full {
            self.changed.notify_all();
        }
    }

    /// The session ends: no thread waits for room any more.
    pub(crate) fn end(&self) {
        lock(&self.state).is_over = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_bounded_and_who_waits_for_ever_is_refused() {
        let load = Load { room_within: Duration::from_millis(20), ..Load::default() };
        for _ in 0..LINE_THREADS_MAX {
            load.wait_for_room(false, 0);
            load.begin_line().unwrap();
        }
        load.wait_for_room(true, 0);
        load.wait_for_room(false, 0);
        assert_eq!(load.begin_line(), Err(CudaError::OUT_OF_MEMORY));
        load.end_line();
        assert_eq!(load.begin_line(), Ok(()));
        assert_eq!((0..100).filter(|_| load.begin_branch()).count(), GRAPH_THREADS_MAX);
    }

    #[test]
    fn who_waits_goes_on_when_there_is_room() {
        let load = Load::default();
        load.queued(QUEUED_BYTES_MAX + 1);
        load.wait_for_room(true, LINE_BYTES_FREE);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| load.wait_for_room(true, LINE_BYTES_FREE + 1));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!waiter.is_finished());
            load.done(1);
            waiter.join().unwrap();
        });
    }
}
