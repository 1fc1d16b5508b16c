//! Tenants: who GPUs are for, and how many each may have.

use crate::{Invalid, Model, Name};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// The weight of a tenant nobody has said anything about.
pub const WEIGHT_DEFAULT: u32 = 100;
/// The largest weight.
pub const WEIGHT_MAX: u32 = 1_000_000;

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
}

/// What a tenant is promised of one model, and where it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// So many GPUs come before anything others have beyond their own guarantee, at equal priority.
    #[serde(default)]
    pub guaranteed: u32,
    /// Never more than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// Sets weight and quotas of a tenant; what is left out is as for a tenant nobody has said anything about.
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
}

fn weight_default() -> u32 {
    WEIGHT_DEFAULT
}

impl Default for TenantRequest {
    fn default() -> Self {
        Self { weight: WEIGHT_DEFAULT, quotas: BTreeMap::new() }
    }
}

impl TenantRequest {
    /// Whether it is within bounds.
    pub fn check(&self) -> Result<(), Invalid> {
        if !(1..=WEIGHT_MAX).contains(&self.weight) {
            return Err(Invalid::new("weight", format!("must be 1 to {WEIGHT_MAX}")));
        }
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
