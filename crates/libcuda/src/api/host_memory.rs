//! Bodies: host memory.

#![allow(unused_imports, unused_variables, clippy::too_many_arguments)]

use crate::{border::*, process};
use core::ffi::CStr;
use cuda_abi::*;

/// cuMemAllocHost_v2
pub(crate) fn alloc(host_pointer: Out<'_, u64>, byte_size: usize) -> CuResult<()> {
    Err(process::pending("cuMemAllocHost_v2"))
}

/// cuMemHostAlloc
pub(crate) fn alloc_flags(host_pointer: Out<'_, u64>, byte_size: usize, flags: u32) -> CuResult<()> {
    Err(process::pending("cuMemHostAlloc"))
}

/// cuMemFreeHost
pub(crate) fn free(host_pointer: u64) -> CuResult<()> {
    Err(process::pending("cuMemFreeHost"))
}

/// cuMemHostGetDevicePointer_v2
pub(crate) fn device_pointer(device_pointer: Out<'_, u64>, host_pointer: u64, flags: u32) -> CuResult<()> {
    Err(process::pending("cuMemHostGetDevicePointer_v2"))
}

/// cuMemHostGetFlags
pub(crate) fn flags(flags: Out<'_, u32>, host_pointer: u64) -> CuResult<()> {
    Err(process::pending("cuMemHostGetFlags"))
}

/// cuMemHostRegister_v2 cuMemHostRegister
pub(crate) fn register(host_pointer: u64, byte_size: usize, flags: u32) -> CuResult<()> {
    Err(process::pending("cuMemHostRegister_v2"))
}

/// cuMemHostUnregister
pub(crate) fn unregister(host_pointer: u64) -> CuResult<()> {
    Err(process::pending("cuMemHostUnregister"))
}
