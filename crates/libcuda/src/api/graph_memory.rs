//! Bodies: graph memory.

#![allow(unused_imports, unused_variables, clippy::too_many_arguments)]

use crate::{border::*, process};
use core::ffi::CStr;
use cuda_abi::*;

/// cuDeviceGraphMemTrim
pub(crate) fn trim(device: i32) -> CuResult<()> {
    Err(process::pending("cuDeviceGraphMemTrim"))
}

/// cuDeviceGetGraphMemAttribute
pub(crate) fn attribute(device: i32, attribute: u32, value: OutAny<'_>) -> CuResult<()> {
    Err(process::pending("cuDeviceGetGraphMemAttribute"))
}

/// cuDeviceSetGraphMemAttribute
pub(crate) fn set_attribute(device: i32, attribute: u32, value: InAny<'_>) -> CuResult<()> {
    Err(process::pending("cuDeviceSetGraphMemAttribute"))
}
