//! Bodies: texture and surface references of modules.

#![allow(unsafe_code)]

use super::texture::memory_resource;
use crate::{
    border::{Array as GivenArray, *},
    state::{Array, Mipmapped, Module, Reference, ReferenceState, current_context},
};
use cuda_abi::*;
use cuda_wire::{Resource, array_kind, channel_bytes, resource_kind};
use std::ffi::CStr;

fn texture(reference: TextureRefHandle) -> CuResult<std::sync::Arc<Reference>> {
    Reference::find(reference.0, false)
}

fn change(
    reference: TextureRefHandle,
    change: impl FnOnce(&mut ReferenceState) -> CuResult<()>,
) -> CuResult<()> {
    texture(reference)?.change(change)
}

/// Fails for what is no value of an enumeration that ends with `last`.
fn check_enum(value: u32, last: u32) -> CuResult<u32> {
    if value <= last { Ok(value) } else { Err(CudaError::INVALID_VALUE) }
}

/// A reference by its name; names are text.
fn named(module: ModuleHandle, name: &CStr, is_surface: bool) -> CuResult<u64> {
    let name = name.to_str().map_err(|_| CudaError::NOT_FOUND)?;
    Reference::of_module(&Module::find(module.0)?, name, is_surface)
}

/// cuModuleGetTexRef
pub(crate) fn of_module(
    mut reference: Out<'_, TextureRefHandle>,
    module: ModuleHandle,
    name: &CStr,
) -> CuResult<()> {
    reference.set(TextureRefHandle(named(module, name, false)?));
    Ok(())
}

/// cuModuleGetSurfRef
pub(crate) fn surface_of_module(
    mut reference: Out<'_, SurfaceRefHandle>,
    module: ModuleHandle,
    name: &CStr,
) -> CuResult<()> {
    reference.set(SurfaceRefHandle(named(module, name, true)?));
    Ok(())
}

/// cuTexRefCreate
pub(crate) fn create(mut reference: Out<'_, TextureRefHandle>) -> CuResult<()> {
    reference.set(TextureRefHandle(Reference::create()?));
    Ok(())
}

/// cuTexRefDestroy
pub(crate) fn destroy(reference: TextureRefHandle) -> CuResult<()> {
    texture(reference)?.destroy()
}

/// A resource that is an array.
fn of_array(kind: u32, address: u64) -> Resource {
    Resource { kind, address, format: 0, channels: 0, width: 0, height: 0, pitch: 0 }
}

/// cuTexRefSetArray
pub(crate) fn set_array(reference: TextureRefHandle, array: ArrayHandle, _flags: u32) -> CuResult<()> {
    let found = Array::find(array.0)?;
    let resource = of_array(resource_kind::ARRAY, found.plane()?.address);
    change(reference, |state| {
        (state.resource, state.bound) = (Some(resource), array.0);
        state.format = (found.info().format, found.info().channels);
        Ok(())
    })
}

/// cuTexRefSetMipmappedArray
pub(crate) fn set_mipmapped(reference: TextureRefHandle, array: MipmapHandle, _flags: u32) -> CuResult<()> {
    let resource = of_array(resource_kind::MIPMAPPED_ARRAY, Mipmapped::find(array.0)?.address());
    change(reference, |state| {
        (state.resource, state.bound) = (Some(resource), array.0);
        Ok(())
    })
}

/// cuTexRefSetAddress_v2: an address that is not aligned begins in the middle of a texture, and the program is told where.
pub(crate) fn set_address(
    byte_offset: Option<Out<'_, usize>>,
    reference: TextureRefHandle,
    device_pointer: u64,
    bytes: usize,
) -> CuResult<()> {
    let context = current_context()?;
    let align = context.device()?.attribute(attributes::CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
    let offset = device_pointer % align.map_or(1, |align| align.max(1) as u64);
    if offset != 0 && byte_offset.is_none() {
        return Err(CudaError::INVALID_VALUE);
    }
    change(reference, |state| {
        let (format, num_channels) = state.format;
        let width = bytes + offset as usize;
        let device_pointer = device_pointer - offset;
        let given =
            CUDA_RESOURCE_MEMORY { device_pointer, format, num_channels, width, ..Default::default() };
        let resource = memory_resource(&context, resource_kind::LINEAR, given)?;
        (state.resource, state.bound) = (Some(resource), 0);
        Ok(())
    })?;
    if let Some(mut place) = byte_offset {
        place.set(offset as usize);
    }
    Ok(())
}

/// cuTexRefSetAddress2D_v3
pub(crate) fn set_rows_v3(
    reference: TextureRefHandle,
    descriptor: &CUDA_ARRAY_DESCRIPTOR,
    device_pointer: u64,
    pitch: usize,
) -> CuResult<()> {
    let context = current_context()?;
    let CUDA_ARRAY_DESCRIPTOR { width, height, format, num_channels } = *descriptor;
    let given = CUDA_RESOURCE_MEMORY { device_pointer, format, num_channels, width, height, pitch };
    let resource = memory_resource(&context, resource_kind::PITCH_2D, given)?;
    change(reference, |state| {
        (state.resource, state.bound, state.format) = (Some(resource), 0, (format, num_channels));
        Ok(())
    })
}

/// cuTexRefSetAddress2D_v2
pub(crate) fn set_rows_v2(
    reference: TextureRefHandle,
    descriptor: &CUDA_ARRAY_DESCRIPTOR,
    device_pointer: u64,
    pitch: usize,
) -> CuResult<()> {
    set_rows_v3(reference, descriptor, device_pointer, pitch)
}

/// cuTexRefSetFormat
pub(crate) fn set_format(reference: TextureRefHandle, format: u32, components: i32) -> CuResult<()> {
    let channels = u32::try_from(components).map_err(|_| CudaError::INVALID_VALUE)?;
    if channel_bytes(format).is_none() || !matches!(channels, 1 | 2 | 4) {
        return Err(CudaError::INVALID_VALUE);
    }
    change(reference, |state| {
        state.format = (format, channels);
        if let Some(resource) = state.resource.as_mut().filter(|resource| resource.format != 0) {
            (resource.format, resource.channels) = (format, channels);
        }
        Ok(())
    })
}

/// cuTexRefSetAddressMode
pub(crate) fn set_address_mode(reference: TextureRefHandle, dimension: i32, mode: u32) -> CuResult<()> {
    change(reference, |state| {
        let modes = &mut state.sampling.address_modes;
        let place = usize::try_from(dimension).ok().and_then(|dimension| modes.get_mut(dimension));
        *place.ok_or(CudaError::INVALID_VALUE)? = check_enum(mode, 3)?;
        Ok(())
    })
}

/// cuTexRefSetFilterMode
pub(crate) fn set_filter_mode(reference: TextureRefHandle, mode: u32) -> CuResult<()> {
    change(reference, |state| {
        // The driver takes any number here; what is not linear is not filtered.
        state.sampling.filter_mode = mode;
        Ok(())
    })
}

/// cuTexRefSetMipmapFilterMode
pub(crate) fn set_mipmap_filter_mode(reference: TextureRefHandle, mode: u32) -> CuResult<()> {
    change(reference, |state| {
        state.sampling.mipmap_filter_mode = check_enum(mode, 1)?;
        Ok(())
    })
}

/// cuTexRefSetMipmapLevelBias
pub(crate) fn set_level_bias(reference: TextureRefHandle, bias: f32) -> CuResult<()> {
    change(reference, |state| {
        state.sampling.mipmap_level_bias = bias;
        Ok(())
    })
}

/// cuTexRefSetMipmapLevelClamp
pub(crate) fn set_level_clamp(reference: TextureRefHandle, least: f32, most: f32) -> CuResult<()> {
    change(reference, |state| {
        state.sampling.min_mipmap_level_clamp = least;
        state.sampling.max_mipmap_level_clamp = most;
        Ok(())
    })
}

/// cuTexRefSetMaxAnisotropy
pub(crate) fn set_max_anisotropy(reference: TextureRefHandle, most: u32) -> CuResult<()> {
    change(reference, |state| {
        state.sampling.max_anisotropy = check_enum(most, 16)?;
        Ok(())
    })
}

/// cuTexRefSetBorderColor
pub(crate) fn set_border_color(reference: TextureRefHandle, color: GivenArray<'_, f32>) -> CuResult<()> {
    let color = color.elements(4)?;
    change(reference, |state| {
        state.sampling.border_color.copy_from_slice(color);
        Ok(())
    })
}

/// cuTexRefSetFlags
pub(crate) fn set_flags(reference: TextureRefHandle, flags: u32) -> CuResult<()> {
    /// `CU_TRSF_*`
    const KNOWN: u32 = 0x01 | 0x02 | 0x10 | 0x20 | 0x40;
    change(reference, |state| {
        if flags & !KNOWN != 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        state.sampling.flags = flags;
        Ok(())
    })
}

/// cuTexRefGetAddress_v2
pub(crate) fn address(mut device_pointer: Out<'_, u64>, reference: TextureRefHandle) -> CuResult<()> {
    let is_memory = |resource: &Resource| resource.format != 0;
    let found = texture(reference)?.state().resource.filter(is_memory);
    device_pointer.set(found.ok_or(CudaError::INVALID_VALUE)?.address);
    Ok(())
}

/// What is bound to a reference, if it is of this kind.
fn bound(state: &ReferenceState, kind: u32) -> CuResult<u64> {
    let is_it = state.resource.is_some_and(|resource| resource.kind == kind);
    if is_it { Ok(state.bound) } else { Err(CudaError::INVALID_VALUE) }
}

/// cuTexRefGetArray
pub(crate) fn array(mut array: Out<'_, ArrayHandle>, reference: TextureRefHandle) -> CuResult<()> {
    array.set(ArrayHandle(bound(&texture(reference)?.state(), resource_kind::ARRAY)?));
    Ok(())
}

/// cuTexRefGetMipmappedArray
pub(crate) fn mipmapped(mut array: Out<'_, MipmapHandle>, reference: TextureRefHandle) -> CuResult<()> {
    array.set(MipmapHandle(bound(&texture(reference)?.state(), resource_kind::MIPMAPPED_ARRAY)?));
    Ok(())
}

/// cuTexRefGetAddressMode
pub(crate) fn address_mode(
    mut mode: Out<'_, u32>,
    reference: TextureRefHandle,
    dimension: i32,
) -> CuResult<()> {
    let modes = texture(reference)?.state().sampling.address_modes;
    let found = usize::try_from(dimension).ok().and_then(|dimension| modes.get(dimension).copied());
    mode.set(found.ok_or(CudaError::INVALID_VALUE)?);
    Ok(())
}

/// cuTexRefGetFilterMode
pub(crate) fn filter_mode(mut mode: Out<'_, u32>, reference: TextureRefHandle) -> CuResult<()> {
    mode.set(texture(reference)?.state().sampling.filter_mode);
    Ok(())
}

/// cuTexRefGetMipmapFilterMode
pub(crate) fn mipmap_filter_mode(mut mode: Out<'_, u32>, reference: TextureRefHandle) -> CuResult<()> {
    mode.set(texture(reference)?.state().sampling.mipmap_filter_mode);
    Ok(())
}

/// cuTexRefGetMipmapLevelBias
pub(crate) fn level_bias(mut bias: Out<'_, f32>, reference: TextureRefHandle) -> CuResult<()> {
    bias.set(texture(reference)?.state().sampling.mipmap_level_bias);
    Ok(())
}

/// cuTexRefGetMipmapLevelClamp
pub(crate) fn level_clamp(
    mut least: Out<'_, f32>,
    mut most: Out<'_, f32>,
    reference: TextureRefHandle,
) -> CuResult<()> {
    let sampling = texture(reference)?.state().sampling;
    least.set(sampling.min_mipmap_level_clamp);
    most.set(sampling.max_mipmap_level_clamp);
    Ok(())
}

/// cuTexRefGetMaxAnisotropy
pub(crate) fn max_anisotropy(mut most: Out<'_, i32>, reference: TextureRefHandle) -> CuResult<()> {
    most.set(texture(reference)?.state().sampling.max_anisotropy as i32);
    Ok(())
}

/// cuTexRefGetBorderColor
pub(crate) fn border_color(color: Out<'_, f32>, reference: TextureRefHandle) -> CuResult<()> {
    let found = texture(reference)?.state().sampling.border_color;
    // SAFETY: the API has the caller provide room for four.
    let place = unsafe { OutAny::at(color.address()) };
    place.ok_or(CudaError::INVALID_VALUE)?.set(found);
    Ok(())
}

/// cuTexRefGetFlags
pub(crate) fn flags(mut flags: Out<'_, u32>, reference: TextureRefHandle) -> CuResult<()> {
    flags.set(texture(reference)?.state().sampling.flags);
    Ok(())
}

/// cuTexRefGetFormat
pub(crate) fn format(
    mut format: Out<'_, u32>,
    mut channels: Out<'_, i32>,
    reference: TextureRefHandle,
) -> CuResult<()> {
    let found = texture(reference)?.state().format;
    format.set(found.0);
    channels.set(found.1 as i32);
    Ok(())
}

/// cuSurfRefSetArray
pub(crate) fn set_surface_array(reference: SurfaceRefHandle, array: ArrayHandle, flags: u32) -> CuResult<()> {
    let found = Array::find(array.0)?;
    if flags != 0 || found.info().flags & array_kind::SURFACE_LDST == 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    let resource = of_array(resource_kind::ARRAY, found.plane()?.address);
    Reference::find(reference.0, true)?.change(|state| {
        (state.resource, state.bound) = (Some(resource), array.0);
        Ok(())
    })
}

/// cuSurfRefGetArray
pub(crate) fn surface_array(mut array: Out<'_, ArrayHandle>, reference: SurfaceRefHandle) -> CuResult<()> {
    let state = Reference::find(reference.0, true)?.state();
    array.set(ArrayHandle(bound(&state, resource_kind::ARRAY)?));
    Ok(())
}
