//! Bodies: device memory.

use crate::{
    border::*,
    state::{allocate, client, current_context, forbid_unsafe_call, free_device_memory, managed, memory_of},
};
use cuda_abi::*;
use cuda_wire::Command;

/// Rows of a pitched allocation start at multiples of this, as on current GPUs.
const PITCH_ALIGNMENT: usize = 512;

/// Free and all memory of the current device. The driver counts what it set aside for us and we have not used yet as free: only
/// it knows how much that is.
pub(crate) fn free_and_total() -> CuResult<(u64, u64)> {
    let context = current_context()?;
    let device = context.device()?;
    let answer = context.link.ask::<(u64, u64)>(&Command::MemoryInfo { device: device.remote });
    context.settle(answer)
}

/// cuMemGetInfo_v2
pub(crate) fn info(free: Option<Out<'_, usize>>, total: Option<Out<'_, usize>>) -> CuResult<()> {
    let (free_bytes, total_bytes) = free_and_total()?;
    if let Some(mut free) = free {
        free.set(free_bytes as usize);
    }
    if let Some(mut total) = total {
        total.set(total_bytes as usize);
    }
    Ok(())
}

/// cuMemAlloc_v2
pub(crate) fn alloc(mut device_pointer: Out<'_, u64>, byte_size: usize) -> CuResult<()> {
    let context = current_context()?;
    forbid_unsafe_call()?;
    if byte_size == 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    device_pointer.set(allocate(&context, byte_size as u64)?);
    Ok(())
}

/// cuMemAllocPitch_v2
pub(crate) fn alloc_pitch(
    mut device_pointer: Out<'_, u64>,
    mut pitch: Out<'_, usize>,
    width_in_bytes: usize,
    height: usize,
    element_size_bytes: u32,
) -> CuResult<()> {
    let context = current_context()?;
    forbid_unsafe_call()?;
    if !matches!(element_size_bytes, 4 | 8 | 16) || width_in_bytes == 0 || height == 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    let row = width_in_bytes.checked_next_multiple_of(PITCH_ALIGNMENT).ok_or(CudaError::INVALID_VALUE)?;
    let bytes = row.checked_mul(height).ok_or(CudaError::INVALID_VALUE)?;
    device_pointer.set(allocate(&context, bytes as u64)?);
    pitch.set(row);
    Ok(())
}

/// cuMemFree_v2
pub(crate) fn free(device_pointer: u64) -> CuResult<()> {
    match device_pointer {
        0 => Ok(()),
        _ if managed::mapped_host_at(device_pointer).is_some() => Err(CudaError::INVALID_VALUE),
        _ => free_device_memory(device_pointer),
    }
}

/// cuMemGetAddressRange_v2
pub(crate) fn address_range(
    base: Option<Out<'_, u64>>,
    size: Option<Out<'_, usize>>,
    device_pointer: u64,
) -> CuResult<()> {
    let found = match memory_of(device_pointer) {
        Some(device) => device.memory.find(device_pointer).map(|found| (found.base, found.bytes)),
        // A kernel reaches pinned memory at its own address.
        None => client()?.pinned.find(device_pointer).map(|range| (range.base, range.bytes)),
    };
    let (first, bytes) = found.ok_or(CudaError::NOT_FOUND)?;
    if let Some(mut base) = base {
        base.set(first);
    }
    if let Some(mut size) = size {
        size.set(bytes as usize);
    }
    Ok(())
}
