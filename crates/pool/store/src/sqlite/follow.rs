//! Watches: a thread each, that reads the history as it grows.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, params};

use super::read;
use crate::record::{Record, Revision, end_of_prefix};
use crate::watch::{Change, Changes, UNREAD_MAX, Watch, WatchError};

/// How late another process's commit may be noticed. Looking costs microseconds.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Revisions read at once by a watch that has to catch up.
const STEP: u64 = 256;

/// Rung after each commit of this process, so that its own watches need not wait for [`LOOK_EVERY`].
#[derive(Default)]
pub(super) struct Bell {
    rung: Mutex<u64>,
    changed: Condvar,
}

impl Bell {
    pub(super) fn ring(&self) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.changed.notify_all();
    }

    fn count(&self) -> u64 {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when it has rung more than `heard` times, or after a while.
    fn wait(&self, heard: u64) {
        let rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_timeout_while(rung, LOOK_EVERY, |rung| *rung == heard));
    }
}

/// Tells the thread, when the watch is dropped, to end.
struct Hangup {
    is_over: Arc<AtomicBool>,
    bell: Arc<Bell>,
}

impl Drop for Hangup {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        self.bell.ring();
    }
}

pub(super) fn start(connection: Connection, bell: Arc<Bell>, prefix: &str, from: Revision) -> Watch {
    let (sender, receiver) = sync_channel(UNREAD_MAX);
    let is_over = Arc::new(AtomicBool::new(false));
    let hangup = Hangup { is_over: is_over.clone(), bell: bell.clone() };
    let follower = Follower {
        connection,
        bell,
        is_over,
        start: prefix.as_bytes().to_vec(),
        end: end_of_prefix(prefix).unwrap_or_else(|| vec![0xff]),
        sender,
    };
    std::thread::Builder::new()
        .name("store-watch".into())
        .spawn(move || follower.run(from))
        .expect("a thread can be started");
    Watch::new(receiver, Some(Box::new(hangup)))
}

struct Follower {
    connection: Connection,
    bell: Arc<Bell>,
    is_over: Arc<AtomicBool>,
    start: Vec<u8>,
    end: Vec<u8>,
    sender: SyncSender<Result<Changes, WatchError>>,
}

impl Follower {
    fn run(self, from: Revision) {
        let mut next = from;
        while !self.is_over.load(Ordering::Acquire) {
            let heard = self.bell.count();
            match self.catch_up(next) {
                Ok(Some(reached)) if reached == next => self.bell.wait(heard),
                Ok(Some(reached)) => next = reached,
                Ok(None) => return,
                Err(error) => {
                    let _ = self.sender.send(Err(error));
                    return;
                }
            }
        }
    }

    /// Delivers some of what happened from `next` on, and returns where to go on; none when the watch was dropped.
    fn catch_up(&self, next: Revision) -> Result<Option<Revision>, WatchError> {
        let broken = |error: rusqlite::Error| WatchError::Broken { source: error.into() };
        let snapshot = self.connection.unchecked_transaction().map_err(broken)?;
        let current = read::revision(&snapshot).map_err(broken)?;
        let oldest: Revision =
            snapshot.query_row("SELECT oldest FROM meta", [], |row| row.get(0)).map_err(broken)?;
        if next < oldest {
            return Err(WatchError::TooOld { oldest });
        }
        if current < next {
            return Ok(Some(next));
        }
        let last = Revision(current.0.min(next.0.saturating_add(STEP)));
        let all = self.changes(&snapshot, next, last).map_err(broken)?;
        // A reader that is slow must not keep the snapshot open.
        drop(snapshot);
        for changes in all {
            if self.sender.send(Ok(changes)).is_err() {
                return Ok(None);
            }
        }
        Ok(Some(last.next()))
    }

    fn changes(
        &self,
        snapshot: &Connection,
        first: Revision,
        last: Revision,
    ) -> rusqlite::Result<Vec<Changes>> {
        let mut statement = snapshot.prepare_cached(
            "SELECT revision, key, value, created FROM history
             WHERE revision BETWEEN ?1 AND ?2 AND key >= ?3 AND key < ?4 ORDER BY revision, position",
        )?;
        let mut rows = statement.query(params![first, last, self.start, self.end])?;
        let mut all: Vec<Changes> = Vec::new();
        while let Some(row) = rows.next()? {
            let revision: Revision = row.get(0)?;
            let key = read::text(row, 1)?;
            let change = match row.get(2)? {
                Some(value) => Change::Put(Record { key, value, created: row.get(3)?, modified: revision }),
                None => Change::Deleted { key },
            };
            match all.last_mut() {
                Some(changes) if changes.revision == revision => changes.changes.push(change),
                _ => all.push(Changes { revision, changes: vec![change] }),
            }
        }
        Ok(all)
    }
}
