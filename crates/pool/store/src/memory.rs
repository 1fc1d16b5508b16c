//! A store in memory, for simulation: no thread, no clock, no randomness.
//!
//! Time passes when [`Memory::advance`] says so, and calls fail when a hook says so. Leaderships end as etcd's do: the
//! record goes away when its time is over, whether or not another campaigns.

mod fault;
mod state;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::StoreError;
use crate::leadership::{Campaign, Candidacy, Leader, Leadership};
use crate::listing::{Listing, Want};
use crate::record::{Record, Revision};
use crate::store::Store;
use crate::transaction::{Limits, Outcome, Transaction};
use crate::watch::Watch;

pub use fault::{Fault, Operation};
use state::State;

type Hook = Box<dyn FnMut(&Operation<'_>) -> Fault + Send>;

/// One client of a store in memory. [`Memory::client`] makes another client of the same store.
pub struct Memory {
    state: Arc<Mutex<State>>,
    hook: Mutex<Option<Hook>>,
    limits: Limits,
}

impl Memory {
    /// An empty store that takes transactions as large as etcd does by default.
    pub fn new() -> Self {
        Self::with_limits(Limits { writes: 128, bytes: 1 << 20 })
    }

    /// An empty store with other limits.
    pub fn with_limits(limits: Limits) -> Self {
        Self { state: Arc::default(), hook: Mutex::new(None), limits }
    }

    /// Another client of the same records, with no faults of its own yet.
    #[must_use]
    pub fn client(&self) -> Self {
        Self { state: self.state.clone(), hook: Mutex::new(None), limits: self.limits }
    }

    /// Asks `hook` before each operation of this client how it shall end.
    pub fn set_hook(&self, hook: impl FnMut(&Operation<'_>) -> Fault + Send + 'static) {
        *self.hook.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(hook));
    }

    /// No more faults for this client.
    pub fn clear_hook(&self) {
        *self.hook.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Lets time pass for the whole store: leaderships that were not kept alive end.
    pub fn advance(&self, time: Duration) {
        self.state().advance(time);
    }

    /// Lets every transaction that [`Fault::Late`] held back arrive, in the order they were sent. Tells how each ended.
    pub fn deliver_late(&self) -> Vec<Outcome> {
        self.state().deliver_late()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How this operation shall end. The hook runs without the store's lock, so it may look into the store.
    fn fault(&self, operation: &Operation<'_>) -> Fault {
        let mut hook = self.hook.lock().unwrap_or_else(PoisonError::into_inner);
        hook.as_mut().map_or(Fault::None, |hook| hook(operation))
    }

    /// Runs something that changes the store, with the fault that is due.
    fn change<T>(
        &self,
        doing: &'static str,
        operation: &Operation<'_>,
        act: impl FnOnce(&mut State) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        match self.fault(operation) {
            Fault::None => act(&mut self.state()),
            Fault::Before => Err(fault::unavailable(doing)),
            Fault::After => act(&mut self.state()).and_then(|_| Err(fault::uncertain(doing))),
            Fault::Lost => Err(fault::uncertain(doing)),
            Fault::Late => {
                if let Operation::Commit(transaction) = operation {
                    self.state().hold_back(transaction);
                }
                Err(fault::uncertain(doing))
            }
        }
    }

    /// Runs something that only reads: it fails or it does not.
    fn look<T>(
        &self,
        doing: &'static str,
        operation: &Operation<'_>,
        act: impl FnOnce(&mut State) -> T,
    ) -> Result<T, StoreError> {
        match self.fault(operation) {
            Fault::None => Ok(act(&mut self.state())),
            Fault::Before | Fault::After | Fault::Lost | Fault::Late => Err(fault::unavailable(doing)),
        }
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl Store for Memory {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn read(&self, key: &str) -> Result<Option<Record>, StoreError> {
        self.look("read a record", &Operation::Read(key), |state| state.record(key).cloned())
    }

    fn list(&self, prefix: &str, want: Want) -> Result<Listing, StoreError> {
        self.look("list records", &Operation::List(prefix), |state| state.list(prefix, want))
    }

    fn commit(&self, transaction: &Transaction) -> Result<Outcome, StoreError> {
        transaction.check(self.limits)?;
        self.change("commit", &Operation::Commit(transaction), |state| Ok(state.commit(transaction)))
    }

    fn watch(&self, prefix: &str, from: Revision) -> Result<Watch, StoreError> {
        self.look("watch", &Operation::Watch(prefix), |state| state.watch(prefix, from))
    }

    fn compact(&self, before: Revision) -> Result<(), StoreError> {
        self.look("compact", &Operation::Compact, |state| state.compact(before))
    }

    fn campaign(&self, candidacy: &Candidacy) -> Result<Campaign, StoreError> {
        self.change("campaign", &Operation::Campaign, |state| Ok(state.campaign(candidacy)))
    }

    fn keep_alive(&self, leadership: &Leadership) -> Result<(), StoreError> {
        self.change("keep a leadership alive", &Operation::KeepAlive, |state| state.keep_alive(leadership))
    }

    fn fence(&self, leadership: &Leadership) -> Result<Leadership, StoreError> {
        self.change("fence", &Operation::Fence, |state| state.fence(leadership))
    }

    fn resign(&self, leadership: &Leadership) -> Result<(), StoreError> {
        self.change("resign", &Operation::Resign, |state| {
            state.resign(leadership);
            Ok(())
        })
    }

    fn leader(&self, name: &str) -> Result<Option<Leader>, StoreError> {
        self.look("look up the leader", &Operation::Leader, |state| state.leader(name))
    }
}
