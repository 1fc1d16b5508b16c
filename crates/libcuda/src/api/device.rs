//! Bodies: device.

#![allow(unused_imports, unused_variables, clippy::too_many_arguments)]

use crate::{border::*, process};
use core::ffi::CStr;
use cuda_abi::*;

/// cuDeviceGet
pub(crate) fn get(device: Out<'_, i32>, ordinal: i32) -> CuResult<()> {
    Err(process::pending("cuDeviceGet"))
}

/// cuDeviceGetCount
pub(crate) fn count(count: Out<'_, i32>) -> CuResult<()> {
    Err(process::pending("cuDeviceGetCount"))
}

/// cuDeviceGetName
pub(crate) fn name(name: OutSlice<'_, u8>, len: i32, device: i32) -> CuResult<()> {
    Err(process::pending("cuDeviceGetName"))
}

/// cuDeviceGetUuid_v2 cuDeviceGetUuid
pub(crate) fn uuid(uuid: Out<'_, CUuuid>, device: i32) -> CuResult<()> {
    Err(process::pending("cuDeviceGetUuid_v2"))
}

/// cuDeviceTotalMem_v2
pub(crate) fn total_memory(bytes: Out<'_, usize>, device: i32) -> CuResult<()> {
    Err(process::pending("cuDeviceTotalMem_v2"))
}

/// cuDeviceGetAttribute
pub(crate) fn attribute(value: Out<'_, i32>, attribute: u32, device: i32) -> CuResult<()> {
    Err(process::pending("cuDeviceGetAttribute"))
}

/// cuDeviceGetProperties
pub(crate) fn properties(properties: Out<'_, CUdevprop>, device: i32) -> CuResult<()> {
    Err(process::pending("cuDeviceGetProperties"))
}

/// cuDeviceComputeCapability
pub(crate) fn compute_capability(major: Out<'_, i32>, minor: Out<'_, i32>, device: i32) -> CuResult<()> {
    Err(process::pending("cuDeviceComputeCapability"))
}

/// cuDeviceGetByPCIBusId
pub(crate) fn by_pci_bus_id(device: Out<'_, i32>, pci_bus_id: &CStr) -> CuResult<()> {
    Err(process::pending("cuDeviceGetByPCIBusId"))
}

/// cuDeviceGetPCIBusId
pub(crate) fn pci_bus_id(pci_bus_id: OutSlice<'_, u8>, len: i32, device: i32) -> CuResult<()> {
    Err(process::pending("cuDeviceGetPCIBusId"))
}

/// cuDeviceGetExecAffinitySupport
pub(crate) fn exec_affinity_support(value: Out<'_, i32>, kind: u32, device: i32) -> CuResult<()> {
    Err(process::pending("cuDeviceGetExecAffinitySupport"))
}

/// cuDeviceGetHostAtomicCapabilities
pub(crate) fn host_atomic_capabilities(
    capabilities: OutSlice<'_, u32>,
    operations: &[u32],
    count: u32,
    device: i32,
) -> CuResult<()> {
    Err(process::pending("cuDeviceGetHostAtomicCapabilities"))
}
