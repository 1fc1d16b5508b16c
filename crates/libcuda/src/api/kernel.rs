//! Bodies: kernel.

#![allow(unused_imports, unused_variables, clippy::too_many_arguments)]

use crate::{border::*, process};
use core::ffi::CStr;
use cuda_abi::*;

/// cuKernelGetFunction
pub(crate) fn function(function: Out<'_, FunctionHandle>, kernel: KernelHandle) -> CuResult<()> {
    Err(process::pending("cuKernelGetFunction"))
}

/// cuKernelGetLibrary
pub(crate) fn library(library: Out<'_, LibraryHandle>, kernel: KernelHandle) -> CuResult<()> {
    Err(process::pending("cuKernelGetLibrary"))
}

/// cuKernelGetAttribute
pub(crate) fn attribute(
    value: Out<'_, i32>,
    attribute: u32,
    kernel: KernelHandle,
    device: i32,
) -> CuResult<()> {
    Err(process::pending("cuKernelGetAttribute"))
}

/// cuKernelSetAttribute
pub(crate) fn set_attribute(attribute: u32, value: i32, kernel: KernelHandle, device: i32) -> CuResult<()> {
    Err(process::pending("cuKernelSetAttribute"))
}

/// cuKernelSetCacheConfig
pub(crate) fn set_cache_config(kernel: KernelHandle, config: u32, device: i32) -> CuResult<()> {
    Err(process::pending("cuKernelSetCacheConfig"))
}

/// cuKernelGetName
pub(crate) fn name(name: Out<'_, u64>, function: KernelHandle) -> CuResult<()> {
    Err(process::pending("cuKernelGetName"))
}

/// cuKernelGetParamInfo
pub(crate) fn param_info(
    kernel: KernelHandle,
    param_index: usize,
    param_offset: Out<'_, usize>,
    param_size: Option<Out<'_, usize>>,
) -> CuResult<()> {
    Err(process::pending("cuKernelGetParamInfo"))
}
