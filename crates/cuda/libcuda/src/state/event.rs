//! Events.

use super::{Context, client};
use cuda_abi::{CU_EVENT_DISABLE_TIMING, CU_EVENT_INTERPROCESS, CuResult, CudaError};
use cuda_client::shares::Handle;
use cuda_wire::{Command, EventId};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// What is known about an event's records without asking. A record that another thread makes while an answer is on its way
/// gets a number of its own, so that the answer does not count for it.
#[derive(Default)]
struct Records {
    /// How often it was recorded.
    made: AtomicU64,
    /// The latest of these that is known to be done.
    done: AtomicU64,
}

impl Records {
    fn note_made(&self) {
        self.made.fetch_add(1, Ordering::SeqCst);
    }

    fn latest(&self) -> u64 {
        self.made.load(Ordering::SeqCst)
    }

    fn note_done(&self, record: u64) {
        self.done.fetch_max(record, Ordering::SeqCst);
    }

    fn is_known_done(&self) -> bool {
        self.done.load(Ordering::SeqCst) >= self.latest()
    }
}

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
    records: Records,
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
                records: Records::default(),
            });
            made = Some(Arc::clone(&event));
            event
        })?;
        context.post(&Command::EventCreate { event: id, context: context.id, flags })?;
        made.ok_or(CudaError::UNKNOWN)
    }

    /// Takes an event of another process.
    pub(crate) fn open(function: &str, context: &Arc<Context>, handle: &Handle) -> CuResult<Arc<Self>> {
        let client = client()?;
        let id = EventId(client.next_id());
        let import = Command::EventImport { event: id, context: context.id, name: handle.name };
        super::share::begin(&context.link);
        context.settle(super::explained(function, context.link.call(&import)))?;
        let mut made = None;
        client.events.insert_with(|handle| {
            let flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
            let (context, records) = (Arc::clone(context), Records::default());
            let event = Arc::new(Self { handle, id, context, flags, records });
            made = Some(Arc::clone(&event));
            event
        })?;
        made.ok_or(CudaError::UNKNOWN)
    }

    /// Whether other processes may record it, and wait for it.
    pub(crate) fn is_interprocess(&self) -> bool {
        self.flags & CU_EVENT_INTERPROCESS != 0
    }

    /// Returns when the worker has executed what this thread has sent of the event: what another process tells its worker
    /// after this call comes after it.
    pub(crate) fn await_others(&self) -> CuResult<()> {
        match self.context.call(&Command::EventQuery { event: self.id }) {
            Ok(_) | Err(CudaError::NOT_READY) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The event behind a handle.
    pub(crate) fn find(handle: u64) -> CuResult<Arc<Self>> {
        client()?.events.get(handle).ok_or(CudaError::INVALID_HANDLE)
    }

    /// Notes that a stream will record it.
    pub(crate) fn note_record(&self) {
        self.records.note_made();
    }

    /// Its latest record, for [`Self::note_done`]: taken before the worker is asked.
    pub(crate) fn latest_record(&self) -> u64 {
        self.records.latest()
    }

    /// Notes that the worker has said that a record is done. A later record is not.
    pub(crate) fn note_done(&self, record: u64) {
        self.records.note_done(record);
    }

    /// Whether it is known to be done without asking. Never recorded counts as done.
    pub(crate) fn known_done(&self) -> bool {
        !self.is_interprocess() && self.records.is_known_done()
    }

    /// Whether it was ever recorded.
    pub(crate) fn was_recorded(&self) -> bool {
        self.records.latest() != 0
    }

    /// Ends it.
    pub(crate) fn destroy(&self) -> CuResult<()> {
        client()?.events.remove(self.handle).ok_or(CudaError::INVALID_HANDLE)?;
        super::forget_captured_event(self);
        super::pool_order::forget_event(self);
        self.context.link.post(&Command::EventDestroy { event: self.id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_does_not_count_for_a_record_that_was_made_meanwhile() {
        let records = Records::default();
        assert!(records.is_known_done(), "never recorded");
        records.note_made();
        assert!(!records.is_known_done());
        let asked = records.latest();
        records.note_made();
        records.note_done(asked);
        assert!(!records.is_known_done(), "the second record is still pending");
        records.note_done(records.latest());
        assert!(records.is_known_done());
        records.note_done(asked);
        assert!(records.is_known_done(), "a late answer takes nothing back");
    }
}
