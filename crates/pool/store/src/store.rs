//! The trait that all engines serve.

use crate::error::StoreError;
use crate::leadership::{Campaign, Candidacy, Leader, Leadership};
use crate::listing::{Listing, Want};
use crate::record::{Record, Revision};
use crate::transaction::{Limits, Outcome, Transaction};
use crate::watch::Watch;

/// Records with revisions, transactions, watches and elections.
///
/// All methods block until the answer is there, for seconds at most. Any thread may call them, at once too, also one
/// that belongs to an asynchronous runtime (which it then holds up). Every answer is the newest: what one process
/// committed, each process reads.
pub trait Store: Send + Sync {
    /// What one transaction may hold.
    fn limits(&self) -> Limits;

    /// One record, or none.
    fn read(&self, key: &str) -> Result<Option<Record>, StoreError>;

    /// Every record whose key begins with `prefix`, all as of one revision.
    fn list(&self, prefix: &str, want: Want) -> Result<Listing, StoreError>;

    /// Does all of it or nothing. When this returns [`Outcome::Committed`], it is on disk.
    fn commit(&self, transaction: &Transaction) -> Result<Outcome, StoreError>;

    /// Every change below `prefix` made by transaction `from` or a later one, in order, none left out.
    ///
    /// A watch from a revision that is no longer kept delivers
    /// [`WatchError::TooOld`](crate::WatchError::TooOld) and nothing else.
    fn watch(&self, prefix: &str, from: Revision) -> Result<Watch, StoreError>;

    /// Forgets the changes before a revision: watches can no longer begin there. Records stay as they are.
    ///
    /// SQLite forgets by itself what is far behind. etcd does not, so a leader calls this every few minutes.
    fn compact(&self, before: Revision) -> Result<(), StoreError>;

    /// Leads, if no process does. Does not wait; [`Elector`](crate::Elector) does.
    ///
    /// After [`StoreError::Uncertain`] the election may be held without an owner; it ends after its time to live.
    fn campaign(&self, candidacy: &Candidacy) -> Result<Campaign, StoreError>;

    /// Says that the leader lives, for another [`Leadership::ttl`].
    fn keep_alive(&self, leadership: &Leadership) -> Result<(), StoreError>;

    /// Moves the leadership to a new revision, in the same tenure.
    ///
    /// Afterwards no transaction with the old [`Leadership::condition`] can take effect, not even one that is still
    /// on its way. It may be called again and again until it succeeds.
    fn fence(&self, leadership: &Leadership) -> Result<Leadership, StoreError>;

    /// Ends the leadership, so that another can begin at once. No error if it had ended already.
    fn resign(&self, leadership: &Leadership) -> Result<(), StoreError>;

    /// The current leader and its address.
    fn leader(&self, name: &str) -> Result<Option<Leader>, StoreError>;
}
