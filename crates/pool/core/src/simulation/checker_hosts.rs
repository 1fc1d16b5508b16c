//! What must never be between GPUs and the slots of hosts.

use super::checker::Checker;
use pool_api::{BoxState, GpuId, GpuState, HostDetail, HostState, Lease, LeaseId, Name};

impl Checker {
    /// A box writes its table.
    pub(super) fn paired(&mut self, gpu: &GpuId, epoch: u64, (host, slot): (&Name, u8)) {
        let to = (host.clone(), slot);
        let known = self.pairs.entry((gpu.clone(), epoch)).or_insert_with(|| to.clone()).clone();
        if known != to {
            self.violation(format!("{gpu} epoch {epoch} is paired with two hosts: {known:?} and {to:?}"));
        }
    }

    /// A box gives a device to a lease, with whatever it finds on it.
    pub(super) fn handed_over(&mut self, now_ms: u64, gpu: &GpuId, lease: LeaseId, found: Option<LeaseId>) {
        if let Some(other) = found.filter(|other| *other != lease) {
            self.violation(format!("at {now_ms} {gpu} was given to {lease} with the data of {other}"));
        }
        if self.left.insert((lease, gpu.clone()), false) == Some(true) {
            self.violation(format!("at {now_ms} {gpu} was scrubbed between two grants of {lease}"));
        }
    }

    /// A box has scrubbed what a lease left.
    pub(super) fn scrubbed(&mut self, gpu: &GpuId, lease: LeaseId) {
        if let Some(is_scrubbed) = self.left.get_mut(&(lease, gpu.clone())) {
            *is_scrubbed = true;
        }
    }

    /// What was on a device is lost by an accident, not by an order.
    pub(super) fn lost_data(&mut self, gpu: &GpuId) {
        self.left.retain(|(_, device), _| device != gpu);
    }

    /// A lease that has other devices has given up what it left elsewhere.
    pub(super) fn moved_on(&mut self, lease: &Lease) {
        let has = |gpu: &GpuId| lease.grants.iter().any(|grant| grant.gpu == *gpu);
        self.left.retain(|(owner, gpu), _| *owner != lease.id || has(gpu));
    }

    /// A host plugs a GPU.
    pub(super) fn plugged(
        &mut self,
        now_ms: u64,
        (host, slot): (&Name, u8),
        gpu: &GpuId,
        epoch: u64,
        is_bound: bool,
    ) {
        self.plugs += 1;
        self.paired(gpu, epoch, (host, slot));
        if !is_bound {
            self.violation(format!("at {now_ms} {gpu} epoch {epoch} was plugged before its box had bound"));
        }
        if !self.grants.contains_key(&(gpu.clone(), epoch)) {
            self.violation(format!("{gpu} epoch {epoch} was plugged and never granted"));
        }
        let before = self.plugged.insert((host.clone(), slot), (gpu.clone(), epoch));
        if let Some((other, old)) = before {
            self.violation(format!(
                "at {now_ms} {host}/{slot} has two GPUs: {other} epoch {old} and {gpu} epoch {epoch}"
            ));
        }
    }

    /// A host has unplugged, for whatever reason.
    pub(super) fn unplugged(&mut self, (host, slot): (&Name, u8)) {
        self.plugged.remove(&(host.clone(), slot));
    }

    pub(super) fn committed_host(&mut self, host: HostDetail) {
        let name = host.record.name.clone();
        for slot in &host.slots {
            let before = self.hosts.get(&name).and_then(|before| {
                before
                    .slots
                    .iter()
                    .find(|known| known.slot == slot.slot)
                    .map(|known| (known.epoch, known.leaving.clone()))
            });
            let (epoch, leaving) = before.unwrap_or_default();
            if slot.epoch < epoch {
                self.violation(format!(
                    "{name}/{} went from epoch {epoch} back to {}",
                    slot.slot, slot.epoch
                ));
            }
            // A box waits for a host that is there, if what is unplugged still works.
            let Some(new) = slot.leaving.as_ref().filter(|new| {
                !new.box_waits && leaving.as_ref().is_none_or(|known| known.epoch != new.epoch)
            }) else {
                continue;
            };
            // What does not work: a box that started anew has not let the host in again, so its end of the link is gone.
            let works = self.gpus.get(&new.gpu).is_some_and(|gpu| {
                gpu.state == GpuState::Cleaning
                    && gpu.epoch == new.epoch
                    && gpu.cleaned_epoch < gpu.epoch
                    && gpu.bound_epoch >= gpu.epoch
            });
            let is_there =
                self.boxes.get(&new.gpu.box_name).is_some_and(|owner| owner.state != BoxState::Dead);
            if works && is_there && host.record.state != HostState::Dead {
                let what = format!("{} is cleaned before {name}/{} has unplugged it", new.gpu, slot.slot);
                self.violation(what);
            }
        }
        self.hosts.insert(name, host);
    }
}
