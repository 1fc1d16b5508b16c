//! Where the manager keeps its records, behind one trait: [`Store`].
//!
//! The shape is etcd's. Keys are paths, values are bytes, and one [`Revision`] counts the transactions of the whole
//! store. A [`Transaction`] names the revisions it relies on and is refused as a whole when one has moved. A
//! [`Watch`] delivers what changed since a revision. One process at a time holds a [`Leadership`], and each of its
//! writes carries [`Leadership::condition`], so that a leader that was stalled and replaced cannot write any more,
//! whatever its clock says.
//!
//! Three engines, one conformance suite (`tests/it`):
//!
//! | engine | for | other processes |
//! |---|---|---|
//! | [`Sqlite`] | the default: one file, nothing to install | on the same machine |
//! | [`Etcd`] | managers on several machines | anywhere |
//! | [`Memory`] | deterministic simulation, with faults on demand | none |
//!
//! This crate knows nothing of GPUs, and its methods block: one manager thread calls them, and collects what waits
//! meanwhile into its next transaction.

#![forbid(unsafe_code)]

mod record;
mod transaction;

mod error;
mod leadership;
mod listing;
mod store;
mod watch;

mod elector;
mod location;
mod trim;

mod etcd;
mod memory;
mod sqlite;

pub use elector::{Elector, Standing};
pub use error::{Cause, OpenError, Refusal, StoreError};
pub use etcd::{Etcd, EtcdSettings, EtcdTls};
pub use leadership::{Campaign, Candidacy, LEADER_PREFIX, Leader, Leadership};
pub use listing::{Listing, Want};
pub use location::Location;
pub use memory::{Fault, Memory, Operation};
pub use record::{KEY_BYTES_MAX, Record, Revision};
pub use sqlite::{Older, Sqlite};
pub use store::Store;
pub use transaction::{Condition, Expect, Limits, Outcome, Transaction, Write};
pub use trim::trim;
pub use watch::{Change, Changes, Watch, WatchError};
