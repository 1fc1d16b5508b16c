//! How busy a device is.

use crate::{
    abi::{FbcStats, GpmSupport, NvmlError, NvmlResult, Utilization},
    border::{InOut, Out},
    state::Device,
};

exports! {
    fn [nvmlDeviceGetUtilizationRates](device: Device, utilization: Out<Utilization>) {
        let it = device.status()?;
        let both = it.utilization_gpu_percent.zip(it.utilization_memory_percent);
        utilization.give(both.map(|(gpu, memory)| Utilization { gpu, memory }))
    }

    fn [nvmlDeviceGetEncoderUtilization](device: Device, percent: Out<u32>, period_us: Out<u32>) {
        measured(percent, period_us, device.status()?.utilization_encoder)
    }

    fn [nvmlDeviceGetDecoderUtilization](device: Device, percent: Out<u32>, period_us: Out<u32>) {
        measured(percent, period_us, device.status()?.utilization_decoder)
    }

    fn [nvmlDeviceGetJpgUtilization](device: Device, percent: Out<u32>, period_us: Out<u32>) {
        measured(percent, period_us, device.status()?.utilization_jpeg)
    }

    fn [nvmlDeviceGetOfaUtilization](device: Device, percent: Out<u32>, period_us: Out<u32>) {
        measured(percent, period_us, device.status()?.utilization_ofa)
    }

    fn [nvmlDeviceGetEncoderStats](
        device: Device,
        sessions: Out<u32>,
        frames_per_second: Out<u32>,
        latency_us: Out<u32>,
    ) {
        let stats = device.status()?.encoder_stats.ok_or(NvmlError::NotSupported)?;
        sessions.set(stats[0])?;
        frames_per_second.set(stats[1])?;
        latency_us.set(stats[2])
    }

    fn [nvmlDeviceGetFBCStats](device: Device, stats: Out<FbcStats>) {
        let given = device.status()?.frame_capture_stats;
        stats.give(given.map(|[sessions_count, average_fps, average_latency]| FbcStats {
            sessions_count,
            average_fps,
            average_latency,
        }))
    }

    // Whether the finer metrics can be had: a program that hears no does not ask for them.
    fn [nvmlGpmQueryDeviceSupport](_device: Device, support: InOut<GpmSupport>) {
        let asked = support.get();
        if asked.version != 1 {
            return Err(NvmlError::ArgumentVersionMismatch);
        }
        support.set(GpmSupport { is_supported_device: 0, ..asked })
    }
}

fn measured(percent: Out<u32>, period_us: Out<u32>, value: Option<(u32, u32)>) -> NvmlResult<()> {
    let (value, period) = value.ok_or(NvmlError::NotSupported)?;
    percent.set(value)?;
    period_us.set(period)
}
