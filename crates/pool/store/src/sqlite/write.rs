//! What a transaction does to the tables.

use rusqlite::{OptionalExtension, Transaction as Open, params};

use super::read;
use crate::record::Revision;
use crate::transaction::{Outcome, Transaction, Write};

/// Revisions that watches can go back to. A watch in this process is milliseconds behind; a watch that comes
/// back after longer lists again, which takes less than reading this many changes.
const HISTORY_MAX: u64 = 10_000;

/// How often the history is cut back, in revisions.
const HISTORY_STEP: u64 = 256;

pub(super) fn commit(open: &Open<'_>, transaction: &Transaction) -> rusqlite::Result<Outcome> {
    for (place, condition) in transaction.conditions.iter().enumerate() {
        let found = modified(open, &condition.key)?;
        if !condition.holds(found) {
            return Ok(Outcome::Conflict { condition: place, found });
        }
    }
    Ok(Outcome::Committed { revision: apply(open, &transaction.writes)? })
}

fn modified(open: &Open<'_>, key: &str) -> rusqlite::Result<Option<Revision>> {
    open.prepare_cached("SELECT modified FROM records WHERE key = ?1")?
        .query_row([key.as_bytes()], |row| row.get(0))
        .optional()
}

/// Writes with the next revision. Changes that change nothing make none.
pub(super) fn apply(open: &Open<'_>, writes: &[Write]) -> rusqlite::Result<Revision> {
    let current = read::revision(open)?;
    let revision = current.next();
    let mut position = 0_i64;
    for write in writes {
        let created: Option<Revision> = match write {
            Write::Put { key, value } => open
                .prepare_cached(
                    "INSERT INTO records (key, value, created, modified) VALUES (?1, ?2, ?3, ?3)
                     ON CONFLICT (key) DO UPDATE SET value = excluded.value, modified = excluded.modified
                     RETURNING created",
                )?
                .query_row(params![key.as_bytes(), value, revision], |row| row.get(0))
                .map(Some)?,
            Write::Delete { key } => open
                .prepare_cached("DELETE FROM records WHERE key = ?1 RETURNING created")?
                .query_row([key.as_bytes()], |row| row.get(0))
                .optional()?,
        };
        if let Some(created) = created {
            remember(open, revision, position, write, created)?;
            position += 1;
        }
    }
    if position == 0 {
        return Ok(current);
    }
    open.prepare_cached("UPDATE meta SET revision = ?1")?.execute([revision])?;
    if revision.0 > HISTORY_MAX && revision.0.is_multiple_of(HISTORY_STEP) {
        compact(open, Revision(revision.0 - HISTORY_MAX))?;
    }
    Ok(revision)
}

fn remember(
    open: &Open<'_>,
    revision: Revision,
    position: i64,
    write: &Write,
    created: Revision,
) -> rusqlite::Result<()> {
    let value = match write {
        Write::Put { value, .. } => Some(value),
        Write::Delete { .. } => None,
    };
    open.prepare_cached(
        "INSERT INTO history (revision, position, key, value, created) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?
    .execute(params![revision, position, write.key().as_bytes(), value, created])?;
    Ok(())
}

pub(super) fn compact(open: &Open<'_>, before: Revision) -> rusqlite::Result<()> {
    let before = before.min(read::revision(open)?.next());
    open.prepare_cached("UPDATE meta SET oldest = max(oldest, ?1)")?.execute([before])?;
    open.prepare_cached("DELETE FROM history WHERE revision < ?1")?.execute([before])?;
    Ok(())
}
