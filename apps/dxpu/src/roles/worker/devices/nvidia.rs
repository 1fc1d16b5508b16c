//! The GPUs of this machine as a worker uses them.

use cuda_driver::{Driver, StatusSource};
use cuda_worker::{Grant, GrantMaker};
use driver_nvidia::{NvidiaConfig, NvidiaDriver, NvidiaStatus, Quota};
use driver_soft::{MemoryLedger, SessionLedger, SharedLedger};
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::sync::Arc;

/// What a worker lends of this machine's GPUs: all that its environment lets the driver see.
#[derive(Clone, Debug)]
pub(crate) struct NvidiaDevices {
    /// The most memory of each GPU that all programs together may use.
    pub(crate) memory_limit_bytes: Option<u64>,
    /// The page of the GPU, if it is not this worker's alone.
    pub(crate) page: Option<PathBuf>,
    /// The folder of the MPS daemon that has the contexts of all sessions. `None`: each has its own.
    pub(crate) merged: Option<PathBuf>,
    /// The GPUs heed time slices, and sessions that share one change theirs.
    pub(crate) heeds_slices: bool,
}

/// What a session process is told about its driver.
#[derive(Serialize, Deserialize)]
pub(crate) struct NvidiaGrant {
    nvidia: NvidiaShare,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
struct NvidiaShare {
    memory_limit_bytes: Option<u64>,
    /// Its place in the ledger.
    slot: usize,
    is_merged: bool,
    heeds_slices: bool,
}

/// More GPUs than a machine has. The front does not ask how many there are, because it never loads the driver.
const GPUS_MAX: usize = 64;

/// What the sessions of this worker have together.
#[derive(Debug)]
struct Together(SessionLedger);

impl Quota for Together {
    fn limit(&self, bytes: u64) {
        self.0.limit(bytes);
    }

    fn free(&self, device: usize) -> u64 {
        self.0.free(device)
    }

    fn charge(&self, device: usize, bytes: u64) -> bool {
        self.0.charge(device, bytes)
    }

    fn release(&self, device: usize, bytes: u64) {
        self.0.release(device, bytes);
    }
}

impl NvidiaGrant {
    /// `None` when the grant is for other devices.
    pub(crate) fn read(granted: &serde_json::Value) -> Option<Self> {
        serde_json::from_value(granted.clone()).ok()
    }
}

impl NvidiaDevices {
    /// All sessions share a page, in which online ones say when they are busy, and a ledger of the memory that they have together.
    pub(crate) fn grants(self, sessions_max: usize) -> anyhow::Result<GrantMaker> {
        let memory_limit_bytes = self.memory_limit_bytes;
        let ledger = super::ledger(&[memory_limit_bytes.unwrap_or(u64::MAX); GPUS_MAX], sessions_max)?;
        let (page_words, page) = super::page(self.page.as_deref())?;
        let (is_merged, heeds_slices) = (self.merged.is_some(), self.heeds_slices);
        let variables = self.merged.as_deref().map(mps_daemon::environment).into_iter().flatten();
        let environment: Vec<_> =
            variables.map(|(name, value)| (name.to_owned(), value.into_os_string())).collect();
        Ok(Arc::new(move || {
            let slot = super::slot_in(&ledger)?;
            let nvidia = NvidiaShare { memory_limit_bytes, slot, is_merged, heeds_slices };
            let driver = serde_json::to_value(NvidiaGrant { nvidia })?;
            let fds = vec![page_words.fd().try_clone_to_owned()?, ledger.fd().try_clone_to_owned()?];
            let (reclaimed, page) = (ledger.clone(), page.clone());
            let release = Box::new(move || {
                reclaimed.reclaim(slot);
                shared_words::page::sweep(page.page());
            });
            Ok(Grant { driver, fds, environment: environment.clone(), release })
        }))
    }
}

/// Whether the kernel has NVIDIA's driver. Asked without loading any of it: the front of a worker never does.
pub(crate) fn is_here() -> bool {
    ["/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg"].iter().any(|device| std::path::Path::new(device).exists())
}

/// Has this process started again with its libraries and the driver's memory in the lower part of its address space.
///
/// The driver places variables of modules where this process has room, and the program sees their addresses. Programs
/// have their own memory in the upper part; so the same address never means two things there. Without randomisation the
/// driver places the variables of the same modules at the same addresses in every session: a program that survives a session
/// finds them where they were (seen on an H200 with driver 580).
pub(crate) fn move_away_from_programs() {
    use nix::sys::personality::{self, Persona};
    let Ok(now) = personality::get() else { return };
    let wanted = Persona::ADDR_COMPAT_LAYOUT | Persona::ADDR_NO_RANDOMIZE;
    if now.contains(wanted) {
        return;
    }
    let moved = personality::set(now | wanted);
    let again = moved.map_err(std::io::Error::from).and_then(|_| {
        // Returns only when it failed.
        Err(machine::this_program().args(std::env::args_os().skip(1)).exec())
    });
    let Err(error): Result<(), std::io::Error> = again else { return };
    tracing::warn!(%error, "cannot choose the layout of the address space: modules with variables may be refused");
}

/// Makes the driver of a session process.
pub(crate) fn make_driver(grant: &NvidiaGrant, fds: Vec<OwnedFd>) -> Result<Box<dyn Driver>, String> {
    let mut fds = fds.into_iter();
    let (page, ledger) = fds.next().zip(fds.next()).ok_or("the page and the ledger did not come along")?;
    let page = shared_words::page::open(page).map_err(|error| format!("the page of sharing: {error}"))?;
    let ledger = SharedLedger::open(ledger).map_err(|error| format!("the ledger: {error}"))?;
    let config = NvidiaConfig {
        memory_limit_bytes: grant.nvidia.memory_limit_bytes,
        quota: Some(Arc::new(Together(ledger.session(grant.nvidia.slot)))),
        take_standard_output: true,
        page: Some(page),
        is_merged: grant.nvidia.is_merged,
        heeds_slices: grant.nvidia.heeds_slices,
    };
    let driver = NvidiaDriver::new(&config).map_err(|error| full_text(&error))?;
    Ok(Box::new(driver))
}

/// Makes what answers clients that only look at the devices.
pub(crate) fn make_status(grant: &NvidiaGrant) -> Result<Box<dyn StatusSource>, String> {
    let source = NvidiaStatus::new(grant.nvidia.memory_limit_bytes).map_err(|error| full_text(&error))?;
    Ok(Box::new(source))
}

fn full_text(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
