//! Wakes a proxy's thread, which otherwise waits for datagrams.

use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Calls a thread that waits in [`crate::Port::receive`]. Copies call the same thread. A call costs a system call only
/// when the thread sleeps.
#[derive(Clone, Debug)]
pub struct Waker {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    fd: OwnedFd,
    called: AtomicBool,
    sleeps: AtomicBool,
}

impl Waker {
    /// Not called yet.
    pub fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let inner = Inner { fd, called: AtomicBool::new(false), sleeps: AtomicBool::new(false) };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Wakes the thread, by a system call only if it sleeps.
    pub fn wake(&self) {
        self.inner.called.store(true, Ordering::SeqCst);
        if self.inner.sleeps.swap(false, Ordering::SeqCst) {
            // It cannot fail but by a counter that is full, and then the thread is awake.
            let _ = rustix::io::write(&self.inner.fd, &1u64.to_ne_bytes());
        }
    }

    /// Whether [`Waker::wake`] was called since this was last asked.
    pub fn take(&self) -> bool {
        self.inner.called.swap(false, Ordering::SeqCst)
    }

    pub(crate) fn is_called(&self) -> bool {
        self.inner.called.load(Ordering::SeqCst)
    }

    /// To be called before a sleep. If it returns false, the thread must not sleep: it was called meanwhile.
    pub(crate) fn may_sleep(&self) -> bool {
        self.inner.sleeps.store(true, Ordering::SeqCst);
        // A thread that called before the line above saw `sleeps` unset and wrote nothing.
        let may_sleep = !self.is_called();
        if !may_sleep {
            self.awake();
        }
        may_sleep
    }

    /// To be called after a sleep.
    pub(crate) fn awake(&self) {
        if !self.inner.sleeps.swap(false, Ordering::SeqCst) {
            let _ = rustix::io::read(&self.inner.fd, &mut [0; 8]);
        }
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_before_a_sleep_prevents_it_and_one_during_it_ends_it() {
        let waker = Waker::new().unwrap();
        waker.wake();
        assert!(!waker.may_sleep(), "somebody has called");
        assert!(waker.take() && !waker.take());
        assert!(waker.may_sleep());
        waker.clone().wake();
        waker.wake();
        assert_eq!(rustix::io::read(&waker.inner.fd, &mut [0; 8]), Ok(8), "one word for both calls");
        waker.awake();
        assert!(waker.take() && waker.may_sleep());
    }
}
