//! The gate between online and offline sessions of one device: an offline session's kernels wait until no online session is
//! busy.
//!
//! A group is one kernel here, and the thread that executes it looks at the page right before. So what starts after the gate
//! closed are the kernels that had looked already: at most one for each thread that executes work of the session.

use crate::{
    session::Session,
    sync::{Lock, lock},
};
use shared_words::process;
use sharing::{Class, Field, Gate, PageHandle, Sentry, Ticket};
use std::time::Duration;

/// How long a thread sleeps between two looks at a closed gate.
const NAP: Duration = Duration::from_micros(50);

/// What an offline session's kernels wait at.
pub(crate) struct SharingGate {
    page: PageHandle,
    ticket: Ticket,
    /// One for all threads: the time in which none of them looked does not count.
    sentry: Lock<Sentry>,
}

impl SharingGate {
    /// Waits until the gate is open. False when the session was aborted meanwhile.
    pub(crate) fn pass(&self, session: &Session) -> bool {
        let page = self.page.page();
        while page.gate() != Gate::Open {
            if session.is_aborted() {
                return false;
            }
            lock(&self.sentry).look(page, process::now_ns(), process::life);
            std::thread::sleep(NAP);
        }
        let groups = page.get(self.ticket.slot(), Field::Groups);
        page.set(self.ticket, Field::Groups, groups.wrapping_add(1));
        true
    }
}

impl Session {
    /// The session takes part in sharing. An online one closes the gate in its command loop, and waits for nothing.
    pub(crate) fn share(&self, ticket: Ticket) {
        let Some(page) = self.config.page.clone().filter(|_| ticket.class() == Class::Offline) else {
            return;
        };
        let _ = self.sharing_gate.set(SharingGate { page, ticket, sentry: Lock::default() });
    }
}
