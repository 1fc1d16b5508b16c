//! What changes, in order, as it happens.

use std::fmt;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Duration;

use crate::error::Cause;
use crate::record::{Record, Revision};

/// One key that changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It has this value now.
    Put(Record),
    /// It is gone.
    Deleted {
        /// The key.
        key: String,
    },
}

impl Change {
    /// The key that changed.
    pub fn key(&self) -> &str {
        match self {
            Self::Put(record) => &record.key,
            Self::Deleted { key } => key,
        }
    }
}

/// Everything one transaction changed below the watched prefix, in the order of its writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// The transaction.
    pub revision: Revision,
    /// Never empty.
    pub changes: Vec<Change>,
}

/// Why a watch ended. It delivers nothing after this.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The changes asked for are no longer kept. List again, and watch from there.
    #[error("changes before revision {oldest} are no longer kept, list again")]
    TooOld {
        /// The oldest revision that can still be watched from.
        oldest: Revision,
    },
    /// The store cannot be read any more.
    #[error("the store ended the watch")]
    Broken {
        /// Why.
        #[source]
        source: Cause,
    },
    /// The store was closed.
    #[error("the store was closed")]
    Closed,
}

/// How many transactions an engine may be ahead of the reader of a watch, before it waits for the reader.
pub(crate) const UNREAD_MAX: usize = 1024;

/// A stream of [`Changes`]; dropping it ends the watch.
pub struct Watch {
    receiver: Receiver<Result<Changes, WatchError>>,
    /// Dropped with the watch, which tells the engine to stop.
    _guard: Option<Box<dyn Send>>,
}

impl Watch {
    pub(crate) fn new(receiver: Receiver<Result<Changes, WatchError>>, guard: Option<Box<dyn Send>>) -> Self {
        Self { receiver, _guard: guard }
    }

    /// Waits for the next change.
    pub fn recv(&self) -> Result<Changes, WatchError> {
        self.receiver.recv().unwrap_or(Err(WatchError::Closed))
    }

    /// Waits for the next change, at most this long.
    pub fn recv_timeout(&self, timeout: Duration) -> Result<Option<Changes>, WatchError> {
        match self.receiver.recv_timeout(timeout) {
            Ok(changes) => changes.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(WatchError::Closed),
        }
    }

    /// The next change, if it is there already.
    pub fn try_recv(&self) -> Result<Option<Changes>, WatchError> {
        match self.receiver.try_recv() {
            Ok(changes) => changes.map(Some),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(WatchError::Closed),
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}
