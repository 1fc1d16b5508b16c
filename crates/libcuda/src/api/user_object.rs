//! Bodies: user object.

#![allow(unused_imports, unused_variables, clippy::too_many_arguments)]

use crate::{border::*, process};
use core::ffi::CStr;
use cuda_abi::*;

/// cuUserObjectCreate
pub(crate) fn create(
    object_out: Out<'_, UserObjectHandle>,
    pointer: u64,
    destructor: HostFn,
    initial_refcount: u32,
    flags: u32,
) -> CuResult<()> {
    Err(process::pending("cuUserObjectCreate"))
}

/// cuUserObjectRetain
pub(crate) fn retain(object: UserObjectHandle, count: u32) -> CuResult<()> {
    Err(process::pending("cuUserObjectRetain"))
}

/// cuUserObjectRelease
pub(crate) fn release(object: UserObjectHandle, count: u32) -> CuResult<()> {
    Err(process::pending("cuUserObjectRelease"))
}

/// cuGraphRetainUserObject
pub(crate) fn graph_retain(
    graph: GraphHandle,
    object: UserObjectHandle,
    count: u32,
    flags: u32,
) -> CuResult<()> {
    Err(process::pending("cuGraphRetainUserObject"))
}

/// cuGraphReleaseUserObject
pub(crate) fn graph_release(graph: GraphHandle, object: UserObjectHandle, count: u32) -> CuResult<()> {
    Err(process::pending("cuGraphReleaseUserObject"))
}
