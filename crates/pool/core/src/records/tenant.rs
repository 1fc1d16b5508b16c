//! Tenants, numbers of spares, and idempotency keys.

use super::convert::stored_struct;
use super::{Kind, first_version};
use pool_api::{LeaseId, Model, Name, TENANT_PRIORITY_MAX_DEFAULT, TENANT_TTL_MAX_DEFAULT_MS};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Tenants.
///
/// Version 2 can limit the time of leases.
pub(crate) const TENANT: Kind<TenantRecord> = Kind::new("tenant", &[first_version, unlimited]);

/// Tenants of before have no limits: what is left out says so.
fn unlimited(_: &mut serde_json::Map<String, serde_json::Value>) {}

/// How many spares of a model there shall be.
pub(crate) const SPARE: Kind<SpareRecord> = Kind::new("spare", &[first_version]);

/// Idempotency keys.
pub(crate) const KEY: Kind<KeyRecord> = Kind::new("idem", &[first_version]);

stored_struct! {
    /// A tenant, below `tenant/NAME`.
    TenantRecord of TenantRecord {
        name: Name,
        weight: u32,
        #[serde(default)]
        quotas: BTreeMap<Model, Quota>,
        #[serde(default = "priority_max")]
        priority_max: u32,
        #[serde(default = "ttl_max_ms")]
        ttl_max_ms: u64,
        #[serde(default = "no_limits", skip_serializing_if = "is_unlimited")]
        times: TenantTimes,
    }
}

// What tenants of early releases, which have no such field, were given.
fn priority_max() -> u32 {
    TENANT_PRIORITY_MAX_DEFAULT
}

fn ttl_max_ms() -> u64 {
    TENANT_TTL_MAX_DEFAULT_MS
}

stored_struct! {
    /// Limits on the time of a tenant's leases.
    TenantTimes of TenantTimes {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit_default_ms: Option<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit_max_ms: Option<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        idle_limit_ms: Option<u64>,
    }
}

fn no_limits() -> TenantTimes {
    TenantTimes { limit_default_ms: None, limit_max_ms: None, idle_limit_ms: None }
}

fn is_unlimited(times: &TenantTimes) -> bool {
    times.limit_default_ms.is_none() && times.limit_max_ms.is_none() && times.idle_limit_ms.is_none()
}

stored_struct! {
    /// What a tenant is promised of one model, and where it ends.
    Quota of Quota {
        #[serde(default)]
        guaranteed: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<u32>,
    }
}

stored_struct! {
    /// How many spares of a model there shall be, below `spare/MODEL`.
    SpareRecord of SpareRecord {
        model: Model,
        count: u32,
    }
}

/// An idempotency key, below `idem/HASH`. The HTTP API never shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeyRecord {
    /// The lease that the first request with this key got.
    pub(crate) lease: LeaseId,
    /// Hash of that request, in hexadecimal.
    pub(crate) request: String,
    /// When the key was last needed.
    pub(crate) at_ms: u64,
}
