//! Bodies: texture and surface objects.

use crate::{
    border::*,
    state::{
        Array, Context, Described, Mipmapped, Sampler, SamplerKind, current_context, managed, memory_of,
    },
};
use cuda_abi::{attributes::*, *};
use cuda_client::arrays::{sampling, view as view_of};
use cuda_wire::{ArrayInfo, Resource, resource_kind};

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
        resource_kind::ARRAY | resource_kind::MIPMAPPED_ARRAY if given.handle() == 0 => {
            Err(CudaError::INVALID_VALUE)
        }
        resource_kind::ARRAY => Ok(plain(Array::find(given.handle())?.plane()?.address)),
        resource_kind::MIPMAPPED_ARRAY => Ok(plain(Mipmapped::find(given.handle())?.address())),
        resource_kind::LINEAR | resource_kind::PITCH_2D => {
            memory_resource(context, given.res_type, given.memory())
        }
        _ => Err(CudaError::INVALID_VALUE),
    }
}

/// Memory as a resource. As with the driver, the program may name more than it has, and rows that reach into the next. Memory of the
/// host is refused, where the driver takes it: the worker has none there.
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
        (1..=of(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH, u64::MAX)).contains(&width)
            && (1..=of(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT, u64::MAX)).contains(&height)
            && pitch <= of(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH, u64::MAX)
            && pitch.is_multiple_of(of(CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 1))
    } else {
        let most = of(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH, u64::MAX);
        width / element <= most
    };
    let is_aligned = device_pointer.is_multiple_of(of(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 1));
    let is_host = memory_of(device_pointer).is_none()
        || managed::check_managed(device_pointer, 1).is_ok()
        || managed::mapped_host_at(device_pointer).is_some();
    if !is_good || !is_aligned || is_host {
        return Err(invalid);
    }
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
    let (resource, sampling) = (resource_of(&context, resource)?, sampling(texture)?);
    let is_memory = matches!(resource.kind, resource_kind::LINEAR | resource_kind::PITCH_2D);
    // Views are of arrays; the driver overlooks one of memory.
    let view = view.filter(|_| !is_memory).map(view_of).transpose()?;
    tex_object.set(Sampler::texture(&context, described, resource, sampling, view)?);
    Ok(())
}

/// cuTexObjectDestroy: 0 is no object, and may be destroyed.
pub(crate) fn destroy(tex_object: u64) -> CuResult<()> {
    if tex_object == 0 {
        return current_context().map(drop);
    }
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
    view.set(described.view.unwrap_or_default());
    Ok(())
}

/// cuTexObjectGetTextureDesc
pub(crate) fn description(mut texture: Out<'_, CUDA_TEXTURE_DESC>, tex_object: u64) -> CuResult<()> {
    texture.set(Sampler::find(SamplerKind::Texture, tex_object)?.described.texture);
    Ok(())
}

/// cuSurfObjectCreate: of an array. The driver does not ask whether it was made for surfaces.
pub(crate) fn create_surface(mut surf_object: Out<'_, u64>, resource: &CUDA_RESOURCE_DESC) -> CuResult<()> {
    let context = current_context()?;
    if resource.res_type != resource_kind::ARRAY {
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
