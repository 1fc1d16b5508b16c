//! Hosts of the PCIe plane with their slots.

use super::convert::{stored_enum, stored_struct};
use super::machine::Taint;
use super::{Kind, first_version};
use pool_api::{GpuId, LeaseId, Name};

/// Hosts.
pub(crate) const HOST: Kind<HostDetail> = Kind::new("host", &[first_version]);

stored_struct! {
    /// A host with its slots, below `host/NAME`.
    HostDetail of HostDetail {
        #[serde(rename = "host")]
        record: HostRecord,
        slots: Vec<HostSlot>,
    }
}

stored_struct! {
    /// A host.
    HostRecord of HostRecord {
        name: Name,
        node: u16,
        slots: u8,
        #[serde(default)]
        paths: Vec<String>,
        #[serde(default)]
        agent: String,
        state: HostState,
        last_seen_ms: u64,
        #[serde(default)]
        tenants: Vec<Name>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        revoked: Option<Taint>,
        #[serde(default, skip_serializing_if = "is_zero")]
        monitors_silent: u8,
    }
}

fn is_zero(count: &u8) -> bool {
    *count == 0
}

stored_enum! {
    /// Whether a host is there.
    HostState of HostState { Ready, Suspect, Dead, }
}

stored_struct! {
    /// One slot of a host.
    HostSlot of HostSlot {
        slot: u8,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lease: Option<LeaseId>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        gpu: Option<GpuId>,
        epoch: u64,
        #[serde(default)]
        bound_epoch: u64,
        cleared_epoch: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        phase: Option<Phase>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        leaving: Option<Leaving>,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        gone: bool,
        #[serde(default)]
        plugged: bool,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        monitor_silent: bool,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        detail: String,
    }
}

stored_struct! {
    /// A GPU that a host still has to unplug.
    Leaving of Leaving {
        lease: LeaseId,
        gpu: GpuId,
        epoch: u64,
        since_ms: u64,
        box_waits: bool,
    }
}

stored_enum! {
    /// How far a GPU is on its way into a slot, or out of it.
    Phase of Phase { Binding, Plugging, Plugged, Unplugging, }
}

stored_struct! {
    /// Where a GPU of a lease is plugged.
    Attachment of Attachment {
        host: Name,
        slot: u8,
        phase: Phase,
    }
}
