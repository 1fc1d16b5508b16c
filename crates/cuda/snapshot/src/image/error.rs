//! Why an image refuses.

use thiserror::Error;

/// Why an image refuses. Whatever it is, the committed image stays as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ImageError {
    /// Another incarnation of the session writes.
    #[error("incarnation {incarnation} may not write: the image belongs to incarnation {current}")]
    Superseded {
        /// What asked.
        incarnation: u64,
        /// What may.
        current: u64,
    },
    /// One delta at a time.
    #[error("the delta of cut {pending} is not finished")]
    Busy {
        /// The unfinished one.
        pending: u64,
    },
    /// The delta is relative to a cut that is not the committed one.
    #[error("the delta is relative to cut {base}, but cut {committed} is committed; send a whole image")]
    OtherBase {
        /// What the delta is relative to.
        base: u64,
        /// What is committed.
        committed: u64,
    },
    /// Numbers grow.
    #[error("cut {number} is not later than the committed cut {committed}")]
    NotLater {
        /// What was asked for.
        number: u64,
        /// What there is.
        committed: u64,
    },
    /// No delta of this cut was begun, or it was thrown away.
    #[error("no delta of cut {number} is open")]
    NoDelta {
        /// The cut.
        number: u64,
    },
    /// The bytes of a block are not those that the worker computed the digest of.
    #[error("the block at {address:#x} was changed on its way; the delta is thrown away")]
    Corrupted {
        /// Where.
        address: u64,
    },
    /// A block has no bytes, too many, or is not there.
    #[error("there is no such block at {address:#x}")]
    BadBlock {
        /// Where.
        address: u64,
    },
    /// A block came twice.
    #[error("the block at {address:#x} came twice")]
    Twice {
        /// Where.
        address: u64,
    },
    /// The table that results is not the worker's: something was left out on the way.
    #[error(
        "cut {number} is not whole: the worker has {blocks} blocks, {found} would result; it is thrown away"
    )]
    OtherSeal {
        /// The cut.
        number: u64,
        /// Blocks that the worker has.
        blocks: u64,
        /// Blocks that the image would have.
        found: u64,
    },
    /// There is no memory left for the delta.
    #[error(
        "the image may take {bytes_max} bytes of guard memory, and the delta needs more; it is thrown away"
    )]
    Full {
        /// The bound.
        bytes_max: u64,
    },
    /// A cut is neither committed nor pinned.
    #[error("cut {number} cannot be read: cut {committed} is committed")]
    NotKept {
        /// What was asked for.
        number: u64,
        /// What is committed.
        committed: u64,
    },
}

impl ImageError {
    /// Whether the delta cannot become whole any more.
    pub(super) fn ends_delta(&self) -> bool {
        match self {
            Self::Corrupted { .. } | Self::BadBlock { .. } | Self::Twice { .. } | Self::Full { .. } => true,
            Self::Superseded { .. }
            | Self::Busy { .. }
            | Self::OtherBase { .. }
            | Self::NotLater { .. }
            | Self::NoDelta { .. }
            | Self::OtherSeal { .. }
            | Self::NotKept { .. } => false,
        }
    }
}
