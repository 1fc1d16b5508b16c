//! Data that stay on a device from one grant of it to the next.
//!
//! ```text
//!             bind                     lost: its host, or its end of the link, has gone
//!   (no lease) ───▶ the lease has it ───────────────────────────────────────────────────▶ the lease waits for it
//!                    │   ▲                                                                │        │
//!                    │   └────── bind again, under a new epoch, not scrubbed ─────────────┘        │
//!                    └──────────────── the lease ends, or gets another device ─────────────────────┴──▶ scrubbed
//! ```
//!
//! On the PCIe plane a lease lends what keeps data, disks above all. A link that broke, a host or a box that
//! started anew are accidents of the pool: they cost the lease time, never what it has written. So a device
//! that its lease lost without giving it up is kept for it, and is scrubbed before another lease gets it.

use super::boxes::is_clean;
use super::queue::Wish;
use super::stock::Place;
use super::{Ledger, Presence};
use pool_api::{Gpu, GpuId, GpuState, Kept, LeaseId, LeaseState};
use std::collections::BTreeSet;

impl Ledger {
    /// The epoch since which the data on a device are this lease's.
    pub(super) fn since_epoch(&self, gpu: &Gpu, lease: LeaseId) -> u64 {
        #[cfg(test)]
        if self.mutated(crate::simulation::Mutation::ScrubBetween) {
            return gpu.epoch;
        }
        gpu.kept.filter(|kept| kept.lease == lease).map_or(gpu.epoch, |kept| kept.since_epoch)
    }

    pub(super) fn list_kept(&mut self, gpu: &GpuId, kept: Option<Kept>) {
        if let Some(kept) = kept {
            self.kept.entry(kept.lease).or_default().insert(gpu.clone());
        }
    }

    pub(super) fn unlist_kept(&mut self, gpu: &GpuId, kept: Option<Kept>) {
        let Some(lease) = kept.map(|kept| kept.lease) else { return };
        if let Some(gpus) = self.kept.get_mut(&lease) {
            gpus.remove(gpu);
            if gpus.is_empty() {
                self.kept.remove(&lease);
            }
        }
    }

    /// The data on a device belong to no lease any more.
    pub(super) fn let_go_of(&mut self, gpu: &GpuId) {
        let Some(kept) = self.entry_mut(gpu).and_then(|entry| entry.gpu.edit().kept.take()) else { return };
        self.unlist_kept(gpu, Some(kept));
        self.draft.gpus.insert(gpu.clone());
    }

    /// A lease is over: no device is kept for it any more.
    pub(super) fn let_go(&mut self, lease: LeaseId) {
        for gpu in self.kept.get(&lease).cloned().unwrap_or_default() {
            self.let_go_of(&gpu);
        }
    }

    /// A lease has what it needs: the other devices with its data are kept no longer.
    pub(super) fn let_go_of_others(&mut self, lease: LeaseId) {
        let Some(gpus) = self.kept.get(&lease) else { return };
        let grants = self.leases.get(&lease).map(|entry| entry.lease.grants.as_slice()).unwrap_or_default();
        let is_other = |gpu: &&GpuId| !grants.iter().any(|grant| grant.gpu == **gpu);
        for gpu in gpus.iter().filter(is_other).cloned().collect::<Vec<_>>() {
            self.let_go_of(&gpu);
        }
    }

    /// Whether a device without a holder waits for the lease whose data are on it.
    pub(super) fn is_kept(&self, gpu: &Gpu) -> bool {
        let lease = gpu.kept.and_then(|kept| self.leases.get(&kept.lease)).map(|entry| &entry.lease);
        lease.is_some_and(|lease| lease.state == LeaseState::Pending)
            && !is_clean(gpu)
            && gpu.holders.is_empty()
    }

    /// Whether a lease that has lost a device may have it again as it is.
    pub(super) fn can_come_back(&self, id: &GpuId, lease: LeaseId) -> bool {
        let Some(owner) = self.boxes.get(&id.box_name) else { return false };
        let Some(gpu) = owner.slots.get(&id.slot).map(|entry| &entry.gpu) else { return false };
        gpu.kept.is_some_and(|kept| kept.lease == lease)
            && gpu.state == GpuState::Cleaning
            && !is_clean(gpu)
            && gpu.holders.is_empty()
            && gpu.health.ok
            && gpu.taint.is_none()
            // A suspect box will do: it is soon either back or dead.
            && owner.presence != Presence::Dead
            && owner.record.drain.is_none()
            && gpu.epoch.max(self.epoch_floor) < pool_api::PCIE_EPOCH_MAX
    }

    /// Gives a lease that waits the devices again that it has lost, if all of them can be had. Says whether one was served.
    pub(super) fn come_back(&mut self) -> bool {
        let waits = |id: &LeaseId| {
            let is_pending = |entry: &super::LeaseEntry| entry.lease.state == LeaseState::Pending;
            self.kept.contains_key(id) && self.leases.get(id).is_some_and(is_pending)
        };
        let waiting: BTreeSet<LeaseId> = self.returning.iter().filter(|id| waits(id)).copied().collect();
        self.returning.clone_from(&waiting);
        for id in waiting {
            let lease = &self.leases[&id].lease;
            let wish = Wish::of(lease);
            let classes = self.stock.mask(|class| wish.accepts(class));
            let gpus = self.kept[&id].clone();
            let places: Option<Vec<Place>> = gpus
                .iter()
                .map(|gpu| self.entry(gpu).filter(|_| self.can_come_back(gpu, id)).map(|entry| entry.place))
                .collect();
            let Some(places) = places.filter(|places| places.len() == wish.gpus as usize) else { continue };
            if !places.iter().all(|place| self.stock.is_of(*place, classes)) {
                continue;
            }
            let tenant = lease.tenant.clone();
            let Some(slots) = self.free_slots(&tenant, &wish) else { continue };
            self.returning.remove(&id);
            self.give(id, places, slots);
            return true;
        }
        false
    }
}
