//! Accesses that are answered later, and the way their answers come back.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::event::{EventfdFlags, eventfd};

/// Names one read, write or reset that waits for its answer. Never used twice by one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AccessId(pub u64);

/// What a device says to an access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<T> {
    /// Here it is.
    Now(T),
    /// It will come through [`Completions`].
    Later,
}

/// A late answer: the bytes of a read, nothing for a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Which access.
    pub access: AccessId,
    /// As many bytes as were asked for; other lengths mean that no device was there: all ones, or what is remembered
    /// where configuration space is read.
    pub data: Vec<u8>,
}

/// Brings late answers to the server, from any thread. A late answer to an access that is no longer waited for is
/// dropped.
#[derive(Clone)]
pub struct Completions {
    inner: Arc<Inner>,
}

struct Inner {
    queue: Mutex<Vec<Completion>>,
    wake: OwnedFd,
}

impl Completions {
    /// An empty queue.
    pub fn new() -> std::io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { inner: Arc::new(Inner { queue: Mutex::new(Vec::new()), wake }) })
    }

    /// Answers `access`.
    pub fn complete(&self, access: AccessId, data: Vec<u8>) {
        let mut queue = self.inner.queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        queue.push(Completion { access, data });
        if queue.len() == 1 {
            self.wake();
        }
    }

    /// Makes the serving thread look again.
    pub(crate) fn wake(&self) {
        let _ = rustix::io::write(&self.inner.wake, &1u64.to_ne_bytes());
    }

    /// Takes what has come.
    pub fn take(&self) -> Vec<Completion> {
        let _ = rustix::io::read(&self.inner.wake, &mut [0; 8]);
        std::mem::take(&mut *self.inner.queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}

impl AsFd for Completions {
    /// Readable when something came.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.wake.as_fd()
    }
}
