//! The bus of a device, on the machine that holds it.

use crate::{
    abi::{NvmlError, PciInfo, PciInfoExt, PciInfoV1, PciInfoV2},
    border::{InOut, Out, field},
    state::Device,
};
use cuda_wire::DeviceStatus;

exports! {
    fn [nvmlDeviceGetPciInfo](device: Device, pci: Out<PciInfoV1>) {
        let it = device.identity();
        pci.set(PciInfoV1 {
            bus_id: field(&legacy_bus_id(it)),
            domain: it.pci_domain,
            bus: it.pci_bus,
            device: it.pci_device,
            pci_device_id: it.pci_device_id,
        })
    }

    fn [nvmlDeviceGetPciInfo_v2](device: Device, pci: Out<PciInfoV2>) {
        let it = device.identity();
        pci.set(PciInfoV2 {
            bus_id: field(&legacy_bus_id(it)),
            domain: it.pci_domain,
            bus: it.pci_bus,
            device: it.pci_device,
            pci_device_id: it.pci_device_id,
            pci_subsystem_id: it.pci_subsystem_id,
            reserved: [0; 4],
        })
    }

    fn [nvmlDeviceGetPciInfo_v3](device: Device, pci: Out<PciInfo>) {
        let it = device.identity();
        pci.set(PciInfo {
            bus_id_legacy: field(&legacy_bus_id(it)),
            domain: it.pci_domain,
            bus: it.pci_bus,
            device: it.pci_device,
            pci_device_id: it.pci_device_id,
            pci_subsystem_id: it.pci_subsystem_id,
            bus_id: field(&bus_id(it)),
        })
    }

    fn [nvmlDeviceGetPciInfoExt](device: Device, pci: InOut<PciInfoExt>) {
        pci.check_version(1)?;
        let it = device.identity();
        let (base_class, sub_class) = it.pci_class.ok_or(NvmlError::NotSupported)?;
        let answer = PciInfoExt {
            version: pci.get().version,
            domain: it.pci_domain,
            bus: it.pci_bus,
            device: it.pci_device,
            pci_device_id: it.pci_device_id,
            pci_subsystem_id: it.pci_subsystem_id,
            base_class,
            sub_class,
            bus_id: field(&bus_id(it)),
        };
        pci.set(answer)
    }

    fn [nvmlDeviceGetBusType](device: Device, bus_type: Out<u32>) {
        bus_type.give(device.identity().bus_type)
    }

    fn [nvmlDeviceGetCurrPcieLinkGeneration](device: Device, generation: Out<u32>) {
        generation.give(device.status()?.pcie_generation)
    }

    fn [nvmlDeviceGetMaxPcieLinkGeneration](device: Device, generation: Out<u32>) {
        generation.give(device.status()?.pcie_generation_max)
    }

    fn [nvmlDeviceGetGpuMaxPcieLinkGeneration](device: Device, generation: Out<u32>) {
        generation.give(device.status()?.pcie_generation_device_max)
    }

    fn [nvmlDeviceGetCurrPcieLinkWidth](device: Device, width: Out<u32>) {
        width.give(device.status()?.pcie_width)
    }

    fn [nvmlDeviceGetMaxPcieLinkWidth](device: Device, width: Out<u32>) {
        width.give(device.status()?.pcie_width_max)
    }

    fn [nvmlDeviceGetPcieSpeed](device: Device, speed: Out<u32>) {
        speed.give(device.status()?.pcie_speed_mbps)
    }

    fn [nvmlDeviceGetPcieLinkMaxSpeed](device: Device, speed: Out<u32>) {
        speed.give(device.status()?.pcie_speed_max)
    }

    fn [nvmlDeviceGetPcieReplayCounter](device: Device, replays: Out<u32>) {
        replays.give(device.status()?.pcie_replays)
    }
}

fn bus_id(it: &DeviceStatus) -> String {
    format!("{:08X}:{:02X}:{:02X}.0", it.pci_domain, it.pci_bus, it.pci_device)
}

/// With a domain of four digits, as it was before there were larger ones.
pub(super) fn legacy_bus_id(it: &DeviceStatus) -> String {
    format!("{:04X}:{:02X}:{:02X}.0", it.pci_domain & 0xffff, it.pci_bus, it.pci_device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_ids_are_written_as_nvml_writes_them() {
        let it = DeviceStatus { pci_domain: 0x1_0002, pci_bus: 0x1b, pci_device: 6, ..Default::default() };
        assert_eq!((bus_id(&it), legacy_bus_id(&it)), ("00010002:1B:06.0".into(), "0002:1B:06.0".into()));
    }
}
