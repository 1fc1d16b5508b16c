//! The one ordered stream of commands.
//!
//! A call appends its bytes under a short lock and returns. The sender thread writes what has gathered. After a write
//! it polls for `linger` before it sleeps, so that most calls need not wake it. A call that needs an answer writes by
//! itself (`flush`). So does every append into shared memory where the sender thread may not poll (`is_direct`): there a
//! write costs less than a wake. Where it may poll, a launch is cheaper if another core moves the ring's head.
//!
//! Two locks: `bytes` is held for an append, `wire` for a write, always in the order wire, bytes. `flush` uses
//! `try_lock` on `wire`. If that fails, the holder sends our bytes: it checks `bytes` again after it unlocked `wire`.
//! Callers block on `wire` only for backpressure (more than `BYTES_MAX`) and in `append_last`.

use super::wires::{FIRST_SESSION, SessionNumber};
use cuda_wire::{Command, begin_command, finish_command};
use locks::{lock, try_lock};
use std::{
    io,
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
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
    /// Every append writes at once: with shared memory that costs less than waking a sender thread that does not poll.
    is_direct: bool,
    /// In a link that survives the loss of its session.
    keeper: Option<Arc<dyn Keeper>>,
    #[cfg(test)]
    wakes: AtomicUsize,
    /// How often the sender thread looked whether there are bytes.
    #[cfg(test)]
    looks: AtomicUsize,
}

/// What every append touches and the sender thread polls: in one cache line, so that it moves between cores at once.
#[repr(align(64))]
struct Gathered {
    /// A panic while appending leaves at worst a torn command, and the worker then closes the session.
    bytes: Mutex<Vec<u8>>,
    /// How many bytes there are, for the sender thread, which polls it without the lock. Changed under the lock.
    count: AtomicUsize,
    /// True while the sender thread sleeps and must be woken for new bytes.
    sleeping: AtomicBool,
}

struct Wire {
    tx: Tx,
    /// The session that `tx` leads to.
    number: SessionNumber,
    /// The other buffer: emptied by the last write, filled by the next swap.
    spare: Vec<u8>,
}

/// Keeps the commands that were sent, so that another session can be told them again.
pub(super) trait Keeper: Send + Sync {
    /// This many bytes of commands are about to be written: what the program is given from now on may come of them.
    fn announce(&self, bytes: usize);

    /// The commands were written, or writing them failed. Returns an empty buffer for the next ones.
    fn keep(&self, commands: Vec<u8>) -> Vec<u8>;

    /// Writing to session `number` failed.
    fn broke(&self, number: SessionNumber, error: io::Error);
}

/// The wire, held by the thread that tells another session what was sent before.
pub(super) struct HeldWire<'a> {
    shared: &'a Shared,
    wire: MutexGuard<'a, Wire>,
}

impl HeldWire<'_> {
    /// Commands go to `tx` of session `number` from now on; those that gathered meanwhile leave at once.
    pub(super) fn release(mut self, tx: Tx, number: SessionNumber) -> io::Result<()> {
        self.wire.tx = tx;
        self.wire.number = number;
        self.let_go()
    }

    /// Commands go on to the session that they went to before; those that gathered meanwhile leave at once.
    pub(super) fn let_go(self) -> io::Result<()> {
        let shared = self.shared;
        drop(self);
        shared.flush()
    }

    /// The session that commands go to.
    pub(super) fn number(&self) -> SessionNumber {
        self.wire.number
    }

    /// Whether commands wait to be sent.
    pub(super) fn has_gathered(&self) -> bool {
        self.shared.gathered.count.load(Ordering::Acquire) != 0
    }

    /// Divides the commands here: what has gathered is before what [`Self::send_marked`] sends next, what comes is behind it.
    pub(super) fn divide(&mut self) {
        self.shared.take(&mut self.wire);
    }

    /// Writes what had gathered at [`Self::divide`], and then `frame`. `mark` runs before the frame leaves and after everything
    /// before it is announced: the stream of commands stands behind the frame then. False: the frame is not to be sent.
    pub(super) fn send_marked(&mut self, frame: Vec<u8>, mark: impl FnOnce() -> bool) -> bool {
        let shared = self.shared;
        // With a keeper no write fails.
        let (Ok(()), Some(keeper)) = (shared.write_taken(&mut self.wire), &shared.keeper) else {
            return false;
        };
        keeper.announce(frame.len());
        if !mark() {
            keeper.announce(0);
            return false;
        }
        let sent = self.wire.tx.send(&[frame.as_slice()]);
        keeper.keep(frame);
        if let Err(error) = sent {
            keeper.broke(self.wire.number, error);
        }
        true
    }

    /// Sends a frame that only this session is told.
    pub(super) fn send_past_the_journal(&mut self, frame: &[u8]) {
        // A session that is gone needs no such word.
        let _ = self.wire.tx.send(&[frame]);
    }
}

impl Queue {
    /// A queue in front of `tx`, whose sender thread looks for more for `linger` after each write. With a `keeper`, no
    /// write fails: the keeper is told, and another session gets the commands.
    pub(super) fn new(tx: Tx, linger: Duration, keeper: Option<Arc<dyn Keeper>>) -> Self {
        let is_direct = tx.is_shared_memory() && linger.is_zero();
        let shared = Shared {
            gathered: Gathered {
                bytes: Mutex::new(Vec::with_capacity(BYTES_MAX / 4)),
                count: AtomicUsize::new(0),
                sleeping: AtomicBool::new(false),
            },
            wire: Mutex::new(Wire { tx, number: FIRST_SESSION, spare: Vec::with_capacity(BYTES_MAX / 4) }),
            wake: Condvar::new(),
            closed: AtomicBool::new(false),
            linger,
            is_direct,
            keeper,
            #[cfg(test)]
            wakes: AtomicUsize::new(0),
            #[cfg(test)]
            looks: AtomicUsize::new(0),
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

    /// Appends a command, and sends it or makes sure that the sender thread does so soon.
    #[inline]
    pub(super) fn append(&self, command: &Command<'_>, call: u32) -> io::Result<()> {
        let shared = &*self.shared;
        let gathered = shared.append(command, call);
        if gathered > BYTES_MAX {
            return shared.flush_now();
        }
        if shared.is_direct {
            return shared.flush();
        }
        if shared.gathered.sleeping.load(Ordering::Relaxed) {
            shared.wake_sender();
        }
        Ok(())
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

    /// Looks at the commands that wait to be sent; none comes meanwhile.
    pub(super) fn with_gathered<T>(&self, look: impl FnOnce(&[u8]) -> T) -> T {
        look(&lock(&self.shared.gathered.bytes))
    }

    /// Waits for the thread that writes, and keeps all others from writing until the wire is released.
    pub(super) fn hold(&self) -> HeldWire<'_> {
        HeldWire { shared: &self.shared, wire: lock(&self.shared.wire) }
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

    /// Writes everything gathered so far. If another thread holds `wire`, leaves the bytes to that thread.
    fn flush(&self) -> io::Result<()> {
        for _ in 0..ROUNDS_MAX {
            let Some(mut wire) = try_lock(&self.wire) else { return Ok(()) };
            self.write(&mut wire)?;
            drop(wire);
            // A thread that found `wire` locked had appended before its `try_lock`. The lock of `bytes` orders that:
            // either we see its bytes here, or it sees `wire` unlocked.
            if lock(&self.gathered.bytes).is_empty() {
                return Ok(());
            }
        }
        self.wake_sender();
        Ok(())
    }

    /// Writes everything gathered so far, after waiting for the thread that holds `wire`.
    fn flush_now(&self) -> io::Result<()> {
        self.write(&mut lock(&self.wire))?;
        self.flush()
    }

    #[inline]
    fn write(&self, wire: &mut Wire) -> io::Result<()> {
        self.take(wire);
        self.write_taken(wire)
    }

    /// Takes what has gathered. It is written before anything is taken again.
    #[inline]
    fn take(&self, wire: &mut Wire) {
        debug_assert!(wire.spare.is_empty());
        let mut bytes = lock(&self.gathered.bytes);
        std::mem::swap(&mut *bytes, &mut wire.spare);
        self.gathered.count.store(0, Ordering::Relaxed);
    }

    fn write_taken(&self, wire: &mut Wire) -> io::Result<()> {
        let Wire { tx, number, spare } = wire;
        if spare.is_empty() {
            return Ok(());
        }
        let Some(keeper) = &self.keeper else {
            let sent = tx.send(&[spare.as_slice()]);
            spare.clear();
            return sent;
        };
        keeper.announce(spare.len());
        let sent = tx.send(&[spare.as_slice()]);
        *spare = keeper.keep(std::mem::take(spare));
        if let Err(error) = sent {
            keeper.broke(*number, error);
        }
        Ok(())
    }

    /// The sender thread.
    fn send_until_closed(&self) -> io::Result<()> {
        while self.sleep_until_woken() {
            self.linger()?;
            // Bytes are left if `linger` is zero, or if another thread holds `wire` for long.
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
            #[cfg(test)]
            self.looks.fetch_add(1, Ordering::Relaxed);
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

    /// Sleeps until it is woken or finds bytes. The thread that woke us may have written its bytes itself; more usually
    /// follow. False when the queue is closed.
    fn sleep_until_woken(&self) -> bool {
        let mut bytes = lock(&self.gathered.bytes);
        if bytes.is_empty() && !self.closed.load(Ordering::SeqCst) {
            // Set under the lock that guards the bytes: an append after it sees the flag.
            self.gathered.sleeping.store(true, Ordering::Relaxed);
            bytes = locks::wait(&self.wake, bytes);
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
