//! Bodies: devices.

use crate::{border::*, state::client};
use core::ffi::CStr;
use cuda_abi::*;

/// Attributes by number that bodies need themselves.
pub(crate) mod attribute {
    pub(crate) const MAX_THREADS_PER_BLOCK: u32 = 1;
    pub(crate) const MAX_BLOCK_DIM_X: u32 = 2;
    pub(crate) const MAX_GRID_DIM_X: u32 = 5;
    pub(crate) const MAX_SHARED_MEMORY_PER_BLOCK: u32 = 8;
    pub(crate) const TOTAL_CONSTANT_MEMORY: u32 = 9;
    pub(crate) const WARP_SIZE: u32 = 10;
    pub(crate) const MAX_PITCH: u32 = 11;
    pub(crate) const MAX_REGISTERS_PER_BLOCK: u32 = 12;
    pub(crate) const CLOCK_RATE: u32 = 13;
    pub(crate) const TEXTURE_ALIGNMENT: u32 = 14;
    pub(crate) const PCI_BUS: u32 = 33;
    pub(crate) const PCI_DEVICE: u32 = 34;
    pub(crate) const PCI_DOMAIN: u32 = 50;
    pub(crate) const COMPUTE_CAPABILITY_MAJOR: u32 = 75;
    pub(crate) const COMPUTE_CAPABILITY_MINOR: u32 = 76;
    pub(crate) const TENSOR_MAPS: u32 = 127;
}

/// cuDeviceGet
pub(crate) fn get(mut device: Out<'_, i32>, ordinal: i32) -> CuResult<()> {
    client()?.device(ordinal)?;
    device.set(ordinal);
    Ok(())
}

/// cuDeviceGetCount
pub(crate) fn count(mut count: Out<'_, i32>) -> CuResult<()> {
    count.set(client()?.devices.len() as i32);
    Ok(())
}

/// cuDeviceGetName
pub(crate) fn name(mut name: OutSlice<'_, u8>, len: i32, device: i32) -> CuResult<()> {
    let device = client()?.device(device)?;
    if len <= 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    name.set_text(device.info.name.as_bytes());
    Ok(())
}

/// cuDeviceGetUuid_v2 cuDeviceGetUuid
pub(crate) fn uuid(mut uuid: Out<'_, CUuuid>, device: i32) -> CuResult<()> {
    uuid.set(CUuuid { bytes: client()?.device(device)?.info.uuid });
    Ok(())
}

/// cuDeviceTotalMem_v2
pub(crate) fn total_memory(mut bytes: Out<'_, usize>, device: i32) -> CuResult<()> {
    bytes.set(client()?.device(device)?.info.memory_bytes as usize);
    Ok(())
}

/// cuDeviceGetAttribute
pub(crate) fn attribute(mut value: Out<'_, i32>, attribute: u32, device: i32) -> CuResult<()> {
    let device = client()?.device(device)?;
    value.set(device.attribute(attribute).ok_or(CudaError::INVALID_VALUE)?);
    Ok(())
}

/// cuDeviceGetProperties
pub(crate) fn properties(mut properties: Out<'_, CUdevprop>, device: i32) -> CuResult<()> {
    use attribute::*;
    let device = client()?.device(device)?;
    let of = |number| device.attribute(number).unwrap_or(0);
    let three = |first| [of(first), of(first + 1), of(first + 2)];
    properties.set(CUdevprop {
        max_threads_per_block: of(MAX_THREADS_PER_BLOCK),
        max_threads_dim: three(MAX_BLOCK_DIM_X),
        max_grid_size: three(MAX_GRID_DIM_X),
        shared_mem_per_block: of(MAX_SHARED_MEMORY_PER_BLOCK),
        total_constant_memory: of(TOTAL_CONSTANT_MEMORY),
        simd_width: of(WARP_SIZE),
        mem_pitch: of(MAX_PITCH),
        regs_per_block: of(MAX_REGISTERS_PER_BLOCK),
        clock_rate: of(CLOCK_RATE),
        texture_align: of(TEXTURE_ALIGNMENT),
    });
    Ok(())
}

/// cuDeviceComputeCapability
pub(crate) fn compute_capability(
    mut major: Out<'_, i32>,
    mut minor: Out<'_, i32>,
    device: i32,
) -> CuResult<()> {
    let device = client()?.device(device)?;
    major.set(device.attribute(attribute::COMPUTE_CAPABILITY_MAJOR).unwrap_or(0));
    minor.set(device.attribute(attribute::COMPUTE_CAPABILITY_MINOR).unwrap_or(0));
    Ok(())
}

/// `domain:bus:device.function`.
fn pci_text(device: &crate::state::Device) -> String {
    let of = |number| device.attribute(number).unwrap_or(0);
    format!(
        "{:04X}:{:02X}:{:02X}.0",
        of(attribute::PCI_DOMAIN),
        of(attribute::PCI_BUS),
        of(attribute::PCI_DEVICE)
    )
}

/// cuDeviceGetByPCIBusId
pub(crate) fn by_pci_bus_id(mut device: Out<'_, i32>, pci_bus_id: &CStr) -> CuResult<()> {
    let wanted = parse_pci(&pci_bus_id.to_string_lossy()).ok_or(CudaError::INVALID_VALUE)?;
    let client = client()?;
    let found = client.devices.iter().find(|device| parse_pci(&pci_text(device)) == Some(wanted));
    device.set(found.ok_or(CudaError::INVALID_DEVICE)?.ordinal as i32);
    Ok(())
}

/// Reads `domain:bus:device.function`, `bus:device.function` or the same without function, in hexadecimal.
fn parse_pci(text: &str) -> Option<(u32, u32, u32)> {
    let text = text.trim();
    let address = text.split_once('.').map_or(text, |(address, _)| address);
    let numbers: Option<Vec<u32>> =
        address.split(':').map(|part| u32::from_str_radix(part, 16).ok()).collect();
    match numbers?[..] {
        [domain, bus, device] => Some((domain, bus, device)),
        [bus, device] => Some((0, bus, device)),
        _ => None,
    }
}

/// cuDeviceGetPCIBusId
pub(crate) fn pci_bus_id(mut pci_bus_id: OutSlice<'_, u8>, len: i32, device: i32) -> CuResult<()> {
    let text = pci_text(client()?.device(device)?);
    if (len as usize) < text.len() + 1 {
        return Err(CudaError::INVALID_VALUE);
    }
    pci_bus_id.set_text(text.as_bytes());
    Ok(())
}

/// cuDeviceGetExecAffinitySupport: no context gets only a part of the multiprocessors.
pub(crate) fn exec_affinity_support(mut value: Out<'_, i32>, kind: u32, device: i32) -> CuResult<()> {
    client()?.device(device)?;
    if kind != 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    value.set(0);
    Ok(())
}

/// cuDeviceGetHostAtomicCapabilities: the device cannot reach this host's memory, so there are none.
pub(crate) fn host_atomic_capabilities(
    mut capabilities: OutSlice<'_, u32>,
    operations: &[u32],
    _count: u32,
    device: i32,
) -> CuResult<()> {
    client()?.device(device)?;
    capabilities.fill(operations.iter().map(|_| 0));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_come_in_three_forms() {
        assert_eq!(parse_pci("0000:0A:00.0"), Some((0, 10, 0)));
        assert_eq!(parse_pci("0a:00.0"), Some((0, 10, 0)));
        assert_eq!(parse_pci("0001:0a:1f"), Some((1, 10, 31)));
        assert_eq!(parse_pci("GPU-0"), None);
    }
}
