//! What a worker lends: soft GPUs or those of its machine.

pub(crate) mod nvidia;
pub(crate) mod soft;

use crate::support::exit::{Exit, Failure};
use cuda_driver::{Driver, PageHandle, StatusSource};
use cuda_worker::GrantMaker;
use driver_soft::SharedLedger;
use shared_words::SharedWords;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The page that all sessions share, in which online ones say when they are busy: one of this worker's own, or the one of the
/// GPU, if several workers serve it.
pub(super) fn page(path: Option<&Path>) -> anyhow::Result<(Arc<SharedWords>, PageHandle)> {
    let (page, hint) = match path {
        None => (shared_words::page::create(), "free some memory"),
        Some(path) => (shared_words::page::open_at(path), "restart `dxpu box`, which makes the page"),
    };
    let what = match path {
        None => "cannot make shared memory for the sessions".to_owned(),
        Some(path) => format!("cannot open the page of sharing at {}", path.display()),
    };
    Ok(page.map_err(|error| Failure::new(Exit::Failure, what, hint).because(error))?)
}

/// The memory of devices, counted for all sessions together.
fn ledger(totals: &[u64], sessions_max: usize) -> anyhow::Result<SharedLedger> {
    let ledger = SharedLedger::create(totals, sessions_max);
    let failure =
        || Failure::new(Exit::Failure, "cannot make shared memory for the sessions", "free some memory");
    Ok(ledger.map_err(|error| failure().because(error))?)
}

/// A place in it for a session process; it is emptied when the process is gone.
fn slot_in(ledger: &SharedLedger) -> io::Result<usize> {
    static OWNERS: AtomicU64 = AtomicU64::new(1);
    let slot = ledger.claim(OWNERS.fetch_add(1, Ordering::Relaxed));
    slot.ok_or_else(|| io::Error::other("all places in the ledger are taken"))
}

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
            Self::Nvidia(devices) => devices.grants(sessions_max),
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
