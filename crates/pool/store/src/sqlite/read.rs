//! Records, one by one and in pages.

use std::sync::Arc;

use rusqlite::types::{FromSqlError, Type};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::not_done;
use super::readers::{Reader, Readers};
use crate::error::StoreError;
use crate::listing::{Listing, Want};
use crate::record::{Record, Revision, end_of_prefix};

/// Records in one page: some hundred kilobytes.
const PAGE: usize = 1024;

pub(super) fn record(connection: &Connection, key: &str) -> rusqlite::Result<Option<Record>> {
    connection
        .prepare_cached("SELECT key, value, created, modified FROM records WHERE key = ?1")?
        .query_row([key.as_bytes()], to_record)
        .optional()
}

fn to_record(row: &Row<'_>) -> rusqlite::Result<Record> {
    Ok(Record { key: text(row, 0)?, value: row.get(1)?, created: row.get(2)?, modified: row.get(3)? })
}

/// Keys were text when they were put.
pub(super) fn text(row: &Row<'_>, column: usize) -> rusqlite::Result<String> {
    String::from_utf8(row.get(column)?).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(column, Type::Blob, FromSqlError::other(error).into())
    })
}

pub(super) fn revision(connection: &Connection) -> rusqlite::Result<Revision> {
    connection.prepare_cached("SELECT revision FROM meta")?.query_row([], |row| row.get(0))
}

/// The snapshot is SQLite's own: a read transaction that stays open until the listing is dropped.
pub(super) fn list(readers: &Arc<Readers>, prefix: &str, want: Want) -> rusqlite::Result<Listing> {
    let reader = readers.take()?;
    reader.execute_batch("BEGIN")?;
    let revision = revision(&reader)?;
    let pages =
        Pages { reader, want, next: Some(Start::At(prefix.as_bytes().to_vec())), end: end_of_prefix(prefix) };
    Ok(Listing::new(revision, pages))
}

enum Start {
    At(Vec<u8>),
    After(String),
}

struct Pages {
    reader: Reader,
    want: Want,
    /// Where the next page begins; none after the last.
    next: Option<Start>,
    end: Option<Vec<u8>>,
}

impl Pages {
    fn page(&self, start: &Start) -> rusqlite::Result<Vec<Record>> {
        let (comparison, key) = match start {
            Start::At(key) => (">=", key.as_slice()),
            Start::After(key) => (">", key.as_bytes()),
        };
        let value = match self.want {
            Want::Records => "value",
            Want::Keys => "x''",
        };
        // No key begins with this byte: it is not UTF-8.
        let end = self.end.as_deref().unwrap_or(b"\xff");
        let sql = format!(
            "SELECT key, {value}, created, modified FROM records
             WHERE key {comparison} ?1 AND key < ?2 ORDER BY key LIMIT {PAGE}"
        );
        self.reader.prepare_cached(&sql)?.query_map(params![key, end], to_record)?.collect()
    }
}

impl Iterator for Pages {
    type Item = Result<Vec<Record>, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        let start = self.next.take()?;
        match self.page(&start) {
            Ok(page) => {
                let last = page.last()?;
                if page.len() == PAGE {
                    self.next = Some(Start::After(last.key.clone()));
                }
                Some(Ok(page))
            }
            Err(error) => Some(Err(not_done("list records", error))),
        }
    }
}
