//! The devices of all workers, in the order of their CUDA ordinals.

use super::worker::Worker;
use crate::abi::{NvmlError, NvmlResult};
use cuda_abi::CudaError;
use cuda_wire::DeviceStatus;
use std::sync::Arc;
use worker_link::{Config, log};

/// Handles are this and the device's number: no pointer, so nothing that a caller hands over is ever followed.
const HANDLE_BASE: usize = 0x6478_7075_0000;
/// Handles lie so far apart.
const HANDLE_STEP: usize = 0x100;

/// What nvmlInit found.
pub(crate) struct Session {
    workers: Vec<Arc<Worker>>,
    devices: Vec<Arc<Entry>>,
}

struct Entry {
    worker: usize,
    /// Its number at that worker.
    remote: u32,
    /// What never changes of it.
    identity: DeviceStatus,
}

impl Session {
    /// Connects to every worker that the environment names.
    pub(crate) fn open() -> NvmlResult<Self> {
        let complain = |text: String| {
            log::error(&text);
            NvmlError::DriverNotLoaded
        };
        let config = Config::from_environment().map_err(complain)?;
        let mut session = Self { workers: Vec::new(), devices: Vec::new() };
        for (config, address) in config.each().into_iter().zip(&config.workers) {
            let config = Arc::new(config);
            let worker = Arc::new(Worker::new(address.clone(), config.clone()));
            let count = worker_link::patiently(&config, || worker.open()).map_err(|failure| {
                log::error(&failure.to_string());
                match failure.code() {
                    CudaError::NOT_PERMITTED => NvmlError::NoPermission,
                    _ => NvmlError::DriverNotLoaded,
                }
            })?;
            for remote in 0..count {
                let identity = worker.status(remote)?;
                session.devices.push(Arc::new(Entry { worker: session.workers.len(), remote, identity }));
            }
            session.workers.push(worker);
        }
        Ok(session)
    }

    /// The same for a forked child, with connections of its own.
    pub(super) fn for_child(&self) -> Self {
        let workers = self.workers.iter().map(|worker| Arc::new(worker.for_child())).collect();
        Self { workers, devices: self.devices.clone() }
    }

    /// How many devices there are.
    pub(crate) fn device_count(&self) -> usize {
        self.devices.len()
    }

    /// The device of this number.
    pub(crate) fn device(&self, index: usize) -> NvmlResult<Device> {
        let entry = self.devices.get(index).ok_or(NvmlError::InvalidArgument)?;
        Ok(Device { index, worker: self.workers[entry.worker].clone(), entry: entry.clone() })
    }

    /// The device that a handle stands for.
    pub(crate) fn device_of(&self, handle: usize) -> NvmlResult<Device> {
        let offset = handle.checked_sub(HANDLE_BASE).ok_or(NvmlError::InvalidArgument)?;
        if offset % HANDLE_STEP != 0 {
            return Err(NvmlError::InvalidArgument);
        }
        self.device(offset / HANDLE_STEP)
    }

    /// The first device for which `wanted` holds.
    pub(crate) fn find(&self, wanted: impl Fn(&DeviceStatus) -> bool) -> NvmlResult<Device> {
        let index = self.devices.iter().position(|entry| wanted(&entry.identity));
        self.device(index.ok_or(NvmlError::NotFound)?)
    }

    /// Values that are the same for all devices, such as versions: those of the first device.
    pub(crate) fn common(&self) -> NvmlResult<&DeviceStatus> {
        self.devices.first().map(|entry| &entry.identity).ok_or(NvmlError::NotFound)
    }
}

/// A device.
pub(crate) struct Device {
    index: usize,
    worker: Arc<Worker>,
    entry: Arc<Entry>,
}

impl Device {
    /// Its place among all.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// What C programs call it.
    pub(crate) fn handle(&self) -> usize {
        HANDLE_BASE + self.index * HANDLE_STEP
    }

    /// What never changes of it: as it was at nvmlInit.
    pub(crate) fn identity(&self) -> &DeviceStatus {
        &self.entry.identity
    }

    /// What it says of itself now.
    pub(crate) fn status(&self) -> NvmlResult<DeviceStatus> {
        let status = self.worker.status(self.entry.remote)?;
        // A worker that was started anew may have another device in this place.
        if status.uuid == self.entry.identity.uuid { Ok(status) } else { Err(NvmlError::GpuIsLost) }
    }
}
