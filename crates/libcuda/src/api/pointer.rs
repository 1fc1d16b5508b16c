//! Bodies: pointer.

#![allow(unused_imports, unused_variables, clippy::too_many_arguments)]

use crate::{border::*, process};
use core::ffi::CStr;
use cuda_abi::*;

/// cuPointerGetAttribute
pub(crate) fn attribute(data: OutAny<'_>, attribute: u32, pointer: u64) -> CuResult<()> {
    Err(process::pending("cuPointerGetAttribute"))
}

/// cuPointerGetAttributes
pub(crate) fn attributes(
    num_attributes: u32,
    attributes: &[u32],
    data: &[u64],
    pointer: u64,
) -> CuResult<()> {
    Err(process::pending("cuPointerGetAttributes"))
}

/// cuPointerSetAttribute
pub(crate) fn set_attribute(value: InAny<'_>, attribute: u32, pointer: u64) -> CuResult<()> {
    Err(process::pending("cuPointerSetAttribute"))
}
