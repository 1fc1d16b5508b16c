//! A device's state, question by question. What NVML refuses stays absent.

#![allow(unsafe_code)]

use super::nvml::{NvmlDevice, ask, text};
use cuda_wire::{DeviceStatus, MemoryErrors};
use nvml_wrapper_sys::bindings::*;
use std::ffi::c_uint;

/// Text of a device: buffer and length are the last two arguments.
macro_rules! device_text {
    ($device:expr, $name:ident($($argument:expr),*)) => {
        $device.library().$name.as_ref().ok().and_then(|function| {
            // SAFETY: the buffer is as long as is said.
            text(|buffer, length| unsafe { function($device.handle $(, $argument)*, buffer, length) })
        })
    };
}

/// What never changes.
pub(super) fn identity(device: &NvmlDevice) -> DeviceStatus {
    let library = device.library();
    let system_text = |function: Option<&unsafe extern "C" fn(*mut _, c_uint) -> u32>| {
        let function = function?;
        // SAFETY: the buffer is as long as is said.
        text(|buffer, length| unsafe { function(buffer, length) })
    };
    let pci = ask!(device, nvmlDeviceGetPciInfo_v3(): nvmlPciInfo_t);
    let mut status = DeviceStatus {
        driver_version: system_text(library.nvmlSystemGetDriverVersion.as_ref().ok()).unwrap_or_default(),
        nvml_version: system_text(library.nvmlSystemGetNVMLVersion.as_ref().ok()).unwrap_or_default(),
        name: device_text!(device, nvmlDeviceGetName()).unwrap_or_default(),
        brand: ask!(device, nvmlDeviceGetBrand(): c_uint).unwrap_or(0),
        architecture: ask!(device, nvmlDeviceGetArchitecture(): c_uint),
        compute_capability: ask!(device, nvmlDeviceGetCudaComputeCapability(): i32, i32).unwrap_or_default(),
        core_count: ask!(device, nvmlDeviceGetNumGpuCores(): c_uint),
        uuid: device_text!(device, nvmlDeviceGetUUID()).unwrap_or_default(),
        serial: device_text!(device, nvmlDeviceGetSerial()),
        board_part_number: device_text!(device, nvmlDeviceGetBoardPartNumber()),
        vbios_version: device_text!(device, nvmlDeviceGetVbiosVersion()),
        inforom_image_version: device_text!(device, nvmlDeviceGetInforomImageVersion()),
        inforom_versions: (0..nvmlInforomObject_enum_NVML_INFOROM_COUNT)
            .filter_map(|object| Some((object, device_text!(device, nvmlDeviceGetInforomVersion(object))?)))
            .collect(),
        gsp_firmware_version: library.nvmlDeviceGetGspFirmwareVersion.as_ref().ok().and_then(|function| {
            // SAFETY: the buffer is longer than the 64 bytes that are documented.
            text(|buffer, _| unsafe { function(device.handle, buffer) })
        }),
        gsp_firmware_mode: ask!(device, nvmlDeviceGetGspFirmwareMode(): c_uint, c_uint),
        minor_number: ask!(device, nvmlDeviceGetMinorNumber(): c_uint),
        board_id: ask!(device, nvmlDeviceGetBoardId(): c_uint),
        is_multi_gpu_board: ask!(device, nvmlDeviceGetMultiGpuBoard(): c_uint).map(|is| is != 0),
        module_id: ask!(device, nvmlDeviceGetModuleId(): c_uint),
        pdi: pdi(device),
        pci_class: pci_class(device),
        bus_type: ask!(device, nvmlDeviceGetBusType(): c_uint),
        pcie_generation_device_max: ask!(device, nvmlDeviceGetGpuMaxPcieLinkGeneration(): c_uint),
        memory_bus_bits: ask!(device, nvmlDeviceGetMemoryBusWidth(): c_uint),
        clock_event_reasons_supported: ask!(device, nvmlDeviceGetSupportedClocksEventReasons(): u64),
        ecc_mode_default: ask!(device, nvmlDeviceGetDefaultEccMode(): c_uint),
        virtualization_mode: ask!(device, nvmlDeviceGetVirtualizationMode(): c_uint),
        ..DeviceStatus::default()
    };
    if let Some(pci) = pci {
        (status.pci_domain, status.pci_bus, status.pci_device) = (pci.domain, pci.bus, pci.device);
        (status.pci_device_id, status.pci_subsystem_id) = (pci.pciDeviceId, pci.pciSubSystemId);
    }
    status
}

/// Everything that changes, but memory.
pub(super) fn sample(device: &NvmlDevice, status: &mut DeviceStatus) {
    let busy = ask!(device, nvmlDeviceGetUtilizationRates(): nvmlUtilization_t);
    status.utilization_gpu_percent = busy.map(|busy| busy.gpu);
    status.utilization_memory_percent = busy.map(|busy| busy.memory);
    status.utilization_encoder = ask!(device, nvmlDeviceGetEncoderUtilization(): c_uint, c_uint);
    status.utilization_decoder = ask!(device, nvmlDeviceGetDecoderUtilization(): c_uint, c_uint);
    status.utilization_jpeg = ask!(device, nvmlDeviceGetJpgUtilization(): c_uint, c_uint);
    status.utilization_ofa = ask!(device, nvmlDeviceGetOfaUtilization(): c_uint, c_uint);
    status.encoder_stats = encoder_stats(device);
    status.frame_capture_stats = ask!(device, nvmlDeviceGetFBCStats(): nvmlFBCStats_t)
        .map(|stats| [stats.sessionsCount, stats.averageFPS, stats.averageLatency]);
    status.bar1_bytes = ask!(device, nvmlDeviceGetBAR1MemoryInfo(): nvmlBAR1Memory_t)
        .map(|bar1| [bar1.bar1Total, bar1.bar1Free, bar1.bar1Used]);

    status.pcie_generation = ask!(device, nvmlDeviceGetCurrPcieLinkGeneration(): c_uint);
    status.pcie_generation_max = ask!(device, nvmlDeviceGetMaxPcieLinkGeneration(): c_uint);
    status.pcie_width = ask!(device, nvmlDeviceGetCurrPcieLinkWidth(): c_uint);
    status.pcie_width_max = ask!(device, nvmlDeviceGetMaxPcieLinkWidth(): c_uint);
    status.pcie_speed_mbps = ask!(device, nvmlDeviceGetPcieSpeed(): c_uint);
    status.pcie_speed_max = ask!(device, nvmlDeviceGetPcieLinkMaxSpeed(): c_uint);
    status.pcie_replays = ask!(device, nvmlDeviceGetPcieReplayCounter(): c_uint);

    heat(device, status);
    power(device, status);
    clocks(device, status);
    modes(device, status);
    errors(device, status);
}

fn heat(device: &NvmlDevice, status: &mut DeviceStatus) {
    status.temperature_c = ask!(device, nvmlDeviceGetTemperature(0): c_uint);
    status.temperature_margin_c = margin(device);
    status.temperature_thresholds_c = (0..nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_COUNT)
        .filter_map(|kind| Some((kind, ask!(device, nvmlDeviceGetTemperatureThreshold(kind): c_uint)?)))
        .collect();
    status.fan_count = ask!(device, nvmlDeviceGetNumFans(): c_uint);
    let fans = 0..status.fan_count.unwrap_or(0);
    status.fan_speeds_percent =
        fans.map_while(|fan| ask!(device, nvmlDeviceGetFanSpeed_v2(fan): c_uint)).collect();
}

fn power(device: &NvmlDevice, status: &mut DeviceStatus) {
    status.power_mw = ask!(device, nvmlDeviceGetPowerUsage(): c_uint);
    status.power_limit_mw = ask!(device, nvmlDeviceGetPowerManagementLimit(): c_uint);
    status.power_limit_default_mw = ask!(device, nvmlDeviceGetPowerManagementDefaultLimit(): c_uint);
    status.power_limit_enforced_mw = ask!(device, nvmlDeviceGetEnforcedPowerLimit(): c_uint);
    status.power_limit_range_mw =
        ask!(device, nvmlDeviceGetPowerManagementLimitConstraints(): c_uint, c_uint);
    status.energy_mj = ask!(device, nvmlDeviceGetTotalEnergyConsumption(): u64);
    status.power_source = ask!(device, nvmlDeviceGetPowerSource(): c_uint);
}

fn clocks(device: &NvmlDevice, status: &mut DeviceStatus) {
    let each = |ask: &dyn Fn(u32) -> Option<u32>| [0, 1, 2, 3].map(ask);
    status.clocks_mhz = each(&|clock| ask!(device, nvmlDeviceGetClockInfo(clock): c_uint));
    status.clocks_max_mhz = each(&|clock| ask!(device, nvmlDeviceGetMaxClockInfo(clock): c_uint));
    status.clocks_applications_mhz =
        each(&|clock| ask!(device, nvmlDeviceGetApplicationsClock(clock): c_uint));
    status.clocks_applications_default_mhz =
        each(&|clock| ask!(device, nvmlDeviceGetDefaultApplicationsClock(clock): c_uint));
    status.clocks_customer_max_mhz =
        each(&|clock| ask!(device, nvmlDeviceGetMaxCustomerBoostClock(clock): c_uint));
    status.auto_boost = ask!(device, nvmlDeviceGetAutoBoostedClocksEnabled(): c_uint, c_uint);
    status.clock_event_reasons = ask!(device, nvmlDeviceGetCurrentClocksEventReasons(): u64)
        .or_else(|| ask!(device, nvmlDeviceGetCurrentClocksThrottleReasons(): u64));
    status.performance_state = ask!(device, nvmlDeviceGetPerformanceState(): c_uint);
}

fn modes(device: &NvmlDevice, status: &mut DeviceStatus) {
    status.persistence_mode = ask!(device, nvmlDeviceGetPersistenceMode(): c_uint);
    status.compute_mode = ask!(device, nvmlDeviceGetComputeMode(): c_uint);
    status.display_mode = ask!(device, nvmlDeviceGetDisplayMode(): c_uint);
    status.display_active = ask!(device, nvmlDeviceGetDisplayActive(): c_uint);
    status.accounting_mode = ask!(device, nvmlDeviceGetAccountingMode(): c_uint);
    status.accounting_buffer_size = ask!(device, nvmlDeviceGetAccountingBufferSize(): c_uint);
    status.operation_mode = ask!(device, nvmlDeviceGetGpuOperationMode(): c_uint, c_uint);
    status.mig_mode = ask!(device, nvmlDeviceGetMigMode(): c_uint, c_uint);
    status.c2c_mode =
        ask!(device, nvmlDeviceGetC2cModeInfoV(): nvmlC2cModeInfo_v1_t).map(|mode| mode.isC2cEnabled);
    status.ecc_mode = ask!(device, nvmlDeviceGetEccMode(): c_uint, c_uint);
}

/// Every kind of error, every counter, the sum and every place.
fn errors(device: &NvmlDevice, status: &mut DeviceStatus) {
    status.memory_errors.clear();
    for error_type in 0..nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_COUNT {
        for counter_type in 0..nvmlEccCounterType_enum_NVML_ECC_COUNTER_TYPE_COUNT {
            let row = |location, count| MemoryErrors { error_type, counter_type, location, count };
            let total = ask!(device, nvmlDeviceGetTotalEccErrors(error_type, counter_type): u64);
            status.memory_errors.extend(total.map(|count| row(None, count)));
            let places = 0..nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_COUNT;
            status.memory_errors.extend(places.filter_map(|place| {
                let count =
                    ask!(device, nvmlDeviceGetMemoryErrorCounter(error_type, counter_type, place): u64)?;
                Some(row(Some(place), count))
            }));
        }
    }
    status.remapped_rows = remapped_rows(device);
    status.row_remapper_histogram =
        ask!(device, nvmlDeviceGetRowRemapperHistogram(): nvmlRowRemapperHistogramValues_t)
            .map(|banks| [banks.max, banks.high, banks.partial, banks.low, banks.none]);
}

fn remapped_rows(device: &NvmlDevice) -> Option<[u32; 4]> {
    let function = device.library().nvmlDeviceGetRemappedRows.as_ref().ok()?;
    let [mut correctable, mut uncorrectable, mut pending, mut failed] = [0; 4];
    // SAFETY: four places, valid for the call.
    let code =
        unsafe { function(device.handle, &mut correctable, &mut uncorrectable, &mut pending, &mut failed) };
    (code == 0).then_some([correctable, uncorrectable, pending, failed])
}

fn encoder_stats(device: &NvmlDevice) -> Option<[u32; 3]> {
    let function = device.library().nvmlDeviceGetEncoderStats.as_ref().ok()?;
    let [mut sessions, mut frames, mut latency] = [0; 3];
    // SAFETY: three places, valid for the call.
    let code = unsafe { function(device.handle, &mut sessions, &mut frames, &mut latency) };
    (code == 0).then_some([sessions, frames, latency])
}

/// The first word of a structure with a version: its size and the version.
const fn version_word<T>(version: u32) -> u32 {
    size_of::<T>() as u32 | version << 24
}

fn margin(device: &NvmlDevice) -> Option<i32> {
    let function = device.library().nvmlDeviceGetMarginTemperature.as_ref().ok()?;
    let version = version_word::<nvmlMarginTemperature_v1_t>(1);
    let mut margin = nvmlMarginTemperature_v1_t { version, marginTemperature: 0 };
    // SAFETY: a structure of this version, valid for the call.
    let code = unsafe { function(device.handle, &mut margin) };
    (code == 0).then_some(margin.marginTemperature)
}

fn pdi(device: &NvmlDevice) -> Option<u64> {
    let function = device.library().nvmlDeviceGetPdi.as_ref().ok()?;
    let mut pdi = nvmlPdi_v1_t { version: version_word::<nvmlPdi_v1_t>(1), value: 0 };
    // SAFETY: a structure of this version, valid for the call.
    let code = unsafe { function(device.handle, &mut pdi) };
    (code == 0).then_some(pdi.value)
}

fn pci_class(device: &NvmlDevice) -> Option<(u32, u32)> {
    let function = device.library().nvmlDeviceGetPciInfoExt.as_ref().ok()?;
    // SAFETY: all zeros is a valid value of a structure of numbers.
    let mut pci: nvmlPciInfoExt_v1_t = unsafe { std::mem::zeroed() };
    pci.version = version_word::<nvmlPciInfoExt_v1_t>(1);
    // SAFETY: a structure of this version, valid for the call.
    let code = unsafe { function(device.handle, &mut pci) };
    (code == 0).then_some((pci.baseClass, pci.subClass))
}

/// Memory of a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceMemory {
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// How much of a device's memory is used. `None`: the device does not even say that.
pub(super) fn memory(device: &NvmlDevice) -> Option<DeviceMemory> {
    if let Ok(function) = device.library().nvmlDeviceGetMemoryInfo_v2.as_ref() {
        let version = version_word::<nvmlMemory_v2_t>(2);
        let mut memory = nvmlMemory_v2_t { version, total: 0, reserved: 0, free: 0, used: 0 };
        // SAFETY: a structure of this version, valid for the call.
        if unsafe { function(device.handle, &mut memory) } == 0 {
            let nvmlMemory_v2_t { total, reserved, free, used, .. } = memory;
            return Some(DeviceMemory { total, reserved, free, used });
        }
    }
    let memory = ask!(device, nvmlDeviceGetMemoryInfo(): nvmlMemory_t)?;
    Some(DeviceMemory { total: memory.total, reserved: 0, free: memory.free, used: memory.used })
}

impl DeviceMemory {
    /// The same for a client that may use only a part of it: total and free are at most that part.
    pub(super) fn limited_to(self, limit: u64) -> Self {
        if limit >= self.total {
            return self;
        }
        let free = self.free.min(limit);
        Self { total: limit, reserved: 0, free, used: limit - free }
    }

    pub(super) fn put(self, status: &mut DeviceStatus) {
        status.memory_total_bytes = self.total;
        status.memory_reserved_bytes = self.reserved;
        status.memory_free_bytes = self.free;
        status.memory_used_bytes = self.used;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_use_a_part_sees_that_part() {
        let all = DeviceMemory { total: 100, reserved: 5, free: 60, used: 35 };
        assert_eq!(all.limited_to(u64::MAX), all);
        assert_eq!(all.limited_to(50), DeviceMemory { total: 50, reserved: 0, free: 50, used: 0 });
        assert_eq!(all.limited_to(80), DeviceMemory { total: 80, reserved: 0, free: 60, used: 20 });
    }
}
