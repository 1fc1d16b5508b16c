//! What one outcome changes, collected while it is made: records are written once, as they are at the end.

use pool_api::{Event, EventKind, GpuId, LeaseId, Model, Name};
use std::collections::BTreeSet;

/// Changes since the last outcome.
#[derive(Clone, Debug, Default)]
pub(super) struct Draft {
    pub(super) boxes: BTreeSet<Name>,
    pub(super) hosts: BTreeSet<Name>,
    pub(super) gpus: BTreeSet<GpuId>,
    pub(super) leases: BTreeSet<LeaseId>,
    pub(super) tenants: BTreeSet<Name>,
    pub(super) usage: BTreeSet<Name>,
    pub(super) spares: BTreeSet<Model>,
    pub(super) keys: BTreeSet<[u8; 16]>,
    /// Whether the floor of epochs has risen.
    pub(super) floor: bool,
    /// Event records that are no longer kept, by their first number.
    pub(super) events_dropped: Vec<u64>,
    pub(super) events: Vec<Note>,
}

impl Draft {
    pub(super) fn is_empty(&self) -> bool {
        self.boxes.is_empty()
            && self.hosts.is_empty()
            && self.gpus.is_empty()
            && self.leases.is_empty()
            && self.tenants.is_empty()
            && self.usage.is_empty()
            && self.spares.is_empty()
            && self.keys.is_empty()
            && !self.floor
            && self.events_dropped.is_empty()
            && self.events.is_empty()
    }

    /// How many writes it makes.
    pub(super) fn len(&self) -> usize {
        self.boxes.len()
            + self.hosts.len()
            + self.gpus.len()
            + self.leases.len()
            + self.tenants.len()
            + self.usage.len()
            + self.spares.len()
            + self.keys.len()
            + self.events_dropped.len()
            + usize::from(!self.events.is_empty())
    }
}

/// An event before it has a number and a time.
#[derive(Clone, Debug)]
pub(super) struct Note {
    pub(super) kind: EventKind,
    pub(super) gpu: Option<GpuId>,
    pub(super) box_name: Option<Name>,
    pub(super) host: Option<Name>,
    pub(super) lease: Option<LeaseId>,
    pub(super) tenant: Option<Name>,
    pub(super) message: String,
}

impl Note {
    pub(super) fn new(kind: EventKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            gpu: None,
            box_name: None,
            host: None,
            lease: None,
            tenant: None,
            message: message.into(),
        }
    }

    pub(super) fn gpu(mut self, gpu: &GpuId) -> Self {
        self.gpu = Some(gpu.clone());
        self.box_name = Some(gpu.box_name.clone());
        self
    }

    pub(super) fn of_box(mut self, name: &Name) -> Self {
        self.box_name = Some(name.clone());
        self
    }

    pub(super) fn of_host(mut self, name: &Name) -> Self {
        self.host = Some(name.clone());
        self
    }

    pub(super) fn lease(mut self, lease: LeaseId, tenant: &Name) -> Self {
        self.lease = Some(lease);
        self.tenant = Some(tenant.clone());
        self
    }

    pub(super) fn tenant(mut self, tenant: &Name) -> Self {
        self.tenant = Some(tenant.clone());
        self
    }

    pub(super) fn at(self, seq: u64, at_ms: u64) -> Event {
        let Self { kind, gpu, box_name, host, lease, tenant, message } = self;
        Event { seq, at_ms, kind, gpu, box_name, host, lease, tenant, message }
    }
}
