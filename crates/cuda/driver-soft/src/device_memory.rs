//! Memory of a GPU in software that sessions of several workers have together.
//!
//! The ledger of a worker bounds its own sessions: those of an online lease by what the lease has, those of a seat by what the seat has.
//! Where both are promised more than the GPU has, the page of the GPU bounds the sum. A real GPU does that by itself.

use crate::{activity::Unit, ledger::MemoryLedger, session::Session};
use shared_words::{memory_wait::wait_for_memory, page::sweep};
use sharing::{PageHandle, Ticket};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// The ledger of a worker, and beyond it the page of the GPU.
pub(crate) struct DeviceMemory {
    ledger: Arc<dyn MemoryLedger>,
    /// Of a session that takes part in sharing.
    place: OnceLock<(PageHandle, Ticket)>,
}

impl DeviceMemory {
    pub(crate) fn new(ledger: Arc<dyn MemoryLedger>) -> Self {
        Self { ledger, place: OnceLock::new() }
    }

    /// From now on the session counts in its slot of the page, too.
    pub(crate) fn count_in(&self, page: PageHandle, ticket: Ticket) {
        let _ = self.place.set((page, ticket));
    }
}

impl MemoryLedger for DeviceMemory {
    fn total(&self, device: usize) -> u64 {
        self.ledger.total(device)
    }

    fn limit(&self, bytes: u64) {
        self.ledger.limit(bytes);
    }

    fn limit_own(&self, bytes: u64) {
        self.ledger.limit_own(bytes);
    }

    fn used(&self, device: usize) -> u64 {
        self.ledger.used(device)
    }

    fn free(&self, device: usize) -> u64 {
        let place = self.place.get();
        let on_page = place.and_then(|(page, ticket)| page.page().free_for(ticket.part()));
        self.ledger.free(device).min(on_page.unwrap_or(u64::MAX))
    }

    fn charge(&self, device: usize, bytes: u64) -> bool {
        if !self.ledger.charge(device, bytes) {
            return false;
        }
        let has_room = self.place.get().is_none_or(|(page, ticket)| {
            let takes = || page.page().take_memory(*ticket, bytes);
            // A session that was killed with its worker may still count.
            takes() || {
                sweep(page.page());
                takes()
            }
        });
        if !has_room {
            self.ledger.release(device, bytes);
        }
        has_room
    }

    fn release(&self, device: usize, bytes: u64) {
        if let Some((page, ticket)) = self.place.get() {
            page.page().give_memory(*ticket, bytes);
        }
        self.ledger.release(device, bytes);
    }

    fn set_active(&self, device: usize, unit: Unit, now_ns: u64, is_active: bool) {
        self.ledger.set_active(device, unit, now_ns, is_active);
    }

    fn active_ns(&self, device: usize, unit: Unit, now_ns: u64) -> u64 {
        self.ledger.active_ns(device, unit, now_ns)
    }
}

impl Session {
    /// An allocation found no memory. If the session may have as much and a guest has it, tries again until that has left, or for as
    /// long as `sharing` says.
    pub(crate) fn wait_for_memory<T>(
        &self,
        device: u32,
        bytes: u64,
        mut attempt: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let (page, ticket) = self.memory.place.get()?;
        if self.memory.ledger.free(device as usize) < bytes {
            return None;
        }
        let began = Instant::now();
        let found = wait_for_memory(page, *ticket, bytes, || match self.is_aborted() {
            true => Some(None),
            false => attempt().map(Some),
        });
        tracing::info!(bytes, has_it = found.is_some(), waited = ?began.elapsed(), "an allocation waited for memory of a guest");
        found.flatten()
    }
}
