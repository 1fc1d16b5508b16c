//! Synchronous copies that return before their bytes are on the device.
//!
//! A small synchronous copy from pageable memory (up to 64 KiB) sends its bytes along and returns, as CUDA documents
//! it. Programs still expect that whatever they call next finds the bytes. Streams that are ordered behind the copy's
//! stream find them. Any other stream is made to wait, on the device, for an event behind the copy before its next
//! operation.

use super::{Context, Stream, StreamKind, client, lock};
use cuda_abi::{CU_EVENT_DISABLE_TIMING, CuResult};
use cuda_wire::{Command, EventId, Op};
use std::sync::{
    Arc, Mutex, Weak,
    atomic::{AtomicU64, Ordering},
};

/// The copies so far.
#[derive(Default)]
pub(crate) struct Unawaited {
    /// How many there were.
    count: AtomicU64,
    /// What stands for all of them.
    behind: Mutex<Option<Behind>>,
}

/// An event behind the latest copy. A context's copies are in one stream, so it stands for those before, too.
struct Behind {
    event: EventId,
    context: Weak<Context>,
    /// Which life of the context the event belongs to.
    life: u64,
}

impl Behind {
    /// The context, while the event is there.
    fn context(&self) -> Option<Arc<Context>> {
        self.context.upgrade().filter(|context| context.unique() == self.life && context.check().is_ok())
    }
}

impl Unawaited {
    /// Changes with every copy; a stream that has seen this number need not look.
    #[inline]
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Notes a copy that was just put into a legacy stream. False: the caller must wait for it, since copies of another
    /// context are noted already.
    pub(super) fn note(&self, stream: &Stream) -> CuResult<bool> {
        let context = &stream.context;
        let mut behind = lock(&self.behind);
        let event = match behind.as_ref().and_then(|behind| Some((behind.context()?, behind.event))) {
            Some((noted, event)) if Arc::ptr_eq(&noted, context) => event,
            Some(_) => return Ok(false),
            None => {
                let event = EventId(client()?.next_id());
                let flags = CU_EVENT_DISABLE_TIMING;
                context.post(&Command::EventCreate { event, context: context.id, flags })?;
                let life = context.unique();
                *behind = Some(Behind { event, context: Arc::downgrade(context), life });
                event
            }
        };
        context.post(&Command::Enqueue { stream: stream.id, op: Op::Record { event, flags: 0 } })?;
        self.count.fetch_add(1, Ordering::Release);
        Ok(true)
    }

    /// Orders the next work of a stream behind all copies so far.
    #[cold]
    pub(super) fn order(&self, stream: &Stream) -> CuResult<()> {
        let behind = lock(&self.behind);
        let count = self.count();
        if let Some(behind) = &*behind
            && let Some(context) = behind.context()
            && needs_order(stream, &context)
        {
            let op = Op::Wait { event: behind.event, flags: 0 };
            stream.context.post(&Command::Enqueue { stream: stream.id, op })?;
        }
        stream.copies_seen.store(count, Ordering::Release);
        Ok(())
    }
}

/// Whether work of `stream` may pass a copy in the legacy stream of `context`, and reach what it writes.
fn needs_order(stream: &Stream, context: &Arc<Context>) -> bool {
    let is_same = Arc::ptr_eq(&stream.context, context);
    let is_ordered = is_same && stream.kind != StreamKind::NonBlocking;
    // Another worker's memory is reached through this process alone, which takes its turn in the legacy stream.
    !is_ordered && Arc::ptr_eq(&stream.context.link, &context.link)
}
