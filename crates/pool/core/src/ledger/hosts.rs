//! A host in memory, its presence, and the numbers that boxes and hosts have on the network.

use super::agents::Agents;
use super::boxes::Presence;
use super::command::{Answer, Refusal};
use super::{Ledger, Note};
use pool_api::{
    EventKind, HostDetail, HostRecord, HostReport, HostRequest, HostSlot, HostState, Name, PCIE_EPOCH_MAX,
};
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
pub(super) struct HostEntry {
    /// `slots` and `state` are made up when it is shown.
    pub(super) record: HostRecord,
    pub(super) presence: Presence,
    pub(super) agents: Agents,
    /// Where it is in [`Ledger::host_silences`].
    silent_at_ms: u64,
    pub(super) slots: BTreeMap<u8, HostSlot>,
    /// By how much it has raised the epoch of each slot beyond what this leader had given it.
    pub(super) leapt: BTreeMap<u8, u64>,
}

impl HostEntry {
    fn new(record: HostRecord, presence: Presence, silent_at_ms: u64) -> Self {
        Self {
            record,
            presence,
            agents: Agents::default(),
            silent_at_ms,
            slots: BTreeMap::new(),
            leapt: BTreeMap::new(),
        }
    }

    pub(super) fn shown(&self) -> HostRecord {
        let state = match self.presence {
            Presence::Ready => HostState::Ready,
            Presence::Suspect => HostState::Suspect,
            Presence::Dead => HostState::Dead,
        };
        let slots = self.slots.values().filter(|slot| !slot.gone).count();
        let monitors_silent =
            self.slots.values().filter(|slot| !slot.gone && slot.monitor_silent).count() as u8;
        HostRecord { state, slots: slots as u8, monitors_silent, ..self.record.clone() }
    }

    pub(super) fn detail(&self) -> HostDetail {
        HostDetail { record: self.shown(), slots: self.slots.values().cloned().collect() }
    }

    /// The record for the store. It never says `Suspect`, which is soon over.
    pub(super) fn stored(&self) -> HostDetail {
        let mut detail = self.detail();
        if self.presence == Presence::Suspect {
            detail.record.state = HostState::Ready;
        }
        detail
    }
}

/// Whether something can be plugged into a slot.
pub(super) fn is_free(slot: &HostSlot) -> bool {
    !slot.gone
        && slot.lease.is_none()
        && slot.leaving.is_none()
        && slot.bound_epoch <= slot.cleared_epoch
        && slot.epoch < PCIE_EPOCH_MAX
}

impl Ledger {
    /// The number of a box: what it has, or the next that is free.
    pub(super) fn node_of_box(&mut self, name: &Name) -> Result<u16, Refusal> {
        match self.boxes.get(name).map(|entry| entry.record.node) {
            Some(node) if node != 0 => Ok(node),
            _ => self.new_node(),
        }
    }

    pub(super) fn node_of_host(&mut self, name: &Name) -> Result<u16, Refusal> {
        match self.hosts.get(name) {
            Some(entry) => Ok(entry.record.node),
            None => self.new_node(),
        }
    }

    fn new_node(&mut self) -> Result<u16, Refusal> {
        let node = u16::try_from(self.nodes_known + 1).map_err(|_| Refusal::TooManyNodes)?;
        self.nodes_known = u32::from(node);
        Ok(node)
    }

    pub(super) fn know_node(&mut self, node: u16) {
        self.nodes_known = self.nodes_known.max(u32::from(node));
    }

    pub(super) fn meet_host(&mut self, name: &Name, node: u16, report: &HostReport) {
        if self.hosts.contains_key(name) {
            return;
        }
        let record = HostRecord {
            name: name.clone(),
            node,
            slots: 0,
            paths: report.paths.clone(),
            agent: report.agent.clone(),
            state: HostState::Ready,
            last_seen_ms: self.now_ms,
            tenants: Vec::new(),
            revoked: None,
            monitors_silent: 0,
        };
        self.hosts.insert(name.clone(), HostEntry::new(record, Presence::Ready, self.now_ms));
        self.draft.hosts.insert(name.clone());
        let message = format!("host {name} joined with {} slots", report.slots.len());
        self.note(Note::new(EventKind::HostJoined, message).of_host(name));
    }

    /// Notes that a host was heard now, and when it becomes suspect if it is not heard again.
    pub(super) fn listen_to_host(&mut self, name: &Name) {
        let due = self.now_ms + self.settings.suspect_after_ms;
        let Some(entry) = self.hosts.get_mut(name) else { return };
        entry.record.last_seen_ms = self.now_ms;
        self.host_silences.remove(&(entry.silent_at_ms, name.clone()));
        entry.silent_at_ms = due;
        self.host_silences.insert((due, name.clone()));
        let was = std::mem::replace(&mut entry.presence, Presence::Ready);
        // Managers take reports from members alone, so a revoked host has joined anew.
        let was_revoked = entry.record.revoked.take().is_some();
        if was == Presence::Dead || was_revoked {
            self.draft.hosts.insert(name.clone());
            self.note(Note::new(EventKind::HostReturned, format!("host {name} reports again")).of_host(name));
        }
        if was != Presence::Ready {
            self.queue_stirred = true;
        }
    }

    /// A host has been silent for a moment, or for too long.
    ///
    /// Its leases stay: they expire when their borrowers do not renew them. Boxes no longer wait for the host.
    pub(super) fn on_host_silence(&mut self, name: &Name) {
        let (now_ms, wait) =
            (self.now_ms, self.settings.dead_after_ms.saturating_sub(self.settings.suspect_after_ms));
        let Some(entry) = self.hosts.get_mut(name) else { return };
        self.host_silences.remove(&(entry.silent_at_ms, name.clone()));
        match entry.presence {
            Presence::Ready => {
                entry.presence = Presence::Suspect;
                entry.silent_at_ms += wait;
                self.host_silences.insert((entry.silent_at_ms, name.clone()));
            }
            Presence::Suspect => {
                let silence_ms = now_ms.saturating_sub(entry.record.last_seen_ms);
                let message = format!("host {name} has been silent for {silence_ms} ms");
                self.note(Note::new(EventKind::HostDead, message).of_host(name));
                self.give_up_host(name);
            }
            Presence::Dead => {}
        }
    }

    /// A host is dead: boxes wait for it no longer.
    pub(super) fn give_up_host(&mut self, name: &Name) {
        let Some(entry) = self.hosts.get_mut(name) else { return };
        self.host_silences.remove(&(entry.silent_at_ms, name.clone()));
        entry.presence = Presence::Dead;
        let slots: Vec<u8> = entry.slots.keys().copied().collect();
        self.draft.hosts.insert(name.clone());
        for slot in slots {
            self.let_box_clean(name, slot);
        }
    }

    pub(super) fn set_host(&mut self, name: &Name, request: &HostRequest) -> Result<Answer, Refusal> {
        request.check()?;
        let entry = self.hosts.get_mut(name).ok_or_else(|| Refusal::NoHost { host: name.clone() })?;
        let mut tenants = request.tenants.clone();
        tenants.sort();
        tenants.dedup();
        if entry.record.tenants != tenants {
            let names: Vec<&str> = tenants.iter().map(Name::as_str).collect();
            let message = match names.is_empty() {
                true => format!("host {name} serves no tenant"),
                false => format!("host {name} serves {}", names.join(", ")),
            };
            entry.record.tenants = tenants;
            self.draft.hosts.insert(name.clone());
            self.note(Note::new(EventKind::HostChanged, message).of_host(name));
            self.queue_stirred = true;
        }
        Ok(Answer::Host(self.hosts[name].shown()))
    }

    pub(super) fn load_host(&mut self, detail: HostDetail) {
        let name = detail.record.name.clone();
        let presence =
            if detail.record.state == HostState::Dead { Presence::Dead } else { Presence::Suspect };
        let dead_at_ms = self.now_ms + self.settings.dead_after_ms;
        self.know_node(detail.record.node);
        let mut entry = HostEntry::new(detail.record, presence, dead_at_ms);
        if presence == Presence::Suspect {
            self.host_silences.insert((dead_at_ms, name.clone()));
        }
        for slot in detail.slots {
            if let Some(leaving) = slot.leaving.as_ref().filter(|leaving| leaving.box_waits) {
                // An earlier leader's clock may have set the deadline, so the box waits for the whole time again.
                let due_ms = self.now_ms + self.settings.unplug_patience_ms;
                self.hold(&leaving.gpu, &name, slot.slot, due_ms);
            }
            if slot.lease.is_some() {
                self.restless.insert((name.clone(), slot.slot));
            }
            entry.slots.insert(slot.slot, slot);
        }
        self.hosts.insert(name, entry);
    }

    /// One host.
    pub fn host(&self, name: &Name) -> Option<HostRecord> {
        self.hosts.get(name).map(HostEntry::shown)
    }

    /// One host with its slots.
    pub fn host_detail(&self, name: &Name) -> Option<HostDetail> {
        self.hosts.get(name).map(HostEntry::detail)
    }

    /// The hosts after this one.
    pub fn hosts(&self, after: Option<&Name>) -> impl Iterator<Item = HostRecord> + '_ {
        use std::ops::Bound::{Excluded, Unbounded};
        let start = after.map_or(Unbounded, |after| Excluded(after.clone()));
        self.hosts.range((start, Unbounded)).map(|(_, entry)| entry.shown())
    }
}
