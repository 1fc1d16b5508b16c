//! Tenants, numbers of spares, and idempotency keys.

use super::convert::stored_struct;
use super::{Kind, first_version};
use pool_api::{LeaseId, Model, Name, TENANT_PRIORITY_MAX_DEFAULT, TENANT_TTL_MAX_DEFAULT_MS};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Tenants.
pub(crate) const TENANT: Kind<TenantRecord> = Kind::new("tenant", &[first_version]);

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
