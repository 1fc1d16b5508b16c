//! What belongs to no device: versions, processes of this machine, what a cluster node might have.

use crate::{
    abi::NvmlError,
    border::{Out, TextOut},
    state::current,
};

exports! {
    fn [nvmlSystemGetDriverVersion](version: TextOut, length: u32) {
        version.set(length, &current()?.common()?.driver_version)
    }

    fn [nvmlSystemGetNVMLVersion](version: TextOut, length: u32) {
        version.set(length, &current()?.common()?.nvml_version)
    }

    fn [nvmlSystemGetCudaDriverVersion nvmlSystemGetCudaDriverVersion_v2](version: Out<i32>) {
        version.set(current()?.common()?.cuda_version)
    }

    // Processes are those of the machine that the program runs on: they are what uses a leased GPU.
    fn [nvmlSystemGetProcessName](pid: u32, name: TextOut, length: u32) {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| NvmlError::NotFound)?;
        let program = command.split(|byte| *byte == 0).next().unwrap_or_default();
        let program = String::from_utf8_lossy(program);
        // As much as there is room for, as NVML does.
        let room = (length as usize).checked_sub(1).ok_or(NvmlError::InsufficientSize)?;
        let mut end = program.len().min(room);
        while !program.is_char_boundary(end) {
            end -= 1;
        }
        name.set(length, &program[..end])
    }

    fn [nvmlUnitGetCount nvmlGetExcludedDeviceCount nvmlGetBlacklistDeviceCount](count: Out<u32>) {
        // Neither S-class enclosures nor excluded GPUs are ever lent.
        count.set(0)
    }
}
