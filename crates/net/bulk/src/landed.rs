//! How many chunks of each lane have reached their memory.
//!
//! A reply says how many chunks were sent before it; the call returns when those have landed. Chunks that a blocked
//! caller takes out of a mailbox may land after later chunks of the same lane, so a lane's count is that of the
//! chunks before the oldest one that is still on its way.

use cuda_wire::WAYS;
use locks::lock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Instant;

pub(crate) struct Landed {
    lanes: [LaneLanded; WAYS],
    /// A thread that lands a chunk reads this before it takes the lock.
    waiters: AtomicUsize,
    lock: Mutex<()>,
    changed: Condvar,
}

#[derive(Default)]
struct LaneLanded {
    count: AtomicU32,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    /// Chunks begun so far, wrapping.
    begun: u32,
    /// Those not landed, oldest first.
    pending: Vec<u32>,
}

/// One chunk on its way to its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Landing {
    lane: usize,
    number: u32,
}

impl Landed {
    pub(crate) fn new() -> Self {
        Self {
            lanes: Default::default(),
            waiters: AtomicUsize::new(0),
            lock: Mutex::new(()),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn begin(&self, lane: usize) -> Landing {
        let mut open = lock(&self.lanes[lane].open);
        open.begun = open.begun.wrapping_add(1);
        let number = open.begun;
        open.pending.push(number);
        Landing { lane, number }
    }

    pub(crate) fn end(&self, landing: Landing) {
        let lane = &self.lanes[landing.lane];
        let mut open = lock(&lane.open);
        open.pending.retain(|number| *number != landing.number);
        let count = open.pending.first().map_or(open.begun, |oldest| oldest.wrapping_sub(1));
        lane.count.store(count, Ordering::SeqCst);
        drop(open);
        if self.waiters.load(Ordering::SeqCst) != 0 {
            self.wake();
        }
    }

    /// Chunks of one way that have landed.
    pub(crate) fn count(&self, lane: usize) -> u32 {
        self.lanes[lane].count.load(Ordering::SeqCst)
    }

    /// Wakes all waiting threads, for them to look again.
    pub(crate) fn wake(&self) {
        drop(lock(&self.lock));
        self.changed.notify_all();
    }

    fn reached(&self, chunks: &[u32; WAYS]) -> bool {
        // Counts wrap; a distance of less than half the circle is "not before".
        self.lanes
            .iter()
            .zip(chunks)
            .all(|(lane, wanted)| lane.count.load(Ordering::SeqCst).wrapping_sub(*wanted) < 1 << 31)
    }

    /// Blocks until all are reached (true), `stopped` says true, or `deadline` has passed (false).
    pub(crate) fn wait(
        &self,
        chunks: &[u32; WAYS],
        deadline: Option<Instant>,
        stopped: impl Fn() -> bool,
    ) -> bool {
        if self.reached(chunks) {
            return true;
        }
        self.waiters.fetch_add(1, Ordering::SeqCst);
        let mut guard = lock(&self.lock);
        let reached = loop {
            if self.reached(chunks) {
                break true;
            }
            if stopped() {
                break false;
            }
            guard = match deadline {
                None => locks::wait(&self.changed, guard),
                Some(at) => {
                    let left = at.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break false;
                    }
                    locks::wait_for(&self.changed, guard, left)
                }
            };
        };
        drop(guard);
        self.waiters.fetch_sub(1, Ordering::SeqCst);
        reached
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(first: u32) -> [u32; WAYS] {
        let mut chunks = [0; WAYS];
        chunks[0] = first;
        chunks
    }

    #[test]
    fn a_late_chunk_holds_the_count_back() {
        let landed = Landed::new();
        let (first, second) = (landed.begin(0), landed.begin(0));
        landed.end(second);
        assert!(!landed.reached(&chunks(1)));
        landed.end(first);
        assert!(landed.reached(&chunks(2)) && !landed.reached(&chunks(3)));
    }

    #[test]
    fn a_waiter_is_woken_by_the_last_chunk() {
        let landed = Landed::new();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| landed.wait(&chunks(1), None, || false));
            let landing = landed.begin(0);
            landed.end(landing);
            assert!(waiter.join().unwrap());
        });
        assert!(!landed.wait(&chunks(2), Some(Instant::now()), || false));
    }
}
