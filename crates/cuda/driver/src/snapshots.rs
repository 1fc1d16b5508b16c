//! Cuts: a driver's memory at one point of the command stream, and its way back.
//!
//! ```text
//!  protect(key) ─▶ cut(number) ─▶ PendingCut: Waiting ─▶ Taken ─▶ send(sink) ─▶ settle(number, committed)
//!                                        └─▶ Abandoned: nothing is hurt, the next cut may come
//!  restore(blocks): into a session that has executed the commands that made what the cut knew
//! ```
//!
//! A cut is a point in the ordered stream of commands: what was commanded before it is in, what is commanded after it
//! is out. The driver holds later work back until all earlier work is done, takes digests, puts what changed aside, and
//! lets the work go on; the bytes leave afterwards. Earlier work may wait for a later command (a persistent kernel, a
//! wait for a word). So the driver holds work back for a limited time only.

use crate::LinkLost;
use cuda_abi::{CuResult, CudaError};
use snapshot::{Block, BlockDigest, Bytes, Delta, EventAge, Extents, Key};
use std::{fmt, sync::Arc, time::Duration};

/// What a driver can do for the survival of its session. The defaults say that it cannot.
pub trait Snapshots: Send + Sync {
    /// Begins protection: digests are computed with `key` from now on, and the next cut is a whole image.
    fn protect(&self, key: Arc<Key>) -> CuResult<()> {
        let _ = key;
        Err(CudaError::NOT_SUPPORTED)
    }

    /// All memory that an image of everything would hold now, in the order of commands: what is mapped, and the variables
    /// of modules at the addresses of [`snapshot::variable_extents`].
    fn extents(&self) -> CuResult<Extents> {
        Err(CudaError::NOT_SUPPORTED)
    }

    /// Takes a cut at this point of the command stream. Returns at once; one cut is on its way at a time.
    fn cut(&self, cut: Cut) -> CuResult<Box<dyn PendingCut>> {
        let _ = cut;
        Err(CudaError::NOT_SUPPORTED)
    }

    /// The fate of a cut that was sent: whether the image has it for certain. Only then is the next cut relative to it.
    fn settle(&self, number: u64, is_committed: bool) -> CuResult<()> {
        let _ = (number, is_committed);
        Err(CudaError::NOT_SUPPORTED)
    }

    /// Loads an image into memory that has been allocated again at the same addresses, and checks every digest. The next
    /// cut is relative to it. Called with nothing in the streams but what made the memory; blocks until it is done.
    fn restore(&self, image: &dyn Blocks) -> CuResult<Restored> {
        let _ = image;
        Err(CudaError::NOT_SUPPORTED)
    }
}

/// Called once by a thread of the driver when a cut is taken and before the streams go on. What the session sends in it,
/// the client sees before anything that happens after the cut.
pub type OnTaken = Arc<dyn Fn(&TakenCut) + Send + Sync>;

/// A cut to take.
#[derive(Clone)]
pub struct Cut {
    /// Its number, larger than that of any cut before.
    pub number: u64,
    /// Memory whose bytes the program does not need; all else that is mapped is live.
    pub dead: Extents,
    /// How long work may be held back while earlier work does not end.
    pub patience: Duration,
    /// Told that the cut is taken, before later work goes on. Not called for a cut that is abandoned.
    pub on_taken: OnTaken,
}

impl fmt::Debug for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cut")
            .field("number", &self.number)
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

/// A cut that the streams will get to. Dropping it gives the cut up.
pub trait PendingCut: Send {
    /// How far it is. Never blocks; not called again after anything but [`CutState::Waiting`].
    fn poll(&mut self) -> CutState;

    /// Blocks until it is taken or abandoned. Ends with [`Abandon::Ended`] after [`crate::Driver::abort`].
    fn wait(&mut self) -> CutState;

    /// Sends the blocks that changed, in ascending order, and gives the shadow back. After [`CutState::Taken`]; on a
    /// thread that may block. [`Snapshots::settle`] follows, whatever the outcome.
    fn send(self: Box<Self>, sink: &dyn BlockSink) -> Result<(), LinkLost>;
}

/// How far a cut is.
#[derive(Clone, Debug, PartialEq)]
pub enum CutState {
    /// Earlier work is not done yet.
    Waiting,
    /// It is given up. Work goes on as if it had never been.
    Abandoned(Abandon),
    /// What changed is put aside, and work goes on.
    Taken(Box<TakenCut>),
}

/// What was taken.
#[derive(Clone, Debug, PartialEq)]
pub struct TakenCut {
    /// What changes in the image.
    pub delta: Delta,
    /// Bytes of all live memory.
    pub live_bytes: u64,
    /// Bytes of it that changed.
    pub dirty_bytes: u64,
    /// Events with timing that had been reached.
    pub events: Vec<EventAge>,
    /// How long later work was held back at most.
    pub pause: Duration,
}

/// Why a cut was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abandon {
    /// Earlier work did not end while later work waited.
    Patience,
    /// A context is dead: what it left in memory is not what the program computed.
    ContextLost,
    /// The program uses device memory that an image cannot name: the heap of malloc in kernels.
    DeviceHeap,
    /// Physical memory that is mapped nowhere: an image has addresses only.
    UnmappedMemory,
    /// The session ends.
    Ended,
}

impl fmt::Display for Abandon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Patience => "streams did not meet in time: work waits for a later command, or takes long",
            Self::ContextLost => "a context was lost to an error of the program",
            Self::DeviceHeap => "a kernel has called malloc, and the device heap cannot be saved",
            Self::UnmappedMemory => "physical memory is mapped nowhere and cannot be saved",
            Self::Ended => "the session ends",
        })
    }
}

/// Takes the blocks of a cut.
pub trait BlockSink: Sync {
    /// Takes one block. May block.
    fn put(&self, entry: &BlockDigest, bytes: &[u8]) -> Result<(), LinkLost>;

    /// Roads that blocks may take side by side, each for one thread at a time.
    fn roads(&self) -> usize {
        1
    }

    /// Takes one block over a road below [`BlockSink::roads`]. May block.
    fn put_over(&self, _road: usize, entry: &BlockDigest, bytes: &[u8]) -> Result<(), LinkLost> {
        self.put(entry, bytes)
    }
}

/// An image to restore.
pub trait Blocks: Sync {
    /// The cut.
    fn number(&self) -> u64;

    /// All blocks, ascending.
    fn list(&self) -> Vec<BlockDigest>;

    /// The bytes of a block. May block.
    fn read(&self, block: Block) -> Result<Bytes, LinkLost>;

    /// The bytes of several blocks, one behind the other. `into` has room for exactly these. May block. After an error it
    /// may hold a part of them.
    fn read_into(&self, blocks: &[Block], into: &mut [u8]) -> Result<(), LinkLost> {
        let mut rest = into;
        for block in blocks {
            let (place, behind) = rest.split_at_mut_checked(block.bytes as usize).ok_or(LinkLost)?;
            let bytes = self.read(*block)?;
            if bytes.len() != place.len() {
                return Err(LinkLost);
            }
            place.copy_from_slice(&bytes);
            rest = behind;
        }
        Ok(())
    }

    /// Events with timing.
    fn events(&self) -> Vec<EventAge>;
}

/// What was restored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// How many blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Plain;
    impl Snapshots for Plain {}
    impl Blocks for Plain {
        fn number(&self) -> u64 {
            1
        }
        fn list(&self) -> Vec<BlockDigest> {
            Vec::new()
        }
        fn read(&self, _: Block) -> Result<Bytes, LinkLost> {
            Err(LinkLost)
        }
        fn events(&self) -> Vec<EventAge> {
            Vec::new()
        }
    }

    #[test]
    fn a_driver_that_cannot_says_so() {
        let unsupported = Some(CudaError::NOT_SUPPORTED);
        let cut =
            Cut { number: 1, dead: Extents::default(), patience: Duration::ZERO, on_taken: Arc::new(|_| {}) };
        assert_eq!(Plain.protect(Arc::new(Key::from_seed(&[0; 32]))).err(), unsupported);
        assert_eq!(Plain.extents().err(), unsupported);
        assert_eq!(Plain.cut(cut).err(), unsupported);
        assert_eq!(Plain.settle(1, true).err(), unsupported);
        assert_eq!(Plain.restore(&Plain).err(), unsupported);
    }
}
