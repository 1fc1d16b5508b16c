//! Bodies: stream.

#![allow(unused_imports, unused_variables, clippy::too_many_arguments)]

use crate::{border::*, process};
use core::ffi::CStr;
use cuda_abi::*;

/// cuStreamCreate
pub(crate) fn create(stream: Out<'_, StreamHandle>, flags: u32) -> CuResult<()> {
    Err(process::pending("cuStreamCreate"))
}

/// cuStreamCreateWithPriority
pub(crate) fn create_with_priority(stream: Out<'_, StreamHandle>, flags: u32, priority: i32) -> CuResult<()> {
    Err(process::pending("cuStreamCreateWithPriority"))
}

/// cuStreamDestroy_v2 cuStreamDestroy
pub(crate) fn destroy(stream: StreamHandle) -> CuResult<()> {
    Err(process::pending("cuStreamDestroy_v2"))
}

/// cuStreamQuery cuStreamQuery_ptsz
pub(crate) fn query(stream: StreamArg) -> CuResult<()> {
    Err(process::pending("cuStreamQuery"))
}

/// cuStreamSynchronize cuStreamSynchronize_ptsz
pub(crate) fn synchronize(stream: StreamArg) -> CuResult<()> {
    Err(process::pending("cuStreamSynchronize"))
}

/// cuStreamWaitEvent cuStreamWaitEvent_ptsz
pub(crate) fn wait_event(stream: StreamArg, event: EventHandle, flags: u32) -> CuResult<()> {
    Err(process::pending("cuStreamWaitEvent"))
}

/// cuStreamGetPriority cuStreamGetPriority_ptsz
pub(crate) fn priority(stream: StreamArg, priority: Out<'_, i32>) -> CuResult<()> {
    Err(process::pending("cuStreamGetPriority"))
}

/// cuStreamGetFlags cuStreamGetFlags_ptsz
pub(crate) fn flags(stream: StreamArg, flags: Out<'_, u32>) -> CuResult<()> {
    Err(process::pending("cuStreamGetFlags"))
}

/// cuStreamGetId cuStreamGetId_ptsz
pub(crate) fn id(stream: StreamArg, stream_id: Out<'_, u64>) -> CuResult<()> {
    Err(process::pending("cuStreamGetId"))
}

/// cuStreamGetCtx cuStreamGetCtx_ptsz
pub(crate) fn context(stream: StreamArg, context: Out<'_, ContextHandle>) -> CuResult<()> {
    Err(process::pending("cuStreamGetCtx"))
}

/// cuStreamGetCtx_v2 cuStreamGetCtx_v2_ptsz
pub(crate) fn context_v2(
    stream: StreamArg,
    context: Out<'_, ContextHandle>,
    green_context: Option<Out<'_, GreenContextHandle>>,
) -> CuResult<()> {
    Err(process::pending("cuStreamGetCtx_v2"))
}

/// cuStreamGetDevice cuStreamGetDevice_ptsz
pub(crate) fn device(stream: StreamArg, device: Out<'_, i32>) -> CuResult<()> {
    Err(process::pending("cuStreamGetDevice"))
}

/// cuStreamGetGreenCtx
pub(crate) fn green_context(stream: StreamArg, green_context: Out<'_, GreenContextHandle>) -> CuResult<()> {
    Err(process::pending("cuStreamGetGreenCtx"))
}

/// cuStreamCopyAttributes cuStreamCopyAttributes_ptsz
pub(crate) fn copy_attributes(dst_stream: StreamArg, src_stream: StreamArg) -> CuResult<()> {
    Err(process::pending("cuStreamCopyAttributes"))
}

/// cuStreamGetAttribute cuStreamGetAttribute_ptsz
pub(crate) fn attribute(
    stream: StreamArg,
    attribute: u32,
    value: Out<'_, CUlaunchAttributeValue>,
) -> CuResult<()> {
    Err(process::pending("cuStreamGetAttribute"))
}

/// cuStreamSetAttribute cuStreamSetAttribute_ptsz
pub(crate) fn set_attribute(
    stream: StreamArg,
    attribute: u32,
    param: &CUlaunchAttributeValue,
) -> CuResult<()> {
    Err(process::pending("cuStreamSetAttribute"))
}

/// cuLaunchHostFunc cuLaunchHostFunc_ptsz
pub(crate) fn launch_host_func(stream: StreamArg, function: HostFn, user_data: u64) -> CuResult<()> {
    Err(process::pending("cuLaunchHostFunc"))
}

/// cuStreamAddCallback cuStreamAddCallback_ptsz
pub(crate) fn add_callback(
    stream: StreamArg,
    callback: StreamCallback,
    user_data: u64,
    flags: u32,
) -> CuResult<()> {
    Err(process::pending("cuStreamAddCallback"))
}
