//! Times of launches: two events around one of many, read when the stream has passed both.

#![allow(unsafe_code)]

use crate::{
    context::LiveContext,
    graph::Exec,
    stream::{LiveEvent, LiveStream},
    sys::Api,
};
use cuda_abi::{CuResult, CudaError};
use sharing::KernelShape;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// The most launches that are being timed at once. Each has two events of the driver.
const PENDING_MAX: usize = 64;

/// What was launched.
pub(super) enum Timed {
    Kernel(KernelShape),
    Graph(Weak<Exec>),
}

/// Two events: before and behind a launch.
struct Pair {
    start: LiveEvent,
    end: LiveEvent,
}

impl Pair {
    fn create(api: &Api, context: &Arc<LiveContext>) -> CuResult<Self> {
        let event = || LiveEvent::create(api, Arc::clone(context), 0);
        Ok(Self { start: event()?, end: event()? })
    }
}

/// A launch that is being timed.
pub(super) struct Timing {
    /// No other launch of the session has it.
    number: u64,
    what: Timed,
    pair: Pair,
}

#[derive(Default)]
pub(super) struct Samples {
    free: Vec<Pair>,
    /// In the order of their ends, as far as they are of one stream.
    pending: VecDeque<Timing>,
    begun: u64,
}

impl Samples {
    /// Puts the first event into a stream. `None` when enough are under way, or the driver has no more: then the launch is not
    /// timed, and a later one will be.
    pub(super) fn begin(&mut self, api: &Api, stream: &LiveStream, what: Timed) -> Option<Timing> {
        if self.pending.len() >= PENDING_MAX {
            return None;
        }
        let is_of = |pair: &Pair| Arc::ptr_eq(&pair.start.context, &stream.context);
        let pair = match self.free.iter().position(is_of) {
            Some(at) => self.free.swap_remove(at),
            None => Pair::create(api, &stream.context).ok()?,
        };
        let raw = stream.enter().ok()?;
        // SAFETY: event and stream live until the call returns.
        unsafe { api.event_record(pair.start.raw(), raw, 0) }.ok()?;
        self.begun += 1;
        Some(Timing { number: self.begun, what, pair })
    }

    /// Puts the second event behind the launch.
    pub(super) fn end(&mut self, api: &Api, stream: &LiveStream, timing: Timing) {
        let Ok(raw) = stream.enter() else { return };
        // SAFETY: as above.
        if unsafe { api.event_record(timing.pair.end.raw(), raw, 0) }.is_ok() {
            self.pending.push_back(timing);
        }
    }

    /// A launch that the device has begun and not ended.
    pub(super) fn running(&self) -> Option<u64> {
        let runs = |timing: &&Timing| {
            timing.pair.start.is_reached() == Ok(true) && timing.pair.end.is_reached() == Ok(false)
        };
        self.pending.iter().find(runs).map(|timing| timing.number)
    }

    /// Takes the times that are known by now. A stream that waits holds back its own alone.
    pub(super) fn take(&mut self, api: &Api, mut on_sample: impl FnMut(Timed, u64)) {
        for _ in 0..self.pending.len() {
            let Some(timing) = self.pending.pop_front() else { return };
            let mut milliseconds = 0.0;
            let (start, end) = (timing.pair.start.raw(), timing.pair.end.raw());
            let asked = timing.pair.start.context.enter().and_then(|()| {
                // SAFETY: both events live, and the number is valid for the call.
                unsafe { api.event_elapsed(&mut milliseconds, start, end) }
            });
            match asked {
                Ok(()) => {
                    on_sample(timing.what, (f64::from(milliseconds) * 1e6) as u64);
                    self.free.push(timing.pair);
                }
                Err(CudaError::NOT_READY) => self.pending.push_back(timing),
                // The context is dead.
                Err(_) => {}
            }
        }
    }
}
