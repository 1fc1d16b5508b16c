//! Modes that an operator has set.

use crate::{
    abi::{C2cModeInfo, NvmlError, NvmlResult},
    border::Out,
    state::Device,
};

exports! {
    fn [nvmlDeviceGetPersistenceMode](device: Device, mode: Out<u32>) {
        mode.give(device.status()?.persistence_mode)
    }

    fn [nvmlDeviceGetComputeMode](device: Device, mode: Out<u32>) {
        mode.give(device.status()?.compute_mode)
    }

    fn [nvmlDeviceGetDisplayMode](device: Device, mode: Out<u32>) {
        mode.give(device.status()?.display_mode)
    }

    fn [nvmlDeviceGetDisplayActive](device: Device, is_active: Out<u32>) {
        is_active.give(device.status()?.display_active)
    }

    fn [nvmlDeviceGetAccountingMode](device: Device, mode: Out<u32>) {
        mode.give(device.status()?.accounting_mode)
    }

    fn [nvmlDeviceGetAccountingBufferSize](device: Device, size: Out<u32>) {
        size.give(device.status()?.accounting_buffer_size)
    }

    fn [nvmlDeviceGetVirtualizationMode](device: Device, mode: Out<u32>) {
        mode.give(device.status()?.virtualization_mode)
    }

    fn [nvmlDeviceGetGpuOperationMode](device: Device, current: Out<u32>, pending: Out<u32>) {
        pair(current, pending, device.status()?.operation_mode)
    }

    fn [nvmlDeviceGetMigMode](device: Device, current: Out<u32>, pending: Out<u32>) {
        pair(current, pending, device.status()?.mig_mode)
    }

    // What is lent is a whole GPU or what the worker shows as one: no handle here is a MIG device's.
    fn [nvmlDeviceIsMigDeviceHandle](_device: Device, is_mig: Out<u32>) {
        is_mig.set(0)
    }

    fn [nvmlDeviceGetMaxMigDeviceCount](_device: Device, count: Out<u32>) {
        count.set(0)
    }

    fn [nvmlDeviceGetEccMode](device: Device, current: Out<u32>, pending: Out<u32>) {
        pair(current, pending, device.status()?.ecc_mode)
    }

    fn [nvmlDeviceGetDefaultEccMode](device: Device, mode: Out<u32>) {
        mode.give(device.status()?.ecc_mode_default)
    }

    fn [nvmlDeviceGetC2cModeInfoV](device: Device, mode: Out<C2cModeInfo>) {
        mode.give(device.status()?.c2c_mode.map(|is_c2c_enabled| C2cModeInfo { is_c2c_enabled }))
    }
}

fn pair(current: Out<u32>, pending: Out<u32>, mode: Option<(u32, u32)>) -> NvmlResult<()> {
    let mode = mode.ok_or(NvmlError::NotSupported)?;
    current.set(mode.0)?;
    pending.set(mode.1)
}
