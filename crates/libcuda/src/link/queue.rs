//! The one ordered stream of commands.
//!
//! A call appends its bytes under a short lock and returns; the sender thread writes what has gathered. Who needs an
//! answer writes it out itself, which saves waking a thread. Two locks: `bytes` is held for an append, `wire` for a
//! write, always in the order wire, bytes.

use cuda_wire::{Command, begin_command, finish_command};
use std::{
    io,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};
use transport::Tx;

/// Gathered bytes beyond which the caller writes them itself: it must not outrun the network without bound.
const BYTES_MAX: usize = 4 << 20;

/// Commands on their way out.
pub(super) struct Queue {
    shared: Arc<Shared>,
}

struct Shared {
    bytes: Mutex<Vec<u8>>,
    wire: Mutex<Wire>,
    /// True while the sender thread sleeps and must be woken for new bytes.
    sleeping: AtomicBool,
    wake: Condvar,
    closed: AtomicBool,
}

struct Wire {
    tx: Tx,
    /// The other buffer: emptied by the last write, filled by the next swap.
    spare: Vec<u8>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while appending leaves at worst a torn command, and the worker then closes the session.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Queue {
    pub(super) fn new(tx: Tx) -> Self {
        let shared = Shared {
            bytes: Mutex::new(Vec::with_capacity(BYTES_MAX / 4)),
            wire: Mutex::new(Wire { tx, spare: Vec::with_capacity(BYTES_MAX / 4) }),
            sleeping: AtomicBool::new(false),
            wake: Condvar::new(),
            closed: AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Starts the sender thread; `broken` hears of a write that failed.
    pub(super) fn start(&self, broken: impl Fn(io::Error) + Send + 'static) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        crate::threads::spawn("dxpu-send", move || {
            while shared.wait_for_bytes() {
                if let Err(error) = shared.flush() {
                    broken(error);
                    return;
                }
            }
        })
    }

    /// Appends a command and sees to it that it leaves soon.
    #[inline]
    pub(super) fn append(&self, command: &Command<'_>, call: u32) {
        let gathered = self.append_quietly(command, call);
        if self.shared.sleeping.load(Ordering::Relaxed) {
            self.shared.wake_sender();
        }
        if gathered > BYTES_MAX {
            // An error shows again at the next write, which reports it.
            let _ = self.flush();
        }
    }

    /// Appends a command that the caller is about to flush.
    #[inline]
    pub(super) fn append_quietly(&self, command: &Command<'_>, call: u32) -> usize {
        let mut bytes = lock(&self.shared.bytes);
        let start = begin_command(&mut bytes, command.opcode(), call);
        command.put_body(&mut bytes);
        finish_command(&mut bytes, start);
        bytes.len()
    }

    /// Writes everything gathered so far.
    pub(super) fn flush(&self) -> io::Result<()> {
        self.shared.flush()
    }

    /// Ends the sender thread.
    pub(super) fn lose(&self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        self.shared.wake_sender();
    }
}

impl Shared {
    fn flush(&self) -> io::Result<()> {
        let mut wire = lock(&self.wire);
        let Wire { tx, spare } = &mut *wire;
        std::mem::swap(&mut *lock(&self.bytes), spare);
        if spare.is_empty() {
            return Ok(());
        }
        let sent = tx.send(&[spare.as_slice()]);
        spare.clear();
        sent
    }

    /// False when the queue is closed.
    fn wait_for_bytes(&self) -> bool {
        let mut bytes = lock(&self.bytes);
        while bytes.is_empty() {
            if self.closed.load(Ordering::SeqCst) {
                return false;
            }
            // Set under the lock that guards the bytes: an append after it sees the flag.
            self.sleeping.store(true, Ordering::Relaxed);
            bytes = self.wake.wait(bytes).unwrap_or_else(PoisonError::into_inner);
            self.sleeping.store(false, Ordering::Relaxed);
        }
        !self.closed.load(Ordering::SeqCst)
    }

    #[cold]
    fn wake_sender(&self) {
        // The lock is taken so that a sender between its check and its sleep is not missed.
        drop(lock(&self.bytes));
        self.sleeping.store(false, Ordering::Relaxed);
        self.wake.notify_one();
    }
}
