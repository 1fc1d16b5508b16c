//! The audit trail: entries chained by hash, so that none can be changed or left out unseen.
//!
//! The trail is kept in books: one for operators and admins, one for boxes and hosts, one for each tenant, one for
//! strangers. Each has a chain of its own. When there are more entries than are kept, the longest book loses its
//! oldest; so an actor that floods the trail displaces entries of its own book.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One thing somebody did, or was not allowed to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// Counts all entries of its book from 1, without a gap.
    pub seq: u64,
    /// The book: `operators`, `machines`, `tenant/NAME` or `strangers`. None in trails from before there were books.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub book: String,
    /// When.
    pub at_ms: u64,
    /// Who, as their certificate or token says; `anonymous` if neither was believed.
    pub actor: String,
    /// From where.
    pub address: String,
    /// What, such as `lease.create`.
    pub action: String,
    /// To what, such as `lease/l-00c0ffee00c0ffee`.
    pub target: String,
    /// Whether it happened.
    pub outcome: AuditOutcome,
    /// Why not, or what exactly.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// The hash of the entry before, in hexadecimal; zeros for the first.
    pub previous: String,
    /// BLAKE3 over this entry with an empty `hash`, as JSON in the order of these fields, in hexadecimal.
    pub hash: String,
}

/// Whether something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AuditOutcome {
    /// It did.
    Done,
    /// It was not allowed.
    Denied,
    /// It was allowed but could not be done.
    Refused,
}

/// Both ends of a book, kept beside its entries: entries removed at either end leave these behind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditBook {
    /// Its name; empty for a trail from before there were books.
    pub name: String,
    /// The oldest entry that is kept.
    pub first: u64,
    /// The hash of the entry before that one, which `first` carries as `previous`. Empty where nobody has noted it.
    pub before_first: String,
    /// The newest entry; zero before the first.
    pub last: u64,
    /// Its hash.
    pub last_hash: String,
}

/// All books.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditBooks {
    /// By name.
    pub books: Vec<AuditBook>,
    /// How many entries there ever were, in all books: as many as the numbers of the newest ones add up to, or else a
    /// whole book is missing.
    pub written: u64,
}
