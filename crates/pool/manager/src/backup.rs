//! A copy of the whole store in one file, and the way back.
//!
//! ```text
//!   store ── take: one listing, one revision ──▶ file ── Backup::read: checksum, versions ──▶ restore ──▶ store
//! ```
//!
//! A backup may be taken while managers run. A restore is the only writer of the store while it works: it holds the
//! managers' election. Why no GPU has two holders after a restore to an older state, `pool::restored` says.

mod file;
mod restore;

pub use file::{Backup, BackupError, Taken, take};
pub use restore::{Done, RestoreError, restore};

/// Stands in the store while a restore is not finished. No manager leads on such a store.
pub(crate) const UNFINISHED_KEY: &str = "restored/unfinished";

/// What a manager says of a store in which a restore was interrupted.
pub(crate) const UNFINISHED: &str =
    "a restore of this store was interrupted: run `dxpu manager restore --replace` again";
