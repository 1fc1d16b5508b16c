//! Binding GPUs to leases and taking them back: the only places where epochs grow and holders change.

use super::boxes::is_clean;
use super::gpu_life::GpuEvent;
use super::{Ledger, Presence};
use crate::GPU_MILLI;
use pool_api::{
    Class, Gpu, GpuId, GpuState, Grant, Holder, Kept, Lease, LeaseId, LeaseState, Model, Name, PCIE_EPOCH_MAX,
};

/// Whether a grant of this lease, or its second place, is for the GPU as it is now.
pub(super) fn is_current(lease: &Lease, gpu: &Gpu) -> bool {
    let second = lease.moving.as_ref().map(|moving| &moving.to);
    lease.grants.iter().chain(second).any(|grant| grant.gpu == gpu.id && grant.epoch == gpu.epoch)
}

/// How far the epochs that a box or a host reports may be ahead of what this pool remembers to have given it,
/// in all while one manager leads. A pool restored from a backup has forgotten some; an agent that claims
/// more is wrong or lies, and what it claims would use up the numbers of others.
pub(super) const EPOCH_LEAP_MAX: u64 = 1 << 20;

/// The epoch after this one. Epochs never begin anew: a borrower with an old one would be admitted. None is
/// ever near the end, since reports that claim such epochs are not believed and grants count them one by one.
pub(super) fn next_epoch(epoch: u64) -> u64 {
    epoch.checked_add(1).expect("epochs near the end are never believed")
}

impl Ledger {
    /// Gives a GPU to a lease, under a new epoch, and a slot of a host with it if there is one.
    pub(super) fn bind(&mut self, id: &GpuId, lease: LeaseId, slot: Option<(Name, u8)>) -> Grant {
        // One epoch for both, higher than what either has seen.
        let seen =
            slot.as_ref().and_then(|(host, slot)| self.host_slot(host, *slot)).map_or(0, |slot| slot.epoch);
        let seen = seen.max(self.epoch_floor);
        let request = &self.leases[&lease].lease.request;
        let share = request.share;
        let memory_bytes = self.memory_for(id, request);
        // What guests use is what others leave: it counts for no quota.
        let whole = if request.class == Class::Offline { 0 } else { GPU_MILLI };
        let tenant = self.leases[&lease].lease.tenant.clone();
        #[cfg(test)]
        let keeps_epoch = self.mutated(crate::simulation::Mutation::KeepEpoch);
        #[cfg(test)]
        let mutated = self.mutated(crate::simulation::Mutation::GrantUncleaned);
        let entry = self.entry_mut(id).expect("only a GPU that is there is chosen");
        entry.attachment.clone_from(&slot);
        let gpu = &mut entry.gpu;
        #[cfg(test)]
        if mutated {
            gpu.edit().holders.clear();
        }
        assert!(gpu.holders.is_empty(), "a GPU never has two holders");
        let before = gpu.kept.filter(|kept| kept.lease == lease && !is_clean(gpu));
        *gpu.edit().epoch = next_epoch(gpu.epoch.max(seen));
        #[cfg(test)]
        if keeps_epoch {
            *gpu.edit().epoch = (gpu.epoch - 1).max(1);
        }
        let event = if before.is_some() { GpuEvent::Resumed } else { GpuEvent::Granted };
        #[cfg(test)]
        let event = if mutated && gpu.state == GpuState::Cleaning { GpuEvent::Resumed } else { event };
        gpu.on(event);
        *gpu.edit().spare = false;
        let holder = Holder { lease, share_milli: share.map_or(whole, |share| share.milli), memory_bytes };
        gpu.edit().holders.push(holder.clone());
        let first = Kept { lease, since_epoch: gpu.epoch };
        let kept = slot.is_some().then_some(before.unwrap_or(first));
        *gpu.edit().kept = kept;
        let mut grant = Grant {
            gpu: id.clone(),
            epoch: gpu.epoch,
            endpoints: gpu.endpoints.clone(),
            model: gpu.model.clone(),
            attachment: None,
        };
        self.draft.gpus.insert(id.clone());
        self.list_kept(id, kept);
        self.charge(&tenant, &grant.model, &holder, true);
        self.restand(id);
        if let Some((host, slot)) = slot {
            assert!(grant.epoch <= PCIE_EPOCH_MAX, "only what has epochs left is chosen");
            self.attach(&mut grant, lease, host, slot);
        }
        grant
    }

    /// Takes a GPU from a lease that has it. It is free when its box has cleaned it.
    ///
    /// With `linger` the lease stays known as the last holder until then.
    pub(super) fn unbind(&mut self, grant: &Grant, lease: LeaseId, linger: bool) {
        let tenant = self.leases[&lease].lease.tenant.clone();
        // If the grant still works, the box waits until the host has unplugged. Otherwise it cleans at once.
        let works = self.is_alive(grant, lease);
        self.detach(grant, lease, works);
        let id = &grant.gpu;
        let Some(entry) = self.entry_mut(id) else { return };
        entry.attachment = None;
        let gpu = &mut entry.gpu;
        let Some(at) = gpu.holders.iter().position(|holder| holder.lease == lease) else { return };
        let holder = gpu.holders[at].clone();
        if gpu.state == GpuState::Leased {
            gpu.on(if is_clean(gpu) { GpuEvent::VacatedClean } else { GpuEvent::Vacated });
        }
        if !linger || gpu.state != GpuState::Cleaning {
            gpu.edit().holders.remove(at);
        }
        self.draft.gpus.insert(id.clone());
        self.charge(&tenant, &grant.model, &holder, false);
        self.restand(id);
        self.queue_stirred = true;
    }

    pub(super) fn charge(&mut self, tenant: &Name, model: &Model, holder: &Holder, add: bool) {
        let used = self.tenant(tenant).used.entry(model.clone()).or_default();
        let (milli, bytes) = (u64::from(holder.share_milli), holder.memory_bytes);
        if add {
            used.milli = used.milli.saturating_add(milli);
            used.memory_bytes = used.memory_bytes.saturating_add(bytes);
        } else {
            used.milli = used.milli.saturating_sub(milli);
            used.memory_bytes = used.memory_bytes.saturating_sub(bytes);
        }
    }

    /// The holders of this GPU have lost it, or wait in vain for it to be cleaned. `settle` decides about
    /// their leases one by one, later: all at once would be more than one outcome may write.
    pub(super) fn lose_holders(&mut self, id: &GpuId) {
        let Some(entry) = self.boxes.get_mut(&id.box_name).and_then(|owner| owner.slots.get_mut(&id.slot))
        else {
            return;
        };
        self.unsettled.extend(entry.gpu.holders.iter().map(|holder| holder.lease));
        // A lease that had it is charged for it until it is settled. Holders from before need not be remembered.
        let leases = &self.leases;
        let is_granted =
            |lease: &LeaseId| leases.get(lease).is_some_and(|entry| entry.lease.state == LeaseState::Granted);
        let before = entry.gpu.holders.len();
        entry.gpu.edit().holders.retain(|holder| is_granted(&holder.lease));
        if entry.gpu.holders.len() != before {
            self.draft.gpus.insert(id.clone());
        }
    }

    /// Whether a GPU is still being cleaned after this lease.
    pub(super) fn is_lingering(&self, grant: &Grant, lease: LeaseId) -> bool {
        let Some(owner) = self.boxes.get(&grant.gpu.box_name) else { return false };
        let Some(gpu) = owner.slots.get(&grant.gpu.slot).map(|entry| &entry.gpu) else { return false };
        gpu.state == GpuState::Cleaning
            && gpu.holders.iter().any(|holder| holder.lease == lease)
            && owner.presence != Presence::Dead
    }

    /// Whether a lease can still use what it was granted.
    pub(super) fn is_alive(&self, grant: &Grant, lease: LeaseId) -> bool {
        let Some(owner) = self.boxes.get(&grant.gpu.box_name) else { return false };
        let Some(gpu) = owner.slots.get(&grant.gpu.slot).map(|entry| &entry.gpu) else { return false };
        gpu.state == GpuState::Leased
            && gpu.epoch == grant.epoch
            && !is_clean(gpu)
            && gpu.holders.iter().any(|holder| holder.lease == lease)
            && owner.presence != Presence::Dead
            && !self.is_forsaken(owner, gpu)
            && self.is_attached(grant, lease)
    }
}
