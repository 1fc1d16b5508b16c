//! What goes wrong, sorted by what the caller must do about it.

use std::path::PathBuf;

use crate::record::Revision;

/// The engine's own error, kept for the log.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// An operation of a [`Store`](crate::Store) that gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Nothing happened. Trying again may help.
    #[error("cannot {doing}: the store does not answer")]
    Unavailable {
        /// What was asked.
        doing: &'static str,
        /// Why.
        #[source]
        source: Cause,
    },
    /// It may have happened, or may still happen when a message that is on its way arrives.
    ///
    /// A leader that gets this for a commit calls [`Store::fence`](crate::Store::fence), after which nothing it sent
    /// before can take effect any more, and then reads what did.
    #[error("cannot tell whether the store did this: {doing}")]
    Uncertain {
        /// What was asked.
        doing: &'static str,
        /// Why there is no answer.
        #[source]
        source: Cause,
    },
    /// The request itself is wrong. Trying again will not help.
    #[error("refused by the store's rules")]
    Refused(
        #[from]
        #[source]
        Refusal,
    ),
    /// The snapshot was compacted away while it was read; list again.
    #[error("the snapshot is gone, revision {oldest} is the oldest kept")]
    TooOld {
        /// The oldest revision that can still be read.
        oldest: Revision,
    },
    /// Another process leads, or none.
    #[error("this process no longer leads the election {name}")]
    LeadershipLost {
        /// The election.
        name: String,
    },
    /// What is stored cannot be what was put there.
    #[error("cannot {doing}: the store holds what dxpu never wrote, restore it from a backup")]
    Damaged {
        /// What was asked.
        doing: &'static str,
        /// What was found.
        #[source]
        source: Cause,
    },
}

impl StoreError {
    /// Whether the same call may succeed later. After [`StoreError::Uncertain`] a commit must not simply be repeated.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unavailable { .. } | Self::TooOld { .. } => true,
            Self::Uncertain { .. }
            | Self::Refused(_)
            | Self::LeadershipLost { .. }
            | Self::Damaged { .. } => false,
        }
    }
}

/// A transaction no engine would take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Empty, too long, or with control characters.
    #[error("{key:?} is no key: keys are 1 to 1024 bytes of text without control characters")]
    BadKey {
        /// Its beginning.
        key: String,
    },
    /// Belongs to elections.
    #[error("{key} is written by elections alone")]
    ReservedKey {
        /// The key.
        key: String,
    },
    /// Two writes to one key in one transaction.
    #[error("{key} is written twice in one transaction")]
    WrittenTwice {
        /// The key.
        key: String,
    },
    /// See [`Limits::writes`](crate::Limits::writes).
    #[error("{asked} writes or conditions in one transaction, at most {limit} are possible")]
    TooManyWrites {
        /// How many there were.
        asked: usize,
        /// How many there may be.
        limit: usize,
    },
    /// See [`Limits::bytes`](crate::Limits::bytes).
    #[error("{asked} bytes in one transaction, at most {limit} are possible")]
    TooManyBytes {
        /// How many there were.
        asked: usize,
        /// How many there may be.
        limit: usize,
    },
}

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file cannot be made, opened or locked.
    #[error("cannot open {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Cause,
    },
    /// Written by a later version; an older one would misread it.
    #[error("{} has format {found}, this program knows up to {known}: use a newer dxpu", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: i64,
        /// The newest format known here.
        known: i64,
    },
    /// Older than it was when it was last written.
    #[error(
        "{} is at revision {found}, and was at {expected} when it was last written (says {}): its write-ahead log \
         was deleted or cut, or an older copy was put in its place",
        path.display(), mark.display()
    )]
    Older {
        /// The file.
        path: PathBuf,
        /// What says so.
        mark: PathBuf,
        /// What the file has.
        found: Revision,
        /// What it had.
        expected: Revision,
    },
    /// Some other program's data.
    #[error("{} is not a store of dxpu: name another file, or one that does not exist yet", path.display())]
    NotAStore {
        /// The file.
        path: PathBuf,
    },
    /// An endpoint, certificate or option that makes no sense.
    #[error("{what}")]
    Setting {
        /// Which, and what is wrong with it.
        what: String,
        /// Details, if something else found it.
        #[source]
        source: Option<Cause>,
    },
}
