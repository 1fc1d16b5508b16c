//! Bodies: memory.

#![allow(unused_imports, unused_variables, clippy::too_many_arguments)]

use crate::{border::*, process};
use core::ffi::CStr;
use cuda_abi::*;

/// cuMemGetInfo_v2
pub(crate) fn info(free: Out<'_, usize>, total: Out<'_, usize>) -> CuResult<()> {
    Err(process::pending("cuMemGetInfo_v2"))
}

/// cuMemAlloc_v2
pub(crate) fn alloc(device_pointer: Out<'_, u64>, byte_size: usize) -> CuResult<()> {
    Err(process::pending("cuMemAlloc_v2"))
}

/// cuMemAllocPitch_v2
pub(crate) fn alloc_pitch(
    device_pointer: Out<'_, u64>,
    pitch: Out<'_, usize>,
    width_in_bytes: usize,
    height: usize,
    element_size_bytes: u32,
) -> CuResult<()> {
    Err(process::pending("cuMemAllocPitch_v2"))
}

/// cuMemFree_v2
pub(crate) fn free(device_pointer: u64) -> CuResult<()> {
    Err(process::pending("cuMemFree_v2"))
}

/// cuMemGetAddressRange_v2
pub(crate) fn address_range(
    base: Option<Out<'_, u64>>,
    size: Option<Out<'_, usize>>,
    device_pointer: u64,
) -> CuResult<()> {
    Err(process::pending("cuMemGetAddressRange_v2"))
}
