//! What will be written with the next commit.

use std::collections::BTreeMap;

use pool_store::{Condition, Transaction, Write};

/// Writes that wait for the next commit. The last write to a key counts: a transaction has one for each.
#[derive(Debug, Default)]
pub(crate) struct Staged {
    writes: BTreeMap<String, Option<Vec<u8>>>,
    bytes: usize,
}

impl Staged {
    pub(crate) fn put(&mut self, key: String, value: Vec<u8>) {
        self.set(key, Some(value));
    }

    pub(crate) fn delete(&mut self, key: String) {
        self.set(key, None);
    }

    pub(crate) fn set(&mut self, key: String, value: Option<Vec<u8>>) {
        self.bytes += key.len() + value.as_ref().map_or(0, Vec::len);
        self.writes.insert(key, value);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.writes.len()
    }

    /// At most so many: keys that were written over are counted too.
    pub(crate) fn bytes_at_most(&self) -> usize {
        self.bytes
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.writes.keys().map(String::as_str)
    }

    /// How many keys there would be with those of another.
    pub(crate) fn len_with(&self, other: &Self) -> usize {
        self.len() + other.keys().filter(|key| !self.writes.contains_key(*key)).count()
    }

    /// Adds what came later.
    pub(crate) fn append(&mut self, later: Self) {
        self.bytes += later.bytes;
        self.writes.extend(later.writes);
    }

    pub(crate) fn transaction(&self, condition: Condition) -> Transaction {
        let write = |(key, value): (&String, &Option<Vec<u8>>)| match value {
            Some(value) => Write::Put { key: key.clone(), value: value.clone() },
            None => Write::Delete { key: key.clone() },
        };
        Transaction { conditions: vec![condition], writes: self.writes.iter().map(write).collect() }
    }
}
