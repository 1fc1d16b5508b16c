//! Bodies: stream memory.

#![allow(unused_imports, unused_variables, clippy::too_many_arguments)]

use crate::{border::*, process};
use core::ffi::CStr;
use cuda_abi::*;

/// cuStreamWriteValue32_v2 cuStreamWriteValue32_v2_ptsz cuStreamWriteValue32 cuStreamWriteValue32_ptsz
pub(crate) fn write_value_32(stream: StreamArg, addr: u64, value: u32, flags: u32) -> CuResult<()> {
    Err(process::pending("cuStreamWriteValue32_v2"))
}

/// cuStreamWriteValue64_v2 cuStreamWriteValue64_v2_ptsz cuStreamWriteValue64 cuStreamWriteValue64_ptsz
pub(crate) fn write_value_64(stream: StreamArg, addr: u64, value: u64, flags: u32) -> CuResult<()> {
    Err(process::pending("cuStreamWriteValue64_v2"))
}

/// cuStreamWaitValue32_v2 cuStreamWaitValue32_v2_ptsz cuStreamWaitValue32 cuStreamWaitValue32_ptsz
pub(crate) fn wait_value_32(stream: StreamArg, addr: u64, value: u32, flags: u32) -> CuResult<()> {
    Err(process::pending("cuStreamWaitValue32_v2"))
}

/// cuStreamWaitValue64_v2 cuStreamWaitValue64_v2_ptsz cuStreamWaitValue64 cuStreamWaitValue64_ptsz
pub(crate) fn wait_value_64(stream: StreamArg, addr: u64, value: u64, flags: u32) -> CuResult<()> {
    Err(process::pending("cuStreamWaitValue64_v2"))
}

/// cuStreamBatchMemOp_v2 cuStreamBatchMemOp_v2_ptsz cuStreamBatchMemOp cuStreamBatchMemOp_ptsz
pub(crate) fn batch(
    stream: StreamArg,
    count: u32,
    param_array: &[CUstreamBatchMemOpParams],
    flags: u32,
) -> CuResult<()> {
    Err(process::pending("cuStreamBatchMemOp_v2"))
}
