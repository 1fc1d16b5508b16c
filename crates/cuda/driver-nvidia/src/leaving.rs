//! How a session leaves whose context is merged with those of others (MPS).
//!
//! A client of an MPS server that ends in the middle of a kernel ends the contexts of all other clients; one whose streams wait, or that
//! has no work, harms none (measured on an H200). So:
//!
//! ```text
//!   no command puts work into a stream any more ─▶ offline: the gate is closed, groups that wait stay ─▶ what has begun ends
//!                                                 others:  all work ends
//! ```
//!
//! Short work is not marked. It ends within [`SETTLE`] after the gate has closed. Work in a context that a fault has ended is over, and
//! is never marked as ended; and no program gets a new context before the sessions of before the fault have left. So such a session
//! leaves at once.

#![allow(unsafe_code)]

use crate::{
    driver::NvidiaDriver,
    seat::{Seat, SharingGate},
};
use cuda_driver::Driver;
use std::sync::atomic::Ordering;
use std::sync::{RwLock, RwLockReadGuard, TryLockError};
use std::time::{Duration, Instant};

/// How long marked work must have rested. A group that is not marked takes 5 ms at most.
const SETTLE: Duration = Duration::from_millis(20);
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// How often a session that waits for its work asks whether its context lives, which orders something on the device.
const ASK_EVERY: Duration = Duration::from_millis(10);

/// Held by each command that puts work into a stream.
pub(crate) type Entered<'a> = RwLockReadGuard<'a, ()>;

/// Tells a session that leaves whether a command is still putting work into a stream.
#[derive(Default)]
pub(crate) struct Leaving(RwLock<()>);

impl Leaving {
    #[inline]
    pub(crate) fn enter(&self) -> Entered<'_> {
        self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Blocks until no command is inside. One that comes later finds that the session leaves.
    fn wait_until_empty(&self) {
        // A command may be stuck in the library for long. A lock that waits to write would hold back those that see that they are late.
        while matches!(self.0.try_write(), Err(TryLockError::WouldBlock)) {
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

impl NvidiaDriver {
    /// Takes no more work, and blocks until nothing that has begun is on the device.
    pub(crate) fn leave_in_order(&self) {
        let Some(leaving) = &self.work.leaving else { return };
        self.work.aborted.store(true, Ordering::SeqCst);
        if let Some(Seat::Offline(gate)) = self.work.seat.get() {
            gate.shut();
            return self.settle(gate, leaving);
        }
        leaving.wait_until_empty();
        let contexts: Vec<_> = self.lock().contexts.values().cloned().collect();
        for context in contexts {
            // A context that is dead has no work.
            if context.enter().is_ok() {
                // SAFETY: no pointers.
                let _ = unsafe { self.api.context_synchronize() };
            }
        }
    }

    /// Blocks until no long work runs and short work has had its time, or until the context is dead.
    fn settle(&self, gate: &SharingGate, leaving: &Leaving) {
        let (mut since, mut asked) = (Instant::now(), None::<Instant>);
        while since.elapsed() < SETTLE {
            gate.hold_shut();
            if asked.is_none_or(|asked| asked.elapsed() >= ASK_EVERY) {
                if Driver::fault(self).is_some() {
                    break;
                }
                asked = Some(Instant::now());
            }
            let is_empty = !matches!(leaving.0.try_write(), Err(TryLockError::WouldBlock));
            if !is_empty || !gate.rests() {
                since = Instant::now();
            }
            std::thread::sleep(LOOK_EVERY);
        }
        gate.hold_shut();
    }
}
