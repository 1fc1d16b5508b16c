//! Bodies: libraries.

#![allow(unsafe_code)]

use crate::{
    api::{jit::JitArguments, module::read_file},
    border::*,
    image::{read_image, usable},
    state::{Context, Image, Library, client, current, current_context},
};
use core::ffi::CStr;
use cuda_abi::*;
use std::sync::Arc;

/// Where a library is looked at first: it needs no current context, but some device must read it.
fn first_context() -> CuResult<Arc<Context>> {
    match current() {
        Some(context) if context.check().is_ok() => Ok(context),
        _ => Ok(Arc::clone(&client()?.devices.first().ok_or(CudaError::NO_DEVICE)?.primary)),
    }
}

fn load(image: Image, options: &[u32], mut values: InOutSlice<'_, u64>) -> CuResult<LibraryHandle> {
    let mut arguments = JitArguments::new(options, Some(&mut values))?;
    let loaded = Library::load(&first_context()?, image, arguments.scalars().to_vec());
    let log = loaded.as_ref().map(|library| library.info_log()).map_err(|error| *error);
    arguments.report(log.as_deref().map_err(|error| *error));
    Ok(LibraryHandle(loaded?.handle))
}

/// cuLibraryLoadData
pub(crate) fn load_data(
    mut library: Out<'_, LibraryHandle>,
    code: u64,
    jit_options: &[u32],
    jit_options_values: InOutSlice<'_, u64>,
    _num_jit_options: u32,
    _library_options: Option<&[u32]>,
    _library_option_values: Option<&[u64]>,
    _num_library_options: u32,
) -> CuResult<()> {
    // SAFETY: the caller of the API function hands over the address of an image.
    let image = unsafe { read_image(code, first_context()?.device()?) }?;
    library.set(load(image, jit_options, jit_options_values)?);
    Ok(())
}

/// cuLibraryLoadFromFile
pub(crate) fn load_from_file(
    mut library: Out<'_, LibraryHandle>,
    file_name: &CStr,
    jit_options: &[u32],
    jit_options_values: InOutSlice<'_, u64>,
    _num_jit_options: u32,
    _library_options: Option<&[u32]>,
    _library_option_values: Option<&[u64]>,
    _num_library_options: u32,
) -> CuResult<()> {
    let image = usable(&read_file(file_name)?, first_context()?.device()?)?;
    library.set(load(image, jit_options, jit_options_values)?);
    Ok(())
}

/// cuLibraryUnload
pub(crate) fn unload(library: LibraryHandle) -> CuResult<()> {
    Library::find(library.0)?.unload()
}

/// cuLibraryGetKernel
pub(crate) fn kernel(mut kernel: Out<'_, KernelHandle>, library: LibraryHandle, name: &CStr) -> CuResult<()> {
    kernel.set(KernelHandle(Library::find(library.0)?.kernel(&name.to_string_lossy())?.handle));
    Ok(())
}

/// cuLibraryGetKernelCount
pub(crate) fn kernel_count(mut count: Out<'_, u32>, library: LibraryHandle) -> CuResult<()> {
    count.set(Library::find(library.0)?.kernel_count() as u32);
    Ok(())
}

/// cuLibraryEnumerateKernels
pub(crate) fn enumerate_kernels(
    mut kernels: OutSlice<'_, KernelHandle>,
    num_kernels: u32,
    library: LibraryHandle,
) -> CuResult<()> {
    let library = Library::find(library.0)?;
    for index in 0..num_kernels.min(library.kernel_count() as u32) {
        kernels.set(index as usize, KernelHandle(library.kernel_at(index)?.handle));
    }
    Ok(())
}

/// cuLibraryGetModule
pub(crate) fn module(mut module: Out<'_, ModuleHandle>, library: LibraryHandle) -> CuResult<()> {
    let found = Library::find(library.0)?.module_in(&current_context()?)?;
    module.set(ModuleHandle(found.handle));
    Ok(())
}

/// cuLibraryGetManaged
pub(crate) fn managed(
    device_pointer: Option<Out<'_, u64>>,
    bytes: Option<Out<'_, usize>>,
    library: LibraryHandle,
    name: &CStr,
) -> CuResult<()> {
    if device_pointer.is_none() && bytes.is_none() {
        return Err(CudaError::INVALID_VALUE);
    }
    let name = name.to_str().map_err(|_| CudaError::NOT_FOUND)?;
    let variable = Library::find(library.0)?.managed_variable(name)?;
    if let Some(mut device_pointer) = device_pointer {
        device_pointer.set(variable.address);
    }
    if let Some(mut bytes) = bytes {
        bytes.set(variable.bytes as usize);
    }
    Ok(())
}

/// cuLibraryGetGlobal
pub(crate) fn global(
    device_pointer: Option<Out<'_, u64>>,
    bytes: Option<Out<'_, usize>>,
    library: LibraryHandle,
    name: &CStr,
) -> CuResult<()> {
    let module = Library::find(library.0)?.module_in(&current_context()?)?;
    crate::api::module::global(device_pointer, bytes, ModuleHandle(module.handle), name)
}
