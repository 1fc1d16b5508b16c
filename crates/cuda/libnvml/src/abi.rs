//! Codes and structures of NVML, as its header lays them out. A test compares them with bindings made from the header.

use std::ffi::{c_char, c_void};

/// `nvmlDevice_t`.
pub(crate) type DeviceHandle = *mut c_void;

/// Why a call failed: an `nvmlReturn_t` that is not success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum NvmlError {
    Uninitialized = 1,
    InvalidArgument = 2,
    NotSupported = 3,
    NoPermission = 4,
    NotFound = 6,
    InsufficientSize = 7,
    DriverNotLoaded = 9,
    Timeout = 10,
    FunctionNotFound = 13,
    GpuIsLost = 15,
    ArgumentVersionMismatch = 25,
    Unknown = 999,
}

/// What a body returns.
pub(crate) type NvmlResult<T> = Result<T, NvmlError>;

macro_rules! structures {
    ($($(#[$meta:meta])* struct $name:ident { $($field:ident: $ty:ty,)* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy)]
        #[repr(C)]
        pub(crate) struct $name {
            $(pub(crate) $field: $ty,)*
        }
    )*};
}

structures! {
    /// `nvmlMemory_t`.
    struct Memory { total: u64, free: u64, used: u64, }
    /// `nvmlMemory_v2_t`.
    struct MemoryV2 { version: u32, total: u64, reserved: u64, free: u64, used: u64, }
    /// `nvmlBAR1Memory_t`.
    struct Bar1Memory { total: u64, free: u64, used: u64, }
    /// `nvmlUtilization_t`.
    struct Utilization { gpu: u32, memory: u32, }
    /// What nvmlDeviceGetPciInfo filled in before there were versions.
    struct PciInfoV1 { bus_id: [c_char; 16], domain: u32, bus: u32, device: u32, pci_device_id: u32, }
    /// What nvmlDeviceGetPciInfo_v2 fills in.
    struct PciInfoV2 {
        bus_id: [c_char; 16], domain: u32, bus: u32, device: u32, pci_device_id: u32, pci_subsystem_id: u32,
        reserved: [u32; 4],
    }
    /// `nvmlPciInfo_t`.
    struct PciInfo {
        bus_id_legacy: [c_char; 16], domain: u32, bus: u32, device: u32, pci_device_id: u32, pci_subsystem_id: u32,
        bus_id: [c_char; 32],
    }
    /// `nvmlPciInfoExt_v1_t`.
    struct PciInfoExt {
        version: u32, domain: u32, bus: u32, device: u32, pci_device_id: u32, pci_subsystem_id: u32,
        base_class: u32, sub_class: u32, bus_id: [c_char; 32],
    }
    /// `nvmlProcessInfo_v1_t`.
    struct ProcessInfoV1 { pid: u32, used_gpu_memory: u64, }
    /// `nvmlProcessInfo_v2_t` and `nvmlProcessInfo_t`.
    struct ProcessInfo { pid: u32, used_gpu_memory: u64, gpu_instance_id: u32, compute_instance_id: u32, }
    /// `nvmlEccErrorCounts_t`.
    struct EccErrorCounts { l1_cache: u64, l2_cache: u64, device_memory: u64, register_file: u64, }
    /// `nvmlFieldValue_t`; the value is bits, whatever its type.
    struct FieldValue {
        field_id: u32, scope_id: u32, timestamp: i64, latency_usec: i64, value_type: u32, nvml_return: u32,
        value: u64,
    }
    /// `nvmlTemperature_v1_t`.
    struct Temperature { version: u32, sensor_type: u32, temperature: i32, }
    /// `nvmlMarginTemperature_v1_t`.
    struct MarginTemperature { version: u32, margin_temperature: i32, }
    /// `nvmlPdi_v1_t`.
    struct Pdi { version: u32, value: u64, }
    /// `nvmlUUID_v1_t`; the value is text or 16 bytes.
    struct Uuid { version: u32, kind: u32, value: [u8; 41], }
    /// `nvmlC2cModeInfo_v1_t`.
    struct C2cModeInfo { is_c2c_enabled: u32, }
    /// `nvmlGpmSupport_t`.
    struct GpmSupport { version: u32, is_supported_device: u32, }
    /// `nvmlRowRemapperHistogramValues_t`.
    struct RowRemapperHistogram { max: u32, high: u32, partial: u32, low: u32, none: u32, }
    /// `nvmlFBCStats_t`.
    struct FbcStats { sessions_count: u32, average_fps: u32, average_latency: u32, }
    /// `nvmlEventData_t`.
    struct EventData {
        device: DeviceHandle, event_type: u64, event_data: u64, gpu_instance_id: u32, compute_instance_id: u32,
    }
}

/// The first word of a structure with a version: its size and the version.
pub(crate) const fn version_word<T>(version: u32) -> u32 {
    size_of::<T>() as u32 | version << 24
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvml_wrapper_sys::bindings as real;

    macro_rules! same_layout {
        ($($ours:ident $theirs:ident { $($our_field:ident $their_field:ident,)* })*) => {$(
            assert_eq!(size_of::<$ours>(), size_of::<real::$theirs>(), stringify!($ours));
            assert_eq!(align_of::<$ours>(), align_of::<real::$theirs>(), stringify!($ours));
            $(assert_eq!(
                std::mem::offset_of!($ours, $our_field),
                std::mem::offset_of!(real::$theirs, $their_field),
                stringify!($ours.$our_field)
            );)*
        )*};
    }

    #[test]
    fn structures_are_laid_out_as_in_the_header() {
        same_layout! {
            Memory nvmlMemory_t { total total, free free, used used, }
            MemoryV2 nvmlMemory_v2_t { version version, total total, reserved reserved, free free, used used, }
            Bar1Memory nvmlBAR1Memory_t { total bar1Total, free bar1Free, used bar1Used, }
            Utilization nvmlUtilization_t { gpu gpu, memory memory, }
            PciInfo nvmlPciInfo_t {
                bus_id_legacy busIdLegacy, domain domain, bus bus, device device, pci_device_id pciDeviceId,
                pci_subsystem_id pciSubSystemId, bus_id busId,
            }
            PciInfoExt nvmlPciInfoExt_v1_t {
                version version, domain domain, bus bus, device device, pci_device_id pciDeviceId,
                pci_subsystem_id pciSubSystemId, base_class baseClass, sub_class subClass, bus_id busId,
            }
            ProcessInfoV1 nvmlProcessInfo_v1_t { pid pid, used_gpu_memory usedGpuMemory, }
            ProcessInfo nvmlProcessInfo_v2_t {
                pid pid, used_gpu_memory usedGpuMemory, gpu_instance_id gpuInstanceId,
                compute_instance_id computeInstanceId,
            }
            EccErrorCounts nvmlEccErrorCounts_t {
                l1_cache l1Cache, l2_cache l2Cache, device_memory deviceMemory, register_file registerFile,
            }
            FieldValue nvmlFieldValue_t {
                field_id fieldId, scope_id scopeId, timestamp timestamp, latency_usec latencyUsec,
                value_type valueType, nvml_return nvmlReturn, value value,
            }
            Temperature nvmlTemperature_v1_t {
                version version, sensor_type sensorType, temperature temperature,
            }
            MarginTemperature nvmlMarginTemperature_v1_t {
                version version, margin_temperature marginTemperature,
            }
            Pdi nvmlPdi_v1_t { version version, value value, }
            Uuid nvmlUUID_v1_t { version version, kind type_, value value, }
            C2cModeInfo nvmlC2cModeInfo_v1_t { is_c2c_enabled isC2cEnabled, }
            GpmSupport nvmlGpmSupport_t { version version, is_supported_device isSupportedDevice, }
            RowRemapperHistogram nvmlRowRemapperHistogramValues_t {
                max max, high high, partial partial, low low, none none,
            }
            FbcStats nvmlFBCStats_t {
                sessions_count sessionsCount, average_fps averageFPS, average_latency averageLatency,
            }
            EventData nvmlEventData_t {
                device device, event_type eventType, event_data eventData, gpu_instance_id gpuInstanceId,
                compute_instance_id computeInstanceId,
            }
        }
    }

    #[test]
    fn old_pci_structures_are_what_later_ones_begin_with() {
        assert_eq!((size_of::<PciInfoV1>(), size_of::<PciInfoV2>()), (32, 52));
        assert_eq!(
            std::mem::offset_of!(PciInfoV1, pci_device_id),
            std::mem::offset_of!(PciInfo, pci_device_id)
        );
    }

    #[test]
    fn codes_are_those_of_the_header() {
        use NvmlError as E;
        for (ours, theirs) in [
            (E::Uninitialized, real::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED),
            (E::InvalidArgument, real::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT),
            (E::NotSupported, real::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED),
            (E::NoPermission, real::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION),
            (E::NotFound, real::nvmlReturn_enum_NVML_ERROR_NOT_FOUND),
            (E::InsufficientSize, real::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE),
            (E::DriverNotLoaded, real::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED),
            (E::Timeout, real::nvmlReturn_enum_NVML_ERROR_TIMEOUT),
            (E::FunctionNotFound, real::nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND),
            (E::GpuIsLost, real::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST),
            (E::ArgumentVersionMismatch, real::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH),
            (E::Unknown, real::nvmlReturn_enum_NVML_ERROR_UNKNOWN),
        ] {
            assert_eq!(ours as u32, theirs, "{ours:?}");
        }
    }

    #[test]
    fn a_version_word_holds_size_and_version() {
        assert_eq!(version_word::<MemoryV2>(2), 0x0200_0028);
    }
}
