//! Events.

use super::{Context, client};
use cuda_abi::{CuResult, CudaError};
use cuda_wire::{Command, EventId};
use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

/// What is known about an event's latest record without asking.
const NEVER_RECORDED: u32 = 0;
const RECORDED: u32 = 1;
const DONE: u32 = 2;

/// An event.
pub(crate) struct Event {
    /// Its handle.
    pub(crate) handle: u64,
    /// Its name on the worker.
    pub(crate) id: EventId,
    /// The context it belongs to.
    pub(crate) context: Arc<Context>,
    /// `CU_EVENT_*` it was created with.
    pub(crate) flags: u32,
    state: AtomicU32,
}

impl Event {
    /// Makes an event.
    pub(crate) fn create(context: &Arc<Context>, flags: u32) -> CuResult<Arc<Self>> {
        let client = client()?;
        let id = EventId(client.next_id());
        let mut made = None;
        client.events.insert_with(|handle| {
            let event = Arc::new(Self {
                handle,
                id,
                context: Arc::clone(context),
                flags,
                state: AtomicU32::new(NEVER_RECORDED),
            });
            made = Some(Arc::clone(&event));
            event
        })?;
        context.post(&Command::EventCreate { event: id, context: context.id, flags })?;
        made.ok_or(CudaError::UNKNOWN)
    }

    /// The event behind a handle.
    pub(crate) fn find(handle: u64) -> CuResult<Arc<Self>> {
        client()?.events.get(handle).ok_or(CudaError::INVALID_HANDLE)
    }

    /// Notes that a stream will record it.
    pub(crate) fn note_record(&self) {
        self.state.store(RECORDED, Ordering::SeqCst);
    }

    /// Notes an answer about its latest record; a record since then makes the note void.
    pub(crate) fn note_done(&self) {
        let _ = self.state.compare_exchange(RECORDED, DONE, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Whether it is known to be done without asking. Never recorded counts as done.
    pub(crate) fn known_done(&self) -> bool {
        self.state.load(Ordering::SeqCst) != RECORDED
    }

    /// Whether it was ever recorded.
    pub(crate) fn was_recorded(&self) -> bool {
        self.state.load(Ordering::SeqCst) != NEVER_RECORDED
    }

    /// Ends it.
    pub(crate) fn destroy(&self) -> CuResult<()> {
        client()?.events.remove(self.handle).ok_or(CudaError::INVALID_HANDLE)?;
        super::forget_captured_event(self);
        super::pool_order::forget_event(self);
        self.context.link.post(&Command::EventDestroy { event: self.id })
    }
}
