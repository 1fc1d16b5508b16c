//! Bodies: arrays.

use crate::{
    border::*,
    process,
    state::{Array, Context, Mipmapped, client, current_context, forbid_unsafe_call},
};
use cuda_abi::{attributes::*, *};
use cuda_client::arrays::{Refusal, describe};
use cuda_wire::{ArrayInfo, LEVELS_MAX, channel_bytes};
use std::sync::atomic::{AtomicBool, Ordering};

/// The array that the program describes, in its current context.
fn described(
    symbol: &'static str,
    given: &CUDA_ARRAY3D_DESCRIPTOR,
    levels: u32,
) -> CuResult<(std::sync::Arc<Context>, ArrayInfo)> {
    static TOLD: AtomicBool = AtomicBool::new(false);
    let context = current_context()?;
    forbid_unsafe_call()?;
    let device = context.device()?;
    let info = describe(given, levels, |number| device.attribute(number)).map_err(|refusal| {
        if let Refusal::NotServed(reason) = refusal
            && !TOLD.swap(true, Ordering::Relaxed)
        {
            process::refused(symbol, reason);
        }
        refusal.error()
    })?;
    Ok((context, info))
}

/// cuArrayCreate_v2
pub(crate) fn create_2d(mut array: Out<'_, ArrayHandle>, descriptor: &CUDA_ARRAY_DESCRIPTOR) -> CuResult<()> {
    let CUDA_ARRAY_DESCRIPTOR { width, height, format, num_channels } = *descriptor;
    let given = CUDA_ARRAY3D_DESCRIPTOR { width, height, depth: 0, format, num_channels, flags: 0 };
    let (context, info) = described("cuArrayCreate", &given, 0)?;
    array.set(ArrayHandle(Array::create(&context, info)?));
    Ok(())
}

/// cuArray3DCreate_v2
pub(crate) fn create_3d(
    mut array: Out<'_, ArrayHandle>,
    descriptor: &CUDA_ARRAY3D_DESCRIPTOR,
) -> CuResult<()> {
    let (context, info) = described("cuArray3DCreate", descriptor, 0)?;
    array.set(ArrayHandle(Array::create(&context, info)?));
    Ok(())
}

/// cuArrayDestroy
pub(crate) fn destroy(array: ArrayHandle) -> CuResult<()> {
    forbid_unsafe_call()?;
    Array::find(array.0)?.destroy()
}

/// cuArrayGetDescriptor_v2
pub(crate) fn descriptor_2d(
    mut descriptor: Out<'_, CUDA_ARRAY_DESCRIPTOR>,
    array: ArrayHandle,
) -> CuResult<()> {
    let info = Array::find(array.0)?.info();
    descriptor.set(CUDA_ARRAY_DESCRIPTOR {
        width: info.width as usize,
        height: info.height as usize,
        format: info.format,
        num_channels: info.channels,
    });
    Ok(())
}

/// cuArray3DGetDescriptor_v2
pub(crate) fn descriptor_3d(
    mut descriptor: Out<'_, CUDA_ARRAY3D_DESCRIPTOR>,
    array: ArrayHandle,
) -> CuResult<()> {
    let info = Array::find(array.0)?.info();
    descriptor.set(CUDA_ARRAY3D_DESCRIPTOR {
        width: info.width as usize,
        height: info.height as usize,
        depth: info.depth as usize,
        format: info.format,
        num_channels: info.channels,
        flags: info.flags,
    });
    Ok(())
}

/// cuArrayGetMemoryRequirements: for arrays whose memory is mapped later, of which there are none.
pub(crate) fn memory_requirements(
    _requirements: Out<'_, CUDA_ARRAY_MEMORY_REQUIREMENTS>,
    array: ArrayHandle,
    device: i32,
) -> CuResult<()> {
    client()?.device(device)?;
    Array::find(array.0)?;
    Err(CudaError::INVALID_VALUE)
}

/// cuArrayGetSparseProperties: no array is sparse.
pub(crate) fn sparse_properties(
    _properties: Out<'_, CUDA_ARRAY_SPARSE_PROPERTIES>,
    array: ArrayHandle,
) -> CuResult<()> {
    Array::find(array.0)?;
    Err(CudaError::INVALID_VALUE)
}

/// cuArrayGetPlane: no array has several planes.
pub(crate) fn plane(_plane: Out<'_, ArrayHandle>, array: ArrayHandle, _plane_idx: u32) -> CuResult<()> {
    Array::find(array.0)?;
    Err(CudaError::INVALID_VALUE)
}

/// cuMipmappedArrayCreate: more levels than there can be are as many as there can be, and none are one.
pub(crate) fn create_mipmapped(
    mut mipmapped: Out<'_, MipmapHandle>,
    descriptor: &CUDA_ARRAY3D_DESCRIPTOR,
    levels: u32,
) -> CuResult<()> {
    let given = descriptor;
    let depth = if given.flags & (cuda_wire::array_kind::LAYERED | cuda_wire::array_kind::CUBEMAP) == 0 {
        given.depth
    } else {
        0
    };
    let largest = given.width.max(given.height).max(depth) as u64;
    let most = (u64::BITS - largest.leading_zeros()).clamp(1, LEVELS_MAX);
    let (context, info) = described("cuMipmappedArrayCreate", given, levels.clamp(1, most))?;
    mipmapped.set(MipmapHandle(Mipmapped::create(&context, info)?));
    Ok(())
}

/// cuMipmappedArrayDestroy
pub(crate) fn destroy_mipmapped(mipmapped: MipmapHandle) -> CuResult<()> {
    forbid_unsafe_call()?;
    Mipmapped::find(mipmapped.0)?.destroy()
}

/// cuMipmappedArrayGetLevel
pub(crate) fn level(
    mut level_array: Out<'_, ArrayHandle>,
    mipmapped: MipmapHandle,
    level: u32,
) -> CuResult<()> {
    level_array.set(ArrayHandle(Mipmapped::find(mipmapped.0)?.level(level)?));
    Ok(())
}

/// cuMipmappedArrayGetMemoryRequirements
pub(crate) fn mipmapped_memory_requirements(
    _requirements: Out<'_, CUDA_ARRAY_MEMORY_REQUIREMENTS>,
    mipmapped: MipmapHandle,
    device: i32,
) -> CuResult<()> {
    client()?.device(device)?;
    Mipmapped::find(mipmapped.0)?;
    Err(CudaError::INVALID_VALUE)
}

/// cuMipmappedArrayGetSparseProperties
pub(crate) fn mipmapped_sparse_properties(
    _properties: Out<'_, CUDA_ARRAY_SPARSE_PROPERTIES>,
    mipmapped: MipmapHandle,
) -> CuResult<()> {
    Mipmapped::find(mipmapped.0)?;
    Err(CudaError::INVALID_VALUE)
}

/// cuDeviceGetTexture1DLinearMaxWidth: the attribute is that of the widest elements. Smaller ones may be as many bytes, but no more
/// than four times as many elements (seen on an H200).
pub(crate) fn linear_max_width(
    mut max_width: Out<'_, usize>,
    format: u32,
    num_channels: u32,
    device: i32,
) -> CuResult<()> {
    let device = client()?.device(device)?;
    let (channel, _) = channel_bytes(format).ok_or(CudaError::INVALID_VALUE)?;
    if !matches!(num_channels, 1 | 2 | 4) {
        return Err(CudaError::INVALID_VALUE);
    }
    let width = device.attribute(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH);
    let widest = 16 / (channel as usize * num_channels as usize);
    max_width.set(width.unwrap_or(0).max(0) as usize * widest.clamp(1, 4));
    Ok(())
}
