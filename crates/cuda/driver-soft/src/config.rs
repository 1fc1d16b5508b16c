//! What a soft device is like.

use crate::ledger::MemoryLedger;
use sharing::PageHandle;
use std::{fmt, sync::Arc};

/// Compute capability of soft devices, unless `--compute-capability` names another one.
///
/// Programs ship machine code for many GPUs and PTX for the newest alone, and PTX runs on devices that are not older than
/// it. So a soft device is as new as the PTX in common packages: CuPy's sums and sorts (cub, thrust) come as PTX for 12.0.
pub const COMPUTE_CAPABILITY: (u32, u32) = (12, 0);

/// What soft devices are called, and known by.
pub const DEVICE_NAME: &str = "dxpu soft GPU";

/// How to make a [`crate::SoftDriver`].
#[derive(Clone)]
pub struct SoftConfig {
    /// How many devices the session has.
    pub devices: u32,
    /// Memory of each, in bytes.
    pub memory_bytes: u64,
    /// Compute capability `(major, minor)`; PTX for later ones is refused.
    pub compute_capability: (u32, u32),
    /// Name of the devices.
    pub name: String,
    /// The driver's build: a program goes on only in sessions of the build that it began under.
    pub build: String,
    /// Devices with different ones have different UUIDs; empty for those that are the same everywhere.
    pub identity: String,
    /// Host threads that execute blocks, besides one for each busy stream.
    pub block_threads: usize,
    /// How far modules' variables lie from where other sessions have them: a driver that moves them, for tests.
    pub variables_moved_by: u64,
    /// What the sessions of a worker share; without it this session has the devices to itself.
    pub ledger: Option<Arc<dyn MemoryLedger>>,
    /// The page through which online and offline sessions of a worker share its devices.
    pub page: Option<PageHandle>,
    /// Contexts of all sessions with this page are merged, as those of MPS clients are: a fault of one ends them all.
    pub is_merged: bool,
}

impl Default for SoftConfig {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        Self {
            devices: 1,
            memory_bytes: 4 << 30,
            compute_capability: COMPUTE_CAPABILITY,
            name: DEVICE_NAME.to_owned(),
            build: format!("soft {}", env!("CARGO_PKG_VERSION")),
            identity: String::new(),
            // The stream's own thread is one of those that work on a kernel.
            block_threads: cores.saturating_sub(1),
            variables_moved_by: 0,
            ledger: None,
            page: None,
            is_merged: false,
        }
    }
}

impl fmt::Debug for SoftConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SoftConfig")
            .field("devices", &self.devices)
            .field("memory_bytes", &self.memory_bytes)
            .field("compute_capability", &self.compute_capability)
            .field("name", &self.name)
            .field("block_threads", &self.block_threads)
            .field("shared_ledger", &self.ledger.is_some())
            .finish()
    }
}
