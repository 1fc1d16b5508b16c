//! Streams and events, destroyed when their last user is done.

#![allow(unsafe_code)]

use crate::{
    context::LiveContext,
    current,
    green::LiveGreen,
    sys::{Api, Context, Event, IpcHandle, STREAM_LEGACY, Stream},
};
use cuda_abi::{CuResult, CudaError};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// `kind` of a stream that waits for no other, and of a context's legacy stream.
const INDEPENDENT: u32 = 1;
const LEGACY: u32 = 2;

/// A stream of the driver.
pub(crate) struct LiveStream {
    api: Api,
    raw: Stream,
    is_legacy: bool,
    /// Unlike the handle, no other stream of the process ever has it.
    pub(crate) number: u64,
    pub(crate) context: Arc<LiveContext>,
    /// What a thread has when it gives it work: the context, or the green context's view of it.
    entered: Context,
    /// Ends after the stream.
    _green: Option<Arc<LiveGreen>>,
}

fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl LiveStream {
    pub(crate) fn create(api: &Api, context: Arc<LiveContext>, kind: u32, priority: i32) -> CuResult<Self> {
        if kind == LEGACY {
            return Ok(Self::legacy(api, context));
        }
        context.enter()?;
        let mut raw = Stream::default();
        // SAFETY: `raw` is valid for the call.
        unsafe { api.stream_create(&mut raw, if kind == INDEPENDENT { 1 } else { 0 }, priority)? };
        let entered = context.raw();
        Ok(Self { api: *api, raw, is_legacy: false, number: next_number(), context, entered, _green: None })
    }

    /// A stream of a green context.
    pub(crate) fn of_green(api: &Api, green: Arc<LiveGreen>, kind: u32, priority: i32) -> CuResult<Self> {
        let mut stream = Self::legacy(api, Arc::clone(&green.primary));
        stream.entered = green.context;
        if kind != LEGACY {
            let mut raw = Stream::default();
            current::enter(api, green.context)?;
            // SAFETY: `raw` is valid for the calls. The green context lives as long as the stream.
            unsafe {
                match kind {
                    INDEPENDENT => api.green_stream_create(&mut raw, green.raw, 1, priority)?,
                    _ => api.stream_create(&mut raw, 0, priority)?,
                }
            }
            stream.raw = raw;
            stream.is_legacy = false;
        }
        stream._green = Some(green);
        Ok(stream)
    }

    /// The legacy stream of a context, which is always there.
    pub(crate) fn legacy(api: &Api, context: Arc<LiveContext>) -> Self {
        let raw = Stream(std::ptr::without_provenance_mut(STREAM_LEGACY));
        let entered = context.raw();
        Self { api: *api, raw, is_legacy: true, number: next_number(), context, entered, _green: None }
    }

    /// The handle; its context becomes the calling thread's, which the legacy stream is found by.
    #[inline]
    pub(crate) fn enter(&self) -> CuResult<Stream> {
        current::enter(&self.api, self.entered)?;
        Ok(self.raw)
    }

    /// Whether all its work is done.
    pub(crate) fn is_idle(&self) -> CuResult<bool> {
        let raw = self.enter()?;
        // SAFETY: the stream lives as long as `self`.
        match unsafe { self.api.stream_query(raw) } {
            Ok(()) => Ok(true),
            Err(CudaError::NOT_READY) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Blocks until all its work is done.
    pub(crate) fn wait(&self) -> CuResult<()> {
        let raw = self.enter()?;
        // SAFETY: the stream lives as long as `self`.
        unsafe { self.api.stream_synchronize(raw) }
    }

    /// The same before memory goes that its work uses. A wait that fails once is made again; a dead stream fails always, and
    /// has no work.
    pub(crate) fn wait_out(&self) {
        const TRIES: u32 = 3;
        let _ = (0..TRIES).any(|_| self.wait().is_ok());
    }
}

impl Drop for LiveStream {
    fn drop(&mut self) {
        if !self.is_legacy && self.context.enter().is_ok() {
            // SAFETY: only this object has the handle. Work in it goes on to its end.
            let _ = unsafe { self.api.stream_destroy(self.raw) };
        }
    }
}

/// An event of the driver.
pub(crate) struct LiveEvent {
    api: Api,
    raw: Event,
    pub(crate) has_timing: bool,
    /// Whether `age` is to be looked at: without a restore, a record pays one load for it.
    has_age: AtomicBool,
    age: Mutex<Option<EventAge>>,
    pub(crate) context: Arc<LiveContext>,
}

/// When an event was reached, in a session before this one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventAge {
    /// The moment of the restore.
    pub(crate) restored: Instant,
    /// How long before it.
    pub(crate) before: Duration,
}

impl LiveEvent {
    pub(crate) fn create(api: &Api, context: Arc<LiveContext>, flags: u32) -> CuResult<Self> {
        /// `CU_EVENT_DISABLE_TIMING`
        const NO_TIMING: u32 = 2;
        context.enter()?;
        let mut raw = Event::default();
        // SAFETY: `raw` is valid for the call.
        unsafe { api.event_create(&mut raw, flags)? };
        let has_timing = flags & NO_TIMING == 0;
        let (has_age, age) = (AtomicBool::new(false), Mutex::new(None));
        Ok(Self { api: *api, raw, has_timing, has_age, age, context })
    }

    /// An event of another session.
    pub(crate) fn open(api: &Api, context: Arc<LiveContext>, handle: [u8; 64]) -> CuResult<Self> {
        context.enter()?;
        let mut raw = Event::default();
        // SAFETY: `raw` is valid for the call.
        unsafe { api.event_import(&mut raw, IpcHandle(handle))? };
        let (has_age, age) = (AtomicBool::new(false), Mutex::new(None));
        Ok(Self { api: *api, raw, has_timing: false, has_age, age, context })
    }

    /// What another session opens it by.
    pub(crate) fn export(&self) -> CuResult<[u8; 64]> {
        self.context.enter()?;
        let mut handle = IpcHandle([0; 64]);
        // SAFETY: the handle is valid for the call, the event lives as long as `self`.
        unsafe { self.api.event_export(&mut handle, self.raw)? };
        Ok(handle.0)
    }

    /// Its age, if it was restored and not recorded since.
    pub(crate) fn age(&self) -> Option<EventAge> {
        if !self.has_age.load(Ordering::Acquire) {
            return None;
        }
        *self.age.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_age(&self, age: EventAge) {
        *self.age.lock().unwrap_or_else(PoisonError::into_inner) = Some(age);
        self.has_age.store(true, Ordering::Release);
    }

    /// It is recorded again.
    #[inline]
    pub(crate) fn forget_age(&self) {
        if self.has_age.load(Ordering::Relaxed) && self.has_age.swap(false, Ordering::AcqRel) {
            *self.age.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    pub(crate) fn raw(&self) -> Event {
        self.raw
    }

    pub(crate) fn is_reached(&self) -> CuResult<bool> {
        self.context.enter()?;
        // SAFETY: the event lives as long as `self`.
        match unsafe { self.api.event_query(self.raw) } {
            Ok(()) => Ok(true),
            Err(CudaError::NOT_READY) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn wait(&self) -> CuResult<()> {
        self.context.enter()?;
        // SAFETY: the event lives as long as `self`.
        unsafe { self.api.event_synchronize(self.raw) }
    }
}

impl Drop for LiveEvent {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: only this object has the handle.
            let _ = unsafe { self.api.event_destroy(self.raw) };
        }
    }
}
