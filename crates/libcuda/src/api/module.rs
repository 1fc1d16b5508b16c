//! Bodies: module.

#![allow(unused_imports, unused_variables, clippy::too_many_arguments)]

use crate::{border::*, process};
use core::ffi::CStr;
use cuda_abi::*;

/// cuModuleLoad
pub(crate) fn load(module: Out<'_, ModuleHandle>, file_name: &CStr) -> CuResult<()> {
    Err(process::pending("cuModuleLoad"))
}

/// cuModuleLoadData
pub(crate) fn load_data(module: Out<'_, ModuleHandle>, image: u64) -> CuResult<()> {
    Err(process::pending("cuModuleLoadData"))
}

/// cuModuleLoadDataEx
pub(crate) fn load_data_ex(
    module: Out<'_, ModuleHandle>,
    image: u64,
    num_options: u32,
    options: &[u32],
    option_values: InOutSlice<'_, u64>,
) -> CuResult<()> {
    Err(process::pending("cuModuleLoadDataEx"))
}

/// cuModuleLoadFatBinary
pub(crate) fn load_fat_binary(module: Out<'_, ModuleHandle>, fat_cubin: u64) -> CuResult<()> {
    Err(process::pending("cuModuleLoadFatBinary"))
}

/// cuModuleUnload
pub(crate) fn unload(module: ModuleHandle) -> CuResult<()> {
    Err(process::pending("cuModuleUnload"))
}

/// cuModuleGetLoadingMode
pub(crate) fn loading_mode(mode: Out<'_, u32>) -> CuResult<()> {
    Err(process::pending("cuModuleGetLoadingMode"))
}

/// cuModuleGetFunction
pub(crate) fn function(function: Out<'_, FunctionHandle>, module: ModuleHandle, name: &CStr) -> CuResult<()> {
    Err(process::pending("cuModuleGetFunction"))
}

/// cuModuleGetFunctionCount
pub(crate) fn function_count(count: Out<'_, u32>, module: ModuleHandle) -> CuResult<()> {
    Err(process::pending("cuModuleGetFunctionCount"))
}

/// cuModuleEnumerateFunctions
pub(crate) fn enumerate_functions(
    functions: OutSlice<'_, FunctionHandle>,
    num_functions: u32,
    module: ModuleHandle,
) -> CuResult<()> {
    Err(process::pending("cuModuleEnumerateFunctions"))
}

/// cuModuleGetGlobal_v2
pub(crate) fn global(
    device_pointer: Option<Out<'_, u64>>,
    bytes: Option<Out<'_, usize>>,
    module: ModuleHandle,
    name: &CStr,
) -> CuResult<()> {
    Err(process::pending("cuModuleGetGlobal_v2"))
}
