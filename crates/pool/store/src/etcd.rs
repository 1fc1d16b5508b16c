//! The engine for managers on several machines: a cluster of etcd, 3.4 or later.
//!
//! Why a client of our own, and why gRPC: the usual client crate runs `protoc` when it is built, which a fresh clone
//! cannot count on. etcd's JSON gateway needs no `protoc`, but it sends each request through one more hop and a third
//! more bytes, and its watches cannot ask to be ended when a member loses the majority. The messages we need fit on
//! two pages ([`proto`]), written by hand, and the machinery below (HTTP/2, TLS) is what the manager's own API uses.
//!
//! An answer that does not come is the hard part. A request that surely was not sent goes to the next member. A
//! transaction that may have been is [`StoreError::Uncertain`], and never sent again by us.

mod election;
mod follow;
mod kv;
mod members;
mod proto;
mod runtime;
mod settings;

use std::fmt;
use std::sync::Arc;

use crate::error::{OpenError, StoreError};
use crate::leadership::{Campaign, Candidacy, Leader, Leadership};
use crate::listing::{Listing, Want};
use crate::record::{Record, Revision};
use crate::store::Store;
use crate::transaction::{Limits, Outcome, Transaction};
use crate::watch::Watch;

use kv::Kv;
use members::Members;
use runtime::Runtime;
pub use settings::{EtcdSettings, EtcdTls};

/// Half a megabyte less than a member takes in one request by default, for what surrounds the values.
const BYTES_MAX: usize = 1 << 20;

/// A store in etcd.
pub struct Etcd {
    kv: Kv,
    runtime: Arc<Runtime>,
    limits: Limits,
}

impl Etcd {
    /// Prepares to talk to the members. No connection is made before the first request needs one.
    pub fn open(settings: &EtcdSettings) -> Result<Self, OpenError> {
        settings.check()?;
        let runtime = Arc::new(Runtime::start()?);
        let members = runtime.enter(|| Members::new(settings))?;
        let kv = Kv { members: Arc::new(members), namespace: settings.namespace.clone() };
        Ok(Self { kv, runtime, limits: Limits { writes: settings.max_txn_ops, bytes: BYTES_MAX } })
    }
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Etcd").field("namespace", &self.kv.namespace).finish_non_exhaustive()
    }
}

impl Store for Etcd {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn read(&self, key: &str) -> Result<Option<Record>, StoreError> {
        let (kv, key) = (self.kv.clone(), key.to_owned());
        self.runtime.wait_for(async move { kv.read(&key).await })
    }

    fn list(&self, prefix: &str, want: Want) -> Result<Listing, StoreError> {
        kv::list(&self.kv, &self.runtime, prefix, want)
    }

    fn commit(&self, transaction: &Transaction) -> Result<Outcome, StoreError> {
        transaction.check(self.limits)?;
        let (kv, transaction) = (self.kv.clone(), transaction.clone());
        self.runtime.wait_for(async move { kv.commit(&transaction).await })
    }

    fn watch(&self, prefix: &str, from: Revision) -> Result<Watch, StoreError> {
        Ok(follow::start(&self.kv, &self.runtime, prefix, from))
    }

    /// The history is one for the whole cluster: whatever else it serves can no longer go back behind this either.
    fn compact(&self, before: Revision) -> Result<(), StoreError> {
        let kv = self.kv.clone();
        self.runtime.wait_for(async move { kv.compact(before).await })
    }

    fn campaign(&self, candidacy: &Candidacy) -> Result<Campaign, StoreError> {
        let (kv, candidacy) = (self.kv.clone(), candidacy.clone());
        self.runtime.wait_for(async move { election::campaign(&kv, &candidacy).await })
    }

    fn keep_alive(&self, leadership: &Leadership) -> Result<(), StoreError> {
        let (kv, leadership) = (self.kv.clone(), leadership.clone());
        self.runtime.wait_for(async move { election::keep_alive(&kv, &leadership).await })
    }

    fn fence(&self, leadership: &Leadership) -> Result<Leadership, StoreError> {
        let (kv, leadership) = (self.kv.clone(), leadership.clone());
        self.runtime.wait_for(async move { election::fence(&kv, &leadership).await })
    }

    fn resign(&self, leadership: &Leadership) -> Result<(), StoreError> {
        let (kv, leadership) = (self.kv.clone(), leadership.clone());
        self.runtime.wait_for(async move { election::resign(&kv, &leadership).await })
    }

    fn leader(&self, name: &str) -> Result<Option<Leader>, StoreError> {
        let (kv, name) = (self.kv.clone(), name.to_owned());
        self.runtime.wait_for(async move { election::leader(&kv, &name).await })
    }
}
