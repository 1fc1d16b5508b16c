//! What the driver says of a device.

#![allow(unsafe_code)]

use crate::{context::LiveContext, memory::properties, sys::Api};
use cuda_abi::CuResult;
use cuda_wire::DeviceInfo;

/// `CUdevice_attribute` numbers are below this in every CUDA we know.
const ATTRIBUTES_MAX: u32 = 256;
/// `CUlimit` numbers.
const LIMITS: std::ops::Range<u32> = 0..16;

/// The description of a context's device.
pub(crate) fn of(api: &Api, context: &LiveContext, limit_bytes: u64) -> CuResult<DeviceInfo> {
    context.enter()?;
    let device = context.device as i32;
    let mut name = [0u8; 256];
    let (mut uuid, mut memory_bytes) = ([0; 16], 0);
    // SAFETY: every pointer is valid for what the function writes.
    unsafe {
        api.device_name(name.as_mut_ptr().cast(), name.len() as i32 - 1, device)?;
        api.device_uuid(&mut uuid, device)?;
        api.device_memory(&mut memory_bytes, device)?;
    }
    let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
    let attribute = |number| {
        let mut value = 0;
        // SAFETY: `value` is valid for the call; an unknown number is refused.
        unsafe { api.device_attribute(&mut value, number, device) }.ok()?;
        Some((number, value))
    };
    let limit = |number| {
        let mut value = 0;
        // SAFETY: as above.
        unsafe { api.context_get_limit(&mut value, number) }.ok()?;
        Some((number, value as u64))
    };
    let (mut least, mut greatest) = (0, 0);
    // SAFETY: both pointers are valid for the call.
    unsafe { api.context_priorities(&mut least, &mut greatest)? };
    let granularity = |option| -> CuResult<u64> {
        let mut bytes = 0;
        // SAFETY: both pointers are valid for the call.
        unsafe { api.memory_granularity(&mut bytes, &properties(context.device), option)? };
        Ok(bytes as u64)
    };
    Ok(DeviceInfo {
        name: String::from_utf8_lossy(name).into_owned(),
        uuid,
        memory_bytes: (memory_bytes as u64).min(limit_bytes),
        attributes: (1..ATTRIBUTES_MAX).filter_map(attribute).collect(),
        stream_priorities: (least, greatest),
        granularity: (granularity(0)?, granularity(1)?),
        limits: LIMITS.filter_map(limit).collect(),
    })
}
