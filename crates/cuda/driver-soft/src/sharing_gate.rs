//! The gate between online and offline sessions of one device: an offline session's kernels wait until no online session is
//! busy, and those of a session that takes turns until it has the turn.
//!
//! A group is one kernel here, and the thread that executes it looks at the page right before. So what starts after the gate
//! closed are the kernels that had looked already: at most one for each thread that executes work of the session.

use crate::{
    session::Session,
    sync::{Lock, lock},
};
use shared_words::process;
use sharing::{Field, Gate, PageHandle, Part, Sentry, Ticket};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// How long a thread sleeps between two looks at a closed gate.
const NAP: Duration = Duration::from_micros(50);

/// What the kernels of an offline session, and of one that takes turns, wait at.
pub(crate) struct SharingGate {
    page: PageHandle,
    ticket: Ticket,
    /// One for all threads: the time in which none of them looked does not count.
    sentry: Lock<Sentry>,
    /// Kernels that have passed and not ended.
    running: AtomicU64,
    /// Threads that wait.
    waiting: AtomicU64,
}

/// A kernel that has passed the gate, until it has ended.
pub(crate) struct Passed<'a>(&'a SharingGate);

impl Drop for Passed<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, SeqCst);
    }
}

impl SharingGate {
    /// Waits until the gate is open. `None` when the session was aborted meanwhile.
    pub(crate) fn pass(&self, session: &Session) -> Option<Passed<'_>> {
        let page = self.page.page();
        loop {
            // Counted before the look: a keeper that has closed the gate sees the kernel, or the kernel sees the gate.
            self.running.fetch_add(1, SeqCst);
            let passed = Passed(self);
            if page.gate_of(self.ticket) == Gate::Open {
                let groups = page.get(self.ticket.slot(), Field::Groups);
                page.set(self.ticket, Field::Groups, groups.wrapping_add(1));
                return Some(passed);
            }
            drop(passed);
            if session.is_aborted() {
                return None;
            }
            if self.ticket.part() == Part::Offline {
                lock(&self.sentry).look(page, process::now_ns(), process::life);
            }
            self.waiting.fetch_add(1, SeqCst);
            std::thread::sleep(NAP);
            self.waiting.fetch_sub(1, SeqCst);
        }
    }

    /// Whether a kernel waits.
    pub(crate) fn holds_back(&self) -> bool {
        self.waiting.load(SeqCst) != 0
    }

    /// Whether no kernel has passed and not ended.
    pub(crate) fn rests(&self) -> bool {
        self.running.load(SeqCst) == 0
    }
}

impl Session {
    /// The session takes part in sharing. An online one closes the gate in its command loop, and its kernels wait for nothing.
    pub(crate) fn share(&self, ticket: Ticket) {
        let Some(page) = self.config.page.clone() else { return };
        if matches!(ticket.part(), Part::Online | Part::Offline) {
            self.memory.count_in(page.clone(), ticket);
        }
        if ticket.part() == Part::Online {
            return;
        }
        let (sentry, running, waiting) = (Lock::default(), AtomicU64::new(0), AtomicU64::new(0));
        let _ = self.sharing_gate.set(SharingGate { page, ticket, sentry, running, waiting });
    }
}
