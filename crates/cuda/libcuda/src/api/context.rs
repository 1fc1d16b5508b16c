//! Bodies: contexts.

use crate::{
    border::*,
    state::{
        API_VERSION, Context, Current, client, current_view, forbid_context_wait, forbid_unsafe_call,
        forget_current, pool_order, pop_current as pop, push_current as push, set_current as set,
        shadow::{at_rest, before_wait, fetch_all},
        with_current,
    },
};
use cuda_abi::*;
use cuda_wire::Command;
use std::sync::{Arc, atomic::Ordering};

/// cuDevicePrimaryCtxRetain
pub(crate) fn primary_retain(mut context: Out<'_, ContextHandle>, device: i32) -> CuResult<()> {
    let primary = client()?.device(device)?.retain_primary()?;
    context.set(ContextHandle(primary.handle));
    Ok(())
}

/// cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxRelease
pub(crate) fn primary_release(device: i32) -> CuResult<()> {
    client()?.device(device)?.release_primary()
}

/// cuDevicePrimaryCtxReset_v2 cuDevicePrimaryCtxReset
pub(crate) fn primary_reset(device: i32) -> CuResult<()> {
    client()?.device(device)?.reset_primary()
}

fn check_flags(flags: u32) -> CuResult<()> {
    let scheduling = flags & CU_CTX_SCHED_MASK;
    let one_at_most = matches!(
        scheduling,
        CU_CTX_SCHED_AUTO | CU_CTX_SCHED_SPIN | CU_CTX_SCHED_YIELD | CU_CTX_SCHED_BLOCKING_SYNC
    );
    if flags & !CU_CTX_FLAGS_MASK != 0 || !one_at_most { Err(CudaError::INVALID_VALUE) } else { Ok(()) }
}

/// cuDevicePrimaryCtxSetFlags_v2 cuDevicePrimaryCtxSetFlags
pub(crate) fn primary_set_flags(device: i32, flags: u32) -> CuResult<()> {
    let device = client()?.device(device)?;
    check_flags(flags)?;
    device.set_primary_flags(flags);
    Ok(())
}

/// cuDevicePrimaryCtxGetState
pub(crate) fn primary_state(device: i32, mut flags: Out<'_, u32>, mut active: Out<'_, i32>) -> CuResult<()> {
    let state = client()?.device(device)?.primary_state();
    flags.set(state.0);
    active.set(state.1);
    Ok(())
}

/// cuCtxCreate_v2 cuCtxCreate
pub(crate) fn create(mut context: Out<'_, ContextHandle>, flags: u32, device: i32) -> CuResult<()> {
    let device = client()?.device(device)?;
    check_flags(flags)?;
    let made = Context::create(device, flags)?;
    context.set(ContextHandle(made.handle));
    push(made.into());
    Ok(())
}

/// cuCtxCreate_v3
pub(crate) fn create_v3(
    context: Out<'_, ContextHandle>,
    params_array: &[CUexecAffinityParam],
    _num_params: i32,
    flags: u32,
    device: i32,
) -> CuResult<()> {
    if !params_array.is_empty() {
        return Err(CudaError::UNSUPPORTED_EXEC_AFFINITY);
    }
    create(context, flags, device)
}

/// cuCtxCreate_v4
pub(crate) fn create_v4(
    context: Out<'_, ContextHandle>,
    ctx_create_params: Option<&CUctxCreateParams>,
    flags: u32,
    device: i32,
) -> CuResult<()> {
    if let Some(params) = ctx_create_params {
        if params.num_exec_affinity_params > 0 {
            return Err(CudaError::UNSUPPORTED_EXEC_AFFINITY);
        }
        if params.cig_params != 0 {
            return Err(CudaError::NOT_SUPPORTED);
        }
    }
    create(context, flags, device)
}

/// cuCtxDestroy_v2 cuCtxDestroy
pub(crate) fn destroy(context: ContextHandle) -> CuResult<()> {
    if context.is_null() {
        return Err(CudaError::INVALID_VALUE);
    }
    let context = Context::find(context.0)?;
    if context.primary {
        return Err(CudaError::INVALID_CONTEXT);
    }
    context.check_alive()?;
    forget_current(&context);
    context.end(false)
}

/// cuCtxAttach: contexts are no longer counted, so attaching is asking for the current one.
pub(crate) fn attach(mut context: Out<'_, ContextHandle>, flags: u32) -> CuResult<()> {
    if flags != 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    context.set(ContextHandle(with_current(|context| Ok(context.handle))?));
    Ok(())
}

/// cuCtxDetach
pub(crate) fn detach(context: ContextHandle) -> CuResult<()> {
    destroy(context)
}

/// cuCtxPushCurrent_v2 cuCtxPushCurrent
pub(crate) fn push_current(context: ContextHandle) -> CuResult<()> {
    if context.is_null() {
        return Err(CudaError::INVALID_VALUE);
    }
    let found = Current::find(context.0)?;
    found.context.check_alive()?;
    push(found);
    Ok(())
}

/// cuCtxPopCurrent_v2 cuCtxPopCurrent
pub(crate) fn pop_current(context: Option<Out<'_, ContextHandle>>) -> CuResult<()> {
    let popped = pop()?;
    if let Some(mut context) = context {
        context.set(ContextHandle(popped.handle()));
    }
    Ok(())
}

/// cuCtxSetCurrent
pub(crate) fn set_current(context: ContextHandle) -> CuResult<()> {
    if context.is_null() {
        set(None);
        return Ok(());
    }
    let known = current_view().is_some_and(|current| current.handle() == context.0);
    if !known {
        set(Some(Current::find(context.0)?));
    }
    Ok(())
}

/// cuCtxGetCurrent
pub(crate) fn current(mut context: Out<'_, ContextHandle>) -> CuResult<()> {
    context.set(ContextHandle(current_view().map_or(0, |current| current.handle())));
    Ok(())
}

/// cuCtxGetDevice
pub(crate) fn device(mut device: Out<'_, i32>) -> CuResult<()> {
    device.set(with_current(|context| {
        context.check_alive()?;
        Ok(context.device as i32)
    })?);
    Ok(())
}

/// The context of a handle, where null is the current one.
fn this_or_current(context: ContextHandle) -> CuResult<Arc<Context>> {
    if context.is_null() {
        crate::state::current().ok_or(CudaError::INVALID_CONTEXT)
    } else {
        Context::find(context.0)
    }
}

/// cuCtxGetDevice_v2
pub(crate) fn device_v2(mut out: Out<'_, i32>, context: ContextHandle) -> CuResult<()> {
    if context.is_null() {
        return device(out);
    }
    let context = Context::find_alive(context.0)?;
    out.set(context.device as i32);
    Ok(())
}

/// cuCtxGetFlags
pub(crate) fn flags(mut flags: Out<'_, u32>) -> CuResult<()> {
    flags.set(with_current(|context| context.check_alive().map(|()| context.flags()))?);
    Ok(())
}

/// cuCtxSetFlags
pub(crate) fn set_flags(flags: u32) -> CuResult<()> {
    check_flags(flags)?;
    with_current(|context| {
        context.check_alive()?;
        context.set_flags(flags);
        Ok(())
    })
}

/// cuCtxGetId
pub(crate) fn id(context: ContextHandle, mut ctx_id: Out<'_, u64>) -> CuResult<()> {
    let context = this_or_current(context)?;
    context.check_alive()?;
    ctx_id.set(context.unique());
    Ok(())
}

/// cuCtxGetApiVersion
pub(crate) fn api_version(context: ContextHandle, mut version: Out<'_, u32>) -> CuResult<()> {
    this_or_current(context)?;
    version.set(API_VERSION);
    Ok(())
}

/// cuCtxSynchronize
pub(crate) fn synchronize() -> CuResult<()> {
    let context = crate::state::current_context()?;
    forbid_context_wait(&context)?;
    fetch_all()?;
    let watched = before_wait();
    let mark = pool_order::before_context_wait();
    context.call(&Command::ContextSynchronize { context: context.id })?;
    at_rest(watched, |stream| stream.context.handle == context.handle);
    pool_order::context_done(mark, &context)
}

/// cuCtxSynchronize_v2
pub(crate) fn synchronize_v2(context: ContextHandle) -> CuResult<()> {
    let context = this_or_current(context)?;
    context.check()?;
    forbid_context_wait(&context)?;
    fetch_all()?;
    let watched = before_wait();
    let mark = pool_order::before_context_wait();
    context.call(&Command::ContextSynchronize { context: context.id })?;
    at_rest(watched, |stream| stream.context.handle == context.handle);
    pool_order::context_done(mark, &context)
}

/// cuCtxGetLimit
pub(crate) fn limit(mut value: Out<'_, usize>, limit: u32) -> CuResult<()> {
    let found = with_current(|context| {
        context.check_alive()?;
        context.limit(limit).ok_or(CudaError::INVALID_VALUE)
    })?;
    value.set(found as usize);
    Ok(())
}

/// cuCtxSetLimit
pub(crate) fn set_limit(limit: u32, value: usize) -> CuResult<()> {
    with_current(|context| {
        context.check()?;
        forbid_unsafe_call()?;
        context.set_limit(limit, value as u64)
    })
}

/// cuCtxGetCacheConfig
pub(crate) fn cache_config(mut config: Out<'_, u32>) -> CuResult<()> {
    config.set(with_current(|context| Ok(context.cache_config.load(Ordering::Relaxed)))?);
    Ok(())
}

/// cuCtxSetCacheConfig
pub(crate) fn set_cache_config(config: u32) -> CuResult<()> {
    if config > CU_FUNC_CACHE_PREFER_EQUAL {
        return Err(CudaError::INVALID_VALUE);
    }
    forbid_unsafe_call()?;
    with_current(|context| {
        context.cache_config.store(config, Ordering::Relaxed);
        Ok(())
    })
}

/// cuCtxGetSharedMemConfig
pub(crate) fn shared_memory_config(mut config: Out<'_, u32>) -> CuResult<()> {
    // No GPU of the last ten years has another bank size, whatever was asked for.
    with_current(|_| Ok(()))?;
    config.set(CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE);
    Ok(())
}

/// cuCtxSetSharedMemConfig
pub(crate) fn set_shared_memory_config(config: u32) -> CuResult<()> {
    if config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE {
        return Err(CudaError::INVALID_VALUE);
    }
    with_current(|context| {
        context.shared_memory_config.store(config, Ordering::Relaxed);
        Ok(())
    })
}

/// cuCtxGetStreamPriorityRange
pub(crate) fn stream_priority_range(
    least_priority: Option<Out<'_, i32>>,
    greatest_priority: Option<Out<'_, i32>>,
) -> CuResult<()> {
    let (least, greatest) = with_current(|context| Ok(context.device()?.info.stream_priorities))?;
    if let Some(mut place) = least_priority {
        place.set(least);
    }
    if let Some(mut place) = greatest_priority {
        place.set(greatest);
    }
    Ok(())
}

/// cuCtxGetExecAffinity
pub(crate) fn exec_affinity(_exec_affinity: Out<'_, CUexecAffinityParam>, _kind: u32) -> CuResult<()> {
    with_current(|_| Ok(()))?;
    Err(CudaError::UNSUPPORTED_EXEC_AFFINITY)
}

/// cuCtxResetPersistingL2Cache
pub(crate) fn reset_persisting_l2_cache() -> CuResult<()> {
    // Nothing is ever made to persist: access policies are hints that may be ignored.
    with_current(|context| context.check())
}
