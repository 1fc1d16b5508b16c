//! Processes that use a device.
//!
//! None are shown. The processes of a lease run on the machines of its holder and the GPU elsewhere: this library knows
//! neither which of the machine's processes have a session nor how much of the device each of them uses, and the holder
//! may not see the processes of the other machine.

use crate::{
    abi::{NvmlError, ProcessInfo, ProcessInfoV1},
    border::{Many, Out},
    state::Device,
};

exports! {
    fn [
        nvmlDeviceGetComputeRunningProcesses
        nvmlDeviceGetGraphicsRunningProcesses
        nvmlDeviceGetMPSComputeRunningProcesses
    ](_device: Device, count: Out<u32>, _infos: Many<ProcessInfoV1>) {
        count.set(0)
    }

    fn [
        nvmlDeviceGetComputeRunningProcesses_v2
        nvmlDeviceGetComputeRunningProcesses_v3
        nvmlDeviceGetGraphicsRunningProcesses_v2
        nvmlDeviceGetGraphicsRunningProcesses_v3
        nvmlDeviceGetMPSComputeRunningProcesses_v2
        nvmlDeviceGetMPSComputeRunningProcesses_v3
    ](_device: Device, count: Out<u32>, _infos: Many<ProcessInfo>) {
        count.set(0)
    }

    fn [nvmlDeviceGetEncoderSessions nvmlDeviceGetFBCSessions](_device: Device, count: Out<u32>, _infos: Many<u8>) {
        count.set(0)
    }

    fn [nvmlDeviceGetAccountingPids](_device: Device, count: Out<u32>, _pids: Many<u32>) {
        count.set(0)
    }

    // NVML's own word for a device on which nothing ran lately.
    fn [nvmlDeviceGetProcessUtilization](
        _device: Device,
        _samples: Many<u8>,
        count: Out<u32>,
        _since_us: u64,
    ) {
        count.set(0)?;
        Err(NvmlError::NotFound)
    }
}
