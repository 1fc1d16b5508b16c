//! Bodies: events.

use crate::{
    border::*,
    state::{
        Event, NodeOp, Stream, current_context, forbid_captured_event, forbid_captured_time, forbid_external,
        pool_order, submit,
    },
};
use cuda_abi::*;
use cuda_wire::Command;

/// cuEventCreate
pub(crate) fn create(mut event: Out<'_, EventHandle>, flags: u32) -> CuResult<()> {
    let context = current_context()?;
    let known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    // An event for several processes has no times.
    let is_shared = flags & CU_EVENT_INTERPROCESS != 0;
    if flags & !known != 0 || is_shared && flags & CU_EVENT_DISABLE_TIMING == 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    event.set(EventHandle(Event::create(&context, flags)?.handle));
    Ok(())
}

/// cuEventDestroy_v2 cuEventDestroy
pub(crate) fn destroy(event: EventHandle) -> CuResult<()> {
    Event::find(event.0)?.destroy()
}

/// cuEventRecord
pub(crate) fn record(event: EventHandle, stream: StreamArg) -> CuResult<()> {
    record_with_flags(event, stream, CU_EVENT_RECORD_DEFAULT)
}

/// cuEventRecordWithFlags
pub(crate) fn record_with_flags(event: EventHandle, stream: StreamArg, flags: u32) -> CuResult<()> {
    let event = Event::find(event.0)?;
    let stream = Stream::of(stream)?;
    if flags > CU_EVENT_RECORD_EXTERNAL {
        return Err(CudaError::INVALID_VALUE);
    }
    if !std::sync::Arc::ptr_eq(&event.context, &stream.context) {
        return Err(CudaError::INVALID_HANDLE);
    }
    forbid_external(flags)?;
    submit(&stream, NodeOp::Record { event, flags })
}

/// cuEventQuery
pub(crate) fn query(event: EventHandle) -> CuResult<()> {
    let event = Event::find(event.0)?;
    forbid_captured_event(&event)?;
    event.context.check()?;
    if event.known_done() {
        return Ok(());
    }
    crate::state::shadow::forward()?;
    // The latest record may be another process's, and says nothing of this one's streams.
    if event.is_interprocess() {
        return event.context.call(&Command::EventQuery { event: event.id }).map(drop);
    }
    let (expected, record) = (pool_order::before_wait(&event), event.latest_record());
    event.context.call(&Command::EventQuery { event: event.id })?;
    event.note_done(record);
    pool_order::event_done(expected);
    Ok(())
}

/// cuEventSynchronize
pub(crate) fn synchronize(event: EventHandle) -> CuResult<()> {
    let event = Event::find(event.0)?;
    forbid_captured_event(&event)?;
    event.context.check()?;
    if event.known_done() {
        return Ok(());
    }
    crate::state::shadow::forward()?;
    if event.is_interprocess() {
        return event.context.call(&Command::EventSynchronize { event: event.id }).map(drop);
    }
    let (expected, record) = (pool_order::before_wait(&event), event.latest_record());
    event.context.call(&Command::EventSynchronize { event: event.id })?;
    event.note_done(record);
    pool_order::event_done(expected);
    Ok(())
}

/// cuEventElapsedTime
pub(crate) fn elapsed_time_v1(
    milliseconds: Out<'_, f32>,
    start: EventHandle,
    end: EventHandle,
) -> CuResult<()> {
    elapsed_time_v2(milliseconds, start, end)
}

/// cuEventElapsedTime_v2
pub(crate) fn elapsed_time_v2(
    mut milliseconds: Out<'_, f32>,
    start: EventHandle,
    end: EventHandle,
) -> CuResult<()> {
    let start = Event::find(start.0)?;
    let end = Event::find(end.0)?;
    forbid_captured_time(&start)?;
    forbid_captured_time(&end)?;
    let timed = |event: &Event| event.flags & CU_EVENT_DISABLE_TIMING == 0 && event.was_recorded();
    if !timed(&start) || !timed(&end) || start.context.device != end.context.device {
        return Err(CudaError::INVALID_HANDLE);
    }
    end.context.check()?;
    let answer = end.context.link.ask::<f32>(&Command::EventElapsed { start: start.id, end: end.id });
    milliseconds.set(end.context.settle(answer)?);
    Ok(())
}
