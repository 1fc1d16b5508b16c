//! Bodies: streams.

use crate::{
    border::*,
    state::{
        Context, Event, NodeOp, Stream, StreamKind, current_context, current_view, forbid_external,
        forbid_on_capturing, forbid_wait, managed, pool_order,
        shadow::{at_rest, before_wait, fetch_all},
        submit,
    },
};
use cuda_abi::*;
use cuda_wire::Command;

/// cuStreamCreate
pub(crate) fn create(stream: Out<'_, StreamHandle>, flags: u32) -> CuResult<()> {
    create_with_priority(stream, flags, 0)
}

/// cuStreamCreateWithPriority
pub(crate) fn create_with_priority(
    mut stream: Out<'_, StreamHandle>,
    flags: u32,
    priority: i32,
) -> CuResult<()> {
    let context = current_context()?;
    let kind = match flags {
        CU_STREAM_DEFAULT => StreamKind::Blocking,
        CU_STREAM_NON_BLOCKING => StreamKind::NonBlocking,
        _ => return Err(CudaError::INVALID_VALUE),
    };
    let priority = in_range(&context, priority)?;
    let green = current_view().and_then(|current| current.green);
    let made = match green {
        None => Stream::create(&context, kind, flags, priority)?,
        Some(green) => Stream::create_green(&green, kind, flags, priority)?,
    };
    stream.set(StreamHandle(made.handle));
    Ok(())
}

/// A priority out of range is moved into it, as CUDA says.
pub(super) fn in_range(context: &Context, priority: i32) -> CuResult<i32> {
    let (least, greatest) = context.device()?.info.stream_priorities;
    Ok(priority.clamp(greatest.min(least), least.max(greatest)))
}

/// cuStreamDestroy_v2 cuStreamDestroy
pub(crate) fn destroy(stream: StreamHandle) -> CuResult<()> {
    match StreamArg::new(stream, StreamArg::Legacy) {
        StreamArg::Created(_) => {}
        // The default streams are not the program's to destroy.
        StreamArg::Legacy | StreamArg::PerThread => return Err(CudaError::INVALID_HANDLE),
    }
    let stream = crate::state::client()?.streams.get(stream.0).ok_or(CudaError::INVALID_HANDLE)?;
    crate::state::end_capture_of(&stream);
    stream.destroy()
}

/// cuStreamQuery
pub(crate) fn query(stream: StreamArg) -> CuResult<()> {
    let stream = Stream::of(stream)?;
    forbid_wait(&stream)?;
    fetch_all()?;
    let mark = pool_order::before_stream_wait(&stream);
    stream.context.call(&Command::StreamQuery { stream: stream.id })?;
    pool_order::stream_idle(mark);
    Ok(())
}

/// cuStreamSynchronize
pub(crate) fn synchronize(stream: StreamArg) -> CuResult<()> {
    let stream = Stream::of(stream)?;
    forbid_wait(&stream)?;
    fetch_all()?;
    let watched = before_wait();
    let mark = pool_order::before_stream_wait(&stream);
    stream.context.call(&Command::StreamSynchronize { stream: stream.id })?;
    at_rest(watched, |other| std::ptr::eq(other, &*stream));
    pool_order::stream_done(mark);
    Ok(())
}

/// cuStreamWaitEvent
pub(crate) fn wait_event(stream: StreamArg, event: EventHandle, flags: u32) -> CuResult<()> {
    let stream = Stream::of(stream)?;
    let event = Event::find(event.0)?;
    if flags > CU_EVENT_WAIT_EXTERNAL {
        return Err(CudaError::INVALID_VALUE);
    }
    forbid_external(flags)?;
    if !std::sync::Arc::ptr_eq(&event.context.link, &stream.context.link) {
        // The event lives on another worker: wait for it here, so that what follows comes after it.
        let expected = pool_order::before_wait(&event);
        event.context.call(&Command::EventSynchronize { event: event.id })?;
        pool_order::event_done(expected);
        return Ok(());
    }
    submit(&stream, NodeOp::Wait { event, flags })
}

/// cuStreamGetPriority
pub(crate) fn priority(stream: StreamArg, mut priority: Out<'_, i32>) -> CuResult<()> {
    priority.set(Stream::of(stream)?.priority);
    Ok(())
}

/// cuStreamGetFlags
pub(crate) fn flags(stream: StreamArg, mut flags: Out<'_, u32>) -> CuResult<()> {
    let stream = Stream::of(stream)?;
    forbid_on_capturing(&stream)?;
    flags.set(stream.flags);
    Ok(())
}

/// cuStreamGetId
pub(crate) fn id(stream: StreamArg, mut stream_id: Out<'_, u64>) -> CuResult<()> {
    let stream = Stream::of(stream)?;
    forbid_on_capturing(&stream)?;
    stream_id.set(u64::from(stream.id.0));
    Ok(())
}

/// cuStreamGetCtx
pub(crate) fn context(stream: StreamArg, mut context: Out<'_, ContextHandle>) -> CuResult<()> {
    let stream = Stream::of(stream)?;
    context.set(ContextHandle(stream.green.as_ref().map_or(stream.context.handle, |green| green.view())));
    Ok(())
}

/// cuStreamGetCtx_v2
pub(crate) fn context_v2(
    stream: StreamArg,
    mut context: Out<'_, ContextHandle>,
    green_context: Option<Out<'_, GreenContextHandle>>,
) -> CuResult<()> {
    let stream = Stream::of(stream)?;
    context.set(ContextHandle(stream.context.handle));
    if let Some(mut place) = green_context {
        place.set(GreenContextHandle(stream.green.as_ref().map_or(0, |green| green.handle)));
    }
    Ok(())
}

/// cuStreamGetDevice
pub(crate) fn device(stream: StreamArg, mut device: Out<'_, i32>) -> CuResult<()> {
    let stream = Stream::of(stream)?;
    forbid_on_capturing(&stream)?;
    device.set(stream.context.device as i32);
    Ok(())
}

/// cuStreamGetGreenCtx
pub(crate) fn green_context(
    stream: StreamArg,
    mut green_context: Out<'_, GreenContextHandle>,
) -> CuResult<()> {
    let stream = Stream::of(stream)?;
    green_context.set(GreenContextHandle(stream.green.as_ref().map_or(0, |green| green.handle)));
    Ok(())
}

/// cuStreamCopyAttributes
pub(crate) fn copy_attributes(dst_stream: StreamArg, src_stream: StreamArg) -> CuResult<()> {
    let target = Stream::of(dst_stream)?;
    let source = Stream::of(src_stream)?;
    let attributes = crate::state::lock(&source.attributes).clone();
    *crate::state::lock(&target.attributes) = attributes;
    Ok(())
}

/// Stream attributes that exist: they are hints for caches and scheduling, kept so that they can be read back.
const ATTRIBUTES: [u32; 5] = [1, 3, 8, 9, 10];

/// cuStreamGetAttribute
pub(crate) fn attribute(
    stream: StreamArg,
    attribute: u32,
    mut value: Out<'_, CUlaunchAttributeValue>,
) -> CuResult<()> {
    let stream = Stream::of(stream)?;
    if !ATTRIBUTES.contains(&attribute) {
        return Err(CudaError::INVALID_VALUE);
    }
    // 8 is the priority, which has a value from the start.
    let unset = if attribute == 8 {
        CUlaunchAttributeValue::of(stream.priority)
    } else {
        CUlaunchAttributeValue::of(0u32)
    };
    value.set(crate::state::lock(&stream.attributes).get(&attribute).copied().unwrap_or(unset));
    Ok(())
}

/// cuStreamSetAttribute
pub(crate) fn set_attribute(
    stream: StreamArg,
    attribute: u32,
    param: &CUlaunchAttributeValue,
) -> CuResult<()> {
    let stream = Stream::of(stream)?;
    if !ATTRIBUTES.contains(&attribute) {
        return Err(CudaError::INVALID_VALUE);
    }
    crate::state::lock(&stream.attributes).insert(attribute, *param);
    Ok(())
}

/// cuStreamAddCallback
pub(crate) fn add_callback(
    stream: StreamArg,
    callback: StreamCallback,
    user_data: u64,
    flags: u32,
) -> CuResult<()> {
    // The callback is shown the stream as the program names it.
    let shown = match stream {
        StreamArg::Legacy => StreamHandle::NULL,
        StreamArg::PerThread => StreamHandle(CU_STREAM_PER_THREAD),
        StreamArg::Created(handle) => handle,
    };
    let stream = Stream::of(stream)?;
    if flags != 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    forbid_on_capturing(&stream)?;
    let run = managed::around_host_function(move || callback.call(shown, 0, user_data));
    let run = Box::new(run);
    let token = stream.context.link.offer_host_call(run, true);
    stream.enqueue(cuda_wire::Op::HostCall { token })
}

/// cuLaunchHostFunc
pub(crate) fn launch_host_func(stream: StreamArg, function: HostFn, user_data: u64) -> CuResult<()> {
    let stream = Stream::of(stream)?;
    submit(&stream, NodeOp::Host { function, user_data })
}
