//! What the manager stores beside the ledger: keys, tokens, members, what was revoked, and the audit trail.
//!
//! Each kind has a version, see [`pool::records`]. `TokenRecord`, `Member` and `Denial` of `pool-auth` are stored types
//! already: the HTTP API shows `TokenInfo` and `Revocation` instead. An audit entry is both stored and shown, so it has a
//! type of its own here. Two records are no objects and have no version: an anchor of the audit trail is 64 hexadecimal
//! digits, and of `auth/members-known` only the presence counts.

use pool::records::{Kind, ReadError, first_version};
use pool_api::{AuditBook, AuditEntry, AuditOutcome};
use pool_auth::{Denial, Member, Secret, TokenRecord};
use serde::{Deserialize, Serialize};

use crate::history::StoredStep;

/// The authority, at `auth/authority`.
pub(crate) const AUTHORITY: Kind<StoredAuthority> = Kind::new("authority", &[first_version]);
/// Keys that sign leases, below `auth/lease-key/`.
pub(crate) const LEASE_KEY: Kind<StoredLeaseKey> = Kind::new("lease-key", &[first_version]);
/// The secret of the PCIe plane, at `auth/fabric`.
pub(crate) const FABRIC: Kind<StoredFabric> = Kind::new("fabric", &[first_version]);
/// Tokens, below `auth/token/`.
pub(crate) const TOKEN: Kind<TokenRecord> = Kind::new("token", &[first_version]);
/// Machines that have joined, below `auth/member/`.
pub(crate) const MEMBER: Kind<Member> = Kind::new("member", &[first_version]);
/// What was revoked, below `auth/denied/`.
pub(crate) const DENIED: Kind<Denial> = Kind::new("denied", &[first_version]);
/// Entries of the audit trail, below `audit/`.
const AUDIT: Kind<StoredEntry> = Kind::new("audit", &[first_version]);
/// Both ends of a book of the trail, below `audit-book/`.
pub(crate) const AUDIT_BOOK: Kind<StoredBook> = Kind::new("audit-book", &[first_version]);
/// The sum of the trail, at `audit-books`.
pub(crate) const AUDIT_SUM: Kind<Sum> = Kind::new("audit-books", &[first_version]);
/// The ends of a trail from before there were books, at `audit-head`. Nothing writes them any more.
pub(crate) const AUDIT_EARLIER: Kind<Earlier> = Kind::new("audit-head", &[first_version]);

/// Finished steps of the last day's history, below `history/`.
pub(crate) const HISTORY: Kind<StoredStep> = Kind::new("history", &[first_version]);

/// How the authority is stored.
#[derive(Serialize, Deserialize)]
pub(crate) struct StoredAuthority {
    pub(crate) certificate: String,
    pub(crate) key: Secret,
}

/// How a lease key is stored.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct StoredLeaseKey {
    pub(crate) secret: Secret,
    pub(crate) created_ms: u64,
    /// Not before, so that every box knows it.
    pub(crate) signs_from_ms: u64,
}

/// How the secret of the PCIe plane is stored.
#[derive(Serialize, Deserialize)]
pub(crate) struct StoredFabric {
    pub(crate) secret: Secret,
}

/// How a book of the trail is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredBook {
    pub(crate) name: String,
    pub(crate) first: u64,
    pub(crate) before_first: String,
    pub(crate) last: u64,
    pub(crate) last_hash: String,
    /// The oldest entry that is still in the store; those before `first` go a few at a time.
    pub(crate) swept: u64,
}

impl StoredBook {
    /// A book, with the oldest entry that is still in the store.
    pub(crate) fn of(ends: AuditBook, swept: u64) -> Self {
        let AuditBook { name, first, before_first, last, last_hash } = ends;
        Self { name, first, before_first, last, last_hash, swept }
    }

    /// Both ends, as the API shows them.
    pub(crate) fn ends(self) -> AuditBook {
        let Self { name, first, before_first, last, last_hash, swept: _ } = self;
        AuditBook { name, first, before_first, last, last_hash }
    }
}

/// How many entries were ever written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sum {
    pub(crate) written: u64,
}

/// The ends of a trail from before there were books.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Earlier {
    pub(crate) seq: u64,
    pub(crate) oldest: u64,
}

/// How an entry of the trail is stored.
#[derive(Serialize, Deserialize)]
struct StoredEntry {
    seq: u64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    book: String,
    at_ms: u64,
    actor: String,
    address: String,
    action: String,
    target: String,
    outcome: StoredOutcome,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    detail: String,
    previous: String,
    hash: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredOutcome {
    Done,
    Denied,
    Refused,
}

/// The bytes of an entry of the trail.
pub(crate) fn write_entry(entry: &AuditEntry) -> Vec<u8> {
    let AuditEntry { seq, book, at_ms, actor, address, action, target, outcome, detail, previous, hash } =
        entry.clone();
    let outcome = match outcome {
        AuditOutcome::Done => StoredOutcome::Done,
        AuditOutcome::Denied => StoredOutcome::Denied,
        AuditOutcome::Refused => StoredOutcome::Refused,
    };
    let stored =
        StoredEntry { seq, book, at_ms, actor, address, action, target, outcome, detail, previous, hash };
    AUDIT.write(&stored)
}

/// Reads what [`write_entry`] wrote, of any version.
pub(crate) fn read_entry(bytes: &[u8]) -> Result<AuditEntry, ReadError> {
    let StoredEntry { seq, book, at_ms, actor, address, action, target, outcome, detail, previous, hash } =
        AUDIT.read(bytes)?;
    let outcome = match outcome {
        StoredOutcome::Done => AuditOutcome::Done,
        StoredOutcome::Denied => AuditOutcome::Denied,
        StoredOutcome::Refused => AuditOutcome::Refused,
    };
    Ok(AuditEntry { seq, book, at_ms, actor, address, action, target, outcome, detail, previous, hash })
}

#[cfg(test)]
mod tests;
