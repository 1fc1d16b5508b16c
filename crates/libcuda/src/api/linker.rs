//! Bodies: linker.

#![allow(unused_imports, unused_variables, clippy::too_many_arguments)]

use crate::{border::*, process};
use core::ffi::CStr;
use cuda_abi::*;

/// cuLinkCreate_v2 cuLinkCreate
pub(crate) fn create(
    num_options: u32,
    options: &[u32],
    option_values: InOutSlice<'_, u64>,
    state_out: Out<'_, LinkStateHandle>,
) -> CuResult<()> {
    Err(process::pending("cuLinkCreate_v2"))
}

/// cuLinkAddData_v2 cuLinkAddData
pub(crate) fn add_data(
    state: LinkStateHandle,
    kind: u32,
    data: HostSource,
    size: usize,
    name: Option<&CStr>,
    num_options: u32,
    options: &[u32],
    option_values: InOutSlice<'_, u64>,
) -> CuResult<()> {
    Err(process::pending("cuLinkAddData_v2"))
}

/// cuLinkAddFile_v2 cuLinkAddFile
pub(crate) fn add_file(
    state: LinkStateHandle,
    kind: u32,
    path: &CStr,
    num_options: u32,
    options: &[u32],
    option_values: InOutSlice<'_, u64>,
) -> CuResult<()> {
    Err(process::pending("cuLinkAddFile_v2"))
}

/// cuLinkComplete
pub(crate) fn complete(
    state: LinkStateHandle,
    cubin_out: Out<'_, u64>,
    size_out: Option<Out<'_, usize>>,
) -> CuResult<()> {
    Err(process::pending("cuLinkComplete"))
}

/// cuLinkDestroy
pub(crate) fn destroy(state: LinkStateHandle) -> CuResult<()> {
    Err(process::pending("cuLinkDestroy"))
}
