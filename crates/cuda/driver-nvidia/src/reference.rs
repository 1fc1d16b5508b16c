//! Texture and surface references of modules, which programs of CUDA 11 and before use.

#![allow(unsafe_code)]

use crate::{
    array::Arrays,
    sys::{Api, ArrayDescriptor2D, Module, SurfaceReference, TextureReference},
};
use cuda_abi::{CuResult, CudaError};
use cuda_wire::{Plane, Resource, Sampling, Shape, resource_kind};
use std::ffi::{CString, c_int};

/// `CU_TRSA_OVERRIDE_FORMAT`: the format is the array's.
const OVERRIDE_FORMAT: u32 = 1;

/// A reference of a module.
#[derive(Clone, Copy)]
pub(crate) enum Reference {
    Texture(TextureReference),
    Surface(SurfaceReference),
}

impl Reference {
    pub(crate) fn find(api: &Api, module: Module, name: &str, is_surface: bool) -> CuResult<Self> {
        let name = CString::new(name).map_err(|_| CudaError::NOT_FOUND)?;
        // SAFETY: all pointers are valid for the call, and the module is loaded.
        unsafe {
            if is_surface {
                let mut reference = SurfaceReference::default();
                api.module_surface(&mut reference, module, name.as_ptr())?;
                return Ok(Self::Surface(reference));
            }
            let mut reference = TextureReference::default();
            api.module_texture(&mut reference, module, name.as_ptr())?;
            Ok(Self::Texture(reference))
        }
    }

    /// Binds it. The driver keeps what kernels launched before read.
    pub(crate) fn bind(
        self,
        api: &Api,
        arrays: &Arrays,
        resource: &Resource,
        sampling: &Sampling,
    ) -> CuResult<()> {
        let array = || {
            let end = arrays.end(&Plane::line(resource.address), &Shape::line(1))?;
            end.map(|end| end.array).ok_or(CudaError::INVALID_VALUE)
        };
        match (self, resource.kind) {
            // SAFETY: reference and array are alive.
            (Self::Surface(reference), resource_kind::ARRAY) => unsafe {
                api.surface_set_array(reference, array()?, 0)
            },
            (Self::Surface(_), _) => Err(CudaError::INVALID_VALUE),
            (Self::Texture(reference), kind) => {
                sample(api, reference, sampling)?;
                match kind {
                    // SAFETY: as above.
                    resource_kind::ARRAY => unsafe {
                        api.texture_set_array(reference, array()?, OVERRIDE_FORMAT)
                    },
                    resource_kind::MIPMAPPED_ARRAY => {
                        let array = arrays.find(resource.address)?.mipmapped();
                        let array = array.ok_or(CudaError::INVALID_VALUE)?;
                        // SAFETY: as above.
                        unsafe { api.texture_set_mipmapped(reference, array, OVERRIDE_FORMAT) }
                    }
                    _ => memory(api, reference, resource),
                }
            }
        }
    }
}

fn memory(api: &Api, reference: TextureReference, resource: &Resource) -> CuResult<()> {
    let (format, channels) = (resource.format, resource.channels);
    // SAFETY: all pointers are valid for the call. Device memory is the program's to answer for.
    unsafe {
        api.texture_set_format(reference, format, channels as c_int)?;
        if resource.kind == resource_kind::PITCH_2D {
            let (width, height) = (resource.width as usize, resource.height as usize);
            let descriptor = ArrayDescriptor2D { width, height, format, channels };
            return api.texture_set_rows(reference, &descriptor, resource.address, resource.pitch as usize);
        }
        let mut offset = 0;
        api.texture_set_address(&mut offset, reference, resource.address, resource.width as usize)
    }
}

fn sample(api: &Api, reference: TextureReference, sampling: &Sampling) -> CuResult<()> {
    // SAFETY: the reference lives as long as its module, and the color is valid for the call.
    unsafe {
        for (dimension, mode) in (0..).zip(sampling.address_modes) {
            api.texture_set_address_mode(reference, dimension, mode)?;
        }
        api.texture_set_filter(reference, sampling.filter_mode)?;
        api.texture_set_flags(reference, sampling.flags)?;
        api.texture_set_anisotropy(reference, sampling.max_anisotropy)?;
        api.texture_set_mipmap_filter(reference, sampling.mipmap_filter_mode)?;
        api.texture_set_bias(reference, sampling.mipmap_level_bias)?;
        let (least, most) = (sampling.min_mipmap_level_clamp, sampling.max_mipmap_level_clamp);
        api.texture_set_clamp(reference, least, most)?;
        api.texture_set_border(reference, &sampling.border_color)
    }
}
