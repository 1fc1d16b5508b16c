//! A GPU of the pool, as the manager knows it.

use crate::{GpuId, Invalid, LeaseId, Model, Name, Part};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A GPU of the pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Gpu {
    /// Where it sits.
    pub id: GpuId,
    /// Its box.
    pub box_name: Name,
    /// Its slot in the box.
    pub slot: u8,
    /// What it is.
    pub model: Model,
    /// Memory that borrowers can use.
    pub memory_bytes: u64,
    /// The driver's name of this very GPU.
    pub uuid: String,
    /// GPUs of a box with the same group are joined by NVLink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvlink_group: Option<u32>,
    /// No GPU, but another device, which only the PCIe plane reaches.
    #[serde(default)]
    pub only_pcie: bool,
    /// It is a seat for guests on another slot's GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<Guest>,
    /// It is a part of a GPU, for a lease with a share, and `memory_bytes` is the part's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<Part>,
    /// What it is doing.
    pub state: GpuState,
    /// Kept from new leases by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taint: Option<Taint>,
    /// Held back for leases whose GPU breaks.
    #[serde(default)]
    pub spare: bool,
    /// Counts its grants; a borrower with a lower one is refused by the box.
    pub epoch: u64,
    /// The highest epoch its box has said to have let a host in with. On the api plane it is not kept.
    #[serde(default)]
    pub bound_epoch: u64,
    /// Everything of this epoch and older is gone from it: processes killed, memory scrubbed. It is granted again only
    /// when this has caught up with `epoch`.
    pub cleaned_epoch: u64,
    /// Who has it; several only with shares.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<Holder>,
    /// Whose data are on it, on the PCIe plane: of the lease that has it, or of one that lost it without giving it up and may
    /// get it again. It is not scrubbed before that lease is over or has another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<Kept>,
    /// What its box last said of it.
    pub health: Health,
    /// Why no borrower could use it now although it works: its worker is starting, or cannot be found. No lease gets it
    /// while this is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unready: Option<String>,
    /// Where its worker is reached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<String>,
    /// What it last measured. Not stored: absent until its box has reported to the manager that leads now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counters: Option<Counters>,
}

/// The slot of the first seat for guests: that of slot N is the Nth after it.
pub const FIRST_GUEST_SLOT: u8 = 32;

/// A seat for guests: a slot of its own for an offline lease, beside the lease that has the GPU. Its memory is what the guest may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Guest {
    /// The slot whose GPU it is on: its host.
    #[schema(maximum = 31)]
    pub of: u8,
    /// The guest may be of another tenant than the lease that has the host.
    #[serde(default)]
    pub any_tenant: bool,
    /// Its memory is promised twice: an online lease on the host has all of the GPU's, and the guest leaves when that is needed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overcommit: bool,
}

/// A lease's data stay on a device from one grant of it to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Kept {
    /// The lease.
    pub lease: LeaseId,
    /// The epoch of the first grant since which it was nobody else's and was not scrubbed.
    pub since_epoch: u64,
}

/// What a GPU is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GpuState {
    /// Nobody has it and it is clean.
    Free,
    /// A lease has it, or several have shares of it.
    Leased,
    /// Its last lease is over and its box has not yet said that it is clean.
    Cleaning,
    /// It failed, and waits for somebody to say that it is repaired.
    Bad,
    /// Somebody said that it is repaired, and its box has to show it.
    BurnIn,
    /// Its box no longer reports it.
    Absent,
}

/// Why a GPU is kept from new leases.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Taint {
    /// Why.
    pub reason: String,
    /// Who did it.
    pub by: String,
    /// Since when.
    pub since_ms: u64,
    /// Whether leases that have it are moved away too.
    #[serde(default)]
    pub drain: bool,
}

/// Asks to taint, drain, repair or break a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TaintRequest {
    /// Why; shown to everybody who asks. At most 256 characters.
    #[serde(default)]
    #[schema(
        max_length = 256,
        pattern = r"^[^\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]*$"
    )]
    pub reason: String,
}

impl TaintRequest {
    /// Whether it is within bounds.
    pub fn check(&self) -> Result<(), Invalid> {
        crate::lease::check_note("reason", &self.reason)
    }
}

/// One lease that has a GPU, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Holder {
    /// The lease.
    pub lease: LeaseId,
    /// Thousandths of the GPU.
    pub share_milli: u32,
    /// Memory of the GPU.
    pub memory_bytes: u64,
}

/// Whether a GPU works.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Health {
    /// It does.
    pub ok: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Health {
    /// It works.
    pub const OK: Self = Self { ok: true, reason: None };

    /// It does not, for this reason.
    pub fn bad(reason: impl Into<String>) -> Self {
        Self { ok: false, reason: Some(reason.into()) }
    }
}

/// What a GPU measures of itself. What its driver does not tell is left out.
///
/// Unknown fields are ignored, unlike in all else that a box sends: a manager, and a client that shows what a manager
/// tells, can do without a counter that a newer box measures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Counters {
    /// Share of the last moments in which a kernel ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilization_pct: Option<u32>,
    /// Memory in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_used_bytes: Option<u64>,
    /// Degrees Celsius.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature_c: Option<i32>,
    /// Milliwatts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_mw: Option<u64>,
    /// Memory errors that could not be corrected, since the driver was loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecc_uncorrected: Option<u64>,
    /// Share of the multiprocessors that had a warp to run, on average over the last second. `utilization_pct` is 100
    /// while one small kernel runs; this says how much of the GPU it takes. NVIDIA GPUs from Hopper on tell it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_activity_pct: Option<u32>,
    /// Warps on the multiprocessors over the last second, of as many as fit. Told like `sm_activity_pct`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_occupancy_pct: Option<u32>,
    /// Bandwidth of the GPU's memory in use over the last second. Told like `sm_activity_pct`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dram_activity_pct: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_that_are_not_known_are_left_out_and_those_of_before_are_read() {
        let before = r#"{"utilization_pct":7,"memory_used_bytes":1,"temperature_c":41,"power_mw":120500,"ecc_uncorrected":0}"#;
        let counters: Counters = serde_json::from_str(before).unwrap();
        let activity = (counters.sm_activity_pct, counters.sm_occupancy_pct, counters.dram_activity_pct);
        assert_eq!(activity, (None, None, None), "a box that does not tell it has no zeros");
        assert_eq!(serde_json::to_string(&counters).unwrap(), before, "as managers of before read it");

        let now = r#"{"sm_activity_pct":37,"sm_occupancy_pct":12,"dram_activity_pct":0}"#;
        let counters: Counters = serde_json::from_str(now).unwrap();
        let expected = Counters {
            sm_activity_pct: Some(37),
            sm_occupancy_pct: Some(12),
            dram_activity_pct: Some(0),
            ..Counters::default()
        };
        assert_eq!(counters, expected);
        assert_eq!(serde_json::to_string(&counters).unwrap(), now);
    }

    #[test]
    fn a_counter_of_a_newer_box_is_ignored() {
        let counters: Counters = serde_json::from_str(r#"{"utilization_pct":7,"tensor_pct":3}"#).unwrap();
        assert_eq!(counters, Counters { utilization_pct: Some(7), ..Counters::default() });
    }
}
