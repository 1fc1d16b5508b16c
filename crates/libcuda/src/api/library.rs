//! Bodies: library.

#![allow(unused_imports, unused_variables, clippy::too_many_arguments)]

use crate::{border::*, process};
use core::ffi::CStr;
use cuda_abi::*;

/// cuLibraryLoadData
pub(crate) fn load_data(
    library: Out<'_, LibraryHandle>,
    code: u64,
    jit_options: &[u32],
    jit_options_values: InOutSlice<'_, u64>,
    num_jit_options: u32,
    library_options: &[u32],
    library_option_values: &[u64],
    num_library_options: u32,
) -> CuResult<()> {
    Err(process::pending("cuLibraryLoadData"))
}

/// cuLibraryLoadFromFile
pub(crate) fn load_from_file(
    library: Out<'_, LibraryHandle>,
    file_name: &CStr,
    jit_options: &[u32],
    jit_options_values: InOutSlice<'_, u64>,
    num_jit_options: u32,
    library_options: &[u32],
    library_option_values: &[u64],
    num_library_options: u32,
) -> CuResult<()> {
    Err(process::pending("cuLibraryLoadFromFile"))
}

/// cuLibraryUnload
pub(crate) fn unload(library: LibraryHandle) -> CuResult<()> {
    Err(process::pending("cuLibraryUnload"))
}

/// cuLibraryGetKernel
pub(crate) fn kernel(kernel: Out<'_, KernelHandle>, library: LibraryHandle, name: &CStr) -> CuResult<()> {
    Err(process::pending("cuLibraryGetKernel"))
}

/// cuLibraryGetKernelCount
pub(crate) fn kernel_count(count: Out<'_, u32>, library: LibraryHandle) -> CuResult<()> {
    Err(process::pending("cuLibraryGetKernelCount"))
}

/// cuLibraryEnumerateKernels
pub(crate) fn enumerate_kernels(
    kernels: OutSlice<'_, KernelHandle>,
    num_kernels: u32,
    library: LibraryHandle,
) -> CuResult<()> {
    Err(process::pending("cuLibraryEnumerateKernels"))
}

/// cuLibraryGetModule
pub(crate) fn module(module: Out<'_, ModuleHandle>, library: LibraryHandle) -> CuResult<()> {
    Err(process::pending("cuLibraryGetModule"))
}

/// cuLibraryGetGlobal
pub(crate) fn global(
    device_pointer: Option<Out<'_, u64>>,
    bytes: Option<Out<'_, usize>>,
    library: LibraryHandle,
    name: &CStr,
) -> CuResult<()> {
    Err(process::pending("cuLibraryGetGlobal"))
}
