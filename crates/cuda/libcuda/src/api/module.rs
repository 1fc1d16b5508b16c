//! Bodies: modules.

#![allow(unsafe_code)]

use crate::{
    api::jit::JitArguments,
    border::*,
    image::{read_image, usable},
    state::{Module, current_context, forbid_unsafe_call},
};
use core::ffi::CStr;
use cuda_abi::*;
use std::os::unix::ffi::OsStrExt;

/// Loads the image at an address into the current context.
pub(crate) fn load_at(image: u64, options: &[u32], mut values: Option<InOutSlice<'_, u64>>) -> CuResult<u64> {
    let context = current_context()?;
    // SAFETY: the caller of the API function hands over the address of an image.
    let image = unsafe { read_image(image, context.device()?) }?;
    let mut arguments = JitArguments::new(options, values.as_mut())?;
    let loaded = Module::load(&context, &image, arguments.scalars());
    arguments.report(loaded.as_ref().map(|module| module.info_log.as_str()).map_err(|error| *error));
    Ok(loaded?.handle)
}

/// cuModuleLoad
pub(crate) fn load(mut module: Out<'_, ModuleHandle>, file_name: &CStr) -> CuResult<()> {
    let context = current_context()?;
    let image = read_file(file_name)?;
    let image = usable(&image, context.device()?)?;
    module.set(ModuleHandle(Module::load(&context, &image, &[])?.handle));
    Ok(())
}

/// An image in a file.
pub(crate) fn read_file(name: &CStr) -> CuResult<Vec<u8>> {
    std::fs::read(std::ffi::OsStr::from_bytes(name.to_bytes())).map_err(|_| CudaError::FILE_NOT_FOUND)
}

/// cuModuleLoadData
pub(crate) fn load_data(mut module: Out<'_, ModuleHandle>, image: u64) -> CuResult<()> {
    module.set(ModuleHandle(load_at(image, &[], None)?));
    Ok(())
}

/// cuModuleLoadDataEx
pub(crate) fn load_data_ex(
    mut module: Out<'_, ModuleHandle>,
    image: u64,
    _num_options: u32,
    options: &[u32],
    option_values: InOutSlice<'_, u64>,
) -> CuResult<()> {
    module.set(ModuleHandle(load_at(image, options, Some(option_values))?));
    Ok(())
}

/// cuModuleLoadFatBinary
pub(crate) fn load_fat_binary(module: Out<'_, ModuleHandle>, fat_cubin: u64) -> CuResult<()> {
    load_data(module, fat_cubin)
}

/// cuModuleUnload
pub(crate) fn unload(module: ModuleHandle) -> CuResult<()> {
    let module = Module::find(module.0)?;
    forbid_unsafe_call()?;
    module.unload()
}

/// cuModuleGetLoadingMode: functions are ready when their module is.
pub(crate) fn loading_mode(mut mode: Out<'_, u32>) -> CuResult<()> {
    mode.set(match std::env::var("CUDA_MODULE_LOADING").as_deref() {
        Ok("EAGER") => CU_MODULE_EAGER_LOADING,
        _ => CU_MODULE_LAZY_LOADING,
    });
    Ok(())
}

/// cuModuleGetFunction
pub(crate) fn function(
    mut function: Out<'_, FunctionHandle>,
    module: ModuleHandle,
    name: &CStr,
) -> CuResult<()> {
    let found = Module::find(module.0)?.function(&name.to_string_lossy())?;
    function.set(FunctionHandle(found.handle));
    Ok(())
}

/// cuModuleGetFunctionCount
pub(crate) fn function_count(mut count: Out<'_, u32>, module: ModuleHandle) -> CuResult<()> {
    count.set(Module::find(module.0)?.kernel_count() as u32);
    Ok(())
}

/// cuModuleEnumerateFunctions
pub(crate) fn enumerate_functions(
    mut functions: OutSlice<'_, FunctionHandle>,
    num_functions: u32,
    module: ModuleHandle,
) -> CuResult<()> {
    let module = Module::find(module.0)?;
    for index in 0..num_functions.min(module.kernel_count() as u32) {
        functions.set(index as usize, FunctionHandle(module.function_at(index)?.handle));
    }
    Ok(())
}

/// cuModuleGetGlobal_v2
pub(crate) fn global(
    device_pointer: Option<Out<'_, u64>>,
    bytes: Option<Out<'_, usize>>,
    module: ModuleHandle,
    name: &CStr,
) -> CuResult<()> {
    if device_pointer.is_none() && bytes.is_none() {
        return Err(CudaError::INVALID_VALUE);
    }
    let module = Module::find(module.0)?;
    let variable = module.variables.get(&*name.to_string_lossy()).ok_or(CudaError::NOT_FOUND)?;
    if let Some(mut place) = device_pointer {
        place.set(variable.address);
    }
    if let Some(mut place) = bytes {
        place.set(variable.bytes as usize);
    }
    Ok(())
}
