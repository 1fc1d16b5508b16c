//! Bodies: launch.

#![allow(unused_imports, unused_variables, clippy::too_many_arguments)]

use crate::{border::*, process};
use core::ffi::CStr;
use cuda_abi::*;

/// cuLaunchKernel cuLaunchKernel_ptsz
pub(crate) fn kernel(
    function: FunctionHandle,
    grid_dim_x: u32,
    grid_dim_y: u32,
    grid_dim_z: u32,
    block_dim_x: u32,
    block_dim_y: u32,
    block_dim_z: u32,
    shared_mem_bytes: u32,
    stream: StreamArg,
    kernel_params: u64,
    extra: u64,
) -> CuResult<()> {
    Err(process::pending("cuLaunchKernel"))
}

/// cuLaunchKernelEx cuLaunchKernelEx_ptsz
pub(crate) fn kernel_ex(
    config: &CUlaunchConfig,
    function: FunctionHandle,
    kernel_params: u64,
    extra: u64,
    default_stream: StreamArg,
) -> CuResult<()> {
    Err(process::pending("cuLaunchKernelEx"))
}

/// cuLaunchCooperativeKernel cuLaunchCooperativeKernel_ptsz
pub(crate) fn cooperative_kernel(
    function: FunctionHandle,
    grid_dim_x: u32,
    grid_dim_y: u32,
    grid_dim_z: u32,
    block_dim_x: u32,
    block_dim_y: u32,
    block_dim_z: u32,
    shared_mem_bytes: u32,
    stream: StreamArg,
    kernel_params: u64,
) -> CuResult<()> {
    Err(process::pending("cuLaunchCooperativeKernel"))
}
