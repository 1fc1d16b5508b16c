//! What the page says of device memory, where the sessions of a GPU are promised more than it has (overcommit).
//!
//! Each session counts in its own slot what it has. A GPU in software has no other bound than the sum of these numbers, so a
//! session announces what it takes, adds up all slots, and takes the announcement back if that is too much. A real GPU says by itself
//! when it has no more; there the numbers only tell what guests have.

use crate::{
    mutant::{Mutant, between_steps, is_planted},
    page::{Field, Page, SLOTS, Ticket},
    part::Part,
};
use std::sync::atomic::Ordering::SeqCst;

const CAPACITY: usize = 10;
const RETURNS_UNTIL: usize = 11;

/// How long memory may take to be free after its guest has gone: the driver takes it back when the process ends.
pub(crate) const RETURNED_WITHIN_NS: u64 = 2_000_000_000;

/// How often a session announces again after it met the announcement of another one.
const TAKE_TRIES: usize = 16;

impl Page<'_> {
    /// The sessions of the GPU are promised more than these bytes, which it has. `None`: they are not. Written by the maker of the page.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.header(CAPACITY).store(bytes.unwrap_or(0), SeqCst);
    }

    /// Memory of the GPU, if its sessions are promised more than that together.
    pub fn capacity(&self) -> Option<u64> {
        Some(self.header(CAPACITY).load(SeqCst)).filter(|bytes| *bytes != 0)
    }

    /// Memory comes back soon although no guest has it: one has left, and its process gives it back, or the box looks whether free memory
    /// is empty, and gives way.
    pub fn memory_returns(&self, now_ns: u64) {
        self.header(RETURNS_UNTIL).fetch_max(now_ns.saturating_add(RETURNED_WITHIN_NS), SeqCst);
    }

    /// Whether an online session that waits could get memory: a guest has some, or has just had.
    pub(crate) fn may_return(&self, now_ns: u64) -> bool {
        self.has_guests()
            || now_ns < self.header(RETURNS_UNTIL).load(SeqCst)
            || is_planted(Mutant::WaitsForNoGuest)
    }

    /// Counts memory of the caller's, unless the page has a capacity and all sessions together have more than that then.
    pub fn take_memory(&self, ticket: Ticket, bytes: u64) -> bool {
        if !self.is_owned(ticket) {
            return true;
        }
        let mine = self.word(ticket.slot(), Field::UsedBytes as usize);
        for _ in 0..TAKE_TRIES {
            mine.fetch_add(bytes, SeqCst);
            between_steps();
            let has_room = || {
                self.capacity()
                    .is_none_or(|all| self.used_bytes() <= all || is_planted(Mutant::TakesWithoutASum))
            };
            if has_room() {
                return true;
            }
            mine.fetch_sub(bytes, SeqCst);
            if self.free_bytes().is_some_and(|free| free < bytes) {
                return false;
            }
            // Two sessions that announce at the same moment may both see too much.
            std::hint::spin_loop();
        }
        false
    }

    /// Counts memory of the caller's that the device itself has granted.
    pub fn count_memory(&self, ticket: Ticket, bytes: u64) {
        if self.is_owned(ticket) {
            self.word(ticket.slot(), Field::UsedBytes as usize).fetch_add(bytes, SeqCst);
        }
    }

    /// Memory of the caller's is free again.
    pub fn give_memory(&self, ticket: Ticket, bytes: u64) {
        if self.is_owned(ticket) {
            let less = |used: u64| Some(used.saturating_sub(bytes));
            let _ = self.word(ticket.slot(), Field::UsedBytes as usize).fetch_update(SeqCst, SeqCst, less);
        }
    }

    /// What all sessions of the page have.
    pub fn used_bytes(&self) -> u64 {
        self.bytes_of(|_| true)
    }

    /// What guests have: an online session can have it, too.
    pub fn guest_bytes(&self) -> u64 {
        let guests = self.guests();
        self.bytes_of(|slot| guests & 1 << slot != 0)
    }

    /// What a session of this part could take, as far as the page knows: for an online one guests leave. `None` without a capacity.
    pub fn free_for(&self, part: Part) -> Option<u64> {
        let guests = if part == Part::Online { self.guest_bytes() } else { 0 };
        self.free_bytes().map(|free| free.saturating_add(guests))
    }

    /// What no session has. `None` without a capacity.
    pub fn free_bytes(&self) -> Option<u64> {
        self.capacity().map(|all| all.saturating_sub(self.used_bytes()))
    }

    fn bytes_of(&self, is_meant: impl Fn(usize) -> bool) -> u64 {
        let meant = (0..SLOTS).filter(|slot| is_meant(*slot));
        meant.map(|slot| self.word(slot, Field::UsedBytes as usize).load(SeqCst)).fold(0, u64::saturating_add)
    }
}
