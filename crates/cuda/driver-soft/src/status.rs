//! What NVML says of a soft device, and the part of the driver that answers clients that only look.
//!
//! A soft device has memory and is busy or not. It has no temperature, power, clocks, fans or bus: those stay absent.

use crate::{
    activity::Meter,
    config::SoftConfig,
    device_info,
    driver::CUDA_VERSION,
    ledger::{LocalLedger, MemoryLedger},
};
use cuda_abi::{CuResult, CudaError};
use cuda_driver::StatusSource;
use cuda_wire::DeviceStatus;
use std::sync::Arc;

/// The version of the API that NVML's version begins with.
const NVML_API: &str = "13";
/// `NVML_DEVICE_ARCH_UNKNOWN`: no GPU of NVIDIA's is behind it, whatever its compute capability.
const ARCHITECTURE_UNKNOWN: u32 = u32::MAX;
/// `NVML_COMPUTEMODE_DEFAULT`: any number of programs at a time.
const COMPUTE_MODE_DEFAULT: u32 = 0;

/// Answers for the soft devices of a worker, without a session.
pub struct SoftStatus {
    config: SoftConfig,
    ledger: Arc<dyn MemoryLedger>,
    meter: Meter,
}

impl SoftStatus {
    /// Looks at the devices whose sessions share `config.ledger`.
    pub fn new(config: SoftConfig) -> Self {
        let devices = config.devices as usize;
        let ledger = config
            .ledger
            .clone()
            .unwrap_or_else(|| Arc::new(LocalLedger::new(&vec![config.memory_bytes; devices])));
        Self { meter: Meter::new(ledger.clone(), devices), config, ledger }
    }
}

impl StatusSource for SoftStatus {
    fn device_count(&self) -> u32 {
        self.config.devices
    }

    fn device_status(&self, device: u32) -> CuResult<DeviceStatus> {
        if device >= self.config.devices {
            return Err(CudaError::INVALID_DEVICE);
        }
        let [gpu, memory] = self.meter.percent(device as usize);
        Ok(DeviceStatus {
            utilization_gpu_percent: Some(gpu),
            utilization_memory_percent: Some(memory),
            ..at_rest(&self.config, &*self.ledger, device)
        })
    }
}

/// Everything but how busy it is.
pub(crate) fn at_rest(config: &SoftConfig, ledger: &dyn MemoryLedger, device: u32) -> DeviceStatus {
    let info = device_info::of(config, device);
    let attribute = |number: u32| {
        let found = info.attributes.iter().find(|row| row.0 == number);
        found.map_or(0, |row| u32::try_from(row.1).unwrap_or(0))
    };
    let total = ledger.total(device as usize);
    let used = ledger.used(device as usize).min(total);
    let version = env!("CARGO_PKG_VERSION");
    DeviceStatus {
        driver_version: version.to_owned(),
        nvml_version: format!("{NVML_API}.{version}"),
        cuda_version: CUDA_VERSION,
        name: info.name.clone(),
        architecture: Some(ARCHITECTURE_UNKNOWN),
        compute_capability: (config.compute_capability.0 as i32, config.compute_capability.1 as i32),
        uuid: uuid_text(&info.uuid),
        pci_domain: attribute(50),
        pci_bus: attribute(33),
        pci_device: attribute(34),
        memory_total_bytes: total,
        memory_free_bytes: total - used,
        memory_used_bytes: used,
        compute_mode: Some(COMPUTE_MODE_DEFAULT),
        ..DeviceStatus::default()
    }
}

/// A UUID as NVML writes it.
fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut text = "GPU".to_owned();
    for (at, byte) in uuid.iter().enumerate() {
        if matches!(at, 0 | 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text += &format!("{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_as_nvml_writes_it() {
        let uuid = std::array::from_fn(|at| at as u8);
        assert_eq!(uuid_text(&uuid), "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
    }

    #[test]
    fn memory_follows_the_ledger_and_what_is_not_there_is_absent() {
        let ledger = Arc::new(LocalLedger::new(&[1000, 1000]));
        let config = SoftConfig { devices: 2, ledger: Some(ledger.clone()), ..SoftConfig::default() };
        let source = SoftStatus::new(config);
        assert!(ledger.charge(1, 300));
        let (first, second) = (source.device_status(0).unwrap(), source.device_status(1).unwrap());
        assert_eq!((first.memory_used_bytes, first.memory_free_bytes), (0, 1000));
        assert_eq!((second.memory_used_bytes, second.memory_free_bytes), (300, 700));
        assert_ne!(first.uuid, second.uuid);
        assert_ne!(first.pci_bus, second.pci_bus);
        assert_eq!(first.utilization_gpu_percent, Some(0));
        assert_eq!((first.temperature_c, first.power_mw, first.ecc_mode), (None, None, None));
        assert_eq!(source.device_status(2), Err(CudaError::INVALID_DEVICE));
    }
}
