//! What a device says of its state: the answer to NVML's questions.
//!
//! Numbers are NVML's own (its enumerations, its units), so that the client library passes them on and a worker with a
//! real NVML passes them through. What a device does not have or cannot measure is absent: the program is told that it
//! is not supported. Nothing in here is ever made up.

wire_struct! {
    /// A device as NVML shows it, at one moment.
    #[derive(Default)]
    pub struct DeviceStatus {
        /// Version of the driver, such as `580.159.04`.
        pub driver_version: String,
        /// Version of NVML, such as `13.580.159.04`.
        pub nvml_version: String,
        /// `CUDA_VERSION` of the driver, such as 13000.
        pub cuda_version: i32,

        /// Name, such as `NVIDIA H200`.
        pub name: String,
        /// `nvmlBrandType_t`.
        pub brand: u32,
        /// `nvmlDeviceArchitecture_t`.
        pub architecture: Option<u32>,
        /// Compute capability, major and minor.
        pub compute_capability: (i32, i32),
        /// CUDA cores.
        pub core_count: Option<u32>,
        /// Such as `GPU-` and 36 characters.
        pub uuid: String,
        /// Serial number of the board.
        pub serial: Option<String>,
        /// Part number of the board.
        pub board_part_number: Option<String>,
        /// Version of the video BIOS.
        pub vbios_version: Option<String>,
        /// Version of the inforom image.
        pub inforom_image_version: Option<String>,
        /// `(nvmlInforomObject_t, version)`.
        pub inforom_versions: Vec<(u32, String)>,
        /// Version of the GSP firmware.
        pub gsp_firmware_version: Option<String>,
        /// Whether the GSP firmware runs, and whether it does by default.
        pub gsp_firmware_mode: Option<(u32, u32)>,
        /// N of `/dev/nvidiaN` on the machine that holds the device.
        pub minor_number: Option<u32>,
        /// Board of the device; equal for the devices of one board.
        pub board_id: Option<u32>,
        /// Whether several GPUs are on the board.
        pub is_multi_gpu_board: Option<bool>,
        /// Place on a baseboard.
        pub module_id: Option<u32>,
        /// Number that the maker gave the chip.
        pub pdi: Option<u64>,

        /// PCI domain.
        pub pci_domain: u32,
        /// PCI bus.
        pub pci_bus: u32,
        /// PCI device.
        pub pci_device: u32,
        /// Device and vendor.
        pub pci_device_id: u32,
        /// Subsystem device and vendor.
        pub pci_subsystem_id: u32,
        /// Base class and sub class.
        pub pci_class: Option<(u32, u32)>,
        /// `nvmlBusType_t`.
        pub bus_type: Option<u32>,
        /// PCIe generation in use.
        pub pcie_generation: Option<u32>,
        /// The highest one of device and slot.
        pub pcie_generation_max: Option<u32>,
        /// The highest one of the device.
        pub pcie_generation_device_max: Option<u32>,
        /// PCIe lanes in use.
        pub pcie_width: Option<u32>,
        /// The most lanes of device and slot.
        pub pcie_width_max: Option<u32>,
        /// Speed of a lane in MB/s.
        pub pcie_speed_mbps: Option<u32>,
        /// `NVML_PCIE_LINK_MAX_SPEED_*`.
        pub pcie_speed_max: Option<u32>,
        /// Replays since the last reset.
        pub pcie_replays: Option<u32>,

        /// Bytes of device memory.
        pub memory_total_bytes: u64,
        /// Bytes that the driver keeps for itself.
        pub memory_reserved_bytes: u64,
        /// Bytes that are free.
        pub memory_free_bytes: u64,
        /// Bytes in use, without the reserved ones.
        pub memory_used_bytes: u64,
        /// Total, free and used bytes of BAR1.
        pub bar1_bytes: Option<[u64; 3]>,
        /// Bits of the memory bus.
        pub memory_bus_bits: Option<u32>,

        /// Percent of the last moment in which a kernel ran.
        pub utilization_gpu_percent: Option<u32>,
        /// Percent of the last moment in which device memory was read or written.
        pub utilization_memory_percent: Option<u32>,
        /// Percent, and the microseconds it was measured over.
        pub utilization_encoder: Option<(u32, u32)>,
        /// Percent, and the microseconds it was measured over.
        pub utilization_decoder: Option<(u32, u32)>,
        /// Percent, and the microseconds it was measured over.
        pub utilization_jpeg: Option<(u32, u32)>,
        /// Percent, and the microseconds it was measured over.
        pub utilization_ofa: Option<(u32, u32)>,
        /// Sessions, frames a second, microseconds of latency.
        pub encoder_stats: Option<[u32; 3]>,
        /// Sessions, frames a second, microseconds of latency.
        pub frame_capture_stats: Option<[u32; 3]>,

        /// Degrees Celsius.
        pub temperature_c: Option<u32>,
        /// Degrees to the nearest slowdown.
        pub temperature_margin_c: Option<i32>,
        /// `(nvmlTemperatureThresholds_t, degrees Celsius)`.
        pub temperature_thresholds_c: Vec<(u32, u32)>,
        /// Fans.
        pub fan_count: Option<u32>,
        /// Percent of the fans' intended speed, first fan first.
        pub fan_speeds_percent: Vec<u32>,

        /// Milliwatts.
        pub power_mw: Option<u32>,
        /// The limit that was set.
        pub power_limit_mw: Option<u32>,
        /// The limit after a start.
        pub power_limit_default_mw: Option<u32>,
        /// The limit in force, however it was set.
        pub power_limit_enforced_mw: Option<u32>,
        /// Between what a limit may be set.
        pub power_limit_range_mw: Option<(u32, u32)>,
        /// Millijoules since the driver was loaded.
        pub energy_mj: Option<u64>,
        /// `nvmlPowerSource_t`.
        pub power_source: Option<u32>,

        /// MHz of graphics, SM, memory and video clock.
        pub clocks_mhz: [Option<u32>; 4],
        /// The highest ones.
        pub clocks_max_mhz: [Option<u32>; 4],
        /// What programs asked for.
        pub clocks_applications_mhz: [Option<u32>; 4],
        /// What holds where programs ask for nothing.
        pub clocks_applications_default_mhz: [Option<u32>; 4],
        /// What customers may ask for.
        pub clocks_customer_max_mhz: [Option<u32>; 4],
        /// Whether clocks rise by themselves, and whether they do by default.
        pub auto_boost: Option<(u32, u32)>,
        /// `nvmlClocksEventReasons*` that hold now.
        pub clock_event_reasons: Option<u64>,
        /// The ones that can hold.
        pub clock_event_reasons_supported: Option<u64>,
        /// `nvmlPstates_t`.
        pub performance_state: Option<u32>,

        /// Whether the driver stays loaded without clients.
        pub persistence_mode: Option<u32>,
        /// `nvmlComputeMode_t`.
        pub compute_mode: Option<u32>,
        /// Whether a display is connected.
        pub display_mode: Option<u32>,
        /// Whether a display is used.
        pub display_active: Option<u32>,
        /// Whether processes are accounted.
        pub accounting_mode: Option<u32>,
        /// How many processes are accounted.
        pub accounting_buffer_size: Option<u32>,
        /// `nvmlGpuVirtualizationMode_t`.
        pub virtualization_mode: Option<u32>,
        /// Now, and after the next start.
        pub operation_mode: Option<(u32, u32)>,
        /// Now, and after the next start.
        pub mig_mode: Option<(u32, u32)>,
        /// Whether the chip-to-chip link is enabled.
        pub c2c_mode: Option<u32>,

        /// Now, and after the next start.
        pub ecc_mode: Option<(u32, u32)>,
        /// As it was delivered.
        pub ecc_mode_default: Option<u32>,
        /// Memory errors, each kind that the device counts.
        pub memory_errors: Vec<MemoryErrors>,
        /// Rows remapped for correctable and for uncorrectable errors, pending, failed.
        pub remapped_rows: Option<[u32; 4]>,
        /// Banks by what is left for remapping: max, high, partial, low, none.
        pub row_remapper_histogram: Option<[u32; 5]>,

        /// `NVML_FI_*` fields that the device answers.
        pub fields: Vec<FieldValue>,
    }
}

wire_struct! {
    /// A count of memory errors.
    #[derive(Copy, Default, Eq)]
    pub struct MemoryErrors {
        /// `nvmlMemoryErrorType_t`: corrected or not.
        pub error_type: u32,
        /// `nvmlEccCounterType_t`: since the last start, or ever.
        pub counter_type: u32,
        /// `nvmlMemoryLocation_t`; none for the sum over all.
        pub location: Option<u32>,
        /// How many.
        pub count: u64,
    }
}

wire_struct! {
    /// A numbered property (`nvmlFieldValue_t`).
    #[derive(Copy, Default, Eq)]
    pub struct FieldValue {
        /// `NVML_FI_*`.
        pub field: u32,
        /// What of it: a link, a sensor.
        pub scope: u32,
        /// `nvmlValueType_t`.
        pub value_type: u32,
        /// The bits of the value.
        pub bits: u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{DecodeError, Wire};

    fn sample() -> DeviceStatus {
        DeviceStatus {
            name: "a device".to_owned(),
            serial: Some("1".to_owned()),
            bar1_bytes: Some([3, 2, 1]),
            clocks_mhz: [Some(1), None, Some(3), None],
            inforom_versions: vec![(1, "7.16".to_owned())],
            memory_errors: vec![MemoryErrors {
                location: Some(2),
                count: 1 << 40,
                ..MemoryErrors::default()
            }],
            fields: vec![FieldValue { field: 82, scope: 0, value_type: 1, bits: 33 }],
            ..DeviceStatus::default()
        }
    }

    #[test]
    fn what_a_device_does_not_have_stays_absent() {
        let back = DeviceStatus::from_bytes(&sample().to_bytes()).unwrap();
        assert_eq!(back, sample());
        assert_eq!(back.temperature_c, None);
    }

    #[test]
    fn a_status_that_is_cut_short_is_refused_wherever_it_is_cut() {
        let bytes = sample().to_bytes();
        for end in 0..bytes.len() {
            let cut = DeviceStatus::from_bytes(&bytes[..end]);
            assert!(
                matches!(cut, Err(DecodeError::Truncated { .. } | DecodeError::OverBound { .. })),
                "{end}: {cut:?}"
            );
        }
    }
}
