//! Bodies: copies along a row of an array.

#![allow(unsafe_code)]

use super::copy::{check_device, run};
use crate::{
    border::*,
    host::HostRegion,
    state::{Array, Copy, Place, Stream},
};
use cuda_abi::*;
use cuda_wire::{Plane, Shape};

/// A place in the first row. Arrays of several rows have no order of bytes beyond it.
fn row(array: ArrayHandle, offset: usize) -> CuResult<Place> {
    Ok(Place::Device(Array::find_for_copy(array.0)?.place([offset as u64, 0, 0])?))
}

fn copy(target: Place, source: Place, bytes: usize, stream: StreamArg, synchronous: bool) -> CuResult<()> {
    let stream = Stream::of(stream)?;
    run(&stream, Copy { source, target, shape: Shape::line(bytes as u64) }, synchronous)
}

/// Host memory of the program's.
fn host(address: u64, bytes: usize) -> CuResult<Place> {
    if address == 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    // SAFETY: the caller of the API function promises that the host memory it names is valid for the copy.
    Ok(Place::Host(unsafe { HostRegion::line(address, bytes as u64) }))
}

fn device(address: u64, bytes: usize) -> CuResult<Place> {
    check_device(address, bytes)?;
    Ok(Place::Device(Plane::line(address)))
}

/// cuMemcpyHtoA_v2
pub(crate) fn host_to_array(
    dst_array: ArrayHandle,
    dst_offset: usize,
    src_host: HostSource,
    byte_count: usize,
    default_stream: StreamArg,
) -> CuResult<()> {
    if byte_count == 0 {
        return Ok(());
    }
    let source = host(src_host.address(), byte_count)?;
    copy(row(dst_array, dst_offset)?, source, byte_count, default_stream, true)
}

/// cuMemcpyHtoAAsync_v2
pub(crate) fn host_to_array_async(
    dst_array: ArrayHandle,
    dst_offset: usize,
    src_host: HostSource,
    byte_count: usize,
    stream: StreamArg,
) -> CuResult<()> {
    if byte_count == 0 {
        return Ok(());
    }
    let source = host(src_host.address(), byte_count)?;
    copy(row(dst_array, dst_offset)?, source, byte_count, stream, false)
}

/// cuMemcpyAtoH_v2
pub(crate) fn array_to_host(
    dst_host: HostTarget,
    src_array: ArrayHandle,
    src_offset: usize,
    byte_count: usize,
    default_stream: StreamArg,
) -> CuResult<()> {
    if byte_count == 0 {
        return Ok(());
    }
    let target = host(dst_host.address(), byte_count)?;
    copy(target, row(src_array, src_offset)?, byte_count, default_stream, true)
}

/// cuMemcpyAtoHAsync_v2
pub(crate) fn array_to_host_async(
    dst_host: HostTarget,
    src_array: ArrayHandle,
    src_offset: usize,
    byte_count: usize,
    stream: StreamArg,
) -> CuResult<()> {
    if byte_count == 0 {
        return Ok(());
    }
    let target = host(dst_host.address(), byte_count)?;
    copy(target, row(src_array, src_offset)?, byte_count, stream, false)
}

/// cuMemcpyAtoD_v2
pub(crate) fn array_to_device(
    dst_device: u64,
    src_array: ArrayHandle,
    src_offset: usize,
    byte_count: usize,
    default_stream: StreamArg,
) -> CuResult<()> {
    if byte_count == 0 {
        return Ok(());
    }
    let source = row(src_array, src_offset)?;
    copy(device(dst_device, byte_count)?, source, byte_count, default_stream, true)
}

/// cuMemcpyDtoA_v2
pub(crate) fn device_to_array(
    dst_array: ArrayHandle,
    dst_offset: usize,
    src_device: u64,
    byte_count: usize,
    default_stream: StreamArg,
) -> CuResult<()> {
    if byte_count == 0 {
        return Ok(());
    }
    let target = row(dst_array, dst_offset)?;
    copy(target, device(src_device, byte_count)?, byte_count, default_stream, true)
}

/// cuMemcpyAtoA_v2
pub(crate) fn array_to_array(
    dst_array: ArrayHandle,
    dst_offset: usize,
    src_array: ArrayHandle,
    src_offset: usize,
    byte_count: usize,
    default_stream: StreamArg,
) -> CuResult<()> {
    if byte_count == 0 {
        return Ok(());
    }
    let (target, source) = (row(dst_array, dst_offset)?, row(src_array, src_offset)?);
    copy(target, source, byte_count, default_stream, true)
}
