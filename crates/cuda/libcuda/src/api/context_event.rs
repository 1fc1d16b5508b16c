//! Bodies: events over all streams of a context, or of a green context, at once.

use crate::{
    border::*,
    state::{
        Current, Event, Green,
        context_event::{self, Scope},
        current_view, forbid_captured_event, forbid_context_wait, pool_order,
    },
};
use cuda_abi::*;
use cuda_wire::Command;
use std::sync::Arc;

fn find(context: ContextHandle) -> CuResult<Current> {
    let current = if context.is_null() {
        current_view().ok_or(CudaError::INVALID_CONTEXT)?
    } else {
        Current::find(context.0)?
    };
    current.context.check()?;
    Ok(current)
}

fn of_green(handle: GreenContextHandle) -> CuResult<Current> {
    let green = Green::find(handle.0)?;
    green.check()?;
    Ok(Current { context: Arc::clone(&green.context), green: Some(green) })
}

fn scope(current: &Current) -> Scope<'_> {
    current.green.as_ref().map_or(Scope::Context(&current.context), Scope::Green)
}

fn record_in(current: &Current, event: EventHandle) -> CuResult<()> {
    let event = Event::find(event.0)?;
    if !Arc::ptr_eq(&event.context, &current.context) {
        return Err(CudaError::INVALID_HANDLE);
    }
    forbid_context_wait(&current.context)?;
    context_event::record(scope(current), event)
}

fn wait_in(current: &Current, event: EventHandle) -> CuResult<()> {
    let event = Event::find(event.0)?;
    forbid_captured_event(&event)?;
    forbid_context_wait(&current.context)?;
    if !Arc::ptr_eq(&event.context.link, &current.context.link) {
        // The event lives on another worker: wait for it here, so that what follows comes after it.
        let expected = pool_order::before_wait(&event);
        event.context.call(&Command::EventSynchronize { event: event.id })?;
        pool_order::event_done(expected);
        return Ok(());
    }
    context_event::wait(scope(current), &event)
}

/// cuCtxRecordEvent
pub(crate) fn record(context: ContextHandle, event: EventHandle) -> CuResult<()> {
    record_in(&find(context)?, event)
}

/// cuCtxWaitEvent
pub(crate) fn wait(context: ContextHandle, event: EventHandle) -> CuResult<()> {
    wait_in(&find(context)?, event)
}

/// cuGreenCtxRecordEvent
pub(crate) fn record_green(green_context: GreenContextHandle, event: EventHandle) -> CuResult<()> {
    record_in(&of_green(green_context)?, event)
}

/// cuGreenCtxWaitEvent
pub(crate) fn wait_green(green_context: GreenContextHandle, event: EventHandle) -> CuResult<()> {
    wait_in(&of_green(green_context)?, event)
}
