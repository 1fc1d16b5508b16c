//! Tenants: the groups that GPUs are for, and how many each may have.

use crate::{
    Invalid, LEASE_TTL_MAX_MS, LEASE_TTL_MIN_MS, Model, Name, PRIORITY_DEFAULT, PRIORITY_MAX, TenantTimes,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// The weight of a tenant that no operator has set.
pub const WEIGHT_DEFAULT: u32 = 100;
/// The largest weight.
pub const WEIGHT_MAX: u32 = 1_000_000;
/// The highest priority that a tenant without settings may ask for: that of a request that names none. A tenant may put
/// its own leases behind others', but before them only if an operator has allowed it.
pub const TENANT_PRIORITY_MAX_DEFAULT: u32 = PRIORITY_DEFAULT;
/// The longest time to live that a tenant without settings may ask for. A borrower that is silent for a day is gone; what
/// it had is not kept from others for a week.
pub const TENANT_TTL_MAX_DEFAULT_MS: u64 = 24 * 3600 * 1000;

/// A tenant, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TenantRecord {
    /// Its name.
    pub name: Name,
    /// Its part of what is beyond all guarantees, relative to other tenants.
    pub weight: u32,
    /// What it is promised and where it ends, by model.
    #[serde(default)]
    pub quotas: BTreeMap<Model, Quota>,
    /// The highest priority its leases may have.
    #[serde(default = "priority_max_default")]
    pub priority_max: u32,
    /// The longest time to live its leases may have.
    #[serde(default = "ttl_max_default")]
    pub ttl_max_ms: u64,
    /// How long its leases may have their GPUs, and leave them unused.
    #[serde(default, skip_serializing_if = "TenantTimes::is_unlimited")]
    pub times: TenantTimes,
}

impl TenantRecord {
    /// A tenant that no operator has set.
    pub fn unspoken_of(name: Name) -> Self {
        Self::set(name, &TenantRequest::default())
    }

    /// A tenant as a request sets it.
    pub fn set(name: Name, request: &TenantRequest) -> Self {
        Self {
            name,
            weight: request.weight,
            quotas: request.quotas.clone(),
            priority_max: request.priority_max,
            ttl_max_ms: request.ttl_max_ms,
            times: request.times,
        }
    }
}

/// What a tenant is promised of one model, and where it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// So many GPUs come before anything others have beyond their own guarantee, whatever their priority. If there is
    /// no other way, leases of others that are beyond their guarantee are ended for it.
    #[serde(default)]
    pub guaranteed: u32,
    /// Never more than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// Sets weight, quotas and ceilings of a tenant; what is left out is as for a tenant nobody has said anything about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantRequest {
    /// Its part of what is beyond all guarantees, relative to other tenants.
    #[serde(default = "weight_default")]
    #[schema(minimum = 1, maximum = 1_000_000, default = 100)]
    pub weight: u32,
    /// By model.
    #[serde(default)]
    pub quotas: BTreeMap<Model, Quota>,
    /// The highest priority its leases may have. A request above it is refused.
    #[serde(default = "priority_max_default")]
    #[schema(maximum = 1000, default = 100)]
    pub priority_max: u32,
    /// The longest time to live its leases may have. A request above it is refused.
    #[serde(default = "ttl_max_default")]
    #[schema(minimum = 1000, maximum = 604_800_000, default = 86_400_000)]
    pub ttl_max_ms: u64,
    /// How long its leases may have their GPUs, and leave them unused.
    #[serde(
        default,
        deserialize_with = "crate::times::from_object",
        skip_serializing_if = "TenantTimes::is_unlimited"
    )]
    pub times: TenantTimes,
}

fn weight_default() -> u32 {
    WEIGHT_DEFAULT
}

fn priority_max_default() -> u32 {
    TENANT_PRIORITY_MAX_DEFAULT
}

fn ttl_max_default() -> u64 {
    TENANT_TTL_MAX_DEFAULT_MS
}

impl Default for TenantRequest {
    fn default() -> Self {
        Self {
            weight: WEIGHT_DEFAULT,
            quotas: BTreeMap::new(),
            priority_max: TENANT_PRIORITY_MAX_DEFAULT,
            ttl_max_ms: TENANT_TTL_MAX_DEFAULT_MS,
            times: TenantTimes::default(),
        }
    }
}

impl TenantRequest {
    /// Whether it is within bounds.
    pub fn check(&self) -> Result<(), Invalid> {
        if !(1..=WEIGHT_MAX).contains(&self.weight) {
            return Err(Invalid::new("weight", format!("must be 1 to {WEIGHT_MAX}")));
        }
        if self.priority_max > PRIORITY_MAX {
            return Err(Invalid::new("priority_max", format!("must be 0 to {PRIORITY_MAX}")));
        }
        if !(LEASE_TTL_MIN_MS..=LEASE_TTL_MAX_MS).contains(&self.ttl_max_ms) {
            return Err(Invalid::new(
                "ttl_max_ms",
                format!("must be {LEASE_TTL_MIN_MS} to {LEASE_TTL_MAX_MS}"),
            ));
        }
        self.times.check()?;
        let is_above = |quota: &Quota| quota.limit.is_some_and(|limit| quota.guaranteed > limit);
        if self.quotas.values().any(is_above) {
            return Err(Invalid::new("quotas", "must not guarantee more than the limit allows"));
        }
        Ok(())
    }
}

/// A tenant and what it has now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TenantStatus {
    /// Its name.
    pub name: Name,
    /// Its part of what is beyond all guarantees.
    pub weight: u32,
    /// What it is promised and where it ends, by model.
    pub quotas: BTreeMap<Model, Quota>,
    /// The highest priority its leases may have.
    #[serde(default = "priority_max_default")]
    pub priority_max: u32,
    /// The longest time to live its leases may have.
    #[serde(default = "ttl_max_default")]
    pub ttl_max_ms: u64,
    /// How long its leases may have their GPUs, and leave them unused.
    #[serde(default, skip_serializing_if = "TenantTimes::is_unlimited")]
    pub times: TenantTimes,
    /// What it has, by model.
    pub used: BTreeMap<Model, TenantUse>,
    /// How many of its leases have GPUs.
    pub leases_granted: u64,
    /// How many wait.
    pub leases_pending: u64,
}

/// What a tenant has of one model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TenantUse {
    /// Thousandths of GPUs.
    pub milli: u64,
    /// Memory, of shares and whole GPUs.
    pub memory_bytes: u64,
}
