//! Bodies: context.

#![allow(unused_imports, unused_variables, clippy::too_many_arguments)]

use crate::{border::*, process};
use core::ffi::CStr;
use cuda_abi::*;

/// cuDevicePrimaryCtxRetain
pub(crate) fn primary_retain(context: Out<'_, ContextHandle>, device: i32) -> CuResult<()> {
    Err(process::pending("cuDevicePrimaryCtxRetain"))
}

/// cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxRelease
pub(crate) fn primary_release(device: i32) -> CuResult<()> {
    Err(process::pending("cuDevicePrimaryCtxRelease_v2"))
}

/// cuDevicePrimaryCtxReset_v2 cuDevicePrimaryCtxReset
pub(crate) fn primary_reset(device: i32) -> CuResult<()> {
    Err(process::pending("cuDevicePrimaryCtxReset_v2"))
}

/// cuDevicePrimaryCtxSetFlags_v2 cuDevicePrimaryCtxSetFlags
pub(crate) fn primary_set_flags(device: i32, flags: u32) -> CuResult<()> {
    Err(process::pending("cuDevicePrimaryCtxSetFlags_v2"))
}

/// cuDevicePrimaryCtxGetState
pub(crate) fn primary_state(device: i32, flags: Out<'_, u32>, active: Out<'_, i32>) -> CuResult<()> {
    Err(process::pending("cuDevicePrimaryCtxGetState"))
}

/// cuCtxCreate_v2 cuCtxCreate
pub(crate) fn create(context: Out<'_, ContextHandle>, flags: u32, device: i32) -> CuResult<()> {
    Err(process::pending("cuCtxCreate_v2"))
}

/// cuCtxCreate_v3
pub(crate) fn create_v3(
    context: Out<'_, ContextHandle>,
    params_array: &[CUexecAffinityParam],
    num_params: i32,
    flags: u32,
    device: i32,
) -> CuResult<()> {
    Err(process::pending("cuCtxCreate_v3"))
}

/// cuCtxCreate_v4
pub(crate) fn create_v4(
    context: Out<'_, ContextHandle>,
    ctx_create_params: Option<&CUctxCreateParams>,
    flags: u32,
    device: i32,
) -> CuResult<()> {
    Err(process::pending("cuCtxCreate_v4"))
}

/// cuCtxDestroy_v2 cuCtxDestroy
pub(crate) fn destroy(context: ContextHandle) -> CuResult<()> {
    Err(process::pending("cuCtxDestroy_v2"))
}

/// cuCtxAttach
pub(crate) fn attach(context: Out<'_, ContextHandle>, flags: u32) -> CuResult<()> {
    Err(process::pending("cuCtxAttach"))
}

/// cuCtxDetach
pub(crate) fn detach(context: ContextHandle) -> CuResult<()> {
    Err(process::pending("cuCtxDetach"))
}

/// cuCtxPushCurrent_v2 cuCtxPushCurrent
pub(crate) fn push_current(context: ContextHandle) -> CuResult<()> {
    Err(process::pending("cuCtxPushCurrent_v2"))
}

/// cuCtxPopCurrent_v2 cuCtxPopCurrent
pub(crate) fn pop_current(context: Option<Out<'_, ContextHandle>>) -> CuResult<()> {
    Err(process::pending("cuCtxPopCurrent_v2"))
}

/// cuCtxSetCurrent
pub(crate) fn set_current(context: ContextHandle) -> CuResult<()> {
    Err(process::pending("cuCtxSetCurrent"))
}

/// cuCtxGetCurrent
pub(crate) fn current(context: Out<'_, ContextHandle>) -> CuResult<()> {
    Err(process::pending("cuCtxGetCurrent"))
}

/// cuCtxGetDevice
pub(crate) fn device(device: Out<'_, i32>) -> CuResult<()> {
    Err(process::pending("cuCtxGetDevice"))
}

/// cuCtxGetDevice_v2
pub(crate) fn device_v2(device: Out<'_, i32>, context: ContextHandle) -> CuResult<()> {
    Err(process::pending("cuCtxGetDevice_v2"))
}

/// cuCtxGetFlags
pub(crate) fn flags(flags: Out<'_, u32>) -> CuResult<()> {
    Err(process::pending("cuCtxGetFlags"))
}

/// cuCtxSetFlags
pub(crate) fn set_flags(flags: u32) -> CuResult<()> {
    Err(process::pending("cuCtxSetFlags"))
}

/// cuCtxGetId
pub(crate) fn id(context: ContextHandle, ctx_id: Out<'_, u64>) -> CuResult<()> {
    Err(process::pending("cuCtxGetId"))
}

/// cuCtxGetApiVersion
pub(crate) fn api_version(context: ContextHandle, version: Out<'_, u32>) -> CuResult<()> {
    Err(process::pending("cuCtxGetApiVersion"))
}

/// cuCtxSynchronize
pub(crate) fn synchronize() -> CuResult<()> {
    Err(process::pending("cuCtxSynchronize"))
}

/// cuCtxSynchronize_v2
pub(crate) fn synchronize_v2(context: ContextHandle) -> CuResult<()> {
    Err(process::pending("cuCtxSynchronize_v2"))
}

/// cuCtxGetLimit
pub(crate) fn limit(value: Out<'_, usize>, limit: u32) -> CuResult<()> {
    Err(process::pending("cuCtxGetLimit"))
}

/// cuCtxSetLimit
pub(crate) fn set_limit(limit: u32, value: usize) -> CuResult<()> {
    Err(process::pending("cuCtxSetLimit"))
}

/// cuCtxGetCacheConfig
pub(crate) fn cache_config(config: Out<'_, u32>) -> CuResult<()> {
    Err(process::pending("cuCtxGetCacheConfig"))
}

/// cuCtxSetCacheConfig
pub(crate) fn set_cache_config(config: u32) -> CuResult<()> {
    Err(process::pending("cuCtxSetCacheConfig"))
}

/// cuCtxGetSharedMemConfig
pub(crate) fn shared_memory_config(config: Out<'_, u32>) -> CuResult<()> {
    Err(process::pending("cuCtxGetSharedMemConfig"))
}

/// cuCtxSetSharedMemConfig
pub(crate) fn set_shared_memory_config(config: u32) -> CuResult<()> {
    Err(process::pending("cuCtxSetSharedMemConfig"))
}

/// cuCtxGetStreamPriorityRange
pub(crate) fn stream_priority_range(
    least_priority: Option<Out<'_, i32>>,
    greatest_priority: Option<Out<'_, i32>>,
) -> CuResult<()> {
    Err(process::pending("cuCtxGetStreamPriorityRange"))
}

/// cuCtxGetExecAffinity
pub(crate) fn exec_affinity(exec_affinity: Out<'_, CUexecAffinityParam>, kind: u32) -> CuResult<()> {
    Err(process::pending("cuCtxGetExecAffinity"))
}

/// cuCtxResetPersistingL2Cache
pub(crate) fn reset_persisting_l2_cache() -> CuResult<()> {
    Err(process::pending("cuCtxResetPersistingL2Cache"))
}
