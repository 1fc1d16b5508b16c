//! Bodies: texture and surface objects.

use crate::{
    border::*,
    state::{Array, Context, Described, Mipmapped, Sampler, SamplerKind, current_context, memory_of},
};
use cuda_abi::{attributes::*, *};
use cuda_client::arrays::{sampling, view as view_of};
use cuda_wire::{ArrayInfo, Resource, array_kind, resource_kind};

/// The resource that the program describes, for the wire.
fn resource_of(context: &Context, given: &CUDA_RESOURCE_DESC) -> CuResult<Resource> {
    let plain = |address| Resource {
        kind: given.res_type,
        address,
        format: 0,
        channels: 0,
        width: 0,
        height: 0,
        pitch: 0,
    };
    if given.flags != 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    match given.res_type {
        resource_kind::ARRAY => Ok(plain(Array::find(given.handle())?.plane()?.address)),
        resource_kind::MIPMAPPED_ARRAY => Ok(plain(Mipmapped::find(given.handle())?.address())),
        resource_kind::LINEAR | resource_kind::PITCH_2D => {
            memory_resource(context, given.res_type, given.memory())
        }
        _ => Err(CudaError::INVALID_VALUE),
    }
}

/// Memory as a resource.
pub(crate) fn memory_resource(
    context: &Context,
    kind: u32,
    given: CUDA_RESOURCE_MEMORY,
) -> CuResult<Resource> {
    let CUDA_RESOURCE_MEMORY { device_pointer, format, num_channels, width, height, pitch } = given;
    let invalid = CudaError::INVALID_VALUE;
    let (is_rows, device) = (kind == resource_kind::PITCH_2D, context.device()?);
    let element =
        ArrayInfo { format, channels: num_channels, width: 1, height: 0, depth: 0, flags: 0, levels: 0 };
    let element = element.element_bytes().ok_or(invalid)?;
    let of = |number, otherwise: u64| device.attribute(number).map_or(otherwise, |value| value.max(1) as u64);
    let (width, height, pitch) = (width as u64, height as u64, pitch as u64);
    let is_good = if is_rows {
        let fits = width.checked_mul(element).is_some_and(|row| row <= pitch);
        fits && (1..=of(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH, u64::MAX)).contains(&width)
            && (1..=of(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT, u64::MAX)).contains(&height)
            && pitch <= of(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH, u64::MAX)
            && pitch.is_multiple_of(of(CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 1))
    } else {
        let most = of(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH, u64::MAX);
        (1..=most).contains(&(width / element))
    };
    let is_aligned = device_pointer.is_multiple_of(of(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 1));
    if !is_good || !is_aligned {
        return Err(invalid);
    }
    let bytes = if is_rows { pitch * (height - 1) + width * element } else { width };
    memory_of(device_pointer).ok_or(invalid)?.memory.check_range(device_pointer, bytes)?;
    let (address, channels) = (device_pointer, num_channels);
    let (height, pitch) = if is_rows { (height, pitch) } else { (0, 0) };
    Ok(Resource { kind, address, format, channels, width, height, pitch })
}

/// cuTexObjectCreate
pub(crate) fn create(
    mut tex_object: Out<'_, u64>,
    resource: &CUDA_RESOURCE_DESC,
    texture: &CUDA_TEXTURE_DESC,
    view: Option<&CUDA_RESOURCE_VIEW_DESC>,
) -> CuResult<()> {
    let context = current_context()?;
    let described = Described { resource: *resource, texture: *texture, view: view.copied() };
    let view = view.map(view_of).transpose()?;
    let (resource, sampling) = (resource_of(&context, resource)?, sampling(texture)?);
    let is_memory = matches!(resource.kind, resource_kind::LINEAR | resource_kind::PITCH_2D);
    if view.is_some() && is_memory {
        return Err(CudaError::INVALID_VALUE);
    }
    tex_object.set(Sampler::texture(&context, described, resource, sampling, view)?);
    Ok(())
}

/// cuTexObjectDestroy
pub(crate) fn destroy(tex_object: u64) -> CuResult<()> {
    Sampler::destroy(SamplerKind::Texture, tex_object)
}

/// cuTexObjectGetResourceDesc
pub(crate) fn resource(mut resource: Out<'_, CUDA_RESOURCE_DESC>, tex_object: u64) -> CuResult<()> {
    resource.set(Sampler::find(SamplerKind::Texture, tex_object)?.described.resource);
    Ok(())
}

/// cuTexObjectGetResourceViewDesc
pub(crate) fn view(mut view: Out<'_, CUDA_RESOURCE_VIEW_DESC>, tex_object: u64) -> CuResult<()> {
    let described = Sampler::find(SamplerKind::Texture, tex_object)?.described;
    view.set(described.view.ok_or(CudaError::INVALID_VALUE)?);
    Ok(())
}

/// cuTexObjectGetTextureDesc
pub(crate) fn description(mut texture: Out<'_, CUDA_TEXTURE_DESC>, tex_object: u64) -> CuResult<()> {
    texture.set(Sampler::find(SamplerKind::Texture, tex_object)?.described.texture);
    Ok(())
}

/// cuSurfObjectCreate: of an array that was made for it.
pub(crate) fn create_surface(mut surf_object: Out<'_, u64>, resource: &CUDA_RESOURCE_DESC) -> CuResult<()> {
    let context = current_context()?;
    if resource.res_type != resource_kind::ARRAY {
        return Err(CudaError::INVALID_VALUE);
    }
    let array = Array::find(resource.handle())?;
    if array.info().flags & array_kind::SURFACE_LDST == 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    let described = Described { resource: *resource, ..Described::default() };
    surf_object.set(Sampler::surface(&context, described, resource_of(&context, resource)?)?);
    Ok(())
}

/// cuSurfObjectDestroy
pub(crate) fn destroy_surface(surf_object: u64) -> CuResult<()> {
    Sampler::destroy(SamplerKind::Surface, surf_object)
}

/// cuSurfObjectGetResourceDesc
pub(crate) fn surface_resource(mut resource: Out<'_, CUDA_RESOURCE_DESC>, surf_object: u64) -> CuResult<()> {
    resource.set(Sampler::find(SamplerKind::Surface, surf_object)?.described.resource);
    Ok(())
}
