//! Clocks, and what holds them back.

use crate::{
    abi::{NvmlError, NvmlResult},
    border::Out,
    state::Device,
};

exports! {
    fn [nvmlDeviceGetClockInfo](device: Device, clock: u32, mhz: Out<u32>) {
        mhz.give(one(device.status()?.clocks_mhz, clock)?)
    }

    fn [nvmlDeviceGetMaxClockInfo](device: Device, clock: u32, mhz: Out<u32>) {
        mhz.give(one(device.status()?.clocks_max_mhz, clock)?)
    }

    fn [nvmlDeviceGetApplicationsClock](device: Device, clock: u32, mhz: Out<u32>) {
        mhz.give(one(device.status()?.clocks_applications_mhz, clock)?)
    }

    fn [nvmlDeviceGetDefaultApplicationsClock](device: Device, clock: u32, mhz: Out<u32>) {
        mhz.give(one(device.status()?.clocks_applications_default_mhz, clock)?)
    }

    fn [nvmlDeviceGetMaxCustomerBoostClock](device: Device, clock: u32, mhz: Out<u32>) {
        mhz.give(one(device.status()?.clocks_customer_max_mhz, clock)?)
    }

    // `nvmlClockId_t`: the same clocks by number.
    fn [nvmlDeviceGetClock](device: Device, clock: u32, which: u32, mhz: Out<u32>) {
        let it = device.status()?;
        let clocks = match which {
            0 => it.clocks_mhz,
            1 => it.clocks_applications_mhz,
            2 => it.clocks_applications_default_mhz,
            3 => it.clocks_customer_max_mhz,
            _ => return Err(NvmlError::InvalidArgument),
        };
        mhz.give(one(clocks, clock)?)
    }

    fn [nvmlDeviceGetAutoBoostedClocksEnabled](device: Device, is_enabled: Out<u32>, default: Out<u32>) {
        let boost = device.status()?.auto_boost.ok_or(NvmlError::NotSupported)?;
        is_enabled.set(boost.0)?;
        default.set(boost.1)
    }

    fn [nvmlDeviceGetCurrentClocksEventReasons nvmlDeviceGetCurrentClocksThrottleReasons](
        device: Device,
        reasons: Out<u64>,
    ) {
        reasons.give(device.status()?.clock_event_reasons)
    }

    fn [nvmlDeviceGetSupportedClocksEventReasons nvmlDeviceGetSupportedClocksThrottleReasons](
        device: Device,
        reasons: Out<u64>,
    ) {
        reasons.give(device.status()?.clock_event_reasons_supported)
    }

    fn [nvmlDeviceGetPerformanceState nvmlDeviceGetPowerState](device: Device, state: Out<u32>) {
        state.give(device.status()?.performance_state)
    }
}

/// The clock of type `nvmlClockType_t`.
fn one(clocks: [Option<u32>; 4], clock: u32) -> NvmlResult<Option<u32>> {
    clocks.get(clock as usize).copied().ok_or(NvmlError::InvalidArgument)
}
