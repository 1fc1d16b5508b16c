//! Bodies: init.

#![allow(unused_imports, unused_variables, clippy::too_many_arguments)]

use crate::{border::*, process};
use core::ffi::CStr;
use cuda_abi::*;

/// cuInit
pub(crate) fn init(flags: u32) -> CuResult<()> {
    Err(process::pending("cuInit"))
}

/// cuDriverGetVersion
pub(crate) fn driver_version(driver_version: Out<'_, i32>) -> CuResult<()> {
    Err(process::pending("cuDriverGetVersion"))
}

/// cuGetErrorName
pub(crate) fn error_name(error: u32, text: Out<'_, u64>) -> CuResult<()> {
    Err(process::pending("cuGetErrorName"))
}

/// cuGetErrorString
pub(crate) fn error_string(error: u32, text: Out<'_, u64>) -> CuResult<()> {
    Err(process::pending("cuGetErrorString"))
}

/// cuGetProcAddress
pub(crate) fn proc_address(
    symbol: &CStr,
    function_pointer: Out<'_, u64>,
    cuda_version: i32,
    flags: u64,
) -> CuResult<()> {
    Err(process::pending("cuGetProcAddress"))
}

/// cuGetProcAddress_v2
pub(crate) fn proc_address_v2(
    symbol: &CStr,
    function_pointer: Out<'_, u64>,
    cuda_version: i32,
    flags: u64,
    symbol_status: Option<Out<'_, u32>>,
) -> CuResult<()> {
    Err(process::pending("cuGetProcAddress_v2"))
}

/// cuGetExportTable
pub(crate) fn export_table(table: Out<'_, u64>, id: &CUuuid) -> CuResult<()> {
    Err(process::pending("cuGetExportTable"))
}
