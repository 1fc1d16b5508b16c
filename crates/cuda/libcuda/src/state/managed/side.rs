//! The streams around managed memory: one of ours for each context, which brings what the program wrote, and those of the
//! program whose work may still use the memory.

use crate::state::{Context, Event, Stream, StreamKind};
use cuda_abi::CuResult;
use cuda_wire::{Command, Op};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

/// Our stream in a context. It waits for none of the program's.
struct Side {
    stream: Arc<Stream>,
    sent: Arc<Event>,
    /// How much was sent.
    count: u64,
}

/// A stream of the program with work that may use managed memory.
struct Busy {
    context: Arc<Context>,
    /// Whether the context's legacy stream comes behind it.
    is_ordered: bool,
    /// Changes with its work.
    mark: u64,
}

/// How the work that may have changed managed memory is waited for.
pub(super) enum Wait {
    /// It is done, or must not be waited for: by our stream.
    Nothing,
    /// By the legacy stream of the memory's own context.
    Legacy,
    /// For all work of these contexts.
    Contexts(Vec<Arc<Context>>),
}

/// What [`Sides::wait_for`] saw: work that is done when the wait is over.
pub(super) struct Seen(Vec<(u32, u64)>);

pub(super) struct Sides {
    by_context: BTreeMap<u64, Side>,
    busy: BTreeMap<u32, Busy>,
    /// How much of a context's side a stream has waited for: by stream and context.
    waited: BTreeMap<(u32, u64), u64>,
    marks: u64,
}

impl Sides {
    pub(super) const fn new() -> Self {
        Self { by_context: BTreeMap::new(), busy: BTreeMap::new(), waited: BTreeMap::new(), marks: 0 }
    }

    fn of(&mut self, context: &Arc<Context>) -> CuResult<&mut Side> {
        match self.by_context.entry(context.handle) {
            Entry::Occupied(side) => Ok(side.into_mut()),
            Entry::Vacant(place) => {
                let flags = cuda_abi::CU_STREAM_NON_BLOCKING;
                let stream = Stream::create(context, StreamKind::NonBlocking, flags, 0)?;
                let sent = Event::create(context, cuda_abi::CU_EVENT_DISABLE_TIMING)?;
                Ok(place.insert(Side { stream, sent, count: 0 }))
            }
        }
    }

    /// Our stream of a context, to send something with.
    pub(super) fn stream_to_send(&mut self, context: &Arc<Context>) -> CuResult<Arc<Stream>> {
        let side = self.of(context)?;
        side.count += 1;
        Ok(Arc::clone(&side.stream))
    }

    /// Our stream of a context, to fetch something with.
    pub(super) fn stream(&mut self, context: &Arc<Context>) -> CuResult<Arc<Stream>> {
        Ok(Arc::clone(&self.of(context)?.stream))
    }

    /// Puts work into our stream that others have to wait for.
    pub(super) fn post(&mut self, context: &Arc<Context>, op: Op<'_>) -> CuResult<()> {
        let stream = self.stream_to_send(context)?;
        context.post(&Command::Enqueue { stream: stream.id, op })
    }

    /// Has a stream wait for what our stream of a context was given, if it has not.
    pub(super) fn order(&mut self, stream: &Stream, context: &Arc<Context>) -> CuResult<()> {
        let key = (stream.id.0, context.handle);
        let waited = self.waited.get(&key).copied().unwrap_or(0);
        let Some(side) = self.by_context.get(&context.handle).filter(|side| side.count != waited) else {
            return Ok(());
        };
        side.sent.note_record();
        context.post(&Command::Enqueue {
            stream: side.stream.id,
            op: Op::Record { event: side.sent.id, flags: 0 },
        })?;
        stream.enqueue(Op::Wait { event: side.sent.id, flags: 0 })?;
        self.waited.insert(key, side.count);
        Ok(())
    }

    /// A stream gets work that may use managed memory.
    pub(super) fn note_busy(&mut self, stream: &Stream) {
        self.marks += 1;
        let is_ordered = stream.kind != StreamKind::NonBlocking;
        let context = &stream.context;
        let mark = self.marks;
        self.busy.entry(stream.id.0).and_modify(|busy| busy.mark = mark).or_insert_with(|| Busy {
            context: Arc::clone(context),
            is_ordered,
            mark,
        });
    }

    /// How to wait for all work that may have changed memory of a context.
    pub(super) fn wait_for(&self, context: &Arc<Context>) -> (Wait, Seen) {
        let is_here = |busy: &&Busy| Arc::ptr_eq(&busy.context.link, &context.link);
        let busy: Vec<&Busy> = self.busy.values().filter(is_here).collect();
        let seen = self.busy.iter().filter(|(_, busy)| is_here(busy)).map(|(id, busy)| (*id, busy.mark));
        let seen = Seen(seen.collect());
        let is_ours = |busy: &&Busy| busy.is_ordered && Arc::ptr_eq(&busy.context, context);
        if busy.is_empty() {
            (Wait::Nothing, seen)
        } else if busy.iter().all(is_ours) {
            (Wait::Legacy, seen)
        } else {
            let mut contexts: Vec<Arc<Context>> = busy.iter().map(|busy| Arc::clone(&busy.context)).collect();
            contexts.sort_by_key(|context| context.handle);
            contexts.dedup_by_key(|context| context.handle);
            (Wait::Contexts(contexts), seen)
        }
    }

    /// The wait is over.
    pub(super) fn waited(&mut self, Seen(seen): Seen) {
        for (stream, mark) in seen {
            if self.busy.get(&stream).is_some_and(|busy| busy.mark == mark) {
                self.busy.remove(&stream);
            }
        }
    }

    pub(super) fn stream_ends(&mut self, stream: &Stream) {
        if let Some(busy) = self.busy.get_mut(&stream.id.0) {
            busy.is_ordered = false;
        }
        self.waited.retain(|(id, _), _| *id != stream.id.0);
    }

    /// No managed memory is left: what streams did with it does not matter any more.
    pub(super) fn forget_streams(&mut self) {
        self.busy.clear();
    }

    pub(super) fn forget_context(&mut self, context: u64) {
        self.by_context.remove(&context);
        self.busy.retain(|_, busy| busy.context.handle != context);
        self.waited.retain(|(_, of), _| *of != context);
    }
}
