//! Bodies: pool.

#![allow(unused_imports, unused_variables, clippy::too_many_arguments)]

use crate::{border::*, process};
use core::ffi::CStr;
use cuda_abi::*;

/// cuMemAllocAsync cuMemAllocAsync_ptsz
pub(crate) fn alloc_async(device_pointer: Out<'_, u64>, byte_size: usize, stream: StreamArg) -> CuResult<()> {
    Err(process::pending("cuMemAllocAsync"))
}

/// cuMemAllocFromPoolAsync cuMemAllocFromPoolAsync_ptsz
pub(crate) fn alloc_from_pool_async(
    device_pointer: Out<'_, u64>,
    byte_size: usize,
    pool: PoolHandle,
    stream: StreamArg,
) -> CuResult<()> {
    Err(process::pending("cuMemAllocFromPoolAsync"))
}

/// cuMemFreeAsync cuMemFreeAsync_ptsz
pub(crate) fn free_async(device_pointer: u64, stream: StreamArg) -> CuResult<()> {
    Err(process::pending("cuMemFreeAsync"))
}

/// cuMemPoolCreate
pub(crate) fn create(pool: Out<'_, PoolHandle>, pool_props: &CUmemPoolProps) -> CuResult<()> {
    Err(process::pending("cuMemPoolCreate"))
}

/// cuMemPoolDestroy
pub(crate) fn destroy(pool: PoolHandle) -> CuResult<()> {
    Err(process::pending("cuMemPoolDestroy"))
}

/// cuMemPoolTrimTo
pub(crate) fn trim_to(pool: PoolHandle, min_bytes_to_keep: usize) -> CuResult<()> {
    Err(process::pending("cuMemPoolTrimTo"))
}

/// cuMemPoolSetAttribute
pub(crate) fn set_attribute(pool: PoolHandle, attribute: u32, value: InAny<'_>) -> CuResult<()> {
    Err(process::pending("cuMemPoolSetAttribute"))
}

/// cuMemPoolGetAttribute
pub(crate) fn attribute(pool: PoolHandle, attribute: u32, value: OutAny<'_>) -> CuResult<()> {
    Err(process::pending("cuMemPoolGetAttribute"))
}

/// cuMemPoolSetAccess
pub(crate) fn set_access(pool: PoolHandle, map: &[CUmemAccessDesc], count: usize) -> CuResult<()> {
    Err(process::pending("cuMemPoolSetAccess"))
}

/// cuMemPoolGetAccess
pub(crate) fn access(flags: Out<'_, u32>, mem_pool: PoolHandle, location: &CUmemLocation) -> CuResult<()> {
    Err(process::pending("cuMemPoolGetAccess"))
}

/// cuDeviceGetDefaultMemPool
pub(crate) fn device_default(pool_out: Out<'_, PoolHandle>, device: i32) -> CuResult<()> {
    Err(process::pending("cuDeviceGetDefaultMemPool"))
}

/// cuDeviceGetMemPool
pub(crate) fn device_current(pool: Out<'_, PoolHandle>, device: i32) -> CuResult<()> {
    Err(process::pending("cuDeviceGetMemPool"))
}

/// cuDeviceSetMemPool
pub(crate) fn device_set_current(device: i32, pool: PoolHandle) -> CuResult<()> {
    Err(process::pending("cuDeviceSetMemPool"))
}

/// cuMemGetDefaultMemPool
pub(crate) fn location_default(
    pool_out: Out<'_, PoolHandle>,
    location: &CUmemLocation,
    kind: u32,
) -> CuResult<()> {
    Err(process::pending("cuMemGetDefaultMemPool"))
}

/// cuMemGetMemPool
pub(crate) fn location_current(
    pool: Out<'_, PoolHandle>,
    location: &CUmemLocation,
    kind: u32,
) -> CuResult<()> {
    Err(process::pending("cuMemGetMemPool"))
}

/// cuMemSetMemPool
pub(crate) fn location_set_current(location: &CUmemLocation, kind: u32, pool: PoolHandle) -> CuResult<()> {
    Err(process::pending("cuMemSetMemPool"))
}
