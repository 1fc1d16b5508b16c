//! Threads that wait, so that the command loop need not.
//!
//! Each wait of a client's thread takes one; they grow with the waits and end when they had nothing to do for a while.

use crate::sync::{lock, wait_for};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// More threads than this wait in no sensible program; further waits queue.
const THREADS_MAX: usize = 512;
/// More waits than this are an attack on our memory.
const QUEUED_MAX: usize = 1 << 16;
const IDLE_END: Duration = Duration::from_secs(5);
/// Waits call into the driver, which may compile or copy there.
const STACK_BYTES: usize = 1 << 20;

pub(crate) type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
pub(crate) struct Waiters {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    ready: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    idle: usize,
    threads: usize,
}

impl Waiters {
    /// Runs `job` on a thread of its own. False when there are too many already.
    pub(crate) fn run(&self, job: Job) -> bool {
        let mut state = lock(&self.shared.state);
        if state.jobs.len() >= QUEUED_MAX {
            return false;
        }
        state.jobs.push_back(job);
        if state.idle >= state.jobs.len() || state.threads >= THREADS_MAX {
            drop(state);
            self.shared.ready.notify_one();
            return true;
        }
        state.threads += 1;
        drop(state);
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name("dxpu-waiter".to_owned()).stack_size(STACK_BYTES);
        if thread.spawn(move || shared.serve()).is_err() {
            let mut state = lock(&self.shared.state);
            state.threads -= 1;
            // Somebody else takes it, if there is anybody.
            return state.threads > 0;
        }
        true
    }
}

impl Shared {
    fn serve(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                state = lock(&self.state);
                continue;
            }
            let since = Instant::now();
            state.idle += 1;
            while state.jobs.is_empty() && since.elapsed() < IDLE_END {
                state = wait_for(&self.ready, state, IDLE_END);
            }
            state.idle -= 1;
            if state.jobs.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn many_waits_block_at_once_and_all_end() {
        let waiters = Waiters::default();
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        let (sender, receiver) = mpsc::channel();
        for at in 0..40 {
            let (gate, sender) = (gate.clone(), sender.clone());
            let job = move || {
                sender.send(at).unwrap();
                let mut open = gate.0.lock().unwrap();
                while !*open {
                    open = gate.1.wait(open).unwrap();
                }
                sender.send(at + 100).unwrap();
            };
            assert!(waiters.run(Box::new(job)));
        }
        let mut begun: Vec<i32> = receiver.iter().take(40).collect();
        begun.sort();
        assert_eq!(begun, (0..40).collect::<Vec<_>>(), "every wait has a thread");
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
        assert_eq!(receiver.iter().take(40).filter(|at| *at >= 100).count(), 40);
    }
}
