//! Events over all streams of a context at once, made of events of single streams: a stream of its own waits for every other and
//! records the program's event, or waits for the program's event before all others do.

use super::{Context, Event, Green, NodeOp, Stream, StreamKind, client, lock, run_op};
use cuda_abi::{CU_EVENT_DISABLE_TIMING, CU_STREAM_NON_BLOCKING, CuResult};
use std::sync::{Arc, Mutex};

/// What a context needs for them; nothing until the first.
#[derive(Default)]
pub(crate) struct Gathering {
    /// Where the others meet.
    stream: Mutex<Option<Arc<Stream>>>,
    /// What streams that are made later wait for.
    barrier: Mutex<Option<Arc<Event>>>,
}

impl Gathering {
    /// Forgets both: the context has ended, and they with it.
    pub(super) fn clear(&self) {
        *lock(&self.stream) = None;
        *lock(&self.barrier) = None;
    }

    /// Ends both, in a context that lives on.
    pub(super) fn end(&self) -> CuResult<()> {
        let (stream, barrier) = (lock(&self.stream).take(), lock(&self.barrier).take());
        stream.map_or(Ok(()), |stream| stream.destroy())?;
        barrier.map_or(Ok(()), |barrier| barrier.destroy())
    }
}

/// Streams that are meant together.
#[derive(Clone, Copy)]
pub(crate) enum Scope<'a> {
    /// All of a context, those of its green contexts too.
    Context(&'a Arc<Context>),
    /// Those of a green context.
    Green(&'a Arc<Green>),
}

impl Scope<'_> {
    fn context(&self) -> &Arc<Context> {
        match self {
            Self::Context(context) => context,
            Self::Green(green) => &green.context,
        }
    }

    fn gathering(&self) -> &Gathering {
        match self {
            Self::Context(context) => &context.gathering,
            Self::Green(green) => &green.gathering,
        }
    }

    /// Where its streams meet. The stream belongs to no green context, which it would only take multiprocessors from.
    fn meeting(&self) -> CuResult<Arc<Stream>> {
        let mut place = lock(&self.gathering().stream);
        if let Some(stream) = &*place {
            return Ok(Arc::clone(stream));
        }
        let stream = Stream::unjoined(self.context(), StreamKind::NonBlocking, CU_STREAM_NON_BLOCKING, 0)?;
        Ok(Arc::clone(place.insert(stream)))
    }

    fn streams(&self, but: &Arc<Stream>) -> CuResult<Vec<Arc<Stream>>> {
        let is_in = |stream: &Arc<Stream>| match self {
            Self::Context(context) => Arc::ptr_eq(&stream.context, context),
            Self::Green(green) => stream.green.as_ref().is_some_and(|of| Arc::ptr_eq(of, green)),
        };
        let all = client()?.streams.snapshot().into_iter().map(|(_, stream)| stream);
        Ok(all.filter(|stream| is_in(stream) && !Arc::ptr_eq(stream, but)).collect())
    }
}

/// Records `event` when everything that the streams were given so far is done.
pub(crate) fn record(scope: Scope<'_>, event: Arc<Event>) -> CuResult<()> {
    let meeting = scope.meeting()?;
    for stream in scope.streams(&meeting)? {
        let reached = Event::create(scope.context(), CU_EVENT_DISABLE_TIMING)?;
        run_op(&stream, NodeOp::Record { event: Arc::clone(&reached), flags: 0 })?;
        run_op(&meeting, NodeOp::Wait { event: Arc::clone(&reached), flags: 0 })?;
        reached.destroy()?;
    }
    run_op(&meeting, NodeOp::Record { event, flags: 0 })
}

/// Lets everything that the streams are given from now on wait for `event`.
pub(crate) fn wait(scope: Scope<'_>, event: &Arc<Event>) -> CuResult<()> {
    let meeting = scope.meeting()?;
    run_op(&meeting, NodeOp::Wait { event: Arc::clone(event), flags: 0 })?;
    let barrier = Event::create(scope.context(), CU_EVENT_DISABLE_TIMING)?;
    run_op(&meeting, NodeOp::Record { event: Arc::clone(&barrier), flags: 0 })?;
    for stream in scope.streams(&meeting)? {
        run_op(&stream, NodeOp::Wait { event: Arc::clone(&barrier), flags: 0 })?;
    }
    let older = lock(&scope.gathering().barrier).replace(barrier);
    older.map_or(Ok(()), |older| older.destroy())
}

/// Lets a new stream wait for what its contexts wait for.
pub(super) fn join(stream: &Arc<Stream>) -> CuResult<()> {
    let of_green = stream.green.as_ref().and_then(|green| lock(&green.gathering.barrier).clone());
    let barriers = [lock(&stream.context.gathering.barrier).clone(), of_green];
    barriers.into_iter().flatten().try_for_each(|event| run_op(stream, NodeOp::Wait { event, flags: 0 }))
}
