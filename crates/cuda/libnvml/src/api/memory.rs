//! How much memory a device has and how much of it is used: by all programs that share the device, as on a local GPU.

use crate::{
    abi::{Bar1Memory, Memory, MemoryV2, NvmlError},
    border::{InOut, Out},
    state::Device,
};

exports! {
    fn [nvmlDeviceGetMemoryInfo](device: Device, memory: Out<Memory>) {
        let it = device.status()?;
        // The first version knew no reserved memory and counts it as used.
        memory.set(Memory {
            total: it.memory_total_bytes,
            free: it.memory_free_bytes,
            used: it.memory_used_bytes + it.memory_reserved_bytes,
        })
    }

    fn [nvmlDeviceGetMemoryInfo_v2](device: Device, memory: InOut<MemoryV2>) {
        memory.check_version(2)?;
        let it = device.status()?;
        let answer = MemoryV2 {
            version: memory.get().version,
            total: it.memory_total_bytes,
            reserved: it.memory_reserved_bytes,
            free: it.memory_free_bytes,
            used: it.memory_used_bytes,
        };
        memory.set(answer)
    }

    fn [nvmlDeviceGetBAR1MemoryInfo](device: Device, memory: Out<Bar1Memory>) {
        let [total, free, used] = device.status()?.bar1_bytes.ok_or(NvmlError::NotSupported)?;
        memory.set(Bar1Memory { total, free, used })
    }

    fn [nvmlDeviceGetMemoryBusWidth](device: Device, bits: Out<u32>) {
        bits.give(device.identity().memory_bus_bits)
    }
}
