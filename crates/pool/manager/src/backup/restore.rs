//! From a backup to a store.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pool::{Moments, RESTORED_KEY};
use pool_auth::{Authority, TokenKind};
use pool_store::{
    Campaign, Candidacy, LEADER_PREFIX, Leadership, Outcome, Store, StoreError, Transaction, Want, Write,
};

use super::file::Backup;
use super::{UNFINISHED, UNFINISHED_KEY};
use crate::access::{AUTHORITY_KEY, Access, PREFIX, TOKEN_PREFIX};
use crate::leader::ELECTION;
use crate::records;
use crate::staged::Staged;

/// How long the election is held without a word. A batch of writes takes far less.
const TTL: Duration = Duration::from_secs(10);

/// For how long a manager that was killed may still seem to lead.
const MANAGERS_GONE_WITHIN: Duration = Duration::from_secs(6);

/// For how long a restore that was killed may still seem to work.
const RESTORE_GONE_WITHIN: Duration = TTL.saturating_add(Duration::from_secs(2));

/// Under which name a restore holds the election.
const WHO: &str = "a restore of a backup";

/// Bytes of one transaction, so that a member of etcd is not held up for long.
const BATCH_BYTES: usize = 512 << 10;

/// Why a backup is not restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The store does not answer.
    #[error("cannot read or write the store")]
    Store(#[from] StoreError),
    /// Something is there already.
    #[error("the store is not empty: it has {records} records")]
    NotEmpty {
        /// How many.
        records: usize,
    },
    /// A manager works on this store.
    #[error("a manager leads on this store ({address})")]
    Led {
        /// Where it is.
        address: String,
    },
    /// Another restore works on this store.
    #[error("another restore of a backup works on this store")]
    Restoring,
    /// A record in the backup cannot be used.
    #[error("{0}")]
    Record(String),
    /// A manager came in between.
    #[error("another process wrote to the store meanwhile. {UNFINISHED}")]
    Interrupted,
}

/// What was restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// What the pool has.
    pub pool: pool::Restored,
    /// How many records were written.
    pub records: usize,
    /// Tokens of people that are good again.
    pub tokens: usize,
    /// Join tokens that were dropped, because they may have been used after the backup.
    pub join_tokens_dropped: usize,
    /// Entries of the audit trail.
    pub audit_entries: usize,
}

/// Writes a backup into a store. Every record is read first: a backup of a newer dxpu changes nothing.
///
/// With `replace` what the store has is deleted.
pub fn restore(store: &dyn Store, backup: &Backup, replace: bool, now_ms: u64) -> Result<Done, RestoreError> {
    let (records, done) = prepare(backup, now_ms)?;
    let there: Vec<String> =
        store.list("", Want::Keys)?.records()?.into_iter().map(|record| record.key).collect();
    let there: Vec<String> = there.into_iter().filter(|key| !key.starts_with(LEADER_PREFIX)).collect();
    let unfinished = there.iter().any(|key| key == UNFINISHED_KEY);
    if !there.is_empty() && !replace {
        let records = there.len();
        return Err(if unfinished { RestoreError::Interrupted } else { RestoreError::NotEmpty { records } });
    }
    let leadership = lead(store)?;
    let written = write_all(store, &leadership, there, records, &done);
    // Also after a failure: the next try must not wait for it.
    let _ = store.resign(&leadership);
    written.map(|()| done)
}

type Records = Vec<(String, Vec<u8>)>;

/// Reads every record, and drops what must not come back.
fn prepare(backup: &Backup, now_ms: u64) -> Result<(Records, Done), RestoreError> {
    let bad = |key: &str, error: &dyn std::fmt::Display| {
        RestoreError::Record(format!("the record {key} cannot be read: {error}"))
    };
    let moments = Moments { backup_ms: backup.at_ms, revision: backup.revision, now_ms };
    let ledger = backup.records.iter().map(|(key, value)| (key, value));
    let pool = pool::restored(ledger, moments).map_err(|error| RestoreError::Record(error.to_string()))?;
    check_access(backup)?;
    let mut done = Done { pool, records: 0, tokens: 0, join_tokens_dropped: 0, audit_entries: 0 };
    let mut kept = Vec::with_capacity(backup.records.len() + 1);
    for (key, value) in &backup.records {
        if key.starts_with(TOKEN_PREFIX) {
            let token = records::TOKEN.read(value).map_err(|error| bad(key, &error))?;
            if token.kind == TokenKind::Join && token.used_for.is_none() {
                done.join_tokens_dropped += 1;
                continue;
            }
            done.tokens += usize::from(token.kind == TokenKind::User && token.expires_ms > now_ms);
        } else if key.starts_with("audit/") {
            records::read_entry(value).map_err(|error| bad(key, &error))?;
            done.audit_entries += 1;
        } else if key == RESTORED_KEY {
            continue;
        }
        kept.push((key.clone(), value.clone()));
    }
    done.records = kept.len();
    Ok((kept, done))
}

/// The authority and all that is signed with it must be usable, or no manager starts.
fn check_access(backup: &Backup) -> Result<(), RestoreError> {
    let authority = backup.records.iter().find(|(key, _)| key == AUTHORITY_KEY);
    let bad = |error: &dyn std::fmt::Display| {
        RestoreError::Record(format!("the record {AUTHORITY_KEY} cannot be read: {error}"))
    };
    let (_, value) = authority.ok_or_else(|| bad(&"it is not there"))?;
    let stored = records::AUTHORITY.read(value).map_err(|error| bad(&error))?;
    let authority = Authority::from_pem(stored.certificate, stored.key).map_err(|error| bad(&error))?;
    let auth = backup.records.iter().filter(|(key, _)| key.starts_with(PREFIX));
    let auth = auth.map(|(key, value)| (key.as_str(), value.as_slice()));
    Access::load(Arc::new(authority), auth, &mut Staged::default()).map_err(RestoreError::Record)?;
    Ok(())
}

/// Holds the managers' election, so that none leads meanwhile.
fn lead(store: &dyn Store) -> Result<Leadership, RestoreError> {
    let candidacy = Candidacy { name: ELECTION.to_owned(), address: WHO.to_owned(), ttl: TTL };
    let began = Instant::now();
    loop {
        match store.campaign(&candidacy)? {
            Campaign::Won(leadership) => return Ok(leadership),
            Campaign::Led(leader) => refuse_after(&leader.address, began.elapsed())?,
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Refuses when the one who leads has led for longer than a killed process could seem to.
fn refuse_after(address: &str, waited: Duration) -> Result<(), RestoreError> {
    match address {
        WHO if waited >= RESTORE_GONE_WITHIN => Err(RestoreError::Restoring),
        WHO => Ok(()),
        address if waited >= MANAGERS_GONE_WITHIN => Err(RestoreError::Led { address: address.to_owned() }),
        _ => Ok(()),
    }
}

/// Writes in batches. The first one leaves a note that the last one takes away: in between no manager leads.
fn write_all(
    store: &dyn Store,
    leadership: &Leadership,
    there: Vec<String>,
    records: Records,
    done: &Done,
) -> Result<(), RestoreError> {
    let put = |key: &str, value: Vec<u8>| Write::Put { key: key.to_owned(), value };
    let new: BTreeSet<&str> = records.iter().map(|(key, _)| key.as_str()).collect();
    let is_over = |key: &String| !new.contains(key.as_str()) && key != UNFINISHED_KEY && key != RESTORED_KEY;
    let old: Vec<Write> = there.into_iter().filter(is_over).map(|key| Write::Delete { key }).collect();
    drop(new);
    commit(store, leadership, vec![put(UNFINISHED_KEY, b"restoring".to_vec())])?;
    let writes = old.into_iter().chain(records.into_iter().map(|(key, value)| Write::Put { key, value }));
    // One condition goes with each transaction.
    let most = store.limits().writes.saturating_sub(1).max(1);
    let (mut batch, mut bytes) = (Vec::new(), 0);
    for write in writes {
        let size = match &write {
            Write::Put { key, value } => key.len() + value.len(),
            Write::Delete { key } => key.len(),
        };
        if !batch.is_empty() && (batch.len() >= most || bytes + size > BATCH_BYTES) {
            commit(store, leadership, std::mem::take(&mut batch))?;
            store.keep_alive(leadership)?;
            bytes = 0;
        }
        bytes += size;
        batch.push(write);
    }
    commit(store, leadership, batch)?;
    let last =
        vec![put(RESTORED_KEY, done.pool.record.clone()), Write::Delete { key: UNFINISHED_KEY.to_owned() }];
    commit(store, leadership, last)
}

fn commit(store: &dyn Store, leadership: &Leadership, writes: Vec<Write>) -> Result<(), RestoreError> {
    let transaction = Transaction { conditions: vec![leadership.condition()], writes };
    match store.commit(&transaction)? {
        Outcome::Committed { .. } => Ok(()),
        Outcome::Conflict { .. } => Err(RestoreError::Interrupted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restore_outwaits_one_that_was_killed() {
        // The killed one holds the election for its time to live.
        assert!(refuse_after(WHO, TTL).is_ok());
        let refused = refuse_after(WHO, RESTORE_GONE_WITHIN).unwrap_err();
        assert_eq!(refused.to_string(), "another restore of a backup works on this store");
    }

    #[test]
    fn a_manager_that_leads_is_told_by_its_address() {
        assert!(refuse_after("https://m1:7500", Duration::from_secs(5)).is_ok());
        let refused = refuse_after("https://m1:7500", MANAGERS_GONE_WITHIN).unwrap_err();
        assert_eq!(refused.to_string(), "a manager leads on this store (https://m1:7500)");
    }
}
