//! Texture and surface references. A module has those that its text declares; what is bound to them is only kept as words.

use super::Fake;
use crate::sys::{
    Array, ArrayDescriptor2D, DeviceAddress, MipmappedArray, Module, SurfaceReference, TextureReference,
};
use cuda_abi::{CuResult, CudaError};
use std::ffi::{CStr, c_char, c_int, c_uint};

impl Fake {
    /// What was bound to references, in order.
    pub(crate) fn bound(&self) -> Vec<String> {
        self.lock().bound.clone()
    }

    fn reference(&self, module: Module, name: *const c_char) -> CuResult<usize> {
        // SAFETY: valid for the call, as the caller promises.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        // The session's own module has one of each kind.
        if module.0.is_null() || !["picture", "canvas"].contains(&name.as_str()) {
            return Err(CudaError::NOT_FOUND);
        }
        Ok(name.len())
    }

    fn bind(&self, what: String) -> CuResult<()> {
        self.lock().bound.push(what);
        Ok(())
    }

    pub(crate) fn module_texture(
        &self,
        reference: *mut TextureReference,
        module: Module,
        name: *const c_char,
    ) -> CuResult<()> {
        let found = self.reference(module, name)?;
        // SAFETY: valid for the call, as the caller promises.
        unsafe { reference.write(TextureReference(std::ptr::without_provenance_mut(found))) };
        Ok(())
    }

    pub(crate) fn module_surface(
        &self,
        reference: *mut SurfaceReference,
        module: Module,
        name: *const c_char,
    ) -> CuResult<()> {
        let found = self.reference(module, name)?;
        // SAFETY: valid for the call, as the caller promises.
        unsafe { reference.write(SurfaceReference(std::ptr::without_provenance_mut(found))) };
        Ok(())
    }

    pub(crate) fn texture_set_array(&self, _: TextureReference, _: Array, flags: c_uint) -> CuResult<()> {
        self.bind(format!("array {flags}"))
    }

    pub(crate) fn texture_set_mipmapped(
        &self,
        _: TextureReference,
        _: MipmappedArray,
        flags: c_uint,
    ) -> CuResult<()> {
        self.bind(format!("mipmapped {flags}"))
    }

    pub(crate) fn texture_set_address(
        &self,
        offset: *mut usize,
        _: TextureReference,
        address: DeviceAddress,
        bytes: usize,
    ) -> CuResult<()> {
        // SAFETY: valid for the call, as the caller promises.
        unsafe { offset.write(0) };
        self.bind(format!("memory {address:#x} {bytes}"))
    }

    pub(crate) fn texture_set_rows(
        &self,
        _: TextureReference,
        descriptor: *const ArrayDescriptor2D,
        address: DeviceAddress,
        pitch: usize,
    ) -> CuResult<()> {
        // SAFETY: valid for the call, as the caller promises.
        let given = unsafe { descriptor.read() };
        self.bind(format!("rows {address:#x} {} {} {pitch}", given.width, given.height))
    }

    pub(crate) fn texture_set_format(
        &self,
        _: TextureReference,
        format: c_uint,
        count: c_int,
    ) -> CuResult<()> {
        self.bind(format!("format {format:#x} {count}"))
    }

    pub(crate) fn texture_set_address_mode(&self, _: TextureReference, _: c_int, _: c_uint) -> CuResult<()> {
        Ok(())
    }

    pub(crate) fn texture_set_filter(&self, _: TextureReference, mode: c_uint) -> CuResult<()> {
        self.bind(format!("filter {mode}"))
    }

    pub(crate) fn texture_set_flags(&self, _: TextureReference, _: c_uint) -> CuResult<()> {
        Ok(())
    }

    pub(crate) fn texture_set_anisotropy(&self, _: TextureReference, _: c_uint) -> CuResult<()> {
        Ok(())
    }

    pub(crate) fn texture_set_mipmap_filter(&self, _: TextureReference, _: c_uint) -> CuResult<()> {
        Ok(())
    }

    pub(crate) fn texture_set_bias(&self, _: TextureReference, _: f32) -> CuResult<()> {
        Ok(())
    }

    pub(crate) fn texture_set_clamp(&self, _: TextureReference, _: f32, _: f32) -> CuResult<()> {
        Ok(())
    }

    pub(crate) fn texture_set_border(&self, _: TextureReference, _: *const [f32; 4]) -> CuResult<()> {
        Ok(())
    }

    pub(crate) fn surface_set_array(&self, _: SurfaceReference, _: Array, _: c_uint) -> CuResult<()> {
        self.bind("surface".to_owned())
    }
}
