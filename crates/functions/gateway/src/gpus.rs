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
    /// It is still held, by another worker or as another GPU, or its lease waits for one: all sessions there are lost.
    Changed {
        /// Which.
        slot: SlotId,
        /// Its lease has a GPU.
        is_there: bool,
        /// Why.
        why: String,
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
    /// Its program can go on elsewhere: a GPU that is lost is held on to for it.
    pub survives: bool,
    /// Counts the places that the instance has had: each has a token file of its own.
    pub number: u32,
}

/// A way to a part of a GPU.
#[derive(Clone, Debug)]
pub struct GpuWay {
    /// What has programs find it.
    pub environment: Vec<(String, String)>,
    /// The same for a program that runs already.
    pub place: keeper::Place,
    /// Which GPU this is, under which epoch: another text for another GPU.
    pub spot: String,
}

/// Why an instance has no part of a GPU.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the GPU is not held any more")]
pub struct NotHeld;

/// Why a program that runs has no way to a GPU now.
#[derive(Debug, thiserror::Error)]
pub enum NoWay {
    /// The service has not this GPU.
    #[error(transparent)]
    NotHeld(#[from] NotHeld),
    /// The manager gives no token, or the worker does not let its bearer in.
    #[error("{why}")]
    Refused {
        /// Why.
        why: String,
    },
    /// The folder for its token cannot be made.
    #[error("the folder for its token cannot be made: {0}")]
    Folder(#[from] std::io::Error),
    /// The GPU is the one that has failed.
    #[error("its GPU has failed")]
    Failed,
    /// The instance or its function is gone.
    #[error("the instance has ended")]
    Ended,
    /// The service has no GPUs any more.
    #[error("the service ends")]
    Ends,
    /// No GPU was found in time.
    #[error("there was no other GPU within {} s: {last}", within.as_secs())]
    Late {
        /// For how long it was looked for.
        within: std::time::Duration,
        /// Why the last one would not do.
        last: Box<NoWay>,
    },
}

/// Why an instance is not started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoPart {
    #[error(transparent)]
    NotHeld(#[from] NotHeld),
    #[error("the folder for its token cannot be made: {0}")]
    Folder(#[from] std::io::Error),
    #[error("the line to its CUDA library cannot be made; a shorter --run-dir may help: {0}")]
    Line(std::io::Error),
    #[error("the service ends")]
    Ends,
}

/// Asks for GPUs, lets instances use them, and gives them back.
pub trait Gpus: Send + Sync {
    /// Asks for one with at least so much memory. Does not wait. A spare one is given up at once if the pool has none free.
    fn ask(&self, slot: SlotId, tenant: &str, declared_mb: u32, is_spare: bool);
    /// Makes a part for an instance. Waits for the pool, as long as the GPU is held.
    fn open(&self, part: &GpuPart) -> Result<GpuWay, NotHeld>;
    /// The same, tried once: the error says why there is no way now.
    fn try_open(&self, part: &GpuPart) -> Result<GpuWay, NoWay>;
    /// An instance is not on this GPU any more: its token is not renewed.
    fn left(&self, slot: SlotId, instance: InstanceId);
    /// Gives it back. Does not wait.
    fn give_back(&self, slot: SlotId);
}

/// Makes a source of GPUs that tells its news to this function.
pub type GpusOf = Box<dyn FnOnce(Arc<dyn Fn(GpuNews) + Send + Sync>) -> Arc<dyn Gpus> + Send>;

/// For a service without a pool: functions that declare GPU memory are told that there is none.
pub struct NoGpus(pub Arc<dyn Fn(GpuNews) + Send + Sync>);

impl Gpus for NoGpus {
    fn ask(&self, slot: SlotId, _tenant: &str, _declared_mb: u32, _is_spare: bool) {
        let news = self.0.clone();
        // From another thread: the caller holds the desk's lock.
        std::thread::spawn(move || {
            news(GpuNews::Lost { slot, why: "this service has no pool to ask for GPUs".to_owned() });
        });
    }

    fn open(&self, _part: &GpuPart) -> Result<GpuWay, NotHeld> {
        Err(NotHeld)
    }

    fn try_open(&self, _part: &GpuPart) -> Result<GpuWay, NoWay> {
        Err(NotHeld.into())
    }

    fn left(&self, _slot: SlotId, _instance: InstanceId) {}

    fn give_back(&self, _slot: SlotId) {}
}
