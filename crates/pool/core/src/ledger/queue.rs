//! The pending leases, sorted so that only a few have to be looked at.
//!
//! Leases that want the same for the same tenant at the same priority form a group; only the first of a group can be
//! next. A lease within its tenant's guarantee comes before all that are not, whatever their priorities; then
//! priorities count. Between groups of one priority the order is computed each time: first leases that lost a
//! GPU, then those of the tenant that has least for its weight, then the oldest.

use super::stock::{Mask, Need, Seat, Tightness};
use pool_api::{BoxKind, Class, GpuId, Lease, LeaseId, LeaseRequest, Model, Name, Topology};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

/// What a lease wants; leases that want the same wait in one line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Wish {
    pub(super) gpus: u32,
    pub(super) model: Option<Model>,
    pub(super) memory_bytes: u64,
    pub(super) kind: Option<BoxKind>,
    pub(super) topology: Topology,
    /// Thousandths of each GPU, which count for quotas.
    pub(super) milli: u32,
    /// Into which host they are plugged.
    pub(super) host: Option<Name>,
    /// It had GPUs and lost one: it may have spares.
    pub(super) lost: bool,
    /// Exactly these, in order; any, if there are none.
    pub(super) given: Vec<GpuId>,
    /// Its images need guard memory in the boxes of its GPUs, so many bytes for each GPU; 0: as much as the GPU has.
    pub(super) guard: Option<u64>,
    /// What its programs are to others on the GPU: offline ones get seats for guests, and no others do.
    pub(super) class: Class,
}

impl Wish {
    pub(super) fn of(lease: &Lease) -> Self {
        let asked = Self::asked(&lease.request);
        // One that gave its GPUs back for a while has lost nothing: it waits like a new one. A guest that was suspended because
        // its seat was needed did not want to leave it.
        let lost = lease.granted_ms.is_some() && (lease.parking.is_none() || lease.is_unseated());
        // A program that outlives the loss of its GPU goes on wherever there is another one.
        let is_bound = lease.granted_ms.is_none() || lease.request.survive.is_none();
        let given = if is_bound { asked.given } else { Vec::new() };
        // After a loss any GPU is better than none: its program says how well it is protected there.
        let guard = asked.guard.filter(|_| !lost || lease.is_unseated());
        Self { model: lease.model.clone().or(asked.model), lost, given, guard, ..asked }
    }

    /// Of a request that has had nothing yet.
    pub(super) fn asked(request: &LeaseRequest) -> Self {
        let share_bytes = request.share.map_or(0, |share| share.memory_bytes);
        let mut given = request.gpu_ids.clone();
        given.sort();
        Self {
            gpus: request.gpus,
            model: request.model.clone(),
            memory_bytes: request.memory_bytes.unwrap_or(0).max(share_bytes),
            kind: request.kind,
            topology: request.topology,
            milli: match (request.class, request.share) {
                // What guests use is what others leave: it counts for no quota.
                (Class::Offline, _) => 0,
                (_, Some(share)) => share.milli,
                (_, None) => crate::GPU_MILLI,
            },
            host: request.host.clone(),
            lost: false,
            given,
            guard: (!request.survive.is_none()).then_some(share_bytes),
            class: request.class,
        }
    }

    /// Whether this GPU is among those that the lease names.
    pub(super) fn accepts_gpu(&self, id: &GpuId) -> bool {
        self.given.is_empty() || self.given.contains(id)
    }

    /// Whether GPUs of this class will do.
    pub(super) fn accepts(&self, class: &super::stock::Class) -> bool {
        self.accepts_model(&class.model)
            && self.accepts_seat(class.memory_bytes, class.seat)
            && self.accepts_kind(class.kind)
            && self.accepts_plane(class.pcie, class.api)
    }

    pub(super) fn accepts_model(&self, model: &Model) -> bool {
        self.model.as_ref().is_none_or(|wanted| wanted == model)
    }

    pub(super) fn accepts_kind(&self, kind: BoxKind) -> bool {
        self.kind.is_none_or(|wanted| wanted == kind)
            && (self.topology != Topology::Nvlink || kind == BoxKind::Nvlink)
    }

    /// Whether GPUs will do that are reached on these planes.
    pub(super) fn accepts_plane(&self, pcie: bool, api: bool) -> bool {
        if self.host.is_some() { pcie } else { api }
    }

    /// Whether a place of this kind will do, and has the memory.
    pub(super) fn accepts_seat(&self, memory_bytes: u64, seat: Seat) -> bool {
        match (self.class, seat) {
            (Class::Offline, Seat::Guest) | (Class::Dedicated, Seat::Whole { .. }) => {
                self.accepts_memory(memory_bytes)
            }
            (Class::Online, Seat::Whole { guest_bytes }) => {
                self.accepts_memory(memory_bytes.saturating_sub(guest_bytes))
            }
            // Without a share it is the whole GPU that is asked for, of which no part is as much.
            (Class::Dedicated, Seat::Part { milli }) => {
                milli >= self.milli && self.accepts_memory(memory_bytes)
            }
            (Class::Offline, Seat::Whole { .. })
            | (Class::Dedicated | Class::Online, Seat::Guest)
            | (Class::Online | Class::Offline, Seat::Part { .. }) => false,
        }
    }

    /// Whether it is a seat for guests that will do, or a whole GPU.
    pub(super) fn accepts_guest(&self, is_guest: bool) -> bool {
        (self.class == Class::Offline) == is_guest
    }

    pub(super) fn accepts_memory(&self, memory_bytes: u64) -> bool {
        memory_bytes >= self.memory_bytes
    }

    pub(super) fn need(&self, classes: Mask) -> Need {
        let tightness = match self.topology {
            Topology::Any => Tightness::Anywhere,
            Topology::SameBox => Tightness::OneBox,
            Topology::Nvlink => Tightness::OneBin,
        };
        Need { classes, gpus: self.gpus, tightness, spares: self.lost, guard: self.guard }
    }
}

/// Since when a pending lease is in the queue: since it was asked for, or resumed. A guest that had to leave its seat keeps its
/// turn.
pub(super) fn queued_ms(lease: &Lease) -> u64 {
    let resumed_ms = lease.parking.and_then(|parking| parking.queued_ms);
    resumed_ms.filter(|_| !lease.is_unseated()).unwrap_or(lease.created_ms)
}

/// Leases that want the same for the same tenant at the same priority.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct GroupKey {
    pub(super) priority: Reverse<u32>,
    pub(super) tenant: Name,
    pub(super) wish: Wish,
}

impl GroupKey {
    pub(super) fn of(lease: &Lease) -> Self {
        Self {
            priority: Reverse(lease.request.priority),
            tenant: lease.tenant.clone(),
            wish: Wish::of(lease),
        }
    }
}

/// All pending leases.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    groups: BTreeMap<GroupKey, BTreeMap<(u64, LeaseId), ()>>,
    /// Needs that did not fit, and how much the stock had gained by then.
    refused: HashMap<Need, u64>,
}

impl Queue {
    pub(super) fn insert(&mut self, lease: &Lease) {
        self.groups.entry(GroupKey::of(lease)).or_default().insert((queued_ms(lease), lease.id), ());
    }

    pub(super) fn remove(&mut self, lease: &Lease) {
        let key = GroupKey::of(lease);
        if let Some(group) = self.groups.get_mut(&key) {
            group.remove(&(queued_ms(lease), lease.id));
            if group.is_empty() {
                self.groups.remove(&key);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Each group with the first of its line, by priority.
    pub(super) fn heads(&self) -> impl Iterator<Item = (&GroupKey, u64, LeaseId)> {
        self.groups.iter().filter_map(|(key, group)| {
            let (&(created_ms, id), ()) = group.first_key_value()?;
            Some((key, created_ms, id))
        })
    }

    /// Each group with how many wait in it, and how many of those came before a moment.
    pub(super) fn groups(&self) -> impl Iterator<Item = (&GroupKey, &BTreeMap<(u64, LeaseId), ()>)> {
        self.groups.iter()
    }

    /// Whether it is known that this does not fit into a stock that has gained so much.
    pub(super) fn is_refused(&self, need: &Need, gains: u64) -> bool {
        self.refused.get(need) == Some(&gains)
    }

    pub(super) fn refuse(&mut self, need: Need, gains: u64) {
        // Older entries are of no use once the stock has gained.
        if self.refused.len() >= 4096 {
            self.refused.retain(|_, seen| *seen == gains);
            if self.refused.len() >= 4096 {
                self.refused.clear();
            }
        }
        self.refused.insert(need, gains);
    }
}
