//! GPUs.

use super::convert::{stored_enum, stored_struct};
use super::machine::Taint;
use super::{Kind, first_version};
use pool_api::{GpuId, LeaseId, Model, Name};

/// GPUs.
///
/// Version 2 has seats for guests, version 3 parts: a manager that did not know of them would lend each as a GPU. Version 4 says which
/// seats have memory that is promised twice.
pub(crate) const GPU: Kind<Gpu> = Kind::new("gpu", &[first_version, guests, parts, overcommit]);

/// GPUs of before are no seats: what is left out says so.
fn guests(_: &mut serde_json::Map<String, serde_json::Value>) {}

/// Nor are they parts.
fn parts(_: &mut serde_json::Map<String, serde_json::Value>) {}

/// No memory of before is promised twice.
fn overcommit(_: &mut serde_json::Map<String, serde_json::Value>) {}

stored_struct! {
    /// A GPU, below `gpu/BOX/SLOT`. What it measures is not stored: its box reports it every second or two.
    Gpu of Gpu {
        id: GpuId,
        box_name: Name,
        slot: u8,
        model: Model,
        memory_bytes: u64,
        uuid: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        nvlink_group: Option<u32>,
        #[serde(default)]
        only_pcie: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        guest: Option<Guest>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        part: Option<Part>,
        state: GpuState,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        taint: Option<Taint>,
        #[serde(default)]
        spare: bool,
        epoch: u64,
        #[serde(default)]
        bound_epoch: u64,
        cleaned_epoch: u64,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        holders: Vec<Holder>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kept: Option<Kept>,
        health: Health,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unready: Option<String>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        endpoints: Vec<String>,
    } without { counters: None }
}

stored_enum! {
    /// What a GPU is doing.
    GpuState of GpuState { Free, Leased, Cleaning, Bad, BurnIn, Absent, }
}

stored_struct! {
    /// A seat for guests.
    Guest of Guest {
        of: u8,
        #[serde(default)]
        any_tenant: bool,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        overcommit: bool,
    }
}

stored_struct! {
    /// A part of a GPU.
    Part of Part {
        of: u8,
        milli: u32,
    }
}

stored_struct! {
    /// The lease whose data are on a device.
    Kept of Kept {
        lease: LeaseId,
        since_epoch: u64,
    }
}

stored_struct! {
    /// A lease that has a GPU, or a part of it.
    Holder of Holder {
        lease: LeaseId,
        share_milli: u32,
        memory_bytes: u64,
    }
}

stored_struct! {
    /// Whether a GPU works.
    Health of Health {
        ok: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    }
}
