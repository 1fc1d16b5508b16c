//! Spares: GPUs held back for leases whose GPU breaks.

use crate::{GpuId, Invalid, Model};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How many spares of a model there shall be, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SpareRecord {
    /// The model.
    pub model: Model,
    /// How many.
    pub count: u32,
}

/// Sets how many spares of a model there shall be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SpareRequest {
    /// How many. Fewer are held while fewer are free.
    #[schema(maximum = 100_000)]
    pub count: u32,
}

impl SpareRequest {
    /// Whether it is within bounds.
    pub fn check(&self) -> Result<(), Invalid> {
        if self.count > 100_000 { Err(Invalid::new("count", "must be at most 100000")) } else { Ok(()) }
    }
}

/// The spares of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SpareStatus {
    /// The model.
    pub model: Model,
    /// How many there shall be.
    pub wanted: u32,
    /// The GPUs that are held back now.
    pub held: Vec<GpuId>,
    /// How many GPUs of the model there are in all.
    pub gpus: u64,
    /// How many of them are bad or in burn-in.
    pub broken: u64,
}

/// Asks how many spares a pool needs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SparePlanRequest {
    /// How many GPUs are in use.
    #[schema(maximum = 10_000_000)]
    pub gpus: u64,
    /// How many of a hundred GPUs fail in a year.
    #[schema(minimum = 0, maximum = 10_000)]
    pub failures_pct_per_year: f64,
    /// How long a repair takes, burn-in included.
    #[schema(minimum = 0, maximum = 3650)]
    pub repair_days: f64,
    /// Share of the time in which spares must suffice, in percent, such as 99.9.
    #[schema(minimum = 0, maximum = 99.999_999)]
    pub cover_pct: f64,
}

impl SparePlanRequest {
    /// Whether it is within bounds.
    pub fn check(&self) -> Result<(), Invalid> {
        if self.gpus > 10_000_000 {
            return Err(Invalid::new("gpus", "must be at most 10000000"));
        }
        if !(0.0..=10_000.0).contains(&self.failures_pct_per_year) {
            return Err(Invalid::new("failures_pct_per_year", "must be 0 to 10000"));
        }
        if !(0.0..=3650.0).contains(&self.repair_days) {
            return Err(Invalid::new("repair_days", "must be 0 to 3650"));
        }
        if !(0.0..=99.999_999).contains(&self.cover_pct) {
            return Err(Invalid::new("cover_pct", "must be 0 to 99.999999"));
        }
        Ok(())
    }
}

/// How many spares a pool needs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SparePlan {
    /// How many.
    pub spares: u64,
    /// How many GPUs are in repair on average.
    pub in_repair_mean: f64,
    /// Share of the time in which so many suffice, in percent.
    pub covered_pct: f64,
}
