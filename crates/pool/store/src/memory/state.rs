//! The records, their history, and the leaders: plain data.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use crate::error::StoreError;
use crate::leadership::{self, Campaign, Candidacy, LEADER_PREFIX, Leader, Leadership};
use crate::listing::{Listing, Want};
use crate::record::{Record, Revision};
use crate::transaction::{Outcome, Transaction, Write};
use crate::watch::{Change, Changes, Watch, WatchError};

/// Transactions remembered for watches, as many as SQLite keeps.
const HISTORY_MAX: usize = 10_000;

#[derive(Default)]
pub(super) struct State {
    records: BTreeMap<String, Record>,
    revision: Revision,
    /// In order, the oldest first.
    history: VecDeque<Changes>,
    /// Watches may begin here or later.
    oldest: Revision,
    watchers: Vec<Watcher>,
    now: Duration,
    /// When each leadership record goes away, by key.
    ends: BTreeMap<String, Duration>,
    held_back: Vec<Transaction>,
}

struct Watcher {
    prefix: String,
    from: Revision,
    sender: Sender<Result<Changes, WatchError>>,
}

impl Watcher {
    /// Sends the changes below its prefix. Returns whether the watch is still open.
    fn tell(&self, all: &Changes) -> bool {
        let changes: Vec<Change> =
            all.changes.iter().filter(|change| change.key().starts_with(&self.prefix)).cloned().collect();
        if all.revision < self.from || changes.is_empty() {
            return true;
        }
        self.sender.send(Ok(Changes { revision: all.revision, changes })).is_ok()
    }
}

impl State {
    pub(super) fn record(&self, key: &str) -> Option<&Record> {
        self.records.get(key)
    }

    pub(super) fn list(&self, prefix: &str, want: Want) -> Listing {
        const PAGE: usize = 1024;
        let mut records: Vec<Record> = self
            .records
            .range(prefix.to_owned()..)
            .map(|(_, record)| record)
            .take_while(|record| record.key.starts_with(prefix))
            .cloned()
            .collect();
        if want == Want::Keys {
            records.iter_mut().for_each(|record| record.value.clear());
        }
        let pages: Vec<_> = records.chunks(PAGE).map(|page| Ok(page.to_vec())).collect();
        Listing::new(self.revision, pages.into_iter())
    }

    pub(super) fn commit(&mut self, transaction: &Transaction) -> Outcome {
        for (place, condition) in transaction.conditions.iter().enumerate() {
            let found = self.records.get(&condition.key).map(|record| record.modified);
            if !condition.holds(found) {
                return Outcome::Conflict { condition: place, found };
            }
        }
        Outcome::Committed { revision: self.apply(&transaction.writes) }
    }

    /// Writes as one transaction, and tells the watchers. One that changes nothing makes no revision.
    fn apply(&mut self, writes: &[Write]) -> Revision {
        let revision = self.revision.next();
        let mut changes = Vec::new();
        for write in writes {
            match write {
                Write::Put { key, value } => {
                    let created = self.records.get(key).map_or(revision, |record| record.created);
                    let record =
                        Record { key: key.clone(), value: value.clone(), created, modified: revision };
                    self.records.insert(key.clone(), record.clone());
                    changes.push(Change::Put(record));
                }
                Write::Delete { key } => {
                    if self.records.remove(key).is_some() {
                        changes.push(Change::Deleted { key: key.clone() });
                    }
                }
            }
        }
        if changes.is_empty() {
            return self.revision;
        }
        self.revision = revision;
        let changes = Changes { revision, changes };
        self.watchers.retain(|watcher| watcher.tell(&changes));
        self.history.push_back(changes);
        if self.history.len() > HISTORY_MAX {
            self.compact(self.history[1].revision);
        }
        revision
    }

    pub(super) fn hold_back(&mut self, transaction: &Transaction) {
        self.held_back.push(transaction.clone());
    }

    pub(super) fn deliver_late(&mut self) -> Vec<Outcome> {
        let held_back = std::mem::take(&mut self.held_back);
        held_back.iter().map(|transaction| self.commit(transaction)).collect()
    }

    pub(super) fn watch(&mut self, prefix: &str, from: Revision) -> Watch {
        let (sender, receiver) = channel();
        let watcher = Watcher { prefix: prefix.to_owned(), from, sender };
        if from < self.oldest {
            let _ = watcher.sender.send(Err(WatchError::TooOld { oldest: self.oldest }));
        } else {
            for changes in &self.history {
                watcher.tell(changes);
            }
            self.watchers.push(watcher);
        }
        Watch::new(receiver, None)
    }

    pub(super) fn compact(&mut self, before: Revision) {
        let before = before.min(self.revision.next());
        self.oldest = self.oldest.max(before);
        while self.history.front().is_some_and(|changes| changes.revision < before) {
            self.history.pop_front();
        }
    }

    pub(super) fn advance(&mut self, time: Duration) {
        self.now += time;
        let over: Vec<String> =
            self.ends.iter().filter(|(_, end)| **end <= self.now).map(|(key, _)| key.clone()).collect();
        for key in over {
            self.ends.remove(&key);
            self.apply(&[Write::Delete { key }]);
        }
    }

    pub(super) fn campaign(&mut self, candidacy: &Candidacy) -> Campaign {
        if let Some(leader) = self.leader(&candidacy.name) {
            return Campaign::Led(leader);
        }
        let key = candidacy.key();
        let value = candidacy.address.clone().into_bytes();
        let revision = self.apply(&[Write::Put { key: key.clone(), value }]);
        self.ends.insert(key.clone(), self.now + candidacy.ttl);
        Campaign::Won(Leadership {
            name: candidacy.name.clone(),
            key,
            tenure: revision,
            revision,
            ttl: candidacy.ttl,
            handle: 0,
        })
    }

    fn held(&self, leadership: &Leadership) -> Result<&Record, StoreError> {
        self.records
            .get(&leadership.key)
            .filter(|record| record.created == leadership.tenure)
            .ok_or_else(|| StoreError::LeadershipLost { name: leadership.name.clone() })
    }

    pub(super) fn keep_alive(&mut self, leadership: &Leadership) -> Result<(), StoreError> {
        self.held(leadership)?;
        self.ends.insert(leadership.key.clone(), self.now + leadership.ttl);
        Ok(())
    }

    pub(super) fn fence(&mut self, leadership: &Leadership) -> Result<Leadership, StoreError> {
        let value = self.held(leadership)?.value.clone();
        let revision = self.apply(&[Write::Put { key: leadership.key.clone(), value }]);
        Ok(Leadership { revision, ..leadership.clone() })
    }

    pub(super) fn resign(&mut self, leadership: &Leadership) {
        if self.held(leadership).is_ok() {
            self.ends.remove(&leadership.key);
            self.apply(&[Write::Delete { key: leadership.key.clone() }]);
        }
    }

    pub(super) fn leader(&self, name: &str) -> Option<Leader> {
        debug_assert!(leadership::key(name).starts_with(LEADER_PREFIX));
        self.records.get(&leadership::key(name)).map(|record| Leader {
            address: String::from_utf8_lossy(&record.value).into_owned(),
            tenure: record.created,
        })
    }
}
