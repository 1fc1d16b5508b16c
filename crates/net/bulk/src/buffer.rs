//! Memory that bytes pass through: small enough to stay in a core's cache, used again and again.

use locks::{lock, wait};
use std::sync::{Condvar, Mutex};

/// Bytes moved at a time. Larger pieces fall out of the second-level cache between the two copies of a byte.
pub(crate) const PIECE_BYTES: usize = 256 << 10;
/// A cache line, and the width of the widest vector copy.
const ALIGNMENT: usize = 64;

/// Aligned memory of a fixed size.
pub(crate) struct Buffer {
    memory: Box<[u8]>,
    start: usize,
    bytes: usize,
}

impl Buffer {
    pub(crate) fn new(bytes: usize) -> Self {
        let memory = vec![0; bytes + ALIGNMENT].into_boxed_slice();
        // `align_offset` may give up; then the buffer is unaligned, which only costs time.
        let start = memory.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        Self { memory, start, bytes }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.bytes]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.bytes]
    }
}

/// A bounded number of piece buffers. A thread that wants one more waits for one to come back.
pub(crate) struct Pool {
    state: Mutex<PoolState>,
    returned: Condvar,
    buffers_max: usize,
}

#[derive(Default)]
struct PoolState {
    free: Vec<Buffer>,
    made: usize,
    /// Threads that wait for a buffer.
    waiting: usize,
    closed: bool,
}

impl Pool {
    pub(crate) fn new(buffers_max: usize) -> Self {
        Self { state: Mutex::default(), returned: Condvar::new(), buffers_max }
    }

    /// Blocks until there is one; `None` when the pool was closed.
    pub(crate) fn get(&self) -> Option<Buffer> {
        let mut state = lock(&self.state);
        loop {
            if state.closed {
                return None;
            }
            if let Some(buffer) = state.free.pop() {
                return Some(buffer);
            }
            if state.made < self.buffers_max {
                state.made += 1;
                drop(state);
                return Some(Buffer::new(PIECE_BYTES));
            }
            state.waiting += 1;
            state = wait(&self.returned, state);
            state.waiting -= 1;
        }
    }

    pub(crate) fn put(&self, buffer: Buffer) {
        let mut state = lock(&self.state);
        state.free.push(buffer);
        let is_awaited = state.waiting > 0;
        drop(state);
        // A notification is a system call, whether or not a thread waits.
        if is_awaited {
            self.returned.notify_one();
        }
    }

    pub(crate) fn close(&self) {
        lock(&self.state).closed = true;
        self.returned.notify_all();
    }
}

/// Memory for chunks that came early: bounded by the window, which its user counts. Keeps a few for the next time.
#[derive(Default)]
pub(crate) struct Spares {
    free: Mutex<Vec<Buffer>>,
}

impl Spares {
    const KEPT_MAX: usize = 32;
    /// Below this a buffer of its own wastes less than a whole piece would.
    const SMALL_BYTES: usize = 64 << 10;

    pub(crate) fn get(&self, bytes: usize) -> Buffer {
        if bytes < Self::SMALL_BYTES {
            return Buffer::new(bytes);
        }
        lock(&self.free).pop().unwrap_or_else(|| Buffer::new(PIECE_BYTES))
    }

    pub(crate) fn put(&self, buffer: Buffer) {
        let mut free = lock(&self.free);
        if buffer.len() == PIECE_BYTES && free.len() < Self::KEPT_MAX {
            free.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_of_the_asked_size() {
        for bytes in [1, 63, 64, 4097, PIECE_BYTES] {
            let mut buffer = Buffer::new(bytes);
            assert_eq!((buffer.bytes_mut().len(), buffer.len()), (bytes, bytes));
            assert_eq!(buffer.bytes().as_ptr().addr() % ALIGNMENT, 0);
        }
    }

    #[test]
    fn a_buffer_that_comes_back_wakes_a_thread_that_waits() {
        let pool = Pool::new(1);
        for _ in 0..2_000 {
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| pool.put(pool.get().unwrap()));
                }
            });
        }
        assert_eq!(lock(&pool.state).waiting, 0);
    }

    #[test]
    fn a_closed_pool_wakes_who_waits() {
        let pool = Pool::new(1);
        let held = pool.get().unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| pool.get().is_none());
            pool.close();
            assert!(waiter.join().unwrap());
        });
        pool.put(held);
    }
}
