//! The file: a line that says what it is, a line for each record, a line with the checksum of all before it.
//!
//! ```text
//! {"dxpu_backup":1,"dxpu":"0.1.0","at_ms":…,"revision":…}
//! {"k":"auth/authority","t":"…"}          a value that is text
//! {"k":"…","x":"00ff"}                    any other value, in hexadecimal
//! {"records":2,"blake3":"…"}
//! ```
//!
//! The checksum finds a file that was cut or damaged. It is no signature: keep the file where only admins can write.

use std::io::{self, Write};

use pool_store::{LEADER_PREFIX, Store, StoreError, Want};
use serde::{Deserialize, Serialize};

use super::{UNFINISHED, UNFINISHED_KEY};
use crate::access::AUTHORITY_KEY;

/// Grows when an older program could no longer read the file.
const FORMAT: u64 = 1;

/// How often a listing is begun anew that etcd compacted away meanwhile.
const TRIES_MAX: usize = 3;

/// Why there is no backup, or it cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The store.
    #[error("cannot read the store")]
    Store(#[from] StoreError),
    /// The file.
    #[error("cannot write the backup")]
    Write(#[source] io::Error),
    /// No manager was ever started on the store.
    #[error("there is no pool in this store")]
    NoPool,
    /// A restore was interrupted.
    #[error("{UNFINISHED}")]
    Unfinished,
    /// A later version wrote the file.
    #[error(
        "this backup has format {found}, and this dxpu reads formats up to {FORMAT}: use the dxpu {made_by} that made it, or a newer one"
    )]
    Newer {
        /// The file's format.
        found: u64,
        /// The version of dxpu that wrote it.
        made_by: String,
    },
    /// It is something else, or not all of it.
    #[error("this is no whole backup of dxpu: {what}")]
    Damaged {
        /// What is wrong.
        what: String,
    },
}

#[derive(Serialize, Deserialize)]
struct Head {
    dxpu_backup: u64,
    dxpu: String,
    at_ms: u64,
    revision: u64,
}

#[derive(Serialize, Deserialize)]
struct Line {
    k: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    t: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    x: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Foot {
    records: u64,
    blake3: String,
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// How many records.
    pub records: u64,
    /// The store's revision that all of them are of.
    pub revision: u64,
}

/// A backup that was read and is whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backup {
    /// The version of dxpu that made it.
    pub made_by: String,
    /// When it was made.
    pub at_ms: u64,
    /// The store's revision then.
    pub revision: u64,
    /// Keys and values.
    pub records: Vec<(String, Vec<u8>)>,
}

struct Sink<'a> {
    out: &'a mut dyn Write,
    hash: blake3::Hasher,
}

impl Sink<'_> {
    fn line(&mut self, line: &impl Serialize) -> Result<(), BackupError> {
        let mut bytes = serde_json::to_vec(line).map_err(|error| BackupError::Write(error.into()))?;
        bytes.push(b'\n');
        self.hash.update(&bytes);
        self.out.write_all(&bytes).map_err(BackupError::Write)
    }
}

/// Writes every record of a store, all as of one revision. Managers may go on meanwhile.
///
/// `again` gives an empty file: it is asked once more when the store has forgotten the revision before all of it was read.
pub fn take<W: Write>(
    store: &dyn Store,
    now_ms: u64,
    mut again: impl FnMut() -> io::Result<W>,
) -> Result<(Taken, W), BackupError> {
    if store.read(AUTHORITY_KEY)?.is_none() {
        return Err(BackupError::NoPool);
    }
    let mut tries = 1;
    loop {
        let mut out = again().map_err(BackupError::Write)?;
        match take_once(store, now_ms, &mut out) {
            Err(BackupError::Store(StoreError::TooOld { .. })) if tries < TRIES_MAX => tries += 1,
            taken => return Ok((taken?, out)),
        }
    }
}

fn take_once(store: &dyn Store, now_ms: u64, out: &mut dyn Write) -> Result<Taken, BackupError> {
    let listing = store.list("", Want::Records)?;
    let revision = listing.revision().0;
    let mut sink = Sink { out, hash: blake3::Hasher::new() };
    let dxpu = env!("CARGO_PKG_VERSION").to_owned();
    sink.line(&Head { dxpu_backup: FORMAT, dxpu, at_ms: now_ms, revision })?;
    let mut records = 0;
    for page in listing {
        for record in page? {
            if record.key == UNFINISHED_KEY {
                return Err(BackupError::Unfinished);
            }
            // Who leads is no part of the pool.
            if record.key.starts_with(LEADER_PREFIX) {
                continue;
            }
            let (t, x) = match String::from_utf8(record.value) {
                Ok(text) => (Some(text), None),
                Err(other) => (None, Some(hex(other.as_bytes()))),
            };
            sink.line(&Line { k: record.key, t, x })?;
            records += 1;
        }
    }
    let blake3 = sink.hash.finalize().to_hex().to_string();
    sink.line(&Foot { records, blake3 })?;
    sink.out.flush().map_err(BackupError::Write)?;
    Ok(Taken { records, revision })
}

impl Backup {
    /// Reads what [`take`] wrote.
    pub fn read(bytes: &[u8]) -> Result<Self, BackupError> {
        let damaged = |what: &str| BackupError::Damaged { what: what.to_owned() };
        let end =
            bytes.iter().position(|byte| *byte == b'\n').ok_or_else(|| damaged("it has no first line"))?;
        let head: Head = serde_json::from_slice(&bytes[..end])
            .map_err(|_| damaged("its first line is not that of a backup"))?;
        if head.dxpu_backup > FORMAT {
            return Err(BackupError::Newer { found: head.dxpu_backup, made_by: head.dxpu });
        }
        let whole = bytes.strip_suffix(b"\n").ok_or_else(|| damaged("its end is missing"))?;
        let last =
            whole.iter().rposition(|byte| *byte == b'\n').ok_or_else(|| damaged("its end is missing"))? + 1;
        let foot: Foot =
            serde_json::from_slice(&whole[last..]).map_err(|_| damaged("its last line is missing"))?;
        if blake3::hash(&bytes[..last]).to_hex().as_str() != foot.blake3 {
            return Err(damaged("its checksum does not fit: it was changed since it was written"));
        }
        let lines = bytes[end + 1..last].split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let records =
            lines.map(record).collect::<Option<Vec<_>>>().ok_or_else(|| damaged("a line is no record"))?;
        if records.len() as u64 != foot.records {
            return Err(damaged("it does not have as many records as it says"));
        }
        if !records.iter().any(|(key, _)| key == AUTHORITY_KEY) {
            return Err(damaged("the pool's authority is not in it"));
        }
        Ok(Self { made_by: head.dxpu, at_ms: head.at_ms, revision: head.revision, records })
    }
}

fn record(line: &[u8]) -> Option<(String, Vec<u8>)> {
    let line: Line = serde_json::from_slice(line).ok()?;
    let value = match (line.t, line.x) {
        (Some(text), None) => text.into_bytes(),
        (None, Some(hexadecimal)) => unhex(&hexadecimal)?,
        _ => return None,
    };
    Some((line.k, value))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> =
        text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect::<Option<_>>()?;
    digits.len().is_multiple_of(2).then(|| digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pool_store::{Memory, Transaction};

    fn store() -> Memory {
        let store = Memory::new();
        let put = Transaction::new()
            .put(AUTHORITY_KEY, "{}")
            .put("audit-anchor/a", "ab\ncd\"")
            .put("odd", vec![0xff, 0x00, 0x0a]);
        let _ = store.commit(&put).unwrap();
        store
    }

    fn taken(store: &Memory) -> Vec<u8> {
        take(store, 77, || Ok(Vec::new())).unwrap().1
    }

    #[test]
    fn what_was_written_is_read_back() {
        let bytes = taken(&store());
        let read = Backup::read(&bytes).unwrap();
        assert_eq!((read.at_ms, read.revision, read.records.len()), (77, 1, 3));
        assert_eq!(read.records[2], ("odd".to_owned(), vec![0xff, 0x00, 0x0a]));
        assert_eq!(read.records[0].1, b"ab\ncd\"");
    }

    #[test]
    fn a_file_that_was_cut_or_changed_is_refused() {
        let bytes = taken(&store());
        for kept in 0..bytes.len() {
            assert!(matches!(Backup::read(&bytes[..kept]), Err(BackupError::Damaged { .. })), "{kept}");
        }
        for at in 0..bytes.len() - 1 {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(Backup::read(&changed).is_err(), "{at}");
        }
    }

    #[test]
    fn a_newer_format_is_refused_with_what_to_do() {
        let text = String::from_utf8(taken(&store())).unwrap();
        let newer = text.replacen("\"dxpu_backup\":1", "\"dxpu_backup\":2", 1);
        let said = Backup::read(newer.as_bytes()).unwrap_err().to_string();
        assert!(said.contains("has format 2") && said.contains("or a newer one"), "{said}");
    }

    #[test]
    fn a_store_without_a_pool_has_no_backup() {
        let empty = Memory::new();
        assert!(matches!(take(&empty, 1, || Ok(Vec::new())), Err(BackupError::NoPool)));
    }
}
