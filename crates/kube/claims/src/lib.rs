//! Kubernetes' dynamic resource allocation and the pool's leases, without any I/O.
//!
//! The controller (`kube-controller`) and the kubelet's plugin (`kube-node`) never talk to each other. They agree because
//! both use the names of this crate: the claim's UID is in the label of its lease ([`lease_key`]). Either side finds the
//! lease by `GET /v1/leases?label=`, and of the live ones the oldest counts.
//!
//! ```text
//!   GPUs, boxes, leases ──devices──▶ plan ──▶ ResourceSlices
//!   claim ──ClaimView──▶ decide(claim, leases, devices) ──▶ actions: finalizer, lease, conditions
//!   all leases, all claims ──▶ orphans
//! ```

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![forbid(unsafe_code)]

mod claim;
mod config;
mod decide;
mod names;
mod slices;
mod status;

pub use claim::{Allocation, ClaimView, Said};
pub use config::{ConfigError, GpuConfig, OnLoss, SurviveConfig};
pub use decide::{Action, Devices, Memory, Terms, Verdict, Word, create_key, decide, orphans, survives};
pub use names::{
    API_VERSION, CONDITION_GRANTED, CONDITION_REFUSED, CONFIG_KIND, DEVICE_CLASS, DRIVER,
    EXTENDED_RESOURCE_DEFAULT, FINALIZER, POOL, device_name, lease_key, lease_note, uid_of_key,
};
pub use slices::{
    Bind, CONTENT_ANNOTATION, DEVICES_PER_SLICE_MAX, Nodes, PoolView, SliceChange, TAINT_DRAINED, TAINT_LOST,
    TAINT_SILENT, TAINT_TAINTED, devices, plan,
};
pub use status::{add_finalizer, remove_finalizer, write_word};

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
