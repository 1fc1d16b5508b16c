//! Bodies: kernels, that is code of a library in whatever context uses it.

use crate::{
    api::function,
    border::*,
    state::{Kernel, cached_attribute, client, with_current},
};
use cuda_abi::*;
use std::sync::Arc;

fn find(handle: KernelHandle) -> CuResult<Arc<Kernel>> {
    client()?.kernels.get(handle.0).ok_or(CudaError::INVALID_HANDLE)
}

/// cuKernelGetFunction
pub(crate) fn function(mut function: Out<'_, FunctionHandle>, kernel: KernelHandle) -> CuResult<()> {
    let found = find(kernel)?;
    function.set(FunctionHandle(with_current(|context| {
        context.check()?;
        Ok(found.function(context)?.handle)
    })?));
    Ok(())
}

/// cuKernelGetLibrary
pub(crate) fn library(mut library: Out<'_, LibraryHandle>, kernel: KernelHandle) -> CuResult<()> {
    library.set(LibraryHandle(find(kernel)?.library.upgrade().ok_or(CudaError::INVALID_HANDLE)?.handle));
    Ok(())
}

/// cuKernelGetAttribute
pub(crate) fn attribute(
    mut value: Out<'_, i32>,
    attribute: u32,
    kernel: KernelHandle,
    device: i32,
) -> CuResult<()> {
    client()?.device(device)?;
    value.set(match cached_attribute(kernel.0, attribute) {
        Some(known) => known,
        None => {
            find(kernel)?;
            function::look_up_attribute(kernel.0, attribute)?
        }
    });
    Ok(())
}

/// cuKernelSetAttribute
pub(crate) fn set_attribute(attribute: u32, value: i32, kernel: KernelHandle, device: i32) -> CuResult<()> {
    client()?.device(device)?;
    find(kernel)?.set_attribute(attribute, value)
}

/// cuKernelSetCacheConfig
pub(crate) fn set_cache_config(kernel: KernelHandle, config: u32, device: i32) -> CuResult<()> {
    client()?.device(device)?;
    function::set_cache_config(FunctionHandle(kernel.0), config)
}

/// cuKernelGetName
pub(crate) fn name(name: Out<'_, u64>, kernel: KernelHandle) -> CuResult<()> {
    function::name(name, FunctionHandle(kernel.0))
}

/// cuKernelGetParamInfo
pub(crate) fn param_info(
    kernel: KernelHandle,
    param_index: usize,
    param_offset: Out<'_, usize>,
    param_size: Option<Out<'_, usize>>,
) -> CuResult<()> {
    function::param_info(FunctionHandle(kernel.0), param_index, param_offset, param_size)
}
