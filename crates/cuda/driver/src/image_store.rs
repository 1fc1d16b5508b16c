//! Where a worker keeps the images of its sessions: a guardian, or a stand-in for it in tests.
//!
//! ```text
//!   open(name, secret, incarnation) ─▶ begin(base, number) ─▶ put… ─▶ commit ─▶ begin …
//!                                   └▶ image(number) ─▶ Blocks, for a restore
//! ```
//!
//! All methods may block; none is called on a command loop.

use crate::{BlockSink, Blocks, TakenCut};
use cuda_wire::ImageName;
use std::fmt;

/// Keeps images.
pub trait ImageStore: Send + Sync {
    /// Opens an image for its one writer, and makes it if there is none. A higher incarnation shuts out the writer
    /// before; a lower one, or another secret, is refused. `from` names a guardian that has the image if this one does
    /// not; empty: none. A new image may have at most [`KeptImage::bytes_max`] bytes.
    fn open(
        &self,
        name: ImageName,
        secret: &[u8; 32],
        incarnation: u64,
        from: &str,
    ) -> Result<Box<dyn KeptImage>, StoreError>;

    /// Reads the image of a committed cut beside its writer, who goes on. If this store does not have the cut, it reads
    /// through to the guardian at `from`; empty: none.
    fn read(
        &self,
        name: ImageName,
        secret: &[u8; 32],
        number: u64,
        from: &str,
    ) -> Result<Box<dyn Blocks>, StoreError>;

    /// Brings here what the guardian at `from` has of an image, whose writer goes on there.
    fn fetch(
        &self,
        _name: ImageName,
        _secret: &[u8; 32],
        _incarnation: u64,
        _from: &str,
    ) -> Result<(), StoreError> {
        Err(StoreError::Refused("this store fetches no images".to_owned()))
    }

    /// Where other boxes reach this store; empty if they cannot.
    fn address(&self) -> String;

    /// The store of another box that gets a second copy of each cut; empty: there is none.
    fn copy_at(&self) -> String {
        String::new()
    }
}

/// An image that is open for writing.
pub trait KeptImage: BlockSink + Send + Sync {
    /// The most bytes that it may have.
    fn bytes_max(&self) -> u64;

    /// The last committed cut; 0 if there is none.
    fn committed(&self) -> Result<u64, StoreError>;

    /// The last cut that another box has, too; 0 if there is none. It fails when the store is lost.
    fn copied(&self) -> Result<u64, StoreError> {
        self.committed().map(|_| 0)
    }

    /// Begins the delta of cut `number` relative to the committed cut `base` (0: a whole image). Blocks follow by
    /// [`BlockSink::put`]. Cuts before `base` are no longer needed.
    fn begin(&self, base: u64, number: u64) -> Result<(), StoreError>;

    /// Commits the delta: whole or not at all. Its seal is checked.
    fn commit(&self, number: u64, taken: &TakenCut) -> Result<Committed, StoreError>;

    /// Gives the delta up. The image stays as it was.
    fn abandon(&self, number: u64) -> Result<(), StoreError>;

    /// The image of a committed cut, for a restore.
    fn image(&self, number: u64) -> Result<Box<dyn Blocks>, StoreError>;

    /// The image ends: its bytes are zeroed.
    fn end(self: Box<Self>) -> Result<(), StoreError>;

    /// The writer leaves and the image stays.
    fn leave(self: Box<Self>) -> Result<(), StoreError>;
}

/// What a commit says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// 1: this box has it. 2: another box has it too.
    pub level: u8,
    /// Bytes of the image.
    pub image_bytes: u64,
}

/// Why a store did not do it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// The store cannot be reached, or broke off.
    Lost(String),
    /// It refuses, in words for the user: no room, another secret, a newer writer, a block whose digest differs.
    Refused(String),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(why) => write!(f, "the guardian is lost: {why}"),
            Self::Refused(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for StoreError {}
