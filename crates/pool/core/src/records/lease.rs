//! Leases, with what was asked for.

use super::convert::{stored_enum, stored_struct};
use super::host::Attachment;
use super::machine::BoxKind;
use super::{Kind, Stored, first_version};
use pool_api::{GpuId, LEASE_TTL_DEFAULT_MS, LeaseId, Model, Name, PRIORITY_DEFAULT};

/// Leases.
///
/// Version 2 can say what its programs outlive, and where a lease is on its way to. Version 3 can limit its time, and name the
/// GPUs that a lease must have: a manager that did not know of it would place the lease on others. Version 4 has classes: a
/// manager that did not know of them would give an offline lease a GPU of its own. Version 5 has slacks: a manager that did not know
/// of them would sign tokens without.
pub(crate) const LEASE: Kind<Lease> = Kind::new("lease", &[first_version, survival, limits, classes, slacks]);

/// Leases of before have the slack of their workers: what is left out says so.
fn slacks(_: &mut serde_json::Map<String, serde_json::Value>) {}

/// Leases of before are dedicated: what is left out says so.
fn classes(_: &mut serde_json::Map<String, serde_json::Value>) {}

/// Leases of before have no limit, name no GPUs and have no label: what is left out says so.
fn limits(_: &mut serde_json::Map<String, serde_json::Value>) {}

/// Leases of before outlive nothing and are on their way nowhere: what is left out says so.
fn survival(_: &mut serde_json::Map<String, serde_json::Value>) {}

stored_struct! {
    /// A lease, below `lease/ID`.
    Lease of Lease {
        id: LeaseId,
        tenant: Name,
        owner: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<String>,
        request: LeaseRequest,
        state: LeaseState,
        #[serde(default)]
        grants: Vec<Grant>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<Model>,
        created_ms: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        granted_ms: Option<u64>,
        expires_ms: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ended: Option<Ended>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        moves: Vec<Move>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        moving: Option<Moving>,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        suspend_wanted: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parking: Option<Parking>,
        version: u64,
    }
}

stored_enum! {
    /// Where a lease stands.
    LeaseState of LeaseState { Pending, Granted, Parked, Releasing, Ended, }
}

stored_struct! {
    /// What was asked for.
    LeaseRequest of LeaseRequest {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tenant: Option<Name>,
        #[serde(default = "one")]
        gpus: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<Model>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        memory_bytes: Option<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kind: Option<BoxKind>,
        // This and the label are left out if there are none, as `survive` is.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        gpu_ids: Vec<GpuId>,
        #[serde(default = "anywhere")]
        topology: Topology,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        share: Option<Share>,
        #[serde(default = "priority")]
        priority: u32,
        #[serde(default = "ttl_ms")]
        ttl_ms: u64,
        #[serde(default = "api")]
        plane: Plane,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host: Option<Name>,
        // Left out if there is none, so that the hashes of requests of before stay as they are.
        #[serde(default = "nothing", skip_serializing_if = "is_nothing")]
        survive: Survive,
        #[serde(default = "dedicated", skip_serializing_if = "is_dedicated")]
        class: Class,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        slack_percent: Option<u16>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        time_limit_ms: Option<u64>,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        note: String,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        label: String,
    }
}

// What leases of early releases, which have no such field, were given.
fn one() -> u32 {
    1
}

fn anywhere() -> Topology {
    Topology::Any
}

fn priority() -> u32 {
    PRIORITY_DEFAULT
}

fn ttl_ms() -> u64 {
    LEASE_TTL_DEFAULT_MS
}

fn api() -> Plane {
    Plane::Api
}

fn nothing() -> Survive {
    Survive::None
}

fn is_nothing(survive: &Survive) -> bool {
    matches!(survive, Survive::None)
}

fn dedicated() -> Class {
    Class::Dedicated
}

fn is_dedicated(class: &Class) -> bool {
    matches!(class, Class::Dedicated)
}

/// What a request is told apart by from another one with the same idempotency key. The store keeps a hash of these
/// bytes, so they stay the same from one release to the next unless the stored request changes.
pub(crate) fn request_bytes(request: &pool_api::LeaseRequest) -> Vec<u8> {
    serde_json::to_vec(&LeaseRequest::of(request)).expect("requests have text keys and whole numbers")
}

stored_enum! {
    /// How close together the GPUs of a lease must be.
    Topology of Topology { Any, SameBox, Nvlink, }
}

stored_enum! {
    /// How a borrower reaches its GPUs.
    Plane of Plane { Api, Pcie, }
}

stored_enum! {
    /// What the programs of a lease outlive.
    Survive of Survive { None, Gpu, }
}

stored_enum! {
    /// What the programs of a lease are to others on the same GPU.
    Class of Class { Dedicated, Online, Offline, }
}

stored_struct! {
    /// A second place for one of the GPUs of a lease.
    Moving of Moving {
        from: GpuId,
        from_epoch: u64,
        to: Grant,
        purpose: Purpose,
        since_ms: u64,
        reason: String,
    }
}

stored_enum! {
    /// What a second place is for.
    Purpose of Purpose { Asked, Drain, Drill, }
}

stored_struct! {
    /// A lease without GPUs, whose programs are images.
    Parking of Parking {
        since_ms: u64,
        image_bytes: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        queued_ms: Option<u64>,
    }
}

stored_struct! {
    /// A part of one GPU.
    Share of Share {
        milli: u32,
        memory_bytes: u64,
    }
}

stored_struct! {
    /// One GPU of a lease.
    Grant of Grant {
        gpu: GpuId,
        epoch: u64,
        endpoints: Vec<String>,
        model: Model,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attachment: Option<Attachment>,
    }
}

stored_struct! {
    /// How a lease ended.
    Ended of Ended {
        at_ms: u64,
        reason: String,
    }
}

stored_struct! {
    /// A GPU that a lease lost, and the one it got instead.
    Move of Move {
        from: GpuId,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<GpuId>,
        at_ms: u64,
        reason: String,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        said_by_borrower: bool,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        planned: bool,
    }
}
