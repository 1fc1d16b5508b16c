//! Taking back tokens, memberships and leases.

use crate::{Invalid, LeaseId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Asks that something opens nothing any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RevocationRequest {
    /// What: `token/ID`, `tenant/NAME` (all its users), `lease/ID`, `serial/HEX` (a certificate), or an identity such as
    /// `spiffe://dxpu/box/rack1-a` (whatever it was given so far).
    #[schema(
        max_length = 256,
        pattern = r"^(token/[0-9a-f]{16}|lease/l-[0-9a-f]{16}|serial/[0-9a-f]{1,40}|tenant/[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?|spiffe://dxpu/(((box|host|manager|operator|admin|viewer)/)|tenant/[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?/)[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?)$",
        example = "token/3f2a90c1d4e5b677"
    )]
    pub subject: String,
    /// Why; shown to everybody who is refused because of it. At most 256 characters.
    #[serde(default)]
    #[schema(max_length = 256, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")]
    pub reason: String,
    /// Of a token: tokens and machines that were let in with it stay. For replacing a token that nobody has stolen.
    #[serde(default)]
    pub alone: bool,
    /// Leases go on until nobody renews them. Otherwise they end, and with them the programs that use them.
    #[serde(default)]
    pub keep_leases: bool,
    /// Also if the token that asks is among what is revoked.
    #[serde(default)]
    pub include_own: bool,
}

impl RevocationRequest {
    /// Everything that comes with this subject.
    pub fn of(subject: impl Into<String>) -> Self {
        Self {
            subject: subject.into(),
            reason: String::new(),
            alone: false,
            keep_leases: false,
            include_own: false,
        }
    }

    /// Whether it is within bounds; whether the subject is one is for others to say.
    pub fn check(&self) -> Result<(), Invalid> {
        crate::lease::check_note("reason", &self.reason)
    }
}

/// What a revocation has ended. All of it is refused from now on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RevocationDone {
    /// What was revoked.
    pub subject: String,
    /// How many tokens are refused from now on.
    pub tokens: u64,
    /// How many boxes and hosts are no members any more.
    pub machines: u64,
    /// How many leases have ended.
    pub leases: u64,
    /// How many GPUs those had.
    pub gpus: u64,
    /// Until when the deny list remembers it: then nothing of it would count anyway.
    pub until_ms: u64,
}

/// One entry of the deny list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RevocationInfo {
    /// What was revoked.
    pub subject: String,
    /// What was given up to then is refused.
    pub since_ms: u64,
    /// Until when it is remembered.
    pub until_ms: u64,
    /// Who revoked it.
    pub by: String,
    /// Why.
    pub reason: String,
}

/// A lease whose tokens a box must refuse, whatever else they say.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
pub struct DeniedLease {
    /// The lease.
    pub lease: LeaseId,
    /// From then on none of its tokens would count anyway; by the manager's clock.
    pub until_ms: u64,
}
