//! The one ordered stream of commands.
//!
//! A call appends its bytes under a short lock and returns; the sender thread writes what has gathered, and after a write
//! looks for more for a while before it sleeps, so that a call need not wake it. Who needs an answer writes by itself.
//! So does everybody where writing is but a copy into shared memory.
//!
//! Two locks: `bytes` is held for an append, `wire` for a write, always in the order wire, bytes. Nobody who needs the
//! wire waits for it, except to hold a program back that outruns the network: who finds it taken leaves its bytes to
//! whoever has it, and who lets go of it looks again.

use cuda_wire::{Command, begin_command, finish_command};
use std::{
    io,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use transport::Tx;

/// Gathered bytes beyond which the caller writes them itself: it must not outrun the network without bound.
const BYTES_MAX: usize = 4 << 20;
/// How often a caller writes what others append meanwhile, before it leaves that to the sender thread.
const ROUNDS_MAX: usize = 8;
/// Looks between two questions to the clock.
const LOOKS_PER_CLOCK: u32 = 32;

/// Commands on their way out.
pub(super) struct Queue {
    shared: Arc<Shared>,
}

struct Shared {
    gathered: Gathered,
    wire: Mutex<Wire>,
    wake: Condvar,
    closed: AtomicBool,
    /// How long the sender thread looks for more bytes before it sleeps.
    linger: Duration,
    /// Whoever appends writes, since that costs less than waking anybody.
    is_direct: bool,
    #[cfg(test)]
    wakes: AtomicUsize,
}

/// What every append touches, and the sender thread looks at: one line of the caches, so that it moves at once.
#[repr(align(64))]
struct Gathered {
    bytes: Mutex<Vec<u8>>,
    /// How many bytes there are, for who looks without the lock. Changed under it.
    count: AtomicUsize,
    /// True while the sender thread sleeps and must be woken for new bytes.
    sleeping: AtomicBool,
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

fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl Queue {
    /// A queue in front of `tx`, whose sender thread looks for more for `linger` after each write.
    pub(super) fn new(tx: Tx, linger: Duration) -> Self {
        let is_direct = tx.is_shared_memory();
        let shared = Shared {
            gathered: Gathered {
                bytes: Mutex::new(Vec::with_capacity(BYTES_MAX / 4)),
                count: AtomicUsize::new(0),
                sleeping: AtomicBool::new(false),
            },
            wire: Mutex::new(Wire { tx, spare: Vec::with_capacity(BYTES_MAX / 4) }),
            wake: Condvar::new(),
            closed: AtomicBool::new(false),
            linger: if is_direct { Duration::ZERO } else { linger },
            is_direct,
            #[cfg(test)]
            wakes: AtomicUsize::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Starts the sender thread; `broken` hears of a write that failed.
    pub(super) fn start(&self, broken: impl Fn(io::Error) + Send + 'static) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        crate::threads::spawn("dxpu-send", move || {
            if let Err(error) = shared.send_until_closed() {
                broken(error);
            }
        })
    }

    /// Appends a command and sees to it that it leaves soon.
    #[inline]
    pub(super) fn append(&self, command: &Command<'_>, call: u32) -> io::Result<()> {
        let shared = &*self.shared;
        let gathered = shared.append(command, call);
        if shared.is_direct {
            return shared.flush();
        }
        if shared.gathered.sleeping.load(Ordering::Relaxed) {
            shared.wake_sender();
        }
        if gathered > BYTES_MAX { shared.flush_now() } else { Ok(()) }
    }

    /// Appends a command whose answer the caller is about to wait for, and has everything leave at once.
    pub(super) fn append_and_flush(&self, command: &Command<'_>, call: u32) -> io::Result<()> {
        self.shared.append(command, call);
        self.shared.flush()
    }

    /// Appends a command and returns when everything has left.
    pub(super) fn append_last(&self, command: &Command<'_>) -> io::Result<()> {
        self.shared.append(command, 0);
        self.shared.flush_now()
    }

    /// Ends the sender thread.
    pub(super) fn lose(&self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        self.shared.wake_sender();
    }
}

impl Shared {
    #[inline]
    fn append(&self, command: &Command<'_>, call: u32) -> usize {
        let mut bytes = lock(&self.gathered.bytes);
        let start = begin_command(&mut bytes, command.opcode(), call);
        command.put_body(&mut bytes);
        finish_command(&mut bytes, start);
        let count = bytes.len();
        self.gathered.count.store(count, Ordering::Release);
        count
    }

    /// Writes everything gathered so far, or leaves it to whoever is writing.
    fn flush(&self) -> io::Result<()> {
        for _ in 0..ROUNDS_MAX {
            let Some(mut wire) = try_lock(&self.wire) else { return Ok(()) };
            self.write(&mut wire)?;
            drop(wire);
            // Who found the wire taken had appended before. The lock orders that: either its bytes are seen here, or
            // it sees that the wire is free.
            if lock(&self.gathered.bytes).is_empty() {
                return Ok(());
            }
        }
        self.wake_sender();
        Ok(())
    }

    /// Writes everything gathered so far, after whoever is writing.
    fn flush_now(&self) -> io::Result<()> {
        self.write(&mut lock(&self.wire))?;
        self.flush()
    }

    fn write(&self, wire: &mut Wire) -> io::Result<()> {
        let Wire { tx, spare } = wire;
        {
            let mut bytes = lock(&self.gathered.bytes);
            std::mem::swap(&mut *bytes, spare);
            self.gathered.count.store(0, Ordering::Relaxed);
        }
        if spare.is_empty() {
            return Ok(());
        }
        let sent = tx.send(&[spare.as_slice()]);
        spare.clear();
        sent
    }

    /// The sender thread.
    fn send_until_closed(&self) -> io::Result<()> {
        while self.sleep_until_woken() {
            self.linger()?;
            // What is left is behind somebody who has the wire for long.
            if self.gathered.count.load(Ordering::Acquire) != 0 {
                self.write(&mut lock(&self.wire))?;
            }
        }
        Ok(())
    }

    /// Writes what comes until nothing came for a while.
    fn linger(&self) -> io::Result<()> {
        let mut since = Instant::now();
        while since.elapsed() < self.linger && !self.closed.load(Ordering::Relaxed) {
            for _ in 0..LOOKS_PER_CLOCK {
                if self.gathered.count.load(Ordering::Acquire) != 0
                    && let Some(mut wire) = try_lock(&self.wire)
                {
                    self.write(&mut wire)?;
                    since = Instant::now();
                }
                std::hint::spin_loop();
            }
        }
        Ok(())
    }

    /// Sleeps until there are bytes, or were: who woke us may have written them by itself, and soon has more. False when
    /// the queue is closed.
    fn sleep_until_woken(&self) -> bool {
        let mut bytes = lock(&self.gathered.bytes);
        if bytes.is_empty() && !self.closed.load(Ordering::SeqCst) {
            // Set under the lock that guards the bytes: an append after it sees the flag.
            self.gathered.sleeping.store(true, Ordering::Relaxed);
            bytes = self.wake.wait(bytes).unwrap_or_else(PoisonError::into_inner);
            self.gathered.sleeping.store(false, Ordering::Relaxed);
        }
        drop(bytes);
        !self.closed.load(Ordering::SeqCst)
    }

    #[cold]
    fn wake_sender(&self) {
        #[cfg(test)]
        self.wakes.fetch_add(1, Ordering::Relaxed);
        // The lock is taken so that a sender between its check and its sleep is not missed.
        drop(lock(&self.gathered.bytes));
        self.gathered.sleeping.store(false, Ordering::Relaxed);
        self.wake.notify_one();
    }
}

#[cfg(test)]
mod tests;
