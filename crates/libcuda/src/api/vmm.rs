//! Bodies: vmm.

#![allow(unused_imports, unused_variables, clippy::too_many_arguments)]

use crate::{border::*, process};
use core::ffi::CStr;
use cuda_abi::*;

/// cuMemAddressReserve
pub(crate) fn address_reserve(
    pointer: Out<'_, u64>,
    size: usize,
    alignment: usize,
    addr: u64,
    flags: u64,
) -> CuResult<()> {
    Err(process::pending("cuMemAddressReserve"))
}

/// cuMemAddressFree
pub(crate) fn address_free(pointer: u64, size: usize) -> CuResult<()> {
    Err(process::pending("cuMemAddressFree"))
}

/// cuMemCreate
pub(crate) fn create(
    handle: Out<'_, MemoryHandle>,
    size: usize,
    properties: &CUmemAllocationProp,
    flags: u64,
) -> CuResult<()> {
    Err(process::pending("cuMemCreate"))
}

/// cuMemRelease
pub(crate) fn release(handle: MemoryHandle) -> CuResult<()> {
    Err(process::pending("cuMemRelease"))
}

/// cuMemMap
pub(crate) fn map(
    pointer: u64,
    size: usize,
    offset: usize,
    handle: MemoryHandle,
    flags: u64,
) -> CuResult<()> {
    Err(process::pending("cuMemMap"))
}

/// cuMemUnmap
pub(crate) fn unmap(pointer: u64, size: usize) -> CuResult<()> {
    Err(process::pending("cuMemUnmap"))
}

/// cuMemSetAccess
pub(crate) fn set_access(pointer: u64, size: usize, desc: &[CUmemAccessDesc], count: usize) -> CuResult<()> {
    Err(process::pending("cuMemSetAccess"))
}

/// cuMemGetAccess
pub(crate) fn access(flags: Out<'_, u64>, location: &CUmemLocation, pointer: u64) -> CuResult<()> {
    Err(process::pending("cuMemGetAccess"))
}

/// cuMemGetAllocationGranularity
pub(crate) fn granularity(
    granularity: Out<'_, usize>,
    properties: &CUmemAllocationProp,
    option: u32,
) -> CuResult<()> {
    Err(process::pending("cuMemGetAllocationGranularity"))
}

/// cuMemGetAllocationPropertiesFromHandle
pub(crate) fn properties_from_handle(
    properties: Out<'_, CUmemAllocationProp>,
    handle: MemoryHandle,
) -> CuResult<()> {
    Err(process::pending("cuMemGetAllocationPropertiesFromHandle"))
}

/// cuMemRetainAllocationHandle
pub(crate) fn retain_handle(handle: Out<'_, MemoryHandle>, addr: u64) -> CuResult<()> {
    Err(process::pending("cuMemRetainAllocationHandle"))
}
