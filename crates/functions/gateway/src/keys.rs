//! Access keys: who may invoke what.

use crate::keeper::{Keeper, bytes, key_key};
use functions::AccessKey;
use pool_store::{Condition, Store, StoreError, Transaction};
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Why no key was made.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The store did not take it.
    #[error("the store does not take the key")]
    Store(#[from] StoreError),
    /// The name cannot be one of a tenant.
    #[error("{0:?} is no name of a tenant: write 1 to 64 letters, digits, - and _")]
    Tenant(String),
    /// The machine has no random numbers.
    #[error("no random numbers")]
    Random(#[from] machine::NoRandomness),
}

/// Makes a key for a tenant, straight in the store. A service that runs takes it up at once.
pub fn new_key(store: &dyn Store, tenant: &str) -> Result<AccessKey, KeyError> {
    if !functions::is_name(tenant) {
        return Err(KeyError::Tenant(tenant.to_owned()));
    }
    let id = format!("DXPU{}", machine::random_hex(8)?.to_ascii_uppercase());
    let key = AccessKey {
        version: functions::VERSION,
        id,
        secret: machine::random_hex(20)?,
        tenant: tenant.to_owned(),
    };
    let transaction =
        Transaction::new().when(Condition::absent(key_key(&key.id))).put(key_key(&key.id), bytes(&key));
    let _ = store.commit(&transaction)?;
    Ok(key)
}

/// A key is read again after this long: one that was deleted works no longer.
const FRESH_FOR: Duration = Duration::from_secs(5);
/// More are not remembered: strangers choose the names that they are asked for by.
const REMEMBERED_MAX: usize = 10_000;

/// The keys that were asked for lately.
#[derive(Default)]
pub(crate) struct Keys {
    known: Mutex<HashMap<String, (Instant, Option<AccessKey>)>>,
}

impl Keys {
    pub(crate) fn find(&self, keeper: &Keeper, id: &str) -> Option<AccessKey> {
        if id.len() > 64 || !functions::is_name(id) {
            return None;
        }
        let remembered = locks::lock(&self.known).get(id).cloned();
        // One that was not there may have been made since.
        let fresh = |at: Instant, key: &Option<AccessKey>| {
            at.elapsed() < if key.is_some() { FRESH_FOR } else { Duration::from_millis(200) }
        };
        if let Some((at, key)) = remembered
            && fresh(at, &key)
        {
            return key;
        }
        let found = keeper.access_key(id).ok().flatten();
        let mut known = locks::lock(&self.known);
        if known.len() >= REMEMBERED_MAX {
            known.clear();
        }
        known.insert(id.to_owned(), (Instant::now(), found.clone()));
        found
    }
}
