//! The default engine: one file, read and written by any number of processes of one machine.
//!
//! SQLite in write-ahead mode with every commit synced to disk, so that neither a killed process nor a lost machine
//! takes back what was acknowledged. One connection writes; readers and watches have their own and never wait for it.
//! What another process commits is noticed by a look at a counter in shared memory every few milliseconds.
//!
//! A process that is killed lets go of the file at once. One that is frozen in the very middle of a transaction does
//! not: until it goes on or is killed (as a service manager's watchdog does), the others can read, but writes and
//! campaigns answer [`StoreError::Unavailable`]. etcd knows no such dependence.

mod clock;
mod election;
mod follow;
mod mark;
mod number;
mod read;
mod readers;
mod schema;
mod write;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::{Connection, ErrorCode, TransactionBehavior};

use crate::error::{OpenError, StoreError};
use crate::leadership::{self, Campaign, Candidacy, Leader, Leadership};
use crate::listing::{Listing, Want};
use crate::record::{Record, Revision};
use crate::store::Store;
use crate::transaction::{Limits, Outcome, Transaction};
use crate::watch::Watch;

use clock::Clock;
use follow::Bell;
use mark::Mark;
use readers::Readers;

/// Far beyond what a manager batches; bounds the memory and the time one transaction can take.
const LIMITS: Limits = Limits { writes: 65_536, bytes: 256 << 20 };

/// A store in a file.
pub struct Sqlite {
    path: PathBuf,
    writer: Mutex<Connection>,
    readers: Arc<Readers>,
    bell: Arc<Bell>,
    clock: Clock,
    mark: Mark,
}

/// What is done with a database that is older than it was when it was last written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Older {
    /// It is refused: its write-ahead log is missing, or an older copy was put in its place.
    #[default]
    Refuse,
    /// It is opened as it is, as an operator wants it after restoring a backup.
    Accept,
}

impl Sqlite {
    /// Opens the file, or makes it, for its owner alone. The folder must exist.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::open_or(path, Older::Refuse)
    }

    /// The same, and says what is done with a file that is older than it once was.
    pub fn open_or(path: impl AsRef<Path>, older: Older) -> Result<Self, OpenError> {
        let path = path.as_ref().to_path_buf();
        let failed = |source: crate::error::Cause| OpenError::File { path: path.clone(), source };
        // The mark first: what another process commits meanwhile can only make the database newer than it says.
        let marked = mark::read(&path).map_err(|error| failed(error.into()))?;
        let writer = schema::open(&path)?;
        let found = read::revision(&writer).map_err(|error| failed(error.into()))?;
        if let Some(expected) = marked.filter(|expected| *expected > found && older == Older::Refuse) {
            return Err(OpenError::Older { mark: mark::path_of(&path), path, found, expected });
        }
        let mark = Mark::open(&path, found).map_err(|error| failed(error.into()))?;
        let readers = Arc::new(Readers::new(path.clone()));
        Ok(Self {
            path,
            writer: Mutex::new(writer),
            readers,
            bell: Arc::default(),
            clock: Clock::of_this_machine(),
            mark,
        })
    }

    /// Runs `act` in a transaction that no other writer overlaps, and tells the watches afterwards.
    fn write<T>(
        &self,
        doing: &'static str,
        act: impl FnOnce(&rusqlite::Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let transaction = writer
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(|error| not_done(doing, error))?;
        let result = act(&transaction).map_err(|error| not_done(doing, error))?;
        let revision = read::revision(&transaction).map_err(|error| not_done(doing, error))?;
        transaction.commit().map_err(|error| not_known(doing, error))?;
        self.mark.raise(revision);
        drop(writer);
        self.bell.ring();
        Ok(result)
    }

    fn look<T>(
        &self,
        doing: &'static str,
        act: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let reader = self.readers.take().map_err(|error| not_done(doing, error))?;
        act(&reader).map_err(|error| not_done(doing, error))
    }
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sqlite").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Store for Sqlite {
    fn limits(&self) -> Limits {
        LIMITS
    }

    fn read(&self, key: &str) -> Result<Option<Record>, StoreError> {
        self.look("read a record", |reader| read::record(reader, key))
    }

    fn list(&self, prefix: &str, want: Want) -> Result<Listing, StoreError> {
        read::list(&self.readers, prefix, want).map_err(|error| not_done("list records", error))
    }

    fn commit(&self, transaction: &Transaction) -> Result<Outcome, StoreError> {
        transaction.check(LIMITS)?;
        self.write("commit", |open| write::commit(open, transaction))
    }

    fn watch(&self, prefix: &str, from: Revision) -> Result<Watch, StoreError> {
        let connection = schema::connect(&self.path).map_err(|error| not_done("watch", error))?;
        Ok(follow::start(connection, self.bell.clone(), prefix, from))
    }

    fn compact(&self, before: Revision) -> Result<(), StoreError> {
        self.write("compact", |open| write::compact(open, before))
    }

    fn campaign(&self, candidacy: &Candidacy) -> Result<Campaign, StoreError> {
        // Candidates ask often, and asking as a reader does not hold up the leader's commits.
        if let Some(leader) = self.leader(&candidacy.name)? {
            return Ok(Campaign::Led(leader));
        }
        self.write("campaign", |open| election::campaign(open, &self.clock, candidacy))
    }

    fn keep_alive(&self, leadership: &Leadership) -> Result<(), StoreError> {
        let is_held = self
            .write("keep a leadership alive", |open| election::keep_alive(open, &self.clock, leadership))?;
        if is_held { Ok(()) } else { Err(lost(leadership)) }
    }

    fn fence(&self, leadership: &Leadership) -> Result<Leadership, StoreError> {
        let fenced = self.write("fence", |open| election::fence(open, leadership))?;
        fenced.ok_or_else(|| lost(leadership))
    }

    fn resign(&self, leadership: &Leadership) -> Result<(), StoreError> {
        self.write("resign", |open| election::resign(open, leadership))
    }

    fn leader(&self, name: &str) -> Result<Option<Leader>, StoreError> {
        let key = leadership::key(name);
        self.look("look up the leader", |reader| election::leader(reader, &self.clock, &key))
    }
}

fn lost(leadership: &Leadership) -> StoreError {
    StoreError::LeadershipLost { name: leadership.name.clone() }
}

/// SQLite has rolled back, or never began.
fn not_done(doing: &'static str, error: rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            StoreError::Damaged { doing, source: error.into() }
        }
        _ => StoreError::Unavailable { doing, source: error.into() },
    }
}

/// COMMIT itself failed. Busy means that it did not begin. With any other error, such as a failed sync, the
/// log may hold the transaction, and the next process that opens the file may find it there.
fn not_known(doing: &'static str, error: rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy) => StoreError::Unavailable { doing, source: error.into() },
        _ => StoreError::Uncertain { doing, source: error.into() },
    }
}
