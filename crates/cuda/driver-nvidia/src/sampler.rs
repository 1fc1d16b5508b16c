//! Texture and surface objects of the driver. Kernels read their handles, so these are the driver's own.

#![allow(unsafe_code)]

use crate::{
    array::Arrays,
    context::LiveContext,
    sys::{Api, ResourceDescriptor, TextureDescriptor, ViewDescriptor},
};
use cuda_abi::{CuResult, CudaError};
use cuda_wire::{Plane, Resource, ResourceView, Sampling, Shape, resource_kind};
use std::sync::Arc;

#[derive(Clone, Copy)]
enum Kind {
    Texture,
    Surface,
}

/// A texture or surface object.
pub(crate) struct LiveSampler {
    api: Api,
    pub(crate) context: Arc<LiveContext>,
    kind: Kind,
    /// What kernels know it by.
    pub(crate) handle: u64,
}

impl LiveSampler {
    pub(crate) fn texture(
        api: &Api,
        context: Arc<LiveContext>,
        resource: &ResourceDescriptor,
        sampling: &Sampling,
        view: Option<ResourceView>,
    ) -> CuResult<Self> {
        let texture = TextureDescriptor {
            address_modes: sampling.address_modes,
            filter_mode: sampling.filter_mode,
            flags: sampling.flags,
            max_anisotropy: sampling.max_anisotropy,
            mipmap_filter_mode: sampling.mipmap_filter_mode,
            mipmap_level_bias: sampling.mipmap_level_bias,
            min_mipmap_level_clamp: sampling.min_mipmap_level_clamp,
            max_mipmap_level_clamp: sampling.max_mipmap_level_clamp,
            border_color: sampling.border_color,
            reserved: [0; 12],
        };
        let view = view.map(|view| ViewDescriptor {
            format: view.format,
            width: view.width as usize,
            height: view.height as usize,
            depth: view.depth as usize,
            first_level: view.first_level,
            last_level: view.last_level,
            first_layer: view.first_layer,
            last_layer: view.last_layer,
            reserved: [0; 16],
        });
        context.enter()?;
        let mut handle = 0;
        // SAFETY: all pointers are valid for the call, or null where that is allowed.
        unsafe {
            let view = view.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            api.texture_create(&mut handle, resource, &texture, view)?;
        }
        Ok(Self { api: *api, context, kind: Kind::Texture, handle })
    }

    pub(crate) fn surface(
        api: &Api,
        context: Arc<LiveContext>,
        resource: &ResourceDescriptor,
    ) -> CuResult<Self> {
        context.enter()?;
        let mut handle = 0;
        // SAFETY: both pointers are valid for the call.
        unsafe { api.surface_create(&mut handle, resource)? };
        Ok(Self { api: *api, context, kind: Kind::Surface, handle })
    }
}

impl Drop for LiveSampler {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: no pointers. The work that used it is done.
            let _ = unsafe {
                match self.kind {
                    Kind::Texture => self.api.texture_destroy(self.handle),
                    Kind::Surface => self.api.surface_destroy(self.handle),
                }
            };
        }
    }
}

/// What the driver is told of a resource: a union of 128 bytes behind its kind.
pub(crate) fn describe(arrays: &Arrays, resource: &Resource) -> CuResult<ResourceDescriptor> {
    let mut described = ResourceDescriptor { kind: resource.kind, ..ResourceDescriptor::default() };
    let mut put = |at: usize, bytes: &[u8]| described.resource[at..at + bytes.len()].copy_from_slice(bytes);
    match resource.kind {
        resource_kind::ARRAY => {
            let end = arrays.end(&Plane::line(resource.address), &Shape::line(1))?;
            let array = end.ok_or(CudaError::INVALID_VALUE)?.array;
            put(0, &array.0.addr().to_ne_bytes());
        }
        resource_kind::MIPMAPPED_ARRAY => {
            let array = arrays.find(resource.address)?.mipmapped().ok_or(CudaError::INVALID_VALUE)?;
            put(0, &array.0.addr().to_ne_bytes());
        }
        resource_kind::LINEAR | resource_kind::PITCH_2D => {
            put(0, &resource.address.to_ne_bytes());
            put(8, &resource.format.to_ne_bytes());
            put(12, &resource.channels.to_ne_bytes());
            put(16, &resource.width.to_ne_bytes());
            if resource.kind == resource_kind::PITCH_2D {
                put(24, &resource.height.to_ne_bytes());
                put(32, &resource.pitch.to_ne_bytes());
            }
        }
        _ => return Err(CudaError::INVALID_VALUE),
    }
    Ok(described)
}
