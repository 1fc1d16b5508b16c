//! What the machine's NVML says of the devices that a worker lends, without a context on any of them.
//!
//! NVML shows every GPU of a machine; a worker lends those that CUDA shows it, in CUDA's order. They are matched by UUID.
//!
//! ```text
//!   identity   once                     names, numbers, versions
//!   sample     at most every 100 ms     clocks, power, heat, use, modes, errors: about as often as NVML itself measures
//!   memory     at every question        programs compare it with what they just allocated
//! ```

#![allow(unsafe_code)]

mod fields;
mod nvml;
mod read;

use crate::sys::Api;
use cuda_abi::{CuResult, CudaError};
use cuda_driver::StatusSource;
use cuda_wire::DeviceStatus;
use nvml::{Nvml, NvmlDevice};
use std::{
    ffi::OsStr,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

pub use nvml::StatusError;

/// NVML's name, as the loader knows it.
const LIBRARY: &str = "libnvidia-ml.so.1";
/// How old a sample may be.
const SAMPLE_AGE_MAX: Duration = Duration::from_millis(100);

/// Answers for the GPUs of this machine.
pub struct NvidiaStatus {
    devices: Vec<Watched>,
    memory_limit_bytes: u64,
}

struct Watched {
    nvml: NvmlDevice,
    /// All of it but memory, and when it was sampled.
    kept: Mutex<Kept>,
}

struct Kept {
    status: DeviceStatus,
    fields: fields::Fields,
    sampled_at: Option<Instant>,
}

impl NvidiaStatus {
    /// Looks at the devices that CUDA shows this process. `memory_limit_bytes`: as in [`crate::NvidiaConfig`].
    pub fn new(memory_limit_bytes: Option<u64>) -> Result<Self, StatusError> {
        let (cuda_version, uuids) = cuda_devices()?;
        let uuids: Vec<String> = uuids.iter().map(uuid_text).collect();
        Self::of(LIBRARY.as_ref(), cuda_version, &uuids, memory_limit_bytes)
    }

    /// Looks at the devices with these UUIDs (as NVML writes them) through an NVML that lies elsewhere.
    pub fn of(
        library: &OsStr,
        cuda_version: i32,
        uuids: &[String],
        memory_limit_bytes: Option<u64>,
    ) -> Result<Self, StatusError> {
        let nvml = Nvml::load(library)?;
        let devices = uuids.iter().map(|uuid| {
            let device = nvml.device(uuid)?;
            let status = DeviceStatus { cuda_version, ..read::identity(&device) };
            let kept = Kept { status, fields: fields::Fields::default(), sampled_at: None };
            Ok(Watched { nvml: device, kept: Mutex::new(kept) })
        });
        Ok(Self {
            devices: devices.collect::<Result<_, StatusError>>()?,
            memory_limit_bytes: memory_limit_bytes.unwrap_or(u64::MAX),
        })
    }
}

impl StatusSource for NvidiaStatus {
    fn device_count(&self) -> u32 {
        self.devices.len() as u32
    }

    fn device_status(&self, device: u32) -> CuResult<DeviceStatus> {
        let watched = self.devices.get(device as usize).ok_or(CudaError::INVALID_DEVICE)?;
        let memory = read::memory(&watched.nvml).ok_or(CudaError::DEVICE_UNAVAILABLE)?;
        let mut kept = watched.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.sampled_at.is_none_or(|at| at.elapsed() >= SAMPLE_AGE_MAX) {
            read::sample(&watched.nvml, &mut kept.status);
            kept.status.fields = kept.fields.read(&watched.nvml);
            kept.sampled_at = Some(Instant::now());
        }
        let mut status = kept.status.clone();
        memory.limited_to(self.memory_limit_bytes).put(&mut status);
        Ok(status)
    }
}

/// `CUDA_VERSION` and the UUID of every device. Makes no context.
fn cuda_devices() -> Result<(i32, Vec<[u8; 16]>), StatusError> {
    let failed = |what| move |error| StatusError::Cuda { what, error };
    let api = Api::load().map_err(StatusError::Load)?;
    let (mut version, mut count) = (0, 0);
    // SAFETY: every pointer is valid for its call.
    unsafe {
        api.init(0).map_err(failed("cuInit"))?;
        api.driver_version(&mut version).map_err(failed("cuDriverGetVersion"))?;
        api.device_count(&mut count).map_err(failed("cuDeviceGetCount"))?;
    }
    let uuids = (0..count).map(|device| {
        let mut uuid = [0; 16];
        // SAFETY: the place is valid for the call.
        unsafe { api.device_uuid(&mut uuid, device) }.map_err(failed("cuDeviceGetUuid"))?;
        Ok(uuid)
    });
    Ok((version, uuids.collect::<Result<_, StatusError>>()?))
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
        let uuid = std::array::from_fn(|at| at as u8 * 0x11);
        assert_eq!(uuid_text(&uuid), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }

    #[test]
    fn a_machine_without_nvml_says_so() {
        // Where there is one, it answers for every device that CUDA has.
        match NvidiaStatus::new(None) {
            Ok(source) => {
                assert!((0..source.device_count()).all(|device| source.device_status(device).is_ok()))
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}
