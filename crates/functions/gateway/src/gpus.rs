//! Where GPUs come from: leases of a pool, which the binary asks for.

use functions::{InstanceId, SlotId};
use std::path::PathBuf;
use std::sync::Arc;

/// What became of a GPU that was asked for.
#[derive(Clone, Debug)]
pub enum GpuNews {
    /// It is there.
    Granted {
        /// Which.
        slot: SlotId,
        /// How much memory it has.
        total_mb: u64,
    },
    /// It is gone, or will not come.
    Lost {
        /// Which.
        slot: SlotId,
        /// Why.
        why: String,
    },
}

/// One instance's part of a GPU.
#[derive(Clone, Debug)]
pub struct GpuPart {
    /// Of which GPU.
    pub slot: SlotId,
    /// Whose instance.
    pub tenant: String,
    /// Which.
    pub instance: InstanceId,
    /// What it declared: it gets so much and no more.
    pub declared_mb: u32,
    /// Where its token and other files go. It exists, and the instance can read what is there by its group.
    pub folder: PathBuf,
}

/// Why an instance has no part of a GPU.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the GPU is not held any more")]
pub struct NotHeld;

/// Why an instance is not started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoPart {
    #[error(transparent)]
    NotHeld(#[from] NotHeld),
    #[error("the folder for its token cannot be made: {0}")]
    Folder(#[from] std::io::Error),
    #[error("the service ends")]
    Ends,
}

/// Asks for GPUs, lets instances use them, and gives them back.
pub trait Gpus: Send + Sync {
    /// Asks for one with at least so much memory. Does not wait.
    fn ask(&self, slot: SlotId, tenant: &str, declared_mb: u32);
    /// Makes a part for an instance. Returns what has its programs find it. Waits for the pool, as long as the GPU is held.
    fn open(&self, part: &GpuPart) -> Result<Vec<(String, String)>, NotHeld>;
    /// Gives it back. Does not wait.
    fn give_back(&self, slot: SlotId);
}

/// Makes a source of GPUs that tells its news to this function.
pub type GpusOf = Box<dyn FnOnce(Arc<dyn Fn(GpuNews) + Send + Sync>) -> Arc<dyn Gpus> + Send>;

/// For a service without a pool: functions that declare GPU memory are told that there is none.
pub struct NoGpus(pub Arc<dyn Fn(GpuNews) + Send + Sync>);

impl Gpus for NoGpus {
    fn ask(&self, slot: SlotId, _tenant: &str, _declared_mb: u32) {
        let news = self.0.clone();
        // From another thread: the caller holds the desk's lock.
        std::thread::spawn(move || {
            news(GpuNews::Lost { slot, why: "this service has no pool to ask for GPUs".to_owned() });
        });
    }

    fn open(&self, _part: &GpuPart) -> Result<Vec<(String, String)>, NotHeld> {
        Err(NotHeld)
    }

    fn give_back(&self, _slot: SlotId) {}
}
