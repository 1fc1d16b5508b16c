//! What the driver says of devices.

use super::{Fake, put};
use crate::sys::MemAllocationProp;
use cuda_abi::{CuResult, CudaError};
use std::ffi::{c_char, c_int, c_uint};

/// The CUDA version that the fake claims.
pub(crate) const VERSION: c_int = 13000;
/// Device memory is made and mapped in steps of this.
pub(super) const GRANULARITY: usize = 2 << 20;
/// `CUdevice_attribute` numbers from 1 to this are known.
const ATTRIBUTES: c_uint = 100;

impl Fake {
    pub(crate) fn init(&self, _flags: c_uint) -> CuResult<()> {
        Ok(())
    }

    pub(crate) fn driver_version(&self, version: *mut c_int) -> CuResult<()> {
        put(version, VERSION);
        Ok(())
    }

    pub(crate) fn device_count(&self, count: *mut c_int) -> CuResult<()> {
        put(count, self.lock().memory.free_bytes.len() as c_int);
        Ok(())
    }

    pub(crate) fn device_name(&self, name: *mut c_char, bytes: c_int, device: c_int) -> CuResult<()> {
        let text = format!("Fake GPU {device}\0");
        let count = text.len().min(bytes as usize);
        // SAFETY: the caller has room for `bytes`.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), name.cast(), count) };
        Ok(())
    }

    pub(crate) fn device_uuid(&self, uuid: *mut [u8; 16], device: c_int) -> CuResult<()> {
        put(uuid, [device as u8 + 1; 16]);
        Ok(())
    }

    pub(crate) fn device_memory(&self, bytes: *mut usize, _device: c_int) -> CuResult<()> {
        put(bytes, super::memory::DEVICE_BYTES);
        Ok(())
    }

    pub(crate) fn device_attribute(
        &self,
        value: *mut c_int,
        attribute: c_uint,
        _device: c_int,
    ) -> CuResult<()> {
        if !(1..=ATTRIBUTES).contains(&attribute) {
            return Err(CudaError::INVALID_VALUE);
        }
        put(value, attribute as c_int * 10);
        Ok(())
    }

    pub(crate) fn memory_granularity(
        &self,
        bytes: *mut usize,
        _prop: *const MemAllocationProp,
        _option: c_uint,
    ) -> CuResult<()> {
        put(bytes, GRANULARITY);
        Ok(())
    }
}
