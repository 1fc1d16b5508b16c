//! Bodies: function.

#![allow(unused_imports, unused_variables, clippy::too_many_arguments)]

use crate::{border::*, process};
use core::ffi::CStr;
use cuda_abi::*;

/// cuFuncGetAttribute
pub(crate) fn attribute(value: Out<'_, i32>, attribute: u32, function: FunctionHandle) -> CuResult<()> {
    Err(process::pending("cuFuncGetAttribute"))
}

/// cuFuncSetAttribute
pub(crate) fn set_attribute(function: FunctionHandle, attribute: u32, value: i32) -> CuResult<()> {
    Err(process::pending("cuFuncSetAttribute"))
}

/// cuFuncSetCacheConfig
pub(crate) fn set_cache_config(function: FunctionHandle, config: u32) -> CuResult<()> {
    Err(process::pending("cuFuncSetCacheConfig"))
}

/// cuFuncSetSharedMemConfig
pub(crate) fn set_shared_memory_config(function: FunctionHandle, config: u32) -> CuResult<()> {
    Err(process::pending("cuFuncSetSharedMemConfig"))
}

/// cuFuncGetModule
pub(crate) fn module(module: Out<'_, ModuleHandle>, function: FunctionHandle) -> CuResult<()> {
    Err(process::pending("cuFuncGetModule"))
}

/// cuFuncGetName
pub(crate) fn name(name: Out<'_, u64>, function: FunctionHandle) -> CuResult<()> {
    Err(process::pending("cuFuncGetName"))
}

/// cuFuncGetParamInfo
pub(crate) fn param_info(
    function: FunctionHandle,
    param_index: usize,
    param_offset: Out<'_, usize>,
    param_size: Option<Out<'_, usize>>,
) -> CuResult<()> {
    Err(process::pending("cuFuncGetParamInfo"))
}

/// cuFuncIsLoaded
pub(crate) fn is_loaded(state: Out<'_, u32>, function: FunctionHandle) -> CuResult<()> {
    Err(process::pending("cuFuncIsLoaded"))
}

/// cuFuncLoad
pub(crate) fn load(function: FunctionHandle) -> CuResult<()> {
    Err(process::pending("cuFuncLoad"))
}
