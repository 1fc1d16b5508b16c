//! Heat and fans.

use crate::{
    abi::{MarginTemperature, NvmlError, Temperature},
    border::{InOut, Out},
    state::Device,
};

/// `NVML_TEMPERATURE_GPU`, the only sensor.
const SENSOR_GPU: u32 = 0;
/// `NVML_TEMPERATURE_THRESHOLD_COUNT`.
const THRESHOLDS: u32 = 8;

exports! {
    fn [nvmlDeviceGetTemperature](device: Device, sensor: u32, celsius: Out<u32>) {
        if sensor != SENSOR_GPU {
            return Err(NvmlError::InvalidArgument);
        }
        celsius.give(device.status()?.temperature_c)
    }

    fn [nvmlDeviceGetTemperatureV](device: Device, temperature: InOut<Temperature>) {
        temperature.check_version(1)?;
        let asked = temperature.get();
        if asked.sensor_type != SENSOR_GPU {
            return Err(NvmlError::InvalidArgument);
        }
        let celsius = device.status()?.temperature_c.ok_or(NvmlError::NotSupported)?;
        temperature.set(Temperature { temperature: i32::try_from(celsius).unwrap_or(i32::MAX), ..asked })
    }

    fn [nvmlDeviceGetTemperatureThreshold](device: Device, threshold: u32, celsius: Out<u32>) {
        if threshold >= THRESHOLDS {
            return Err(NvmlError::InvalidArgument);
        }
        let thresholds = device.status()?.temperature_thresholds_c;
        celsius.give(thresholds.iter().find(|row| row.0 == threshold).map(|row| row.1))
    }

    fn [nvmlDeviceGetMarginTemperature](device: Device, margin: InOut<MarginTemperature>) {
        margin.check_version(1)?;
        let celsius = device.status()?.temperature_margin_c.ok_or(NvmlError::NotSupported)?;
        let answer = MarginTemperature { margin_temperature: celsius, ..margin.get() };
        margin.set(answer)
    }

    fn [nvmlDeviceGetNumFans](device: Device, count: Out<u32>) {
        count.give(device.status()?.fan_count)
    }

    fn [nvmlDeviceGetFanSpeed](device: Device, percent: Out<u32>) {
        percent.give(device.status()?.fan_speeds_percent.first().copied())
    }

    fn [nvmlDeviceGetFanSpeed_v2](device: Device, fan: u32, percent: Out<u32>) {
        let it = device.status()?;
        if it.fan_speeds_percent.is_empty() {
            return Err(NvmlError::NotSupported);
        }
        let speed = it.fan_speeds_percent.get(fan as usize).ok_or(NvmlError::InvalidArgument)?;
        percent.set(*speed)
    }
}
