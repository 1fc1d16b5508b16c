//! Bodies: memset.

#![allow(unused_imports, unused_variables, clippy::too_many_arguments)]

use crate::{border::*, process};
use core::ffi::CStr;
use cuda_abi::*;

/// cuMemsetD8_v2 cuMemsetD8_v2_ptds
pub(crate) fn d8(dst_device: u64, value: u8, count: usize, default_stream: StreamArg) -> CuResult<()> {
    Err(process::pending("cuMemsetD8_v2"))
}

/// cuMemsetD8Async cuMemsetD8Async_ptsz
pub(crate) fn d8_async(dst_device: u64, value: u8, count: usize, stream: StreamArg) -> CuResult<()> {
    Err(process::pending("cuMemsetD8Async"))
}

/// cuMemsetD16_v2 cuMemsetD16_v2_ptds
pub(crate) fn d16(dst_device: u64, value: u16, count: usize, default_stream: StreamArg) -> CuResult<()> {
    Err(process::pending("cuMemsetD16_v2"))
}

/// cuMemsetD16Async cuMemsetD16Async_ptsz
pub(crate) fn d16_async(dst_device: u64, value: u16, count: usize, stream: StreamArg) -> CuResult<()> {
    Err(process::pending("cuMemsetD16Async"))
}

/// cuMemsetD32_v2 cuMemsetD32_v2_ptds
pub(crate) fn d32(dst_device: u64, value: u32, count: usize, default_stream: StreamArg) -> CuResult<()> {
    Err(process::pending("cuMemsetD32_v2"))
}

/// cuMemsetD32Async cuMemsetD32Async_ptsz
pub(crate) fn d32_async(dst_device: u64, value: u32, count: usize, stream: StreamArg) -> CuResult<()> {
    Err(process::pending("cuMemsetD32Async"))
}

/// cuMemsetD2D8_v2 cuMemsetD2D8_v2_ptds
pub(crate) fn d2d8(
    dst_device: u64,
    dst_pitch: usize,
    value: u8,
    width: usize,
    height: usize,
    default_stream: StreamArg,
) -> CuResult<()> {
    Err(process::pending("cuMemsetD2D8_v2"))
}

/// cuMemsetD2D8Async cuMemsetD2D8Async_ptsz
pub(crate) fn d2d8_async(
    dst_device: u64,
    dst_pitch: usize,
    value: u8,
    width: usize,
    height: usize,
    stream: StreamArg,
) -> CuResult<()> {
    Err(process::pending("cuMemsetD2D8Async"))
}

/// cuMemsetD2D16_v2 cuMemsetD2D16_v2_ptds
pub(crate) fn d2d16(
    dst_device: u64,
    dst_pitch: usize,
    value: u16,
    width: usize,
    height: usize,
    default_stream: StreamArg,
) -> CuResult<()> {
    Err(process::pending("cuMemsetD2D16_v2"))
}

/// cuMemsetD2D16Async cuMemsetD2D16Async_ptsz
pub(crate) fn d2d16_async(
    dst_device: u64,
    dst_pitch: usize,
    value: u16,
    width: usize,
    height: usize,
    stream: StreamArg,
) -> CuResult<()> {
    Err(process::pending("cuMemsetD2D16Async"))
}

/// cuMemsetD2D32_v2 cuMemsetD2D32_v2_ptds
pub(crate) fn d2d32(
    dst_device: u64,
    dst_pitch: usize,
    value: u32,
    width: usize,
    height: usize,
    default_stream: StreamArg,
) -> CuResult<()> {
    Err(process::pending("cuMemsetD2D32_v2"))
}

/// cuMemsetD2D32Async cuMemsetD2D32Async_ptsz
pub(crate) fn d2d32_async(
    dst_device: u64,
    dst_pitch: usize,
    value: u32,
    width: usize,
    height: usize,
    stream: StreamArg,
) -> CuResult<()> {
    Err(process::pending("cuMemsetD2D32Async"))
}
