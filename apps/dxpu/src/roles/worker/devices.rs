//! What a worker lends: soft GPUs or those of its machine.

pub(crate) mod nvidia;
pub(crate) mod soft;

use cuda_driver::{Driver, StatusSource};
use cuda_worker::GrantMaker;
use std::os::fd::OwnedFd;

/// The devices of a worker.
#[derive(Clone, Debug)]
pub(crate) enum Devices {
    Soft(soft::SoftDevices),
    Nvidia(nvidia::NvidiaDevices),
}

impl Devices {
    /// Says for each session process what it gets.
    pub(crate) fn grants(self, sessions_max: usize) -> anyhow::Result<GrantMaker> {
        match self {
            Self::Soft(devices) => devices.grants(sessions_max),
            Self::Nvidia(devices) => devices.grants(),
        }
    }

    /// Whether they are GPUs in software.
    pub(crate) fn are_soft(&self) -> bool {
        matches!(self, Self::Soft(_))
    }

    /// How a session process of these devices is started.
    pub(crate) fn session_arguments(&self) -> Vec<String> {
        let mut arguments = vec!["worker-session".to_owned()];
        if matches!(self, Self::Nvidia(_)) {
            arguments.push("--nvidia".to_owned());
        }
        arguments
    }
}

/// Makes the driver of a session process.
pub(crate) fn make_driver(granted: &serde_json::Value, fds: Vec<OwnedFd>) -> Result<Box<dyn Driver>, String> {
    match nvidia::NvidiaGrant::read(granted) {
        Some(grant) => nvidia::make_driver(&grant, fds),
        None => soft::make_driver(granted, fds),
    }
}

/// Makes what answers clients that only look at the devices.
pub(crate) fn make_status(
    granted: &serde_json::Value,
    fds: Vec<OwnedFd>,
) -> Result<Box<dyn StatusSource>, String> {
    match nvidia::NvidiaGrant::read(granted) {
        Some(grant) => nvidia::make_status(&grant),
        None => soft::make_status(granted, fds),
    }
}
