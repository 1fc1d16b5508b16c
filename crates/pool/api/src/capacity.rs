//! What a pool has, what of it is free, and what a tenant may have and has used.

use crate::{Model, Name};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// The GPUs of one model, as the one that asks sees them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Capacity {
    /// The model.
    pub model: Model,
    /// GPUs that work, in boxes that are there; leased ones and spares count. One that is lent in parts counts once.
    pub working: u64,
    /// Of these, the GPUs that a lease could have now, as a whole.
    pub free: u64,
    /// Of these, the GPUs that are held back for leases whose GPU breaks.
    pub spares: u64,
    /// What the tenant has, in thousandths of GPUs. Zero for a caller without a tenant.
    pub used_milli: u64,
    /// What the tenant is promised.
    pub guaranteed: u32,
    /// The tenant never gets more than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// What of them is lent in parts to leases with a share, in thousandths of GPUs.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub parts_milli: u64,
    /// Of these, the thousandths that leases could have now.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub parts_free_milli: u64,
    /// The most GPUs that a new lease of the tenant could have at once, by what is free and by its limit.
    pub available: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The GPU time of a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TenantUsage {
    /// The tenant.
    pub tenant: Name,
    /// Since when it is counted.
    pub since_ms: u64,
    /// Leases that had GPUs and are over.
    pub leases_ended: u64,
    /// Milliseconds of whole GPUs, by model, of leases that are over: from the first grant of a lease to its end. A share
    /// counts as its part of a GPU.
    #[serde(default)]
    pub ended_gpu_ms: BTreeMap<Model, u64>,
    /// The same of leases that have GPUs now, up to now. Not stored.
    #[serde(default)]
    pub running_gpu_ms: BTreeMap<Model, u64>,
}
