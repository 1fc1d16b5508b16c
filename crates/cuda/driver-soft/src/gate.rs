//! The gate of a cut: later work waits behind it until the cut is over.
//!
//! A cut closes a gate at its place in the order of commands. Tasks that are queued afterwards, and memory that is freed
//! afterwards, wait until it opens. What was there before does not know of it. A gate opens once, for good.

use crate::{
    session::Session,
    sync::{Lock, lock, wait},
};
use std::{
    sync::{
        Arc, Condvar,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

/// One cut's gate.
#[derive(Default)]
pub(crate) struct Gate {
    is_open: AtomicBool,
    /// When something first came to wait.
    wanted: Lock<Option<Instant>>,
    opened: Condvar,
}

impl Gate {
    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(SeqCst)
    }

    /// Something waits for it, from now on.
    pub(crate) fn want(&self) {
        lock(&self.wanted).get_or_insert_with(Instant::now);
    }

    /// How long something has been waiting.
    pub(crate) fn wanted_for(&self) -> Option<Duration> {
        lock(&self.wanted).map(|since| since.elapsed())
    }

    /// Waits until it is open. The cut's thread opens it, at the latest when the work behind it has waited for the cut's
    /// patience; so does the end of the session.
    pub(crate) fn wait(&self) {
        if self.is_open() {
            return;
        }
        self.want();
        let mut wanted = lock(&self.wanted);
        while !self.is_open() {
            wanted = wait(&self.opened, wanted);
        }
    }

    /// Lets everything go on.
    pub(crate) fn open(&self) {
        let wanted = lock(&self.wanted);
        self.is_open.store(true, SeqCst);
        drop(wanted);
        self.opened.notify_all();
    }
}

/// The gate that new work comes to, if there is one.
#[derive(Default)]
pub(crate) struct CurrentGate {
    /// Whether to look: without cuts, work pays one load for all this.
    is_closed: AtomicBool,
    gate: Lock<Option<Arc<Gate>>>,
}

impl Session {
    /// The gate that work of now must wait for.
    pub(crate) fn gate(&self) -> Option<Arc<Gate>> {
        if !self.current_gate.is_closed.load(SeqCst) {
            return None;
        }
        lock(&self.current_gate.gate).clone().filter(|gate| !gate.is_open())
    }

    /// Closes a new gate. The caller holds the tables, so that the gate has a place in the order of commands.
    pub(crate) fn close_gate(&self) -> Arc<Gate> {
        let gate = Arc::new(Gate::default());
        *lock(&self.current_gate.gate) = Some(gate.clone());
        self.current_gate.is_closed.store(true, SeqCst);
        // The session may have ended meanwhile, without opening what was not there.
        if self.is_aborted() {
            gate.open();
        }
        gate
    }

    /// Opens a gate, and lets go of what waited behind it.
    pub(crate) fn open_gate(&self, gate: &Arc<Gate>) {
        let mut current = lock(&self.current_gate.gate);
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, gate)) {
            *current = None;
            self.current_gate.is_closed.store(false, SeqCst);
        }
        drop(current);
        gate.open();
        self.sweep();
    }
}
