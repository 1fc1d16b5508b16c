//! Leases, with what was asked for.

use super::convert::{stored_enum, stored_struct};
use super::host::Attachment;
use super::machine::BoxKind;
use super::{Kind, Stored, first_version};
use pool_api::{GpuId, LEASE_TTL_DEFAULT_MS, LeaseId, Model, Name, PRIORITY_DEFAULT};

/// Leases.
pub(crate) const LEASE: Kind<Lease> = Kind::new("lease", &[first_version]);

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
        version: u64,
    }
}

stored_enum! {
    /// Where a lease stands.
    LeaseState of LeaseState { Pending, Granted, Releasing, Ended, }
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
        #[serde(default, skip_serializing_if = "String::is_empty")]
        note: String,
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
    }
}
