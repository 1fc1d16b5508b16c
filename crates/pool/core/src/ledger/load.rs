//! From the store's records to a ledger again.

use super::attach::speaks_pcie;
use super::boxes::{BoxEntry, Presence};
use super::gpu_life::TrackedGpu;
use super::guests::kept_for;
use super::lease_life::TrackedLease;
use super::stock::{Class, Seat};
use super::{GpuEntry, LeaseEntry, Ledger, Settings};
use crate::records::{BOX, EVENT, FLOOR, GPU, HOST, LEASE, RESTORED, ReadError, SPARE, TENANT, USAGE};
use pool_api::{
    BoxRecord, BoxState, Event, Gpu, GpuId, GpuState, Lease, LeaseState, PCIE_EPOCH_MAX, SpareRecord,
    TenantRecord,
};
use std::collections::BTreeMap;

/// A record cannot be what was stored.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the record {key} cannot be read: {problem}")]
pub struct LoadError {
    /// Its key.
    pub key: String,
    /// What is wrong with it.
    pub problem: String,
}

/// Adds the key to what is wrong with a record.
fn at<T>(key: &str, read: Result<T, ReadError>) -> Result<T, LoadError> {
    read.map_err(|error| LoadError { key: key.to_owned(), problem: error.to_string() })
}

impl Ledger {
    /// The pool as the store has it, for a leader that begins now.
    ///
    /// Keys of others (`audit/`, `auth/`, …) are ignored. Until they have reported to this leader, boxes get nothing
    /// new; they are dead as late as if they had reported just now. No lease expires before its borrower had time to
    /// find this leader.
    pub fn load<K: AsRef<str>, V: AsRef<[u8]>>(
        records: impl IntoIterator<Item = (K, V)>,
        settings: Settings,
        now_ms: u64,
    ) -> Result<Self, LoadError> {
        let mut ledger = Self::new(settings, now_ms);
        let (mut gpus, mut leases): (Vec<Gpu>, Vec<Lease>) = (Vec::new(), Vec::new());
        for (key, value) in records {
            let (key, value) = (key.as_ref(), value.as_ref());
            match key.split_once('/') {
                Some(("box", _)) => ledger.load_box(at(key, BOX.decode(value))?),
                Some(("host", _)) => ledger.load_host(at(key, HOST.decode(value))?),
                Some(("gpu", _)) => gpus.push(at(key, GPU.decode(value))?),
                Some(("lease", _)) => leases.push(at(key, LEASE.decode(value))?),
                Some(("tenant", _)) => {
                    let record: TenantRecord = at(key, TENANT.decode(value))?;
                    let entry = ledger.tenant(&record.name.clone());
                    entry.record = record;
                    entry.stored = true;
                }
                Some(("usage", _)) => {
                    let record: pool_api::TenantUsage = at(key, USAGE.decode(value))?;
                    ledger.usage.insert(record.tenant.clone(), record);
                }
                Some(("spare", _)) => {
                    let record: SpareRecord = at(key, SPARE.decode(value))?;
                    ledger.spares_wanted.insert(record.model, record.count);
                }
                Some(("idem", name)) => ledger
                    .keys
                    .load(name, value)
                    .map_err(|problem| LoadError { key: key.to_owned(), problem })?,
                Some(("restored", "last")) => ledger.load_restored(&at(key, RESTORED.read(value))?),
                Some(("epochs", "floor")) => ledger.raise_floor(at(key, FLOOR.read(value))?.epoch_floor),
                Some(("event", _)) => ledger.load_events(at(key, EVENT.decode_all(value))?),
                _ => {}
            }
        }
        let seats: BTreeMap<GpuId, u64> = gpus
            .iter()
            .filter_map(|gpu| {
                let seat = gpu.guest?;
                Some((GpuId { slot: seat.of, ..gpu.id.clone() }, kept_for(seat, gpu.memory_bytes)))
            })
            .collect();
        for gpu in gpus {
            let guest_bytes = seats.get(&gpu.id).copied().unwrap_or(0);
            ledger.load_gpu(gpu, guest_bytes)?;
        }
        for lease in leases {
            ledger.load_lease(lease);
        }
        let names: Vec<_> = ledger.boxes.keys().cloned().collect();
        for name in &names {
            ledger.restand_box(name);
        }
        ledger.queue_stirred = true;
        ledger.spares_stirred = true;
        Ok(ledger)
    }

    fn load_box(&mut self, record: BoxRecord) {
        let name = record.name.clone();
        let presence = if record.state == BoxState::Dead { Presence::Dead } else { Presence::Suspect };
        let dead_at_ms = self.now_ms + self.settings.dead_after_ms;
        let entry = BoxEntry::new(record, presence, dead_at_ms);
        if presence == Presence::Suspect {
            self.silences.insert((dead_at_ms, name.clone()));
        }
        self.know_node(entry.record.node);
        self.boxes.insert(name, entry);
    }

    fn load_gpu(&mut self, gpu: Gpu, guest_bytes: u64) -> Result<(), LoadError> {
        let problem = |problem: &str| LoadError { key: format!("gpu/{}", gpu.id), problem: problem.into() };
        let owner = self.boxes.get(&gpu.box_name).ok_or_else(|| problem("there is no such box"))?;
        let class = Class {
            model: gpu.model.clone(),
            memory_bytes: gpu.memory_bytes,
            kind: owner.record.kind,
            pcie: gpu.guest.is_none()
                && gpu.part.is_none()
                && speaks_pcie(&owner.record.paths)
                && gpu.epoch.max(self.epoch_floor) < PCIE_EPOCH_MAX,
            api: !gpu.only_pcie,
            seat: match (gpu.guest, gpu.part) {
                (Some(_), _) => Seat::Guest,
                (None, Some(part)) => Seat::Part { milli: part.milli },
                (None, None) => Seat::Whole { guest_bytes },
            },
        };
        let place = self.stock.add(&gpu.box_name, gpu.slot, class, gpu.nvlink_group);
        let place = place.map_err(|_| problem("there are more kinds of GPU than can be told apart"))?;
        let owner = self.boxes.get_mut(&gpu.box_name).expect("it was there just now");
        let (id, kept) = (gpu.id.clone(), gpu.kept);
        let gpu = TrackedGpu::loaded(gpu);
        owner.slots.insert(gpu.slot, GpuEntry::new(gpu, place));
        self.list_kept(&id, kept);
        Ok(())
    }

    fn load_lease(&mut self, mut lease: Lease) {
        let id = lease.id;
        let stored_expires_ms = lease.expires_ms;
        if lease.state.is_live() {
            lease.expires_ms = self.expiry_after_load(&lease);
            self.expiries.insert((lease.expires_ms, id));
        }
        let (state, tenant) = (lease.state, lease.tenant.clone());
        let ended_ms = lease.ended.as_ref().map_or(self.now_ms, |ended| ended.at_ms);
        let grants = lease.grants.clone();
        let lease = TrackedLease::loaded(lease);
        self.leases.insert(id, LeaseEntry { lease, stored_expires_ms });
        if state.is_live() && state != LeaseState::Pending {
            self.watch_time(id);
        }
        match state {
            LeaseState::Pending => {
                self.enqueue(id);
                if self.kept.contains_key(&id) {
                    self.returning.insert(id);
                }
            }
            LeaseState::Granted => {
                self.tenant(&tenant).granted += 1;
                for grant in &grants {
                    let slot = grant.attachment.as_ref().map(|to| (to.host.clone(), to.slot));
                    if let Some(entry) = self.entry_mut(&grant.gpu) {
                        entry.attachment = slot;
                    }
                    let holder = self.entry(&grant.gpu).and_then(|entry| {
                        let holder = entry.gpu.holders.iter().find(|holder| holder.lease == id)?;
                        Some((holder.clone(), entry.gpu.taint.as_ref().is_some_and(|taint| taint.drain)))
                    });
                    if let Some((holder, drain)) = holder {
                        self.charge(&tenant, &grant.model, &holder, true);
                        let owner = self.boxes.get(&grant.gpu.box_name);
                        if drain || owner.is_some_and(|owner| owner.is_emptied()) {
                            self.unwanted.insert(id);
                        }
                    }
                }
                self.load_moving(id);
                self.unsettled.insert(id);
            }
            // It has nothing, and nothing is due before it expires.
            LeaseState::Parked => {}
            LeaseState::Releasing => {
                self.unsettled.insert(id);
            }
            LeaseState::Ended => {
                self.ended.insert((ended_ms, id));
            }
        }
    }

    fn load_events(&mut self, events: Vec<Event>) {
        if let Some(first) = events.first() {
            self.event_records.push_back(first.seq);
        }
        for event in events {
            self.next_event = self.next_event.max(event.seq + 1);
            self.events.push_back(event);
        }
        let surplus = self.events.len().saturating_sub(self.settings.events_keep_max);
        self.events.drain(..surplus);
    }

    /// Whether the records agree with each other; what does not is told. For tests and for `fsck`.
    pub fn inconsistencies(&self) -> Vec<String> {
        let mut found = Vec::new();
        for entry in self.boxes.values().flat_map(|owner| owner.slots.values()) {
            let gpu = &entry.gpu;
            let held = gpu.holders.len();
            if held > 1
                || (gpu.state == GpuState::Free && held > 0)
                || (gpu.state == GpuState::Leased && held == 0)
            {
                found.push(format!("{} is {:?} and has {held} holders", gpu.id, gpu.state));
            }
            for holder in &gpu.holders {
                let lease = self.leases.get(&holder.lease).map(|entry| &entry.lease);
                let has_it = |lease: &TrackedLease| {
                    let second = lease.moving.as_ref().map(|moving| &moving.to);
                    lease.grants.iter().chain(second).any(|grant| grant.gpu == gpu.id)
                };
                if !lease.is_some_and(has_it) {
                    found.push(format!("{} is held by {}, which has not got it", gpu.id, holder.lease));
                }
            }
        }
        for entry in self.leases.values() {
            let lease = &entry.lease;
            let fits = match lease.state {
                LeaseState::Pending | LeaseState::Parked | LeaseState::Ended => {
                    lease.grants.is_empty() && lease.moving.is_none()
                }
                LeaseState::Granted => lease.grants.len() == lease.request.gpus as usize,
                LeaseState::Releasing => !lease.grants.is_empty(),
            };
            if !fits {
                found.push(format!("{} is {:?} with {} GPUs", lease.id, lease.state, lease.grants.len()));
            }
            let second = lease.moving.as_ref().map(|moving| &moving.to);
            for grant in lease.grants.iter().chain(second) {
                let gpu = self.entry(&grant.gpu).map(|entry| &entry.gpu);
                if !gpu.is_some_and(|gpu| gpu.holders.iter().any(|holder| holder.lease == lease.id)) {
                    found.push(format!("{} has {}, which it does not hold", lease.id, grant.gpu));
                }
            }
        }
        found.extend(self.attachment_inconsistencies());
        found.extend(self.guest_inconsistencies());
        found.extend(self.part_inconsistencies());
        found.extend(self.seat_inconsistencies());
        found
    }
}
