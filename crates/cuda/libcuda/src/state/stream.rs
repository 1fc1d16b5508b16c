//! Streams, the default ones included.

use super::{CaptureSlot, Context, Green, client, default_stream, thread_stream};
use crate::border::StreamArg;
use cuda_abi::{CUlaunchAttributeValue, CuResult, CudaError};
use cuda_wire::{Command, Op, StreamId};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

/// How a stream is ordered against the context's legacy stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamKind {
    /// It waits for the legacy stream and the legacy stream waits for it.
    Blocking,
    /// It does not care.
    NonBlocking,
    /// It is the legacy stream.
    Legacy,
    /// The default stream of one thread: blocking, and it ends with the thread.
    PerThread,
}

/// A stream.
pub(crate) struct Stream {
    /// Its handle in the table; default streams are shown to programs as 0, 1 or 2 instead.
    pub(crate) handle: u64,
    /// Its name on the worker.
    pub(crate) id: StreamId,
    /// The context it belongs to.
    pub(crate) context: Arc<Context>,
    /// The green context of it whose multiprocessors it runs on.
    pub(crate) green: Option<Arc<Green>>,
    /// How it is ordered.
    pub(crate) kind: StreamKind,
    /// `CU_STREAM_*` it was created with.
    pub(crate) flags: u32,
    /// Its priority.
    pub(crate) priority: i32,
    /// Hints the program set, kept so that it can read them back.
    pub(crate) attributes: Mutex<HashMap<u32, CUlaunchAttributeValue>>,
    /// Whether it is being captured, and where to.
    pub(crate) capture: CaptureSlot,
    /// Which synchronous copies its next work is ordered behind.
    pub(crate) copies_seen: AtomicU64,
    /// Whether pools have heard of it.
    pub(super) uses_pools: AtomicBool,
}

impl Stream {
    /// Makes a stream.
    pub(crate) fn create(
        context: &Arc<Context>,
        kind: StreamKind,
        flags: u32,
        priority: i32,
    ) -> CuResult<Arc<Self>> {
        let made = Self::unjoined(context, kind, flags, priority)?;
        super::context_event::join(&made)?;
        Ok(made)
    }

    /// The same, without waiting for what the context waits for.
    pub(super) fn unjoined(
        context: &Arc<Context>,
        kind: StreamKind,
        flags: u32,
        priority: i32,
    ) -> CuResult<Arc<Self>> {
        let made = Self::register(context, None, kind, flags, priority)?;
        let wire_kind = match kind {
            StreamKind::Blocking | StreamKind::PerThread => 0,
            StreamKind::NonBlocking => 1,
            StreamKind::Legacy => 2,
        };
        context.post(&Command::StreamCreate {
            stream: made.id,
            context: context.id,
            kind: wire_kind,
            priority,
        })?;
        Ok(made)
    }

    /// Makes a stream of a green context. How its default stream is ordered against others is for the worker to know, so here it
    /// counts as one that waits for no stream.
    pub(crate) fn create_green(
        green: &Arc<Green>,
        kind: StreamKind,
        flags: u32,
        priority: i32,
    ) -> CuResult<Arc<Self>> {
        let (wire_kind, known) = match kind {
            StreamKind::Legacy => (2, StreamKind::NonBlocking),
            StreamKind::NonBlocking => (1, kind),
            StreamKind::Blocking | StreamKind::PerThread => (0, StreamKind::NonBlocking),
        };
        let made = Self::register(&green.context, Some(green), known, flags, priority)?;
        green.context.post(&Command::GreenStreamCreate {
            stream: made.id,
            context: green.context.id,
            green: green.id,
            kind: wire_kind,
            priority,
        })?;
        super::context_event::join(&made)?;
        Ok(made)
    }

    fn register(
        context: &Arc<Context>,
        green: Option<&Arc<Green>>,
        kind: StreamKind,
        flags: u32,
        priority: i32,
    ) -> CuResult<Arc<Self>> {
        let client = client()?;
        let id = StreamId(client.next_id());
        let mut made = None;
        client.streams.insert_with(|handle| {
            let stream = Arc::new(Self {
                handle,
                id,
                context: Arc::clone(context),
                green: green.cloned(),
                kind,
                flags,
                priority,
                attributes: Mutex::default(),
                capture: CaptureSlot::default(),
                copies_seen: AtomicU64::new(0),
                uses_pools: AtomicBool::new(false),
            });
            made = Some(Arc::clone(&stream));
            stream
        })?;
        made.ok_or(CudaError::UNKNOWN)
    }

    /// The stream a call means, in a context that can be used.
    #[inline]
    pub(crate) fn of(argument: StreamArg) -> CuResult<Arc<Self>> {
        let stream = match argument {
            StreamArg::Created(handle) => client()?.streams.get(handle.0).ok_or(CudaError::INVALID_HANDLE)?,
            StreamArg::Legacy => default_stream()?,
            StreamArg::PerThread => thread_stream()?,
        };
        stream.context.check()?;
        Ok(stream)
    }

    /// Puts work behind it.
    #[inline]
    pub(crate) fn enqueue(&self, op: Op<'_>) -> CuResult<()> {
        self.order_behind_copies()?;
        self.context.post(&Command::Enqueue { stream: self.id, op })
    }

    /// Orders the stream's next operation after all unawaited synchronous copies.
    #[inline]
    pub(crate) fn order_behind_copies(&self) -> CuResult<()> {
        let unawaited = &client()?.unawaited;
        if self.copies_seen.load(Ordering::Acquire) == unawaited.count() {
            return Ok(());
        }
        unawaited.order(self)
    }

    /// Ends it; its work still finishes.
    pub(crate) fn destroy(&self) -> CuResult<()> {
        super::shadow::fetch_all()?;
        client()?.streams.remove(self.handle).ok_or(CudaError::INVALID_HANDLE)?;
        super::shadow::forget_stream(self);
        super::managed::forget_stream(self);
        super::pool_order::end_stream(self)?;
        self.context.post(&Command::StreamDestroy { stream: self.id })
    }
}
