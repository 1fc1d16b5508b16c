//! Bodies: event.

#![allow(unused_imports, unused_variables, clippy::too_many_arguments)]

use crate::{border::*, process};
use core::ffi::CStr;
use cuda_abi::*;

/// cuEventCreate
pub(crate) fn create(event: Out<'_, EventHandle>, flags: u32) -> CuResult<()> {
    Err(process::pending("cuEventCreate"))
}

/// cuEventDestroy_v2 cuEventDestroy
pub(crate) fn destroy(event: EventHandle) -> CuResult<()> {
    Err(process::pending("cuEventDestroy_v2"))
}

/// cuEventRecord cuEventRecord_ptsz
pub(crate) fn record(event: EventHandle, stream: StreamArg) -> CuResult<()> {
    Err(process::pending("cuEventRecord"))
}

/// cuEventRecordWithFlags cuEventRecordWithFlags_ptsz
pub(crate) fn record_with_flags(event: EventHandle, stream: StreamArg, flags: u32) -> CuResult<()> {
    Err(process::pending("cuEventRecordWithFlags"))
}

/// cuEventQuery
pub(crate) fn query(event: EventHandle) -> CuResult<()> {
    Err(process::pending("cuEventQuery"))
}

/// cuEventSynchronize
pub(crate) fn synchronize(event: EventHandle) -> CuResult<()> {
    Err(process::pending("cuEventSynchronize"))
}

/// cuEventElapsedTime
pub(crate) fn elapsed_time_v1(
    milliseconds: Out<'_, f32>,
    start: EventHandle,
    end: EventHandle,
) -> CuResult<()> {
    Err(process::pending("cuEventElapsedTime"))
}

/// cuEventElapsedTime_v2
pub(crate) fn elapsed_time_v2(
    milliseconds: Out<'_, f32>,
    start: EventHandle,
    end: EventHandle,
) -> CuResult<()> {
    Err(process::pending("cuEventElapsedTime_v2"))
}
