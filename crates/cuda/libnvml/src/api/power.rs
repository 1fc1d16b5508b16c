//! Power and energy, in milliwatts and millijoules.

use crate::{abi::NvmlError, border::Out, state::Device};

exports! {
    fn [nvmlDeviceGetPowerUsage](device: Device, milliwatts: Out<u32>) {
        milliwatts.give(device.status()?.power_mw)
    }

    fn [nvmlDeviceGetTotalEnergyConsumption](device: Device, millijoules: Out<u64>) {
        millijoules.give(device.status()?.energy_mj)
    }

    fn [nvmlDeviceGetPowerManagementLimit](device: Device, milliwatts: Out<u32>) {
        milliwatts.give(device.status()?.power_limit_mw)
    }

    fn [nvmlDeviceGetPowerManagementDefaultLimit](device: Device, milliwatts: Out<u32>) {
        milliwatts.give(device.status()?.power_limit_default_mw)
    }

    fn [nvmlDeviceGetEnforcedPowerLimit](device: Device, milliwatts: Out<u32>) {
        milliwatts.give(device.status()?.power_limit_enforced_mw)
    }

    fn [nvmlDeviceGetPowerManagementLimitConstraints](device: Device, least: Out<u32>, most: Out<u32>) {
        let range = device.status()?.power_limit_range_mw.ok_or(NvmlError::NotSupported)?;
        least.set(range.0)?;
        most.set(range.1)
    }

    // A device with a limit is a device whose power is managed.
    fn [nvmlDeviceGetPowerManagementMode](device: Device, mode: Out<u32>) {
        mode.give(device.status()?.power_limit_mw.map(|_| 1))
    }

    fn [nvmlDeviceGetPowerSource](device: Device, source: Out<u32>) {
        source.give(device.status()?.power_source)
    }
}
