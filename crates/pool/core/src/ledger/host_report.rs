//! What a host says, and what it is told.

use super::attach::pcie_paths;
use super::command::{Answer, Refusal};
use super::grants::EPOCH_LEAP_MAX;
use super::{Ledger, Note};
use pool_api::{
    EventKind, HostOrders, HostReport, HostSlot, HostSlotOrder, HostSlotReport, HostWant, LinkSecret, Name,
    Phase,
};

impl Ledger {
    pub(super) fn report_host(&mut self, name: &Name, report: &HostReport) -> Result<Answer, Refusal> {
        report.check()?;
        self.check_epochs(name, report)?;
        let node = self.node_of_host(name)?;
        self.meet_host(name, node, report);
        let entry = self.hosts.get_mut(name).expect("it was met just now");
        if entry.agents.hear(&report.agent, report.sequence) {
            if entry.record.paths != report.paths {
                entry.record.paths.clone_from(&report.paths);
                self.draft.hosts.insert(name.clone());
            }
            let is_new_run = entry.record.agent != report.agent;
            self.listen_to_host(name);
            if is_new_run {
                self.begin_anew(name, &report.agent);
            }
            for slot in &report.slots {
                self.hear_slot(name, slot);
            }
            self.miss_slots(name, report);
        }
        Ok(Answer::HostOrders(self.host_orders(name, report)))
    }

    fn check_epochs(&self, name: &Name, report: &HostReport) -> Result<(), Refusal> {
        for slot in &report.slots {
            let given = self.host_slot(name, slot.slot).map_or(0, |known| known.epoch);
            let given = given.max(self.epoch_floor);
            let epoch = slot.bound_epoch.max(slot.cleared_epoch);
            let leapt =
                self.hosts.get(name).and_then(|entry| entry.leapt.get(&slot.slot)).copied().unwrap_or(0);
            let leap = epoch.saturating_sub(given);
            if leap > 0 && leap.saturating_add(leapt) > EPOCH_LEAP_MAX {
                return Err(Refusal::StrangeEpoch { host: name.clone(), slot: slot.slot, epoch, given });
            }
        }
        Ok(())
    }

    fn hear_slot(&mut self, name: &Name, report: &HostSlotReport) {
        let floor = self.epoch_floor;
        let entry = self.hosts.get_mut(name).expect("it was met before");
        let is_new = !entry.slots.contains_key(&report.slot);
        let slot = entry.slots.entry(report.slot).or_insert_with(|| HostSlot {
            slot: report.slot,
            epoch: report.bound_epoch.max(report.cleared_epoch),
            ..HostSlot::default()
        });
        let before = slot.clone();
        // The report replaces what the ledger knew, also where the host has lost its memory.
        slot.bound_epoch = report.bound_epoch;
        slot.cleared_epoch = report.cleared_epoch;
        slot.epoch = slot.epoch.max(report.bound_epoch).max(report.cleared_epoch);
        // Bounded by `EPOCH_LEAP_MAX`: reports that claim more are refused.
        *entry.leapt.entry(report.slot).or_default() +=
            (slot.epoch - before.epoch).min(slot.epoch.saturating_sub(floor));
        slot.plugged = report.plugged;
        slot.monitor_silent = report.monitor_silent;
        slot.gone = false;
        slot.detail.clone_from(&report.detail);
        if !is_new && *slot == before {
            return;
        }
        let after = slot.clone();
        self.draft.hosts.insert(name.clone());
        if after.monitor_silent != before.monitor_silent {
            self.note_monitor(name, &after);
        }
        self.queue_stirred |= super::hosts::is_free(&after);
        self.restless.insert((name.clone(), report.slot));
        if after.leaving.as_ref().is_some_and(|leaving| leaving.epoch <= after.cleared_epoch) {
            self.cleared(name, report.slot);
        }
        // It has given the GPU up, or has an epoch that this pool did not give: the grant is worth nothing any more.
        if let Some(lease) = after.lease
            && (after.cleared_epoch >= before.epoch || after.epoch != before.epoch)
        {
            self.unsettled.insert(lease);
        }
    }

    fn note_monitor(&mut self, name: &Name, slot: &HostSlot) {
        let (kind, message) = match slot.monitor_silent {
            true => (
                EventKind::HostMonitorSilent,
                format!(
                    "the monitor of the virtual machine with slot {} of host {name} does not answer; if it stays so, its \
                     QEMU hangs: end it and start it again",
                    slot.slot
                ),
            ),
            false => (
                EventKind::HostMonitorBack,
                format!(
                    "the monitor of the virtual machine with slot {} of host {name} answers again",
                    slot.slot
                ),
            ),
        };
        self.note(Note::new(kind, message).of_host(name));
    }

    /// The host's proxy was started anew and has lost its links. A link is established once in its epoch, so the
    /// leases become unsettled and get new grants.
    fn begin_anew(&mut self, name: &Name, agent: &str) {
        let entry = self.hosts.get_mut(name).expect("it was met before");
        agent.clone_into(&mut entry.record.agent);
        for slot in entry.slots.values_mut() {
            if matches!(slot.phase, Some(Phase::Plugging | Phase::Plugged)) {
                self.unsettled.extend(slot.lease.take());
                slot.gpu = None;
                slot.phase = None;
            }
        }
        self.draft.hosts.insert(name.clone());
        self.queue_stirred = true;
    }

    /// A slot that is no longer reported is gone, with what was plugged there.
    fn miss_slots(&mut self, name: &Name, report: &HostReport) {
        let entry = self.hosts.get_mut(name).expect("it was met before");
        let is_missing = |slot: &&mut HostSlot| {
            !slot.gone && !report.slots.iter().any(|reported| reported.slot == slot.slot)
        };
        let mut missing = Vec::new();
        for slot in entry.slots.values_mut().filter(is_missing) {
            slot.gone = true;
            slot.plugged = false;
            missing.push((slot.slot, slot.lease));
        }
        for (slot, lease) in missing {
            self.draft.hosts.insert(name.clone());
            self.cleared(name, slot);
            self.unsettled.extend(lease);
        }
    }

    /// What should be so in the slots a host reported.
    fn host_orders(&self, name: &Name, report: &HostReport) -> HostOrders {
        let entry = &self.hosts[name];
        let slots = report.slots.iter().filter_map(|reported| {
            let slot = entry.slots.get(&reported.slot)?;
            Some(HostSlotOrder { slot: slot.slot, want: self.host_want(slot) })
        });
        HostOrders {
            tenure: 0,
            now_ms: self.now_ms,
            node: entry.record.node,
            slots: slots.collect(),
            report_after_ms: self.settings.report_after_ms,
        }
    }

    fn host_want(&self, slot: &HostSlot) -> HostWant {
        #[cfg(test)]
        if self.mutated(crate::simulation::Mutation::ReuseSlot)
            && let Some(plug) = self.plug(slot)
        {
            return plug;
        }
        #[cfg(test)]
        if self.mutated(crate::simulation::Mutation::NeverUnplug)
            && let Some(pool_api::Leaving { lease, gpu, epoch, .. }) = slot.leaving.clone()
        {
            let (box_slot, secret) = (gpu.slot, LinkSecret::default());
            let (box_paths, patience_ms) = (vec![], 15_000);
            return HostWant::Plug {
                lease,
                gpu,
                epoch,
                box_node: 1,
                box_slot,
                box_paths,
                secret,
                patience_ms,
            };
        }
        if let Some(leaving) = &slot.leaving {
            return HostWant::Unplug { epoch: leaving.epoch };
        }
        self.plug(slot).unwrap_or_else(|| {
            // The host has something plugged that this pool does not know, or does not want there any more.
            let is_wanted = slot.lease.is_some() && slot.bound_epoch == slot.epoch;
            if slot.bound_epoch > slot.cleared_epoch && !is_wanted {
                return HostWant::Unplug { epoch: slot.bound_epoch };
            }
            HostWant::Empty
        })
    }

    fn plug(&self, slot: &HostSlot) -> Option<HostWant> {
        if !matches!(slot.phase, Some(Phase::Plugging | Phase::Plugged)) {
            return None;
        }
        let (lease, gpu) = (slot.lease?, slot.gpu.as_ref()?);
        let owner = self.boxes.get(&gpu.box_name)?;
        // None for a grant that no longer holds: `settle` is about to replace it.
        let grants = &self.leases.get(&lease)?.lease.grants;
        let grant = grants.iter().find(|grant| grant.gpu == *gpu && grant.epoch == slot.epoch)?;
        self.is_attached(grant, lease).then(|| HostWant::Plug {
            lease,
            gpu: gpu.clone(),
            epoch: slot.epoch,
            box_node: owner.record.node,
            box_slot: gpu.slot,
            box_paths: pcie_paths(&owner.record.paths),
            secret: LinkSecret::default(),
            patience_ms: self.settings.dead_after_ms,
        })
    }
}
