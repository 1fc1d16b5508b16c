//! Bodies: objects of the program that graphs keep alive.

use crate::{
    api::graph::graph_id,
    border::*,
    state::{UserObject, graphs},
};
use cuda_abi::*;

/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`: the only flag, and it must be given.
const NO_DESTRUCTOR_SYNC: u32 = 1;
/// `CU_GRAPH_USER_OBJECT_MOVE`.
const MOVE: u32 = 1;

fn check_count(count: u32) -> CuResult<()> {
    // The count is an int in the driver.
    if count == 0 || i32::try_from(count).is_err() { Err(CudaError::INVALID_VALUE) } else { Ok(()) }
}

/// cuUserObjectCreate
pub(crate) fn create(
    mut object_out: Out<'_, UserObjectHandle>,
    pointer: u64,
    destructor: HostFn,
    initial_refcount: u32,
    flags: u32,
) -> CuResult<()> {
    check_count(initial_refcount)?;
    if flags != NO_DESTRUCTOR_SYNC {
        return Err(CudaError::INVALID_VALUE);
    }
    object_out.set(UserObjectHandle(UserObject::create(pointer, destructor, initial_refcount)?));
    Ok(())
}

/// cuUserObjectRetain
pub(crate) fn retain(object: UserObjectHandle, count: u32) -> CuResult<()> {
    check_count(count)?;
    UserObject::retain(object.0, count)
}

/// cuUserObjectRelease
pub(crate) fn release(object: UserObjectHandle, count: u32) -> CuResult<()> {
    check_count(count)?;
    UserObject::release(object.0, count)
}

/// cuGraphRetainUserObject
pub(crate) fn graph_retain(
    graph: GraphHandle,
    object: UserObjectHandle,
    count: u32,
    flags: u32,
) -> CuResult<()> {
    check_count(count)?;
    if flags & !MOVE != 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    UserObject::check(object.0)?;
    graphs().graphs.retain_object(graph_id(graph), object.0, count)?;
    if flags & MOVE == 0 {
        UserObject::retain(object.0, count)?;
    }
    Ok(())
}

/// cuGraphReleaseUserObject: the driver does not mind whether the graph had as many.
pub(crate) fn graph_release(graph: GraphHandle, object: UserObjectHandle, count: u32) -> CuResult<()> {
    check_count(count)?;
    UserObject::check(object.0)?;
    graphs().graphs.release_object(graph_id(graph), object.0, count)?;
    UserObject::release(object.0, count)
}
