//! Events: a record has a ticket, and a wait is for the ticket that was the latest when it was asked for.

use super::{Fake, State, handle, put, work::Work};
use crate::sys::{Context, Event, IpcHandle, Stream};
use cuda_abi::{CuResult, CudaError};
use std::ffi::c_uint;

/// `CU_EVENT_DISABLE_TIMING`
const NO_TIMING: c_uint = 2;
/// `CU_EVENT_INTERPROCESS`
const INTERPROCESS: c_uint = 4;

#[derive(Debug)]
pub(super) struct EventState {
    pub(super) context: Context,
    pub(super) flags: c_uint,
    /// The latest record; 0 before the first.
    pub(super) latest: u64,
    /// The event of another session that this is.
    pub(super) of: Option<Event>,
}

impl State {
    pub(super) fn event(&mut self, event: Event) -> CuResult<&mut EventState> {
        if !self.events.contains_key(&event) {
            self.violation("use of an event that is not there");
        }
        self.events.get_mut(&event).ok_or(CudaError::INVALID_HANDLE)
    }

    /// Whether the latest record of an event is over. An event that is gone, or was never recorded, counts as over.
    fn is_reached(&self, event: Event) -> bool {
        let of = self.events.get(&event).and_then(|event| event.of).unwrap_or(event);
        let latest = self.events.get(&of).map_or(0, |event| event.latest);
        latest == 0 || self.reached.contains(&latest)
    }

    /// The ticket of a new record.
    pub(super) fn record(&mut self, event: Event) -> CuResult<u64> {
        self.next_ticket += 1;
        let ticket = self.next_ticket;
        self.event(event)?.latest = ticket;
        Ok(ticket)
    }
}

impl Fake {
    pub(crate) fn event_create(&self, out: *mut Event, flags: c_uint) -> CuResult<()> {
        let mut state = self.lock();
        let event = Event(handle());
        let context = state.current()?;
        state.events.insert(event, EventState { context, flags, latest: 0, of: None });
        put(out, event);
        Ok(())
    }

    pub(crate) fn event_destroy(&self, event: Event) -> CuResult<()> {
        let mut state = self.lock();
        state.event(event)?;
        state.events.remove(&event);
        Ok(())
    }

    /// A handle holds the address of the event.
    pub(crate) fn event_export(&self, out: *mut IpcHandle, event: Event) -> CuResult<()> {
        let mut state = self.lock();
        if state.event(event)?.flags & INTERPROCESS == 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        let mut handle = IpcHandle([0; 64]);
        handle.0[..8].copy_from_slice(&(event.0.addr() as u64).to_le_bytes());
        put(out, handle);
        Ok(())
    }

    /// Another name for the same records.
    pub(crate) fn event_import(&self, out: *mut Event, from: IpcHandle) -> CuResult<()> {
        let mut state = self.lock();
        let number = u64::from_le_bytes(from.0[..8].try_into().unwrap_or_default());
        let known = state.events.keys().find(|event| event.0.addr() as u64 == number).copied();
        let known = known.ok_or(CudaError::INVALID_HANDLE)?;
        let (event, context) = (Event(handle()), state.current()?);
        state.events.insert(
            event,
            EventState { context, flags: NO_TIMING | INTERPROCESS, latest: 0, of: Some(known) },
        );
        put(out, event);
        Ok(())
    }

    /// Event and stream must be of one context.
    pub(crate) fn event_record(&self, event: Event, stream: Stream, _flags: c_uint) -> CuResult<()> {
        let mut state = self.lock();
        let context = state.stream(stream)?.context;
        if state.event(event)?.context != context {
            return Err(CudaError::INVALID_HANDLE);
        }
        let ticket = state.record(event)?;
        self.enqueue(state, stream, Work::Record { event, ticket })
    }

    pub(crate) fn stream_wait_event(&self, stream: Stream, event: Event, _flags: c_uint) -> CuResult<()> {
        let mut state = self.lock();
        let ticket = state.event(event)?.latest;
        if ticket == 0 {
            return state.stream(stream).map(drop);
        }
        self.enqueue(state, stream, Work::WaitEvent { event, ticket })
    }

    pub(crate) fn event_query(&self, event: Event) -> CuResult<()> {
        let mut state = self.lock();
        state.current()?;
        state.event(event)?;
        if state.is_reached(event) { Ok(()) } else { Err(CudaError::NOT_READY) }
    }

    pub(crate) fn event_synchronize(&self, event: Event) -> CuResult<()> {
        let mut state = self.lock();
        let context = state.current()?;
        state.event(event)?;
        let is_over = |state: &State| {
            let is_dead = state.contexts.get(&context).is_none_or(|context| context.dead.is_some());
            is_dead || state.is_reached(event)
        };
        let state = self.block(state, "cuEventSynchronize", is_over);
        state.current().map(drop)
    }

    pub(crate) fn event_elapsed(&self, out: *mut f32, start: Event, end: Event) -> CuResult<()> {
        let mut state = self.lock();
        for event in [start, end] {
            let EventState { latest, flags, .. } = *state.event(event)?;
            if latest == 0 || flags & NO_TIMING != 0 {
                return Err(CudaError::INVALID_HANDLE);
            }
            if !state.is_reached(event) {
                return Err(CudaError::NOT_READY);
            }
        }
        let (from, to) = (state.event(start)?.latest, state.event(end)?.latest);
        let tick_ms = state.tick_ms.unwrap_or(1.0);
        put(out, (to as f32 - from as f32) * tick_ms);
        Ok(())
    }
}
