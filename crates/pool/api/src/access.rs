//! Access: tokens, certificates, keys.

use crate::{Invalid, Name};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The longest time a token may last: ten years.
pub const TOKEN_TTL_MAX_MS: u64 = 10 * 365 * 24 * 3600 * 1000;

/// What a token is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AccessKind {
    /// Be certified, once: to join.
    Join,
    /// Speak as somebody, again and again.
    User,
}

/// Asks for a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// What it is to be good for.
    pub kind: AccessKind,
    /// As whom, such as `spiffe://dxpu/box/rack1-a` or `spiffe://dxpu/tenant/vision/ada`.
    #[schema(
        max_length = 256,
        pattern = r"^spiffe://dxpu/(((box|host|operator|admin|viewer)/)|tenant/[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?/)[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$",
        example = "spiffe://dxpu/box/rack1-a"
    )]
    pub identity: String,
    /// For how long.
    #[schema(minimum = 1000, maximum = 315_360_000_000_u64)]
    pub ttl_ms: u64,
    /// What it is for; shown to people. At most 256 characters.
    #[serde(default)]
    #[schema(
        max_length = 256,
        pattern = r"^[^\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]*$"
    )]
    pub note: String,
}

impl TokenRequest {
    /// Whether it is within bounds; whether the identity is one is for others to say.
    pub fn check(&self) -> Result<(), Invalid> {
        if !(1000..=TOKEN_TTL_MAX_MS).contains(&self.ttl_ms) {
            return Err(Invalid::new("ttl_ms", format!("must be 1000 to {TOKEN_TTL_MAX_MS}")));
        }
        crate::lease::check_note("note", &self.note)
    }
}

/// A new token, shown this once.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct NewToken {
    /// What is kept of it.
    pub info: TokenInfo,
    /// The token itself. Whoever has it is who it says.
    pub token: String,
    /// The certificate by which managers are known, PEM.
    pub ca_certificate: String,
}

/// Tokens must not appear in a log.
impl std::fmt::Debug for NewToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewToken").field("info", &self.info).finish_non_exhaustive()
    }
}

/// What is known of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenInfo {
    /// Its name; not secret.
    pub id: String,
    /// What it is good for.
    pub kind: AccessKind,
    /// As whom.
    pub identity: String,
    /// Who made it.
    pub created_by: String,
    /// The tokens by which it was made, the oldest first; revoking one of them revokes this one with it.
    #[serde(default)]
    pub lineage: Vec<String>,
    /// When.
    pub created_ms: u64,
    /// When it is no longer good.
    pub expires_ms: u64,
    /// Whether it was used up.
    pub used: bool,
    /// What it is for.
    pub note: String,
}

/// Asks for a new certificate of the same name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RenewRequest {
    /// A certificate request, PEM. The key stays where it is.
    #[schema(max_length = 16_384)]
    pub certificate_request: String,
}

/// A machine that was off for longer than its certificate lasted asks for a new one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReturnRequest {
    /// Who it is, such as `spiffe://dxpu/box/rack1-a`.
    #[schema(
        max_length = 256,
        pattern = r"^spiffe://dxpu/(box|host)/[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$",
        example = "spiffe://dxpu/box/rack1-a"
    )]
    pub identity: String,
    /// A certificate request, PEM, for the key that it joined with. That it is signed with that key is the proof.
    #[schema(max_length = 16_384)]
    pub certificate_request: String,
}

/// The keys that sign lease tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeaseKeys {
    /// Public keys that boxes accept, in hexadecimal, the newest last.
    pub lease_keys: Vec<String>,
}

/// Who asks, as the manager sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WhoAmI {
    /// Who.
    pub identity: String,
    /// What they are: viewer, tenant, operator, admin, box, host or manager.
    pub role: String,
    /// The tenant they borrow for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Name>,
    /// The manager's clock.
    pub now_ms: u64,
}

/// Somebody who borrows, and what they have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Borrower {
    /// Who, as their certificate or token says.
    pub owner: String,
    /// For whom.
    pub tenants: Vec<Name>,
    /// Leases that have GPUs.
    pub leases_granted: u64,
    /// Leases that wait.
    pub leases_pending: u64,
    /// GPUs they have.
    pub gpus: u64,
}
