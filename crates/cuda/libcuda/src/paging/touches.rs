//! Touches on their way to the thread that serves them: a list without locks, since a signal handler puts them there.
//!
//! A touch by signal lies on the stack of the thread that made it, which sleeps until it is served. One by userfaultfd is
//! owned by the list; the kernel has its thread wait.

use std::{
    ptr,
    sync::atomic::{AtomicPtr, AtomicU32, Ordering},
};

/// A thread touched a page that is closed to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touch {
    /// Where.
    pub(crate) address: u64,
    /// To write.
    pub(crate) is_write: bool,
    /// By a host function of the program, which a stream waits for.
    pub(crate) is_host_function: bool,
}

const WAITING: u32 = 0;
const SERVED: u32 = 1;
const NOT_OURS: u32 = 2;

struct Node {
    next: *mut Node,
    touch: Touch,
    state: AtomicU32,
    /// Made by `Box`; no thread sleeps on it.
    is_owned: bool,
}

pub(super) struct Touches {
    newest: AtomicPtr<Node>,
    /// Changes with every touch.
    bell: AtomicU32,
}

impl Touches {
    pub(super) const fn new() -> Self {
        Self { newest: AtomicPtr::new(ptr::null_mut()), bell: AtomicU32::new(0) }
    }

    /// Has a touch served, and waits. False if it is none of ours. Called by signal handlers: it allocates and locks nothing.
    pub(super) fn post_and_wait(&self, touch: Touch) -> bool {
        let mut node = Node { next: ptr::null_mut(), touch, state: AtomicU32::new(WAITING), is_owned: false };
        self.push(&raw mut node);
        let state = &node.state;
        loop {
            match state.load(Ordering::Acquire) {
                WAITING => futex_wait(state, WAITING),
                answer => return answer == SERVED,
            }
        }
    }

    /// Has a touch served that the kernel waits for.
    pub(super) fn post_owned(&self, touch: Touch) {
        let (next, state) = (ptr::null_mut(), AtomicU32::new(WAITING));
        self.push(Box::into_raw(Box::new(Node { next, touch, state, is_owned: true })));
    }

    fn push(&self, node: *mut Node) {
        let mut newest = self.newest.load(Ordering::Relaxed);
        loop {
            // SAFETY: the node is alive and ours alone until the exchange succeeds.
            unsafe { (*node).next = newest };
            match self.newest.compare_exchange_weak(newest, node, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => newest = now,
            }
        }
        self.ring();
    }

    /// Wakes the serving thread.
    pub(super) fn ring(&self) {
        self.bell.fetch_add(1, Ordering::AcqRel);
        futex_wake(&raw const self.bell);
    }

    pub(super) fn bell(&self) -> u32 {
        self.bell.load(Ordering::Acquire)
    }

    /// Sleeps until the bell is not what it was.
    pub(super) fn sleep(&self, bell: u32) {
        futex_wait(&self.bell, bell);
    }

    /// Serves what is there, in the order in which it came. `serve` calls the function it is given once.
    pub(super) fn serve(&self, mut serve: impl FnMut(Touch, &mut dyn FnMut(bool))) {
        let mut newest = self.newest.swap(ptr::null_mut(), Ordering::AcqRel);
        let mut nodes = Vec::new();
        while !newest.is_null() {
            nodes.push(newest);
            // SAFETY: a node stays until it is answered, and its `next` does not change once it is in the list.
            newest = unsafe { (*newest).next };
        }
        for node in nodes.into_iter().rev() {
            // SAFETY: as before.
            let touch = unsafe { (*node).touch };
            serve(touch, &mut |is_ours| answer(node, is_ours));
        }
    }
}

/// Answers a touch; the node is gone afterwards.
fn answer(node: *mut Node, is_ours: bool) {
    // SAFETY: the node is alive: it has not been answered.
    if unsafe { (*node).is_owned } {
        // SAFETY: `post_owned` made it by `Box`, and only its one answer takes it back.
        drop(unsafe { Box::from_raw(node) });
        return;
    }
    // SAFETY: as above. From the store on the thread may return from where the node lies.
    let state = unsafe { &raw const (*node).state };
    // SAFETY: as above.
    unsafe { (*state).store(if is_ours { SERVED } else { NOT_OURS }, Ordering::Release) };
    futex_wake(state);
}

fn futex_wait(word: &AtomicU32, value: u32) {
    let timeout: *const libc::timespec = ptr::null();
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word is alive during the call, which only reads it.
    unsafe { libc::syscall(libc::SYS_futex, ptr::from_ref(word), operation, value, timeout) };
}

/// The word may be gone: the kernel looks for sleepers at an address, and reads nothing there.
fn futex_wake(word: *const AtomicU32) {
    // SAFETY: a private wake does not follow the pointer.
    unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, i32::MAX) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn many_threads_are_each_answered_once() {
        static TOUCHES: Touches = Touches::new();
        let touch = |address| Touch { address, is_write: address % 3 == 0, is_host_function: false };
        let threads: Vec<_> = (0..8u64)
            .map(|k| {
                thread::spawn(move || {
                    (0..500u64).filter(|n| TOUCHES.post_and_wait(touch(k * 1000 + n))).count()
                })
            })
            .collect();
        let mut answered = 0;
        TOUCHES.post_owned(touch(1));
        while answered < 4001 {
            let bell = TOUCHES.bell();
            let before = answered;
            TOUCHES.serve(|touch, done| {
                assert_eq!(touch.is_write, touch.address % 3 == 0);
                answered += 1;
                done(touch.address % 2 == 0);
            });
            if answered == before {
                TOUCHES.sleep(bell);
            }
        }
        assert!(threads.into_iter().all(|thread| thread.join().unwrap() == 250));
    }
}
