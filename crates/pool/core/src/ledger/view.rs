//! Looking at the pool. Lists are in the order of names, and begin after one.

use super::{GpuEntry, Ledger, Presence, TenantEntry, boxes::BoxEntry};
use pool_api::{
    BoxDetail, BoxRecord, Event, Gpu, GpuId, GpuState, Lease, LeaseId, LeaseState, Model, Name, SpareStatus,
    TenantStatus,
};
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

/// How many there are of what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// GPUs, by model and state.
    pub gpus: BTreeMap<(Model, GpuState), u64>,
    /// Leases, by state.
    pub leases: BTreeMap<LeaseState, u64>,
    /// Boxes, by state.
    pub boxes: BTreeMap<pool_api::BoxState, u64>,
    /// Hosts, by state.
    pub hosts: BTreeMap<pool_api::HostState, u64>,
}

impl Ledger {
    /// Grows with every change that is written, also from leader to leader.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// One GPU.
    pub fn gpu(&self, id: &GpuId) -> Option<Gpu> {
        let owner = self.boxes.get(&id.box_name)?;
        owner.slots.get(&id.slot).map(|entry| shown(owner, entry))
    }

    /// The GPUs after this one.
    pub fn gpus(&self, after: Option<&GpuId>) -> impl Iterator<Item = Gpu> + '_ {
        let rest = after.and_then(|after| {
            let owner = self.boxes.get(&after.box_name)?;
            let slots = owner.slots.range((Excluded(after.slot), Unbounded));
            Some(slots.map(move |(_, entry)| shown(owner, entry)))
        });
        let start = after.map_or(Unbounded, |after| Excluded(after.box_name.clone()));
        let others = self.boxes.range((start, Unbounded));
        let others = others.flat_map(|(_, owner)| owner.slots.values().map(move |entry| shown(owner, entry)));
        rest.into_iter().flatten().chain(others)
    }

    /// One box.
    pub fn gpu_box(&self, name: &Name) -> Option<BoxRecord> {
        self.boxes.get(name).map(shown_box)
    }

    /// One box with its GPUs.
    pub fn box_detail(&self, name: &Name) -> Option<BoxDetail> {
        let owner = self.boxes.get(name)?;
        Some(BoxDetail {
            record: shown_box(owner),
            gpus: owner.slots.values().map(|entry| shown(owner, entry)).collect(),
            guard: owner.guard.clone(),
        })
    }

    /// The boxes after this one.
    pub fn boxes(&self, after: Option<&Name>) -> impl Iterator<Item = BoxRecord> + '_ {
        let start = after.map_or(Unbounded, |after| Excluded(after.clone()));
        self.boxes.range((start, Unbounded)).map(|(_, owner)| shown_box(owner))
    }

    /// One lease.
    pub fn lease(&self, id: LeaseId) -> Option<&Lease> {
        self.leases.get(&id).map(|entry| &*entry.lease)
    }

    /// The leases after this one.
    pub fn leases(&self, after: Option<LeaseId>) -> impl Iterator<Item = &Lease> + '_ {
        let start = after.map_or(Unbounded, Excluded);
        self.leases.range((start, Unbounded)).map(|(_, entry)| &*entry.lease)
    }

    /// One tenant: set by an operator, or known because it has leases.
    pub fn tenant_status(&self, name: &Name) -> Option<TenantStatus> {
        self.tenants.get(name).map(shown_tenant)
    }

    /// The tenants after this one.
    pub fn tenants(&self, after: Option<&Name>) -> impl Iterator<Item = TenantStatus> + '_ {
        let start = after.map_or(Unbounded, |after| Excluded(after.clone()));
        self.tenants.range((start, Unbounded)).map(|(_, entry)| shown_tenant(entry))
    }

    /// Spares of every model that has any GPU or is said to have spares. Looks at every GPU.
    pub fn spares(&self) -> Vec<SpareStatus> {
        let empty = |model: &Model| SpareStatus {
            model: model.clone(),
            wanted: 0,
            held: Vec::new(),
            gpus: 0,
            broken: 0,
        };
        let mut all: BTreeMap<Model, SpareStatus> = BTreeMap::new();
        for (model, wanted) in &self.spares_wanted {
            all.entry(model.clone()).or_insert_with(|| empty(model)).wanted = *wanted;
        }
        let all_slots = self.boxes.values().flat_map(|owner| owner.slots.values());
        for (gpu, state) in pool_api::counted(all_slots.map(|entry| &*entry.gpu)) {
            let status = all.entry(gpu.model.clone()).or_insert_with(|| empty(&gpu.model));
            status.gpus += 1;
            status.broken += u64::from(matches!(state, GpuState::Bad | GpuState::BurnIn));
            if gpu.spare {
                status.held.push(gpu.id.clone());
            }
        }
        all.into_values().collect()
    }

    /// The events after this one that are still kept, oldest first.
    pub fn events(&self, after: u64) -> impl Iterator<Item = &Event> + '_ {
        let from = self.events.partition_point(|event| event.seq <= after);
        self.events.range(from..)
    }

    /// How many there are of what. Looks at everything.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for owner in self.boxes.values() {
            *counts.boxes.entry(owner.state()).or_default() += 1;
            // A seat for guests is no GPU of its own, nor is each part of a GPU.
            for (gpu, state) in pool_api::counted(owner.slots.values().map(|entry| &*entry.gpu)) {
                *counts.gpus.entry((gpu.model.clone(), shown_state(owner, state))).or_default() += 1;
            }
        }
        for host in self.hosts.values() {
            *counts.hosts.entry(host.shown().state).or_default() += 1;
        }
        for entry in self.leases.values() {
            *counts.leases.entry(entry.lease.state).or_default() += 1;
        }
        counts
    }
}

/// A GPU as it is told. No lease can have a GPU of a box that is dead, so it is not called free there: its box does not
/// report it, which is what `absent` means. What a GPU measured before its box fell silent is not told as of now.
fn shown(owner: &BoxEntry, entry: &GpuEntry) -> Gpu {
    let counters = entry.counters.clone().filter(|_| owner.presence != Presence::Dead);
    Gpu { state: shown_state(owner, entry.gpu.state), counters, ..Gpu::clone(&entry.gpu) }
}

fn shown_state(owner: &BoxEntry, state: GpuState) -> GpuState {
    match state {
        GpuState::Free if owner.presence == Presence::Dead => GpuState::Absent,
        state => state,
    }
}

fn shown_box(owner: &BoxEntry) -> BoxRecord {
    BoxRecord { state: owner.state(), ..owner.record.clone() }
}

fn shown_tenant(entry: &TenantEntry) -> TenantStatus {
    TenantStatus {
        name: entry.record.name.clone(),
        weight: entry.record.weight,
        quotas: entry.record.quotas.clone(),
        priority_max: entry.record.priority_max,
        ttl_max_ms: entry.record.ttl_max_ms,
        times: entry.record.times,
        used: entry
            .used
            .iter()
            .filter(|(_, used)| used.milli > 0)
            .map(|(model, used)| (model.clone(), *used))
            .collect(),
        leases_granted: entry.granted,
        leases_pending: entry.pending,
    }
}
