//! The soft driver as a worker uses it: its configuration, and the memory that all sessions share.

use cuda_driver::{Driver, PageHandle, StatusSource};
use cuda_worker::{Grant, GrantMaker};
use driver_soft::{SharedLedger, SoftConfig, SoftDriver, SoftStatus};
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

/// What the devices of a soft worker are like.
#[derive(Clone, Debug)]
pub(crate) struct SoftDevices {
    pub(crate) devices: u32,
    pub(crate) memory_bytes: u64,
    pub(crate) compute_capability: (u32, u32),
    /// What tells these devices from those of other workers; may be empty.
    pub(crate) identity: String,
    /// The page of the GPU, if it is not this worker's alone.
    pub(crate) page: Option<PathBuf>,
    /// A fault of one session ends the contexts of all, as MPS has it on a real GPU.
    pub(crate) is_merged: bool,
}

/// What a session process is told about its driver.
#[derive(Serialize, Deserialize)]
struct SoftGrant {
    devices: u32,
    memory_bytes: u64,
    compute_capability: (u32, u32),
    identity: String,
    /// Its place in the ledger.
    slot: usize,
    is_merged: bool,
}

impl SoftGrant {
    fn config(&self) -> SoftConfig {
        SoftConfig {
            devices: self.devices,
            memory_bytes: self.memory_bytes,
            compute_capability: self.compute_capability,
            identity: self.identity.clone(),
            is_merged: self.is_merged,
            ..SoftConfig::default()
        }
    }
}

impl SoftDevices {
    /// One ledger for all sessions; each process gets a slot of it, which is emptied when the process is gone.
    pub(crate) fn grants(self, sessions_max: usize) -> anyhow::Result<GrantMaker> {
        let totals = vec![self.memory_bytes; self.devices as usize];
        let ledger = super::ledger(&totals, sessions_max)?;
        let (page_words, page) = super::page(self.page.as_deref())?;
        Ok(Arc::new(move || {
            let slot = super::slot_in(&ledger)?;
            let SoftDevices { devices, memory_bytes, compute_capability, is_merged, .. } = self;
            let identity = self.identity.clone();
            let driver = SoftGrant { devices, memory_bytes, compute_capability, identity, slot, is_merged };
            let (reclaimed, page) = (ledger.clone(), page.clone());
            Ok(Grant {
                driver: serde_json::to_value(driver)?,
                environment: Vec::new(),
                fds: vec![ledger.fd().try_clone_to_owned()?, page_words.fd().try_clone_to_owned()?],
                release: Box::new(move || {
                    reclaimed.reclaim(slot);
                    shared_words::page::sweep(page.page());
                }),
            })
        }))
    }
}

/// Makes the driver of a session process.
pub(crate) fn make_driver(granted: &serde_json::Value, fds: Vec<OwnedFd>) -> Result<Box<dyn Driver>, String> {
    let (granted, ledger, page) = open(granted, fds)?;
    let ledger = Some(Arc::new(ledger.session(granted.slot)) as _);
    let config = SoftConfig { ledger, page: Some(page), ..granted.config() };
    Ok(Box::new(SoftDriver::new(config)))
}

/// Makes what answers clients that only look at the devices.
pub(crate) fn make_status(
    granted: &serde_json::Value,
    fds: Vec<OwnedFd>,
) -> Result<Box<dyn StatusSource>, String> {
    let (granted, ledger, _) = open(granted, fds)?;
    let config = SoftConfig { ledger: Some(Arc::new(ledger)), ..granted.config() };
    Ok(Box::new(SoftStatus::new(config)))
}

fn open(
    granted: &serde_json::Value,
    fds: Vec<OwnedFd>,
) -> Result<(SoftGrant, SharedLedger, PageHandle), String> {
    let granted: SoftGrant = serde_json::from_value(granted.clone()).map_err(|error| error.to_string())?;
    let mut fds = fds.into_iter();
    let (ledger, page) = fds.next().zip(fds.next()).ok_or("the ledger and the page did not come along")?;
    let ledger = SharedLedger::open(ledger).map_err(|error| format!("the ledger: {error}"))?;
    let page = shared_words::page::open(page).map_err(|error| format!("the page of sharing: {error}"))?;
    Ok((granted, ledger, page))
}
