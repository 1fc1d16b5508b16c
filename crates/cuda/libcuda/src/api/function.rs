//! Bodies: functions, that is kernels in one context. A `CUkernel` may stand where a `CUfunction` is expected.

use crate::{
    border::*,
    state::{Function, KernelSheet, cache_attributes, cached_attribute, client, current, function_behind},
};
use cuda_abi::*;
use std::sync::Arc;

/// Looks at the fact sheet behind a handle of either kind.
#[inline]
pub(crate) fn with_sheet<R>(handle: u64, read: impl Fn(&KernelSheet) -> CuResult<R>) -> CuResult<R> {
    let client = client()?;
    match client.functions.with(handle, |function| read(&function.sheet)) {
        Some(answer) => answer,
        None => match client.kernels.with(handle, |kernel| read(&kernel.sheet)) {
            Some(answer) => answer,
            None => {
                let function = function_behind(handle).ok_or(CudaError::INVALID_HANDLE)?;
                client
                    .functions
                    .with(function, |function| read(&function.sheet))
                    .unwrap_or(Err(CudaError::INVALID_HANDLE))
            }
        },
    }
}

/// The function behind a handle of a function or a kernel.
pub(crate) fn find(handle: FunctionHandle) -> CuResult<Arc<Function>> {
    let client = client()?;
    if let Some(function) = client.functions.get(handle.0) {
        return Ok(function);
    }
    match client.kernels.get(handle.0) {
        Some(kernel) => kernel.function(&*current().ok_or(CudaError::INVALID_CONTEXT)?),
        None => find(FunctionHandle(function_behind(handle.0).ok_or(CudaError::INVALID_HANDLE)?)),
    }
}

/// cuFuncGetAttribute
#[inline]
pub(crate) fn attribute(mut value: Out<'_, i32>, attribute: u32, function: FunctionHandle) -> CuResult<()> {
    value.set(match cached_attribute(function.0, attribute) {
        Some(known) => known,
        None => look_up_attribute(function.0, attribute)?,
    });
    Ok(())
}

#[cold]
pub(crate) fn look_up_attribute(handle: u64, attribute: u32) -> CuResult<i32> {
    with_sheet(handle, |sheet| {
        cache_attributes(handle, sheet);
        sheet.attribute(attribute)
    })
}

/// cuFuncSetAttribute
pub(crate) fn set_attribute(function: FunctionHandle, attribute: u32, value: i32) -> CuResult<()> {
    find(function)?.set_attribute(attribute, value)
}

/// cuFuncSetCacheConfig: a hint.
pub(crate) fn set_cache_config(function: FunctionHandle, config: u32) -> CuResult<()> {
    with_sheet(function.0, |_| Ok(()))?;
    if config > CU_FUNC_CACHE_PREFER_EQUAL { Err(CudaError::INVALID_VALUE) } else { Ok(()) }
}

/// cuFuncSetSharedMemConfig: no GPU in use has another bank size.
pub(crate) fn set_shared_memory_config(function: FunctionHandle, config: u32) -> CuResult<()> {
    with_sheet(function.0, |_| Ok(()))?;
    if config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE { Err(CudaError::INVALID_VALUE) } else { Ok(()) }
}

/// cuFuncGetModule
pub(crate) fn module(mut module: Out<'_, ModuleHandle>, function: FunctionHandle) -> CuResult<()> {
    let found = find(function)?.module.upgrade().ok_or(CudaError::INVALID_HANDLE)?;
    module.set(ModuleHandle(found.handle));
    Ok(())
}

/// cuFuncGetName
pub(crate) fn name(mut name: Out<'_, u64>, function: FunctionHandle) -> CuResult<()> {
    // The name stays where it is until the module is unloaded, as CUDA promises.
    name.set(with_sheet(function.0, |sheet| Ok(sheet.name.as_ptr() as u64))?);
    Ok(())
}

/// cuFuncGetParamInfo
pub(crate) fn param_info(
    function: FunctionHandle,
    param_index: usize,
    mut param_offset: Out<'_, usize>,
    param_size: Option<Out<'_, usize>>,
) -> CuResult<()> {
    let info = with_sheet(function.0, |sheet| sheet.parameter(param_index))?;
    param_offset.set(info.offset as usize);
    if let Some(mut size) = param_size {
        size.set(info.bytes as usize);
    }
    Ok(())
}

/// cuFuncIsLoaded
pub(crate) fn is_loaded(mut state: Out<'_, u32>, function: FunctionHandle) -> CuResult<()> {
    with_sheet(function.0, |_| Ok(()))?;
    state.set(CU_FUNCTION_LOADING_STATE_LOADED);
    Ok(())
}

/// cuFuncLoad
pub(crate) fn load(function: FunctionHandle) -> CuResult<()> {
    find(function).map(drop)
}
