//! Bodies: profiler.

#![allow(unused_imports, unused_variables, clippy::too_many_arguments)]

use crate::{border::*, process};
use core::ffi::CStr;
use cuda_abi::*;

/// cuProfilerStart
pub(crate) fn start() -> CuResult<()> {
    Err(process::pending("cuProfilerStart"))
}

/// cuProfilerStop
pub(crate) fn stop() -> CuResult<()> {
    Err(process::pending("cuProfilerStop"))
}
