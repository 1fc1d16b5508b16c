//! Memory that guests have beside an online session, where both are promised more than the GPU has.
//!
//! The device says itself when it has no more. If the session may have as much, it says in the page of the GPU that it wants it; the box
//! has the guest leave, and the allocation is tried again until then.

use super::Memory;
use cuda_abi::{CuResult, CudaError};
use shared_words::memory_wait::wait_for_memory;
use sharing::{PageHandle, Part, Ticket};
use std::time::Instant;

/// The session's place among those that share its GPU.
pub(super) struct Place {
    page: PageHandle,
    ticket: Ticket,
}

impl Memory {
    /// From now on the session counts what it has in its slot of the page. Sessions that take turns have memory of their own.
    pub(crate) fn count_in(&self, page: PageHandle, ticket: Ticket) {
        if matches!(ticket.part(), Part::Online | Part::Offline) {
            let _ = self.place.set(Place { page, ticket });
        }
    }

    pub(super) fn count_on_page(&self, bytes: u64) {
        if let Some(Place { page, ticket }) = self.place.get() {
            page.page().count_memory(*ticket, bytes);
        }
    }

    pub(super) fn discount_on_page(&self, bytes: u64) {
        if let Some(Place { page, ticket }) = self.place.get() {
            page.page().give_memory(*ticket, bytes);
        }
    }

    /// What guests have that an online session could get; 0 for any other.
    pub(super) fn guest_bytes(&self) -> u64 {
        let gets_it =
            |place: &&Place| place.ticket.part() == Part::Online && place.page.page().capacity().is_some();
        self.place.get().filter(gets_it).map_or(0, |place| place.page.page().guest_bytes())
    }

    /// Makes an attempt to get memory, and again as long as the device has none and a guest may leave some.
    pub(crate) fn until_a_guest_leaves<T>(
        &self,
        bytes: u64,
        mut attempt: impl FnMut() -> CuResult<T>,
    ) -> CuResult<T> {
        let first = attempt();
        let Some(Place { page, ticket }) = self.place.get() else { return first };
        if !is_out_of_memory(&first) || !self.is_device_full() {
            return first;
        }
        let began = Instant::now();
        let found = wait_for_memory(page, *ticket, bytes, || {
            let outcome = attempt();
            let goes_on = is_out_of_memory(&outcome) && self.is_device_full() && !self.is_closed();
            if goes_on { None } else { Some(outcome) }
        });
        let (has_it, waited) = (matches!(found, Some(Ok(_))), began.elapsed());
        tracing::info!(bytes, has_it, ?waited, "an allocation waited for memory of a guest");
        found.unwrap_or(first)
    }

    /// Whether the device had no memory for the last allocation, although the session may have as much. Asked once for each.
    fn is_device_full(&self) -> bool {
        std::mem::take(&mut self.lock().is_device_full)
    }

    /// Memory that the driver itself gives out was refused.
    pub(crate) fn note_device_full(&self) {
        self.lock().is_device_full = true;
    }

    fn is_closed(&self) -> bool {
        self.lock().closed
    }
}

fn is_out_of_memory<T>(outcome: &CuResult<T>) -> bool {
    matches!(outcome, Err(CudaError::OUT_OF_MEMORY))
}
