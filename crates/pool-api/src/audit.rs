//! Who did what: entries chained by hash, so that none can be changed or left out unseen.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One thing somebody did, or was not allowed to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// Counts all entries from 1, without a gap.
    pub seq: u64,
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
