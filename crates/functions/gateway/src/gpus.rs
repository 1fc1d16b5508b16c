//! Where GPUs come from: leases of a pool, which the binary asks for.

use functions::SlotId;
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
        /// What has a program find it.
        environment: Vec<(String, String)>,
    },
    /// It is gone, or will not come.
    Lost {
        /// Which.
        slot: SlotId,
        /// Why.
        why: String,
    },
}

/// Asks for GPUs and gives them back. Neither method waits.
pub trait Gpus: Send + Sync {
    /// Asks for one. Tokens and other files for its programs go into `folder`, which exists; programs of the tenant can read
    /// what is there by its group.
    fn ask(&self, slot: SlotId, tenant: &str, declared_mb: u32, folder: PathBuf);
    /// Gives it back.
    fn give_back(&self, slot: SlotId);
}

/// Makes a source of GPUs that tells its news to this function.
pub type GpusOf = Box<dyn FnOnce(Arc<dyn Fn(GpuNews) + Send + Sync>) -> Arc<dyn Gpus> + Send>;

/// For a service without a pool: functions that declare GPU memory are told that there is none.
pub struct NoGpus(pub Arc<dyn Fn(GpuNews) + Send + Sync>);

impl Gpus for NoGpus {
    fn ask(&self, slot: SlotId, _tenant: &str, _declared_mb: u32, _folder: PathBuf) {
        let news = self.0.clone();
        // From another thread: the caller holds the desk's lock.
        std::thread::spawn(move || {
            news(GpuNews::Lost { slot, why: "this service has no pool to ask for GPUs".to_owned() });
        });
    }

    fn give_back(&self, _slot: SlotId) {}
}
