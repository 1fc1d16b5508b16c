//! Times of events that were reached in a session before this one.
//!
//! A restored event carries its age until it is recorded again. What is told of it and of events of this session comes
//! from an event that the restore recorded: ages are before it, the driver's own events are after it.

#![allow(unsafe_code)]

use super::{NvidiaDriver, lock, take::elapsed};
use crate::stream::{EventAge, LiveEvent};
use cuda_abi::{CuResult, CudaError};
use cuda_wire::EventId;
use std::sync::Arc;
use std::time::{Duration, Instant};

impl NvidiaDriver {
    /// Milliseconds from one event to another.
    pub(crate) fn milliseconds_between(&self, start: &Arc<LiveEvent>, end: &Arc<LiveEvent>) -> CuResult<f32> {
        if start.age().is_none() && end.age().is_none() {
            start.context.enter()?;
            let mut milliseconds = 0.0;
            // SAFETY: both events live until the call returns.
            unsafe { self.api.event_elapsed(&mut milliseconds, start.raw(), end.raw())? };
            return Ok(milliseconds);
        }
        // An event of this session that is not reached yet, or was never recorded, says so.
        let time = |event: &Arc<LiveEvent>| match event.age() {
            Some(age) => Ok(-age.before.as_secs_f64() * 1e3),
            None => {
                let base = lock(&self.cuts.restored).get(&event.context.id).cloned();
                let base = base.ok_or(CudaError::INVALID_HANDLE)?;
                elapsed(&self.work, &base, event).map(f64::from)
            }
        };
        Ok((time(end)? - time(start)?) as f32)
    }

    /// Gives events their ages. One moment for all, so that the times between them stay what they were.
    pub(super) fn restore_ages(&self, ages: &[snapshot::EventAge]) {
        let restored = Instant::now();
        let tables = self.lock();
        for age in ages {
            if let Ok(event) = tables.event(EventId(age.event)) {
                event.set_age(EventAge { restored, before: Duration::from_nanos(age.age_ns) });
            }
        }
    }
}
