//! Versions of records.

use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Turns a record of one version into one of the next.
pub type Upgrade = fn(&mut Map<String, Value>);

/// Version 1 has the fields of version 0, and the number.
pub fn first_version(_: &mut Map<String, Value>) {}

/// A kind of record: its name, and how older versions of it become the newest one.
///
/// A record is a JSON object whose first field `v` is its version. Records from before there were versions have none:
/// they are version 0.
#[derive(Debug)]
pub struct Kind<S> {
    name: &'static str,
    upgrades: &'static [Upgrade],
    shape: PhantomData<fn() -> S>,
}

/// Why a record cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// A later release has written it; this one would lose or misread a part of it.
    #[error(
        "this {kind} record has version {found}, and this dxpu reads versions up to {known}: \
         a newer dxpu has written it, use that one"
    )]
    Newer {
        /// The kind of record.
        kind: &'static str,
        /// Its version.
        found: u64,
        /// The newest version that this program reads.
        known: u64,
    },
    /// It is no record of this kind.
    #[error("this is no {kind} record that dxpu has written ({source}): restore the store from a backup")]
    Damaged {
        /// The kind of record.
        kind: &'static str,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

/// What is read of a record before the rest.
#[derive(serde::Deserialize)]
struct Tag {
    #[serde(default)]
    v: u64,
}

impl<S> Kind<S> {
    /// A kind whose newest version is the number of its upgrades.
    pub const fn new(name: &'static str, upgrades: &'static [Upgrade]) -> Self {
        Self { name, upgrades, shape: PhantomData }
    }

    /// How it is called in messages, and in the names of golden files.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The version that [`Kind::write`] writes.
    pub fn version(&self) -> u64 {
        self.upgrades.len() as u64
    }

    fn damaged(&self, source: serde_json::Error) -> ReadError {
        ReadError::Damaged { kind: self.name, source }
    }

    /// Whether every one of these versions is the newest; an error if one is newer than that.
    fn are_newest(&self, versions: impl IntoIterator<Item = u64>) -> Result<bool, ReadError> {
        let (known, mut all) = (self.version(), true);
        for found in versions {
            if found > known {
                return Err(ReadError::Newer { kind: self.name, found, known });
            }
            all &= found == known;
        }
        Ok(all)
    }

    fn upgrade(&self, value: &mut Value) {
        let Some(record) = value.as_object_mut() else { return };
        let version = record.remove("v").and_then(|version| version.as_u64()).unwrap_or(0);
        let version = usize::try_from(version).unwrap_or(usize::MAX);
        self.upgrades.iter().skip(version).for_each(|upgrade| upgrade(record));
    }
}

impl<S: Serialize + DeserializeOwned> Kind<S> {
    /// The bytes of a record of the newest version.
    ///
    /// # Panics
    ///
    /// If `S` is not written as a JSON object.
    pub fn write(&self, record: &S) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(256);
        self.append(&mut bytes, record);
        bytes
    }

    fn append(&self, bytes: &mut Vec<u8>, record: &S) {
        let fields = serde_json::to_vec(record).expect("records have text keys and finite numbers");
        let fields = fields.strip_prefix(b"{").expect("records are objects");
        bytes.extend_from_slice(format!("{{\"v\":{}", self.version()).as_bytes());
        if fields != b"}" {
            bytes.push(b',');
        }
        bytes.extend_from_slice(fields);
    }

    /// Reads a record of any version up to the newest.
    pub fn read(&self, bytes: &[u8]) -> Result<S, ReadError> {
        let tag: Tag = serde_json::from_slice(bytes).map_err(|error| self.damaged(error))?;
        let read = if self.are_newest([tag.v])? {
            serde_json::from_slice(bytes)
        } else {
            serde_json::from_slice(bytes).and_then(|mut value| {
                self.upgrade(&mut value);
                serde_json::from_value(value)
            })
        };
        read.map_err(|error| self.damaged(error))
    }

    /// Several records under one key. Each has a version of its own, so a program from before there were versions
    /// reads them too.
    pub fn write_all<'a>(&self, records: impl IntoIterator<Item = &'a S>) -> Vec<u8>
    where
        S: 'a,
    {
        let mut bytes = vec![b'['];
        for record in records {
            if bytes.len() > 1 {
                bytes.push(b',');
            }
            self.append(&mut bytes, record);
        }
        bytes.push(b']');
        bytes
    }

    /// Reads what [`Kind::write_all`] wrote.
    pub fn read_all(&self, bytes: &[u8]) -> Result<Vec<S>, ReadError> {
        let tags: Vec<Tag> = serde_json::from_slice(bytes).map_err(|error| self.damaged(error))?;
        let read = if self.are_newest(tags.iter().map(|tag| tag.v))? {
            serde_json::from_slice(bytes)
        } else {
            serde_json::from_slice(bytes).and_then(|mut values: Vec<Value>| {
                values.iter_mut().for_each(|value| self.upgrade(value));
                values.into_iter().map(serde_json::from_value).collect()
            })
        };
        read.map_err(|error| self.damaged(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Disk {
        bytes: u64,
        label: String,
    }

    /// Version 1 counted kilobytes, version 2 had no label.
    const DISK: Kind<Disk> = Kind::new(
        "disk",
        &[
            first_version,
            |record| {
                let kilobytes = record.remove("kilobytes").and_then(|value| value.as_u64()).unwrap_or(0);
                record.insert("bytes".into(), (kilobytes * 1024).into());
            },
            |record| {
                record.insert("label".into(), "unnamed".into());
            },
        ],
    );

    fn disk(bytes: u64, label: &str) -> Disk {
        Disk { bytes, label: label.into() }
    }

    #[test]
    fn each_older_version_is_upgraded_step_by_step() {
        assert_eq!(DISK.write(&disk(2048, "a")), br#"{"v":3,"bytes":2048,"label":"a"}"#);
        for (text, expected) in [
            (r#"{"v":3,"bytes":2048,"label":"a"}"#, disk(2048, "a")),
            (r#"{"v":2,"bytes":2048}"#, disk(2048, "unnamed")),
            (r#"{"v":1,"kilobytes":2}"#, disk(2048, "unnamed")),
            (r#"{"kilobytes":2}"#, disk(2048, "unnamed")),
        ] {
            assert_eq!(DISK.read(text.as_bytes()).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn a_newer_version_is_refused_with_what_to_do() {
        let refused = DISK.read(br#"{"v":4,"bytes":1,"label":"a"}"#).unwrap_err().to_string();
        assert_eq!(
            refused,
            "this disk record has version 4, and this dxpu reads versions up to 3: \
             a newer dxpu has written it, use that one"
        );
        let among_others = br#"[{"v":3,"bytes":1,"label":"a"},{"v":9}]"#;
        assert!(matches!(DISK.read_all(among_others), Err(ReadError::Newer { found: 9, known: 3, .. })));
    }

    #[test]
    fn several_records_under_one_key_may_have_different_versions() {
        let written = DISK.write_all(&[disk(1, "a"), disk(2, "b")]);
        assert_eq!(written, br#"[{"v":3,"bytes":1,"label":"a"},{"v":3,"bytes":2,"label":"b"}]"#);
        assert_eq!(DISK.read_all(&written).unwrap(), [disk(1, "a"), disk(2, "b")]);
        let mixed = br#"[{"kilobytes":1},{"v":3,"bytes":2,"label":"b"}]"#;
        assert_eq!(DISK.read_all(mixed).unwrap(), [disk(1024, "unnamed"), disk(2, "b")]);
        assert_eq!(DISK.read_all(&DISK.write_all(&[])).unwrap(), []);
    }

    #[test]
    fn what_is_no_record_is_damaged() {
        for text in ["", "[]", "7", r#"{"v":-1}"#, r#"{"v":"3"}"#, r#"{"v":3,"bytes":1}"#, r#"{"v":3"#] {
            assert!(matches!(DISK.read(text.as_bytes()), Err(ReadError::Damaged { .. })), "{text}");
        }
    }
}
