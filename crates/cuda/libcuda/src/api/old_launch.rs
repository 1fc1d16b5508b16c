//! Bodies: launches as programs of CUDA 3 make them, with parameters that are set one at a time.

#![allow(unsafe_code)]

use super::launch;
use crate::{
    border::*,
    host,
    state::{Function, Reference, client, lock},
};
use cuda_abi::*;
use cuda_client::old_launch::OldLaunch;
use std::sync::Arc;

/// The keys of an `extra` array, as cuLaunchKernel takes it.
const BUFFER_POINTER: u64 = 1;
const BUFFER_SIZE: u64 = 2;
const END: u64 = 0;

fn find(handle: FunctionHandle) -> CuResult<Arc<Function>> {
    client()?.functions.get(handle.0).ok_or(CudaError::INVALID_HANDLE)
}

fn set(handle: FunctionHandle, change: impl FnOnce(&mut OldLaunch) -> CuResult<()>) -> CuResult<()> {
    change(&mut lock(&find(handle)?.old_launch))
}

/// cuFuncSetBlockShape
pub(crate) fn block_shape(function: FunctionHandle, x: i32, y: i32, z: i32) -> CuResult<()> {
    set(function, |settings| settings.set_block([x, y, z]))
}

/// cuFuncSetSharedSize
pub(crate) fn shared_size(function: FunctionHandle, bytes: u32) -> CuResult<()> {
    set(function, |settings| {
        settings.shared_bytes = bytes;
        Ok(())
    })
}

/// cuParamSetSize
pub(crate) fn parameter_size(function: FunctionHandle, bytes: u32) -> CuResult<()> {
    set(function, |settings| settings.set_size(bytes))
}

/// cuParamSetf
pub(crate) fn set_float(function: FunctionHandle, offset: i32, value: f32) -> CuResult<()> {
    set_word(function, offset, value.to_bits())
}

/// cuParamSeti
pub(crate) fn set_word(function: FunctionHandle, offset: i32, value: u32) -> CuResult<()> {
    set(function, |settings| {
        settings.parameter(offset, 4)?.copy_from_slice(&value.to_le_bytes());
        Ok(())
    })
}

/// cuParamSetTexRef: a kernel reads every reference of its module, so only the arguments are checked.
pub(crate) fn set_texture(function: FunctionHandle, unit: i32, reference: TextureRefHandle) -> CuResult<()> {
    /// `CU_PARAM_TR_DEFAULT`, the only unit that there ever was.
    const DEFAULT_UNIT: i32 = -1;
    find(function)?;
    Reference::find(reference.0, false)?;
    if unit == DEFAULT_UNIT { Ok(()) } else { Err(CudaError::INVALID_VALUE) }
}

/// cuParamSetv
pub(crate) fn set_bytes(function: FunctionHandle, offset: i32, source: u64, bytes: u32) -> CuResult<()> {
    if source == 0 && bytes > 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    set(function, |settings| {
        let room = settings.parameter(offset, bytes as usize)?;
        // SAFETY: the program says that so many bytes are at this address; `room` has as many.
        unsafe { host::copy_out(source, room) };
        Ok(())
    })
}

/// cuLaunch
pub(crate) fn launch(function: FunctionHandle) -> CuResult<()> {
    grid(function, 1, 1)
}

/// cuLaunchGrid
pub(crate) fn grid(function: FunctionHandle, width: i32, height: i32) -> CuResult<()> {
    grid_async(function, width, height, StreamArg::Legacy)
}

/// cuLaunchGridAsync
pub(crate) fn grid_async(
    function: FunctionHandle,
    width: i32,
    height: i32,
    stream: StreamArg,
) -> CuResult<()> {
    let settings = lock(&find(function)?.old_launch).clone();
    let size = |value: i32| u32::try_from(value).map_err(|_| CudaError::INVALID_VALUE);
    let (width, height, [x, y, z]) = (size(width)?, size(height)?, settings.block);
    let parameters = settings.parameters();
    let bytes = parameters.len();
    let extra = [BUFFER_POINTER, parameters.as_ptr() as u64, BUFFER_SIZE, &raw const bytes as u64, END];
    let extra = if bytes == 0 { 0 } else { extra.as_ptr() as u64 };
    launch::kernel(function, width, height, 1, x, y, z, settings.shared_bytes, stream, 0, extra)
}
