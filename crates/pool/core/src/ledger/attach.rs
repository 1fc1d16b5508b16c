//! GPUs on their way into slots of hosts, and out again.
//!
//! Two tables have to agree, one in the box and one in the host, and they are written one after the other: the host is
//! told to plug only after the box has said that it lets it in, and the box is told to clean only after the host has
//! said that it has unplugged, or has had its time. Both tables carry the epoch of the grant, which is higher than every
//! epoch that the GPU or the slot has seen, so whichever side lags behind is refused by the other.

use super::boxes::Presence;
use super::grants::is_current;
use super::hosts::is_free;
use super::queue::Wish;
use super::{Ledger, Note};
use pool_api::{
    Attachment, EventKind, Gpu, GpuId, GpuState, Grant, HostSlot, Lease, LeaseId, Leaving, LinkSecret, Name,
    PCIE_EPOCH_MAX, PciePairing, Phase, Want, is_pcie_path,
};

/// A box that waits until a host has unplugged its GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) host: Name,
    pub(super) slot: u8,
    /// The box waits until then at most.
    pub(super) due_ms: u64,
}

/// Whether a box can be reached on the PCIe plane.
pub(super) fn speaks_pcie(paths: &[String]) -> bool {
    paths.iter().any(|path| is_pcie_path(path))
}

/// Those of the addresses that are of the PCIe plane; the place among them is the path ID.
pub(super) fn pcie_paths(paths: &[String]) -> Vec<String> {
    paths.iter().filter(|path| is_pcie_path(path)).cloned().collect()
}

impl Ledger {
    /// Slots for all GPUs of a wish, in the host it names; nothing if it has not got them now.
    pub(super) fn free_slots(&self, tenant: &Name, wish: &Wish) -> Option<Vec<Option<(Name, u8)>>> {
        let count = wish.gpus as usize;
        let Some(name) = &wish.host else { return Some(vec![None; count]) };
        let host = self.hosts.get(name)?;
        if host.presence != Presence::Ready || !host.record.tenants.contains(tenant) {
            return None;
        }
        let can_be_had = |slot: &&HostSlot| is_free(slot);
        #[cfg(test)]
        let can_be_had = |slot: &&HostSlot| {
            can_be_had(slot) || (self.mutated(crate::simulation::Mutation::ReuseSlot) && slot.lease.is_none())
        };
        let free = host.slots.values().filter(can_be_had).take(count);
        let free: Vec<_> = free.map(|slot| Some((name.clone(), slot.slot))).collect();
        (free.len() == count).then_some(free)
    }

    /// Whether a wish that names a host could be plugged there now. Others always can.
    pub(super) fn has_slots(&self, tenant: &Name, wish: &Wish) -> bool {
        wish.host.is_none() || self.free_slots(tenant, wish).is_some()
    }

    /// Where the replacements of GPUs go that were taken away just now: each into the same slot if it is still there, or
    /// into another of the same host.
    pub(super) fn slots_again(&self, lost: &[Grant]) -> Option<Vec<Option<(Name, u8)>>> {
        let mut taken: Vec<Option<(Name, u8)>> = Vec::new();
        for old in lost {
            let slot = match &old.attachment {
                None => None,
                Some(attachment) => {
                    let host = self.hosts.get(&attachment.host)?;
                    let is_taken =
                        |slot: &HostSlot| taken.iter().flatten().any(|(_, other)| *other == slot.slot);
                    let can_be_had = |slot: &&HostSlot| {
                        !slot.gone && slot.lease.is_none() && slot.epoch < PCIE_EPOCH_MAX && !is_taken(slot)
                    };
                    let same = host.slots.get(&attachment.slot).filter(can_be_had);
                    let other = || host.slots.values().find(|slot| is_free(slot) && !is_taken(slot));
                    Some((attachment.host.clone(), same.or_else(other)?.slot))
                }
            };
            taken.push(slot);
        }
        Some(taken)
    }

    pub(super) fn host_slot(&self, host: &Name, slot: u8) -> Option<&HostSlot> {
        self.hosts.get(host)?.slots.get(&slot)
    }

    fn host_slot_mut(&mut self, host: &Name, slot: u8) -> Option<&mut HostSlot> {
        self.hosts.get_mut(host)?.slots.get_mut(&slot)
    }

    /// Gives a slot to a grant. The host is told when the box has bound.
    pub(super) fn attach(&mut self, grant: &mut Grant, lease: LeaseId, host: Name, slot: u8) {
        let entry = self.host_slot_mut(&host, slot).expect("only a slot that is there is chosen");
        assert!(entry.lease.is_none(), "a slot never has two GPUs");
        entry.lease = Some(lease);
        entry.gpu = Some(grant.gpu.clone());
        entry.epoch = grant.epoch;
        entry.phase = Some(Phase::Binding);
        grant.attachment = Some(Attachment { host: host.clone(), slot, phase: Phase::Binding });
        self.draft.hosts.insert(host.clone());
        self.restless.insert((host, slot));
    }

    /// Takes a grant's slot away. What the host was told to plug, it is told to unplug; with `box_waits` the box lets it
    /// do so before it cleans.
    pub(super) fn detach(&mut self, grant: &Grant, lease: LeaseId, box_waits: bool) {
        let Some(Attachment { host, slot, .. }) = &grant.attachment else { return };
        let (now_ms, patience_ms) = (self.now_ms, self.settings.unplug_patience_ms);
        let is_dead = self.hosts.get(host).is_none_or(|entry| entry.presence == Presence::Dead);
        #[cfg(test)]
        let hasty = self.mutated(crate::simulation::Mutation::CleanBeforeUnplug);
        let Some(entry) = self.host_slot_mut(host, *slot) else { return };
        if entry.lease != Some(lease) || entry.gpu.as_ref() != Some(&grant.gpu) {
            return;
        }
        entry.lease = None;
        entry.gpu = None;
        let was_told = matches!(entry.phase, Some(Phase::Plugging | Phase::Plugged));
        if was_told && !entry.gone && entry.cleared_epoch < grant.epoch {
            let box_waits = box_waits && !is_dead;
            #[cfg(test)]
            let box_waits = box_waits && !hasty;
            let (gpu, epoch) = (grant.gpu.clone(), grant.epoch);
            entry.leaving = Some(Leaving { lease, gpu, epoch, since_ms: now_ms, box_waits });
            if box_waits {
                self.hold(&grant.gpu, host, *slot, now_ms + patience_ms);
            }
        }
        let entry = self.host_slot_mut(host, *slot).expect("it was there just now");
        entry.phase = entry.leaving.is_some().then_some(Phase::Unplugging);
        if entry.phase.is_none() {
            self.queue_stirred = true;
        }
        self.draft.hosts.insert(host.clone());
    }

    /// A box may have let a host in: `tick` calls `progress` for the slot later.
    pub(super) fn stir_attachment(&mut self, gpu: &GpuId) {
        if let Some(place) = self.entry(gpu).and_then(|entry| entry.attachment.clone()) {
            self.restless.insert(place);
        }
    }

    /// Makes a box wait until the host has unplugged the GPU, until `due_ms` at most.
    pub(super) fn hold(&mut self, gpu: &GpuId, host: &Name, slot: u8, due_ms: u64) {
        // A device that came back to its lease and is lost again waits anew: the time from before counts no more. It would
        // never be forgotten, and `tick` would find it due for ever.
        if let Some(before) = self.held.insert(gpu.clone(), Held { host: host.clone(), slot, due_ms }) {
            self.unplug_due.remove(&(before.due_ms, gpu.clone()));
        }
        self.unplug_due.insert((due_ms, gpu.clone()));
    }

    /// The box of a slot's last GPU need not wait any longer.
    pub(super) fn let_box_clean(&mut self, host: &Name, slot: u8) {
        let Some(entry) = self.host_slot_mut(host, slot) else { return };
        let Some(leaving) = entry.leaving.as_mut().filter(|leaving| leaving.box_waits) else { return };
        leaving.box_waits = false;
        let gpu = leaving.gpu.clone();
        if let Some(held) = self.held.remove(&gpu) {
            self.unplug_due.remove(&(held.due_ms, gpu.clone()));
        }
        self.draft.hosts.insert(host.clone());
        // The GPU's record is the same, but the orders of its box have changed.
        self.draft.gpus.insert(gpu);
    }

    /// The box has cleaned by itself, or has waited long enough.
    pub(super) fn stop_waiting_for_host(&mut self, gpu: &GpuId) {
        if let Some(held) = self.held.remove(gpu) {
            self.unplug_due.remove(&(held.due_ms, gpu.clone()));
            self.let_box_clean(&held.host, held.slot);
        }
    }

    /// The host has cleared what it had to unplug.
    pub(super) fn cleared(&mut self, host: &Name, slot: u8) {
        self.let_box_clean(host, slot);
        let Some(entry) = self.host_slot_mut(host, slot) else { return };
        let Some(leaving) = entry.leaving.take() else { return };
        entry.phase = entry.lease.is_some().then_some(Phase::Binding);
        let is_free = entry.lease.is_none();
        self.draft.hosts.insert(host.clone());
        let message = format!("{} is unplugged from slot {slot} of host {host}", leaving.gpu);
        self.note(Note::new(EventKind::GpuUnplugged, message).gpu(&leaving.gpu).of_host(host));
        self.queue_stirred |= is_free;
        self.restless.insert((host.clone(), slot));
    }

    /// Takes a slot to its next phase, if the reports of its box and host allow it.
    pub(super) fn progress(&mut self, host: &Name, slot: u8) {
        let Some(entry) = self.host_slot(host, slot) else { return };
        let (Some(lease), Some(gpu)) = (entry.lease, entry.gpu.clone()) else { return };
        let is_empty = entry.leaving.is_none();
        #[cfg(test)]
        let is_empty = is_empty || self.mutated(crate::simulation::Mutation::ReuseSlot);
        let now = match entry.phase {
            Some(Phase::Binding) if is_empty && self.is_bound(entry) => Phase::Plugging,
            Some(Phase::Plugging) if entry.plugged && entry.bound_epoch == entry.epoch => Phase::Plugged,
            // Its proxy has started anew and has to plug again.
            Some(Phase::Plugged) if !entry.plugged => Phase::Plugging,
            _ => return,
        };
        let was = entry.phase;
        let entry = self.host_slot_mut(host, slot).expect("it was there just now");
        entry.phase = Some(now);
        self.draft.hosts.insert(host.clone());
        if (was, now) == (Some(Phase::Plugging), Phase::Plugged) {
            let tenant = self.leases.get(&lease).map(|entry| entry.lease.tenant.clone());
            let message = format!("{gpu} is plugged into slot {slot} of host {host}");
            let mut note = Note::new(EventKind::GpuPlugged, message).gpu(&gpu).of_host(host);
            if let Some(tenant) = tenant {
                note = note.lease(lease, &tenant);
            }
            self.note(note);
        }
        self.show_phase(lease, &gpu, now);
        // The report for the phase after this one may be here already.
        self.restless.insert((host.clone(), slot));
    }

    /// Writes the phase of a GPU into its lease, where the borrower sees it.
    pub(super) fn show_phase(&mut self, lease: LeaseId, gpu: &GpuId, phase: Phase) {
        let Some(entry) = self.leases.get_mut(&lease) else { return };
        let grant = entry.lease.edit().grants.iter_mut().find(|grant| grant.gpu == *gpu);
        if let Some(attachment) = grant.and_then(|grant| grant.attachment.as_mut())
            && attachment.phase != phase
        {
            attachment.phase = phase;
            *entry.lease.edit().version += 1;
            self.draft.leases.insert(lease);
        }
    }

    /// Writes into the lease that its GPU is being unplugged, if it is.
    pub(super) fn show_unplugging(&mut self, grant: &Grant, lease: LeaseId) {
        let Some(Attachment { host, slot, .. }) = &grant.attachment else { return };
        let leaving = self.host_slot(host, *slot).and_then(|slot| slot.leaving.as_ref());
        if leaving.is_some_and(|leaving| leaving.lease == lease && leaving.gpu == grant.gpu) {
            self.show_phase(lease, &grant.gpu, Phase::Unplugging);
        }
    }

    /// Whether the box has bound this slot's host, under the epoch of the slot.
    fn is_bound(&self, slot: &HostSlot) -> bool {
        let (Some(lease), Some(gpu)) = (slot.lease, &slot.gpu) else { return false };
        let Some(gpu) = self.entry(gpu).map(|entry| &entry.gpu) else { return false };
        let Some(lease) = self.leases.get(&lease).map(|entry| &entry.lease) else { return false };
        // Empty by the host's report: what was bound is cleared, or is this very grant.
        let is_empty = slot.bound_epoch <= slot.cleared_epoch || slot.bound_epoch == slot.epoch;
        #[cfg(test)]
        let is_empty = is_empty || self.mutated(crate::simulation::Mutation::ReuseSlot);
        let bound = gpu.bound_epoch >= slot.epoch;
        #[cfg(test)]
        let bound = bound || self.mutated(crate::simulation::Mutation::PlugUnbound);
        bound
            && is_empty
            && gpu.epoch == slot.epoch
            && gpu.state == GpuState::Leased
            && is_current(lease, gpu)
    }

    /// Whether the host's slot still holds this grant and has not cleared it.
    pub(super) fn is_attached(&self, grant: &Grant, lease: LeaseId) -> bool {
        let Some(attachment) = &grant.attachment else { return true };
        let bound = self.entry(&grant.gpu).map_or(0, |entry| entry.gpu.bound_epoch);
        self.host_slot(&attachment.host, attachment.slot).is_some_and(|slot| {
            // A host is told to plug when its box has let it in. A box that no longer does has started anew: its end of the
            // link is gone, and a link is greeted once in its epoch.
            let was_told = matches!(slot.phase, Some(Phase::Plugging | Phase::Plugged));
            #[cfg(test)]
            let was_told = was_told && !self.mutated(crate::simulation::Mutation::PlugUnbound);
            (!was_told || bound >= grant.epoch)
                && !slot.gone
                && slot.lease == Some(lease)
                && slot.epoch == grant.epoch
                && slot.cleared_epoch < grant.epoch
        })
    }

    /// The pairing of a GPU of a lease with the host's slot, for the GPU's box.
    pub(super) fn pairing_of(&self, lease: &Lease, gpu: &Gpu) -> Option<PciePairing> {
        let grant = lease.grants.iter().find(|grant| grant.gpu == gpu.id)?;
        let attachment = grant.attachment.as_ref()?;
        self.pairing(&attachment.host, attachment.slot)
    }

    fn pairing(&self, host: &Name, slot: u8) -> Option<PciePairing> {
        let record = &self.hosts.get(host)?.record;
        Some(PciePairing {
            host: host.clone(),
            host_node: record.node,
            host_slot: slot,
            host_paths: record.paths.clone(),
            secret: LinkSecret::default(),
            pass: pool_api::SlotPass::default(),
            patience_ms: self.settings.dead_after_ms,
        })
    }

    /// What a box does with a GPU that a host has still to unplug: as before.
    pub(super) fn want_until_unplugged(&self, gpu: &Gpu) -> Option<Want> {
        let Held { host, slot, .. } = self.held.get(&gpu.id)?;
        let leaving = self.host_slot(host, *slot)?.leaving.as_ref()?;
        if leaving.gpu != gpu.id || leaving.epoch != gpu.epoch || !leaving.box_waits {
            return None;
        }
        let lease = &self.leases.get(&leaving.lease)?.lease;
        Some(Want::Serve {
            lease: lease.id,
            epoch: gpu.epoch,
            since_epoch: self.since_epoch(gpu, lease.id),
            expires_ms: lease.expires_ms.max(leaving.since_ms + self.settings.unplug_patience_ms),
            memory_bytes: gpu.memory_bytes,
            share_milli: crate::GPU_MILLI,
            tenant: lease.tenant.clone(),
            pcie: Some(self.pairing(host, *slot)?),
        })
    }
}
