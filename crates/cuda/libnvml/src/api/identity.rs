//! What never changes of a device. Answered from what nvmlInit learned.

use crate::{
    abi::{NvmlError, Pdi},
    border::{InOut, Out, TextOut},
    state::Device,
};

exports! {
    fn [nvmlDeviceGetName](device: Device, name: TextOut, length: u32) {
        name.set(length, &device.identity().name)
    }

    fn [nvmlDeviceGetUUID](device: Device, uuid: TextOut, length: u32) {
        uuid.set(length, &device.identity().uuid)
    }

    fn [nvmlDeviceGetSerial](device: Device, serial: TextOut, length: u32) {
        serial.give(length, device.identity().serial.as_deref())
    }

    fn [nvmlDeviceGetBoardPartNumber](device: Device, number: TextOut, length: u32) {
        number.give(length, device.identity().board_part_number.as_deref())
    }

    fn [nvmlDeviceGetVbiosVersion](device: Device, version: TextOut, length: u32) {
        version.give(length, device.identity().vbios_version.as_deref())
    }

    fn [nvmlDeviceGetInforomImageVersion](device: Device, version: TextOut, length: u32) {
        version.give(length, device.identity().inforom_image_version.as_deref())
    }

    fn [nvmlDeviceGetInforomVersion](device: Device, object: u32, version: TextOut, length: u32) {
        let versions = &device.identity().inforom_versions;
        let found = versions.iter().find(|row| row.0 == object);
        version.give(length, found.map(|row| row.1.as_str()))
    }

    // Documented with a buffer of 64 bytes and no length.
    fn [nvmlDeviceGetGspFirmwareVersion](device: Device, version: TextOut) {
        version.give(64, device.identity().gsp_firmware_version.as_deref())
    }

    fn [nvmlDeviceGetGspFirmwareMode](device: Device, is_enabled: Out<u32>, default: Out<u32>) {
        let mode = device.identity().gsp_firmware_mode.ok_or(NvmlError::NotSupported)?;
        is_enabled.set(mode.0)?;
        default.set(mode.1)
    }

    fn [nvmlDeviceGetBrand](device: Device, brand: Out<u32>) {
        brand.set(device.identity().brand)
    }

    fn [nvmlDeviceGetArchitecture](device: Device, architecture: Out<u32>) {
        architecture.give(device.identity().architecture)
    }

    fn [nvmlDeviceGetCudaComputeCapability](device: Device, major: Out<i32>, minor: Out<i32>) {
        let (a, b) = device.identity().compute_capability;
        major.set(a)?;
        minor.set(b)
    }

    fn [nvmlDeviceGetNumGpuCores](device: Device, cores: Out<u32>) {
        cores.give(device.identity().core_count)
    }

    fn [nvmlDeviceGetMinorNumber](device: Device, minor: Out<u32>) {
        minor.give(device.identity().minor_number)
    }

    fn [nvmlDeviceGetBoardId](device: Device, board: Out<u32>) {
        board.give(device.identity().board_id)
    }

    fn [nvmlDeviceGetMultiGpuBoard](device: Device, is_multi: Out<u32>) {
        is_multi.give(device.identity().is_multi_gpu_board.map(u32::from))
    }

    fn [nvmlDeviceGetModuleId](device: Device, module: Out<u32>) {
        module.give(device.identity().module_id)
    }

    fn [nvmlDeviceGetPdi](device: Device, pdi: InOut<Pdi>) {
        pdi.check_version(1)?;
        let value = device.identity().pdi.ok_or(NvmlError::NotSupported)?;
        let answer = Pdi { value, ..pdi.get() };
        pdi.set(answer)
    }
}
