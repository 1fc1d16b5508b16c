//! Idempotency keys: a request that is sent twice gets the same lease twice.

use crate::records::{KEY, KeyRecord};
use pool_api::LeaseId;
use std::collections::{BTreeSet, HashMap};

/// A key as it is known: a hash of owner and key, so its size is bounded and no owner can use another's key.
pub(super) type KeyHash = [u8; 16];

#[derive(Clone, Debug, Default)]
pub(super) struct Keys {
    known: HashMap<KeyHash, Known>,
    /// By when they were last needed.
    by_age: BTreeSet<(u64, KeyHash)>,
}

#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) lease: LeaseId,
    pub(super) request: KeyHash,
    at_ms: u64,
}

pub(super) fn hash(parts: &[&[u8]]) -> KeyHash {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    let mut short = [0; 16];
    short.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    short
}

pub(super) fn name(key: &KeyHash) -> String {
    format!("idem/{}", hex(key))
}

fn hex(bytes: &KeyHash) -> String {
    format!("{:032x}", u128::from_be_bytes(*bytes))
}

fn unhex(text: &str) -> Option<KeyHash> {
    let is_digit = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
    let plain = text.len() == 32 && text.bytes().all(is_digit);
    plain.then(|| u128::from_str_radix(text, 16).ok()).flatten().map(u128::to_be_bytes)
}

impl Keys {
    pub(super) fn get(&self, key: &KeyHash) -> Option<&Known> {
        self.known.get(key)
    }

    pub(super) fn insert(&mut self, key: KeyHash, lease: LeaseId, request: KeyHash, at_ms: u64) {
        self.known.insert(key, Known { lease, request, at_ms });
        self.by_age.insert((at_ms, key));
    }

    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// The key that was not needed for longest, when that was, and its lease.
    pub(super) fn oldest(&self) -> Option<(u64, KeyHash, LeaseId)> {
        let &(at_ms, key) = self.by_age.first()?;
        Some((at_ms, key, self.known[&key].lease))
    }

    pub(super) fn remove(&mut self, key: &KeyHash) {
        if let Some(known) = self.known.remove(key) {
            self.by_age.remove(&(known.at_ms, *key));
        }
    }

    /// It is needed now.
    pub(super) fn touch(&mut self, key: &KeyHash, at_ms: u64) {
        if let Some(known) = self.known.get_mut(key) {
            self.by_age.remove(&(known.at_ms, *key));
            known.at_ms = at_ms;
            self.by_age.insert((at_ms, *key));
        }
    }

    /// As it is stored; nothing if it is not known.
    pub(super) fn record(&self, key: &KeyHash) -> Option<Vec<u8>> {
        let Known { lease, request, at_ms } = self.known.get(key)?;
        Some(KEY.write(&KeyRecord { lease: *lease, request: hex(request), at_ms: *at_ms }))
    }

    /// Reads what [`Keys::record`] wrote. `name` is the key without `idem/`.
    pub(super) fn load(&mut self, name: &str, value: &[u8]) -> Result<(), String> {
        let key = unhex(name).ok_or("the key is no hash")?;
        let record = KEY.read(value).map_err(|error| error.to_string())?;
        let request = unhex(&record.request).ok_or("the request is no hash")?;
        self.insert(key, record.lease, request, record.at_ms);
        Ok(())
    }
}
