//! The thread that writes to the store: many writes, one commit.
//!
//! Each commit carries the condition that this process leads. A service that lost its leadership, or does not know whether a
//! commit happened, ends: the next one reads the store and knows.

use functions::{AccessKey, Function, Queued, Report};
use pool_store::{Leadership, Outcome, Store, StoreError, Transaction, Want, Write};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use tokio::sync::oneshot;

const FUNCTIONS: &str = "functions/function/";
const CODE: &str = "functions/code/";
const QUEUED: &str = "functions/queued/";
const REPORTS: &str = "functions/report/";
const KEYS: &str = "functions/key/";

/// A piece of code in the store: etcd takes no larger value.
const PIECE_BYTES: usize = 512 << 10;
/// Values of one commit together, below what etcd takes.
const COMMIT_BYTES: usize = 900 << 10;
/// How long until a store that does not answer is asked again.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Why something is not in the store.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The store refused or was lost.
    #[error("the store does not take it")]
    Store(#[from] StoreError),
    /// This service does not write any more.
    #[error("this service does not lead any more; its successor does")]
    Over,
    /// A record that this program cannot read.
    #[error(
        "the store's record {key} is of another version, or damaged: use a newer dxpu, or restore a backup"
    )]
    Unreadable {
        /// Which.
        key: String,
    },
}

/// Writes that happen together.
struct Job {
    writes: Vec<Write>,
    done: Option<oneshot::Sender<()>>,
}

/// Hands writes to the thread.
#[derive(Clone)]
pub(crate) struct Keeper {
    jobs: Sender<Job>,
    store: Arc<dyn Store>,
    is_over: Arc<AtomicBool>,
}

/// All that a service begins with.
pub(crate) struct Loaded {
    pub(crate) functions: Vec<Function>,
    pub(crate) queued: Vec<Queued>,
}

impl Keeper {
    pub(crate) fn start(store: Arc<dyn Store>, leadership: Leadership) -> std::io::Result<Self> {
        let (jobs, orders) = channel();
        let is_over = Arc::new(AtomicBool::new(false));
        let clerk = Clerk { store: store.clone(), leadership, is_over: is_over.clone() };
        std::thread::Builder::new().name("functions-keeper".to_owned()).spawn(move || clerk.run(&orders))?;
        Ok(Self { jobs, store, is_over })
    }

    /// Whether this service must end.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    pub(crate) fn load(&self) -> Result<Loaded, KeepError> {
        let functions = records(&*self.store, FUNCTIONS)?;
        let queued = records(&*self.store, QUEUED)?;
        Ok(Loaded { functions, queued })
    }

    /// Writes, and returns when it is on disk.
    async fn put(&self, writes: Vec<Write>) -> Result<(), KeepError> {
        let (done, is_done) = oneshot::channel();
        self.jobs.send(Job { writes, done: Some(done) }).map_err(|_| KeepError::Over)?;
        is_done.await.map_err(|_| KeepError::Over)
    }

    /// Writes soon.
    fn note(&self, writes: Vec<Write>) {
        // A thread that is gone has said so; the service ends.
        let _ = self.jobs.send(Job { writes, done: None });
    }

    pub(crate) async fn put_function(
        &self,
        function: &Function,
        zip: Option<&[u8]>,
    ) -> Result<(), KeepError> {
        let mut writes = Vec::new();
        if let Some(zip) = zip {
            for (number, piece) in zip.chunks(PIECE_BYTES).enumerate() {
                let key = format!("{CODE}{}/{}/{number:04}", function.key.tenant, function.code);
                // Pieces may need several commits. The function names them when all are there.
                self.put(vec![Write::Put { key, value: piece.to_vec() }]).await?;
            }
        }
        let key = function_key(function);
        writes.push(Write::Put { key, value: bytes(function) });
        self.put(writes).await
    }

    pub(crate) async fn remove_function(&self, function: &Function) -> Result<(), KeepError> {
        self.put(vec![Write::Delete { key: function_key(function) }]).await
    }

    /// Removes code that no function names any more.
    pub(crate) fn forget_code(&self, tenant: &str, code: &str) {
        let prefix = format!("{CODE}{tenant}/{code}/");
        let listed = self.store.list(&prefix, Want::Keys).and_then(pool_store::Listing::records);
        for record in listed.into_iter().flatten() {
            self.note(vec![Write::Delete { key: record.key }]);
        }
    }

    pub(crate) fn code(&self, tenant: &str, code: &str) -> Result<Vec<u8>, KeepError> {
        let records = self.store.list(&format!("{CODE}{tenant}/{code}/"), Want::Records)?.records()?;
        Ok(records.into_iter().flat_map(|record| record.value).collect())
    }

    /// An asynchronous invocation is accepted when this returns.
    pub(crate) async fn accept(&self, queued: &Queued) -> Result<(), KeepError> {
        self.put(vec![Write::Put { key: queued_key(queued), value: bytes(queued) }]).await
    }

    pub(crate) fn retried(&self, queued: &Queued) {
        self.note(vec![Write::Put { key: queued_key(queued), value: bytes(queued) }]);
    }

    /// Reports, forgets the invocation and accepts the one of its destination, at once: neither twice nor never.
    pub(crate) fn report(&self, queued: &Queued, report: &Report, next: Option<&Queued>) {
        let key = format!("{REPORTS}{}/{}", report.key.tenant, report.id);
        let mut writes =
            vec![Write::Put { key, value: bytes(report) }, Write::Delete { key: queued_key(queued) }];
        writes.extend(next.map(|next| Write::Put { key: queued_key(next), value: bytes(next) }));
        self.note(writes);
    }

    pub(crate) fn reports(&self, tenant: &str) -> Result<Vec<Report>, KeepError> {
        let prefix = if tenant.is_empty() { REPORTS.to_owned() } else { format!("{REPORTS}{tenant}/") };
        records(&*self.store, &prefix)
    }

    pub(crate) fn forget_report(&self, report: &Report) {
        self.note(vec![Write::Delete { key: format!("{REPORTS}{}/{}", report.key.tenant, report.id) }]);
    }

    pub(crate) fn access_key(&self, id: &str) -> Result<Option<AccessKey>, KeepError> {
        let key = key_key(id);
        let Some(record) = self.store.read(&key)? else { return Ok(None) };
        serde_json::from_slice(&record.value).map(Some).map_err(|_| KeepError::Unreadable { key })
    }
}

fn function_key(function: &Function) -> String {
    format!("{FUNCTIONS}{}/{}", function.key.tenant, function.key.name)
}

fn queued_key(queued: &Queued) -> String {
    format!("{QUEUED}{}", queued.id)
}

pub(crate) fn key_key(id: &str) -> String {
    format!("{KEYS}{id}")
}

pub(crate) fn bytes(record: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(record).unwrap_or_default()
}

fn records<T: DeserializeOwned>(store: &dyn Store, prefix: &str) -> Result<Vec<T>, KeepError> {
    #[derive(serde::Deserialize)]
    struct Versioned {
        version: u32,
    }
    let listed = store.list(prefix, Want::Records)?.records()?;
    let read = |record: pool_store::Record| {
        let is_known = |value: &[u8]| {
            serde_json::from_slice::<Versioned>(value).is_ok_and(|found| found.version <= functions::VERSION)
        };
        let found = is_known(&record.value).then(|| serde_json::from_slice(&record.value).ok()).flatten();
        found.ok_or(KeepError::Unreadable { key: record.key })
    };
    listed.into_iter().map(read).collect()
}

struct Clerk {
    store: Arc<dyn Store>,
    leadership: Leadership,
    is_over: Arc<AtomicBool>,
}

impl Clerk {
    fn run(self, orders: &Receiver<Job>) {
        while let Ok(first) = orders.recv() {
            let mut batch = Batch::default();
            batch.add(first);
            while batch.bytes < COMMIT_BYTES && batch.writes.len() < self.store.limits().writes / 2 {
                match orders.try_recv() {
                    Ok(job) => batch.add(job),
                    Err(_) => break,
                }
            }
            if let Err(error) = self.commit(&batch) {
                tracing::error!(%error, "the store does not take what happened; this service ends and its successor reads what is there");
                self.is_over.store(true, Ordering::SeqCst);
                return;
            }
            for done in batch.done {
                let _ = done.send(());
            }
        }
    }

    fn commit(&self, batch: &Batch) -> Result<(), KeepError> {
        let transaction = Transaction {
            conditions: vec![self.leadership.condition()],
            writes: batch.writes.values().cloned().collect(),
        };
        loop {
            match self.store.commit(&transaction) {
                Ok(Outcome::Committed { .. }) => return Ok(()),
                Ok(Outcome::Conflict { .. }) => return Err(KeepError::Over),
                Err(error) if error.is_retryable() => {
                    tracing::warn!(%error, "the store does not answer; it is asked again");
                    std::thread::sleep(AGAIN_AFTER);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// What goes into one commit. Of several writes to one key the last counts.
#[derive(Default)]
struct Batch {
    writes: BTreeMap<String, Write>,
    bytes: usize,
    done: Vec<oneshot::Sender<()>>,
}

impl Batch {
    fn add(&mut self, job: Job) {
        for write in job.writes {
            if let Write::Put { value, .. } = &write {
                self.bytes += value.len();
            }
            self.writes.insert(write.key().to_owned(), write);
        }
        self.done.extend(job.done);
    }
}
