//! Bodies: forms of CUDA 3.1 whose sizes have 32 bits. They are their later forms with wider numbers; a size that does not fit is
//! shown as the largest that does, so that a program asks for less than there is and never for more.

use super::{array, array_copy, host_memory, memory};
use crate::{
    border::*,
    state::{Array, client},
};
use cuda_abi::*;

fn narrow(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// cuMemGetInfo
pub(crate) fn memory_info(free: Option<Out<'_, u32>>, total: Option<Out<'_, u32>>) -> CuResult<()> {
    let (free_bytes, total_bytes) = memory::free_and_total()?;
    for (place, bytes) in [(free, free_bytes), (total, total_bytes)] {
        if let Some(mut place) = place {
            place.set(narrow(bytes));
        }
    }
    Ok(())
}

/// cuDeviceTotalMem
pub(crate) fn total_memory(mut bytes: Out<'_, u32>, device: i32) -> CuResult<()> {
    bytes.set(narrow(client()?.device(device)?.info.memory_bytes));
    Ok(())
}

/// cuMemAllocHost
pub(crate) fn alloc_host(host_pointer: Out<'_, u64>, byte_size: u32) -> CuResult<()> {
    host_memory::alloc(host_pointer, byte_size as usize)
}

/// cuArrayCreate
pub(crate) fn create_2d(array: Out<'_, ArrayHandle>, descriptor: &CUDA_ARRAY_DESCRIPTOR_v1) -> CuResult<()> {
    let CUDA_ARRAY_DESCRIPTOR_v1 { width, height, format, num_channels } = *descriptor;
    let (width, height) = (width as usize, height as usize);
    array::create_2d(array, &CUDA_ARRAY_DESCRIPTOR { width, height, format, num_channels })
}

/// cuArray3DCreate
pub(crate) fn create_3d(
    array: Out<'_, ArrayHandle>,
    descriptor: &CUDA_ARRAY3D_DESCRIPTOR_v1,
) -> CuResult<()> {
    let wide = CUDA_ARRAY3D_DESCRIPTOR {
        width: descriptor.width as usize,
        height: descriptor.height as usize,
        depth: descriptor.depth as usize,
        format: descriptor.format,
        num_channels: descriptor.num_channels,
        flags: descriptor.flags,
    };
    array::create_3d(array, &wide)
}

/// cuArrayGetDescriptor
pub(crate) fn descriptor_2d(
    mut descriptor: Out<'_, CUDA_ARRAY_DESCRIPTOR_v1>,
    array: ArrayHandle,
) -> CuResult<()> {
    let info = Array::find(array.0)?.info();
    descriptor.set(CUDA_ARRAY_DESCRIPTOR_v1 {
        width: narrow(info.width),
        height: narrow(info.height),
        format: info.format,
        num_channels: info.channels,
    });
    Ok(())
}

/// cuArray3DGetDescriptor
pub(crate) fn descriptor_3d(
    mut descriptor: Out<'_, CUDA_ARRAY3D_DESCRIPTOR_v1>,
    array: ArrayHandle,
) -> CuResult<()> {
    let info = Array::find(array.0)?.info();
    descriptor.set(CUDA_ARRAY3D_DESCRIPTOR_v1 {
        width: narrow(info.width),
        height: narrow(info.height),
        depth: narrow(info.depth),
        format: info.format,
        num_channels: info.channels,
        flags: info.flags,
    });
    Ok(())
}

/// cuMemcpyHtoA
pub(crate) fn host_to_array(
    dst_array: ArrayHandle,
    dst_offset: u32,
    src_host: HostSource,
    byte_count: u32,
) -> CuResult<()> {
    let (offset, bytes) = (dst_offset as usize, byte_count as usize);
    array_copy::host_to_array(dst_array, offset, src_host, bytes, StreamArg::Legacy)
}

/// cuMemcpyHtoAAsync
pub(crate) fn host_to_array_async(
    dst_array: ArrayHandle,
    dst_offset: u32,
    src_host: HostSource,
    byte_count: u32,
    stream: StreamArg,
) -> CuResult<()> {
    array_copy::host_to_array_async(dst_array, dst_offset as usize, src_host, byte_count as usize, stream)
}

/// cuMemcpyAtoH
pub(crate) fn array_to_host(
    dst_host: HostTarget,
    src_array: ArrayHandle,
    src_offset: u32,
    byte_count: u32,
) -> CuResult<()> {
    let (offset, bytes) = (src_offset as usize, byte_count as usize);
    array_copy::array_to_host(dst_host, src_array, offset, bytes, StreamArg::Legacy)
}

/// cuMemcpyAtoHAsync
pub(crate) fn array_to_host_async(
    dst_host: HostTarget,
    src_array: ArrayHandle,
    src_offset: u32,
    byte_count: u32,
    stream: StreamArg,
) -> CuResult<()> {
    array_copy::array_to_host_async(dst_host, src_array, src_offset as usize, byte_count as usize, stream)
}

/// cuMemcpyAtoA
pub(crate) fn array_to_array(
    dst_array: ArrayHandle,
    dst_offset: u32,
    src_array: ArrayHandle,
    src_offset: u32,
    byte_count: u32,
) -> CuResult<()> {
    let (to, from, bytes) = (dst_offset as usize, src_offset as usize, byte_count as usize);
    array_copy::array_to_array(dst_array, to, src_array, from, bytes, StreamArg::Legacy)
}
