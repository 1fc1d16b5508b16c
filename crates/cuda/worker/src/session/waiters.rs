//! Threads that wait, so that the command loop need not.
//!
//! Each wait takes a thread of its own, up to `THREADS_MAX`. Threads start as waits need them and end after a while
//! without work. Further waits share one thread, which polls them in turn: they end a little later, and cost no thread.

use locks::{lock, wait, wait_for};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Waits with a thread of their own. Few programs have more threads that wait at once.
const THREADS_MAX: usize = 64;
/// More waits than this are an attack on our memory.
const SHARED_MAX: usize = 1 << 16;
const IDLE_END: Duration = Duration::from_secs(5);
/// How often the shared thread looks. In a program with so many waiting threads, each wait lasts longer than that.
const LOOK_EVERY: Duration = Duration::from_micros(500);
/// Waits call into the driver, which may compile or copy there.
const STACK_BYTES: usize = 1 << 20;

/// Something to wait for.
pub(crate) trait Wait: Send {
    /// Blocks until it is over, and answers the client.
    fn wait(self: Box<Self>);
    /// The same without blocking: whether it is over.
    fn look(&mut self) -> bool;
}

#[derive(Default)]
pub(crate) struct Waiters {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    ready: Condvar,
    crowded: Condvar,
}

#[derive(Default)]
struct State {
    waits: VecDeque<Box<dyn Wait>>,
    idle: usize,
    threads: usize,
    /// Waits that the shared thread has not taken yet, and how many it has in all.
    crowd: Vec<Box<dyn Wait>>,
    crowd_len: usize,
    has_crowd_thread: bool,
}

impl Waiters {
    /// Waits on some thread. False when there are too many waits already, or no thread.
    pub(crate) fn run(&self, wait: Box<dyn Wait>) -> bool {
        let mut state = lock(&self.shared.state);
        if state.idle > state.waits.len() {
            state.waits.push_back(wait);
            drop(state);
            self.shared.ready.notify_one();
            return true;
        }
        if state.threads < THREADS_MAX {
            state.threads += 1;
            state.waits.push_back(wait);
            drop(state);
            if self.spawn("dxpu-waiter", Shared::serve) {
                return true;
            }
            let mut state = lock(&self.shared.state);
            state.threads -= 1;
            // Another waiter thread takes it, if there is one.
            return state.threads > 0;
        }
        if state.crowd_len >= SHARED_MAX {
            return false;
        }
        state.crowd_len += 1;
        state.crowd.push(wait);
        let has_thread = std::mem::replace(&mut state.has_crowd_thread, true);
        drop(state);
        self.shared.crowded.notify_one();
        if has_thread || self.spawn("dxpu-crowd", Shared::serve_crowd) {
            return true;
        }
        lock(&self.shared.state).has_crowd_thread = false;
        false
    }

    fn spawn(&self, name: &str, body: fn(&Shared)) -> bool {
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES);
        thread.spawn(move || body(&shared)).is_ok()
    }
}

impl Shared {
    fn serve(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some(wait) = state.waits.pop_front() {
                drop(state);
                wait.wait();
                state = lock(&self.state);
                continue;
            }
            let since = Instant::now();
            state.idle += 1;
            while state.waits.is_empty() && since.elapsed() < IDLE_END {
                state = wait_for(&self.ready, state, IDLE_END);
            }
            state.idle -= 1;
            if state.waits.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }

    /// Polls all waits that have no thread of their own. Never ends: it sleeps while there are none.
    fn serve_crowd(&self) {
        let mut mine: Vec<Box<dyn Wait>> = Vec::new();
        loop {
            let mut state = lock(&self.state);
            while mine.is_empty() && state.crowd.is_empty() {
                state = wait(&self.crowded, state);
            }
            mine.append(&mut state.crowd);
            drop(state);
            mine.retain_mut(|wait| !wait.look());
            let mut state = lock(&self.state);
            state.crowd_len = mine.len() + state.crowd.len();
            drop(state);
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::mpsc::{self, Sender};

    #[derive(Default)]
    struct Gate {
        open: Mutex<bool>,
        changed: Condvar,
        blocked: AtomicUsize,
        is_open: AtomicBool,
    }

    struct Behind {
        gate: Arc<Gate>,
        at: usize,
        over: Sender<usize>,
    }

    impl Wait for Behind {
        fn wait(self: Box<Self>) {
            self.gate.blocked.fetch_add(1, Ordering::SeqCst);
            let mut open = self.gate.open.lock().unwrap();
            while !*open {
                open = self.gate.changed.wait(open).unwrap();
            }
            self.over.send(self.at).unwrap();
        }

        fn look(&mut self) -> bool {
            let is_over = self.gate.is_open.load(Ordering::SeqCst);
            if is_over {
                self.over.send(self.at).unwrap();
            }
            is_over
        }
    }

    fn threads() -> usize {
        std::fs::read_dir("/proc/self/task").unwrap().count()
    }

    #[test]
    fn many_waits_block_at_once_with_few_threads_and_all_end() {
        const WAITS: usize = 2000;
        let (waiters, gate, before) = (Waiters::default(), Arc::new(Gate::default()), threads());
        let (sender, receiver) = mpsc::channel();
        for at in 0..WAITS {
            let (gate, over) = (gate.clone(), sender.clone());
            assert!(waiters.run(Box::new(Behind { gate, at, over })));
        }
        while gate.blocked.load(Ordering::SeqCst) < THREADS_MAX {
            std::thread::yield_now();
        }
        // Other tests of this process may have threads of their own meanwhile.
        assert!(threads() < before + THREADS_MAX + 100, "{} threads", threads());
        assert_eq!(gate.blocked.load(Ordering::SeqCst), THREADS_MAX);
        *gate.open.lock().unwrap() = true;
        gate.is_open.store(true, Ordering::SeqCst);
        gate.changed.notify_all();
        let mut over: Vec<usize> = receiver.iter().take(WAITS).collect();
        over.sort_unstable();
        assert_eq!(over, (0..WAITS).collect::<Vec<_>>());
    }
}
