//! What belongs to one thread: its stack of contexts and its default streams.
//!
//! They are gone when the program's exit handlers and static destructors run. Calls made there find no context; those
//! that need one fail with CUDA_ERROR_DEINITIALIZED, as the driver's do at that time.

use super::{Context, Green, Stream, StreamKind, client};
use cuda_abi::{CuResult, CudaError};
use std::{
    cell::{Cell, RefCell},
    sync::Arc,
};

thread_local! {
    static CONTEXTS: RefCell<Vec<Current>> = const { RefCell::new(Vec::new()) };
    static STREAMS: DefaultStreams = const { DefaultStreams(RefCell::new(Vec::new())) };
    /// `CUstreamCaptureMode` of the thread's own calls while others capture.
    pub(crate) static CAPTURE_MODE: Cell<u32> = const { Cell::new(0) };
}

/// What a thread works in: a context, and the green context of it through which it does.
#[derive(Clone)]
pub(crate) struct Current {
    /// The context.
    pub(crate) context: Arc<Context>,
    /// How it is seen.
    pub(crate) green: Option<Arc<Green>>,
}

impl Current {
    /// What a `CUcontext` stands for.
    pub(crate) fn find(handle: u64) -> CuResult<Self> {
        match client()?.contexts.get(handle) {
            Some(context) => Ok(Self { context, green: None }),
            None => {
                let green = Green::of_view(handle)?;
                Ok(Self { context: Arc::clone(&green.context), green: Some(green) })
            }
        }
    }

    /// Its handle.
    pub(crate) fn handle(&self) -> u64 {
        self.green.as_ref().map_or(self.context.handle, |green| green.view())
    }
}

impl From<Arc<Context>> for Current {
    fn from(context: Arc<Context>) -> Self {
        Self { context, green: None }
    }
}

/// The thread's default stream in each context it used one in.
struct DefaultStreams(RefCell<Vec<Arc<Stream>>>);

impl Drop for DefaultStreams {
    fn drop(&mut self) {
        // Not in a forked child: there the streams are the parent's.
        if crate::process::check().is_ok() {
            for stream in self.0.borrow().iter() {
                let _ = stream.destroy();
            }
        }
    }
}

/// The current context, whether alive or not.
#[inline]
pub(crate) fn current() -> Option<Arc<Context>> {
    CONTEXTS.try_with(|stack| stack.borrow().last().map(|top| Arc::clone(&top.context))).ok().flatten()
}

/// The same with how it is seen.
pub(crate) fn current_view() -> Option<Current> {
    CONTEXTS.try_with(|stack| stack.borrow().last().cloned()).ok().flatten()
}

/// The default stream of what is current.
#[inline]
pub(crate) fn default_stream() -> CuResult<Arc<Stream>> {
    let found = CONTEXTS.try_with(|stack| match stack.borrow().last() {
        None => Err(CudaError::INVALID_CONTEXT),
        Some(Current { context, green: None }) => {
            context.check()?;
            context.legacy_stream()
        }
        Some(Current { green: Some(green), .. }) => green.legacy_stream(),
    });
    found.unwrap_or(Err(CudaError::DEINITIALIZED))
}

/// Calls `read` with the current context, without counting a reference.
#[inline]
pub(crate) fn with_current<R>(read: impl FnOnce(&Context) -> CuResult<R>) -> CuResult<R> {
    let read = CONTEXTS.try_with(|stack| match stack.borrow().last() {
        Some(top) => read(&top.context),
        None => Err(CudaError::INVALID_CONTEXT),
    });
    read.unwrap_or(Err(CudaError::DEINITIALIZED))
}

/// The current context, if it can be used.
#[inline]
pub(crate) fn current_context() -> CuResult<Arc<Context>> {
    let context = CONTEXTS
        .try_with(|stack| stack.borrow().last().map(|top| Arc::clone(&top.context)))
        .map_err(|_| CudaError::DEINITIALIZED)?;
    let context = context.ok_or(CudaError::INVALID_CONTEXT)?;
    context.check()?;
    Ok(context)
}

/// Puts a context on top.
pub(crate) fn push_current(context: Current) {
    let _ = CONTEXTS.try_with(|stack| stack.borrow_mut().push(context));
}

/// Takes the top off.
pub(crate) fn pop_current() -> CuResult<Current> {
    let popped = CONTEXTS.try_with(|stack| stack.borrow_mut().pop()).map_err(|_| CudaError::DEINITIALIZED)?;
    popped.ok_or(CudaError::INVALID_CONTEXT)
}

/// Replaces the top, or with `None` takes it off.
pub(crate) fn set_current(context: Option<Current>) {
    let _ = CONTEXTS.try_with(|stack| {
        let mut stack = stack.borrow_mut();
        stack.pop();
        stack.extend(context);
    });
}

/// Takes a destroyed context off the top of this thread's stack. Other threads find out when they use it.
pub(crate) fn forget_current(context: &Context) {
    let _ = CONTEXTS.try_with(|stack| {
        let mut stack = stack.borrow_mut();
        if stack.last().is_some_and(|top| std::ptr::eq(Arc::as_ptr(&top.context), context)) {
            stack.pop();
        }
    });
}

/// The thread's own default stream in the current context. A green context has none.
pub(crate) fn thread_stream() -> CuResult<Arc<Stream>> {
    let found = CONTEXTS.try_with(|stack| match stack.borrow().last() {
        None => Err(CudaError::INVALID_CONTEXT),
        Some(Current { context, green: None }) => {
            context.check()?;
            thread_stream_in(context)
        }
        Some(Current { green: Some(_), .. }) => Err(CudaError::INVALID_HANDLE),
    });
    found.unwrap_or(Err(CudaError::DEINITIALIZED))
}

fn thread_stream_in(context: &Arc<Context>) -> CuResult<Arc<Stream>> {
    let found = STREAMS.try_with(|streams| {
        let mut streams = streams.0.borrow_mut();
        let known = client()?;
        streams.retain(|stream| known.streams.get(stream.handle).is_some());
        if let Some(stream) = streams.iter().find(|stream| Arc::ptr_eq(&stream.context, context)) {
            return Ok(Arc::clone(stream));
        }
        let stream = Stream::create(context, StreamKind::PerThread, 0, 0)?;
        streams.push(Arc::clone(&stream));
        Ok(stream)
    });
    found.unwrap_or(Err(CudaError::DEINITIALIZED))
}
