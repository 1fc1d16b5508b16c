//! Retention: logs kept as records must not grow for ever.

use crate::error::StoreError;
use crate::listing::Want;
use crate::store::Store;
use crate::transaction::{Condition, Outcome, Transaction};

/// Deletes the records below `prefix` that come first by key, until `keep` are left. Tells how many went.
///
/// A log whose keys count upwards (with leading zeros) thus loses its oldest entries. `conditions` guard each
/// transaction: give [`Leadership::condition`](crate::Leadership::condition). Long logs take several transactions; if
/// a condition fails in between, what went is gone and the rest stays, and the count tells so.
pub fn trim(
    store: &dyn Store,
    prefix: &str,
    keep: usize,
    conditions: &[Condition],
) -> Result<usize, StoreError> {
    let mut keys: Vec<String> = Vec::new();
    for page in store.list(prefix, Want::Keys)? {
        keys.extend(page?.into_iter().map(|record| record.key));
    }
    keys.truncate(keys.len().saturating_sub(keep));

    let mut gone = 0;
    for batch in keys.chunks(store.limits().writes.min(BATCH)) {
        let mut transaction = Transaction { conditions: conditions.to_vec(), writes: Vec::new() };
        for key in batch {
            transaction = transaction.delete(key);
        }
        match store.commit(&transaction)? {
            Outcome::Committed { .. } => gone += batch.len(),
            Outcome::Conflict { .. } => break,
        }
    }
    Ok(gone)
}

/// Deletes in one transaction: enough that the disk is not the bound, few enough not to hold up a grant.
const BATCH: usize = 512;
