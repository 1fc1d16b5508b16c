//! Leaderships in the file: a record like any other, and beside it the time at which it may be taken.
//!
//! The time is read from the clock that all processes of the machine share and that no program sets. It only
//! decides when a silent leader may be replaced; a leader that was silent for long but has not been replaced goes on.

use rusqlite::{Connection, OptionalExtension, Transaction as Open, params};

use super::clock::{Clock, as_ms};
use super::{read, write};
use crate::leadership::{Campaign, Candidacy, Leader, Leadership};
use crate::record::Record;
use crate::transaction::Write;

/// The leader, unless its time is over.
pub(super) fn leader(connection: &Connection, clock: &Clock, key: &str) -> rusqlite::Result<Option<Leader>> {
    if !lasts(connection, clock, key)? {
        return Ok(None);
    }
    Ok(read::record(connection, key)?.map(|record| Leader {
        address: String::from_utf8_lossy(&record.value).into_owned(),
        tenure: record.created,
    }))
}

fn lasts(connection: &Connection, clock: &Clock, key: &str) -> rusqlite::Result<bool> {
    let row: Option<(String, i64, i64)> = connection
        .prepare_cached("SELECT boot, ends_ms, ttl_ms FROM tenures WHERE key = ?1")?
        .query_row([key.as_bytes()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    Ok(row.is_some_and(|(boot, ends_ms, ttl_ms)| {
        let left_ms = ends_ms - clock.now_ms();
        // More time left than was ever granted: from another clock, whatever the boot says.
        boot == clock.boot && 0 < left_ms && left_ms <= ttl_ms
    }))
}

pub(super) fn campaign(open: &Open<'_>, clock: &Clock, candidacy: &Candidacy) -> rusqlite::Result<Campaign> {
    let key = candidacy.key();
    if let Some(leader) = leader(open, clock, &key)? {
        return Ok(Campaign::Led(leader));
    }
    // The old record goes first, so that the new one begins a new tenure.
    write::apply(open, &[Write::Delete { key: key.clone() }])?;
    let revision = write::apply(
        open,
        &[Write::Put { key: key.clone(), value: candidacy.address.clone().into_bytes() }],
    )?;
    let leadership = Leadership {
        name: candidacy.name.clone(),
        key,
        tenure: revision,
        revision,
        ttl: candidacy.ttl,
        handle: 0,
    };
    prolong(open, clock, &leadership)?;
    Ok(Campaign::Won(leadership))
}

fn prolong(open: &Open<'_>, clock: &Clock, leadership: &Leadership) -> rusqlite::Result<()> {
    let ttl_ms = as_ms(leadership.ttl);
    open.prepare_cached(
        "INSERT OR REPLACE INTO tenures (key, boot, ends_ms, ttl_ms) VALUES (?1, ?2, ?3, ?4)",
    )?
    .execute(params![leadership.key.as_bytes(), clock.boot, clock.now_ms() + ttl_ms, ttl_ms])?;
    Ok(())
}

fn held(open: &Open<'_>, leadership: &Leadership) -> rusqlite::Result<Option<Record>> {
    let record = read::record(open, &leadership.key)?;
    Ok(record.filter(|record| record.created == leadership.tenure))
}

/// Whether it was still ours to prolong.
pub(super) fn keep_alive(open: &Open<'_>, clock: &Clock, leadership: &Leadership) -> rusqlite::Result<bool> {
    let is_held = held(open, leadership)?.is_some();
    if is_held {
        prolong(open, clock, leadership)?;
    }
    Ok(is_held)
}

pub(super) fn fence(open: &Open<'_>, leadership: &Leadership) -> rusqlite::Result<Option<Leadership>> {
    let Some(record) = held(open, leadership)? else { return Ok(None) };
    let revision = write::apply(open, &[Write::Put { key: record.key, value: record.value }])?;
    Ok(Some(Leadership { revision, ..leadership.clone() }))
}

pub(super) fn resign(open: &Open<'_>, leadership: &Leadership) -> rusqlite::Result<()> {
    if held(open, leadership)?.is_some() {
        write::apply(open, &[Write::Delete { key: leadership.key.clone() }])?;
        open.prepare_cached("DELETE FROM tenures WHERE key = ?1")?.execute([leadership.key.as_bytes()])?;
    }
    Ok(())
}
