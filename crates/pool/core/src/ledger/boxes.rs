//! A box in memory, and what its presence means for its GPUs.

use super::agents::Agents;
use super::gpu_life::TrackedGpu;
use super::stock::{Place, Standing};
use super::{GpuEntry, Ledger, Note};
use pool_api::{BoxRecord, BoxState, EventKind, Gpu, GpuId, GpuState, GuardReport, Name};
use std::collections::BTreeMap;

impl GpuEntry {
    /// Of which its box has said nothing to this leader yet.
    pub(super) fn new(gpu: TrackedGpu, place: Place) -> Self {
        Self { gpu, place, counters: None, sharing: None, attachment: None, leapt: 0 }
    }
}

#[derive(Clone, Debug)]
pub(super) struct BoxEntry {
    pub(super) record: BoxRecord,
    pub(super) presence: Presence,
    pub(super) agents: Agents,
    /// Where it is in [`Ledger::silences`].
    pub(super) silent_at_ms: u64,
    pub(super) slots: BTreeMap<u8, GpuEntry>,
    /// What its guardian keeps, as its last report said. It is not stored: the next report says it again.
    pub(super) guard: Option<GuardReport>,
}

/// Whether a box or a host is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Ready,
    Suspect,
    Dead,
}

impl BoxEntry {
    pub(super) fn new(record: BoxRecord, presence: Presence, silent_at_ms: u64) -> Self {
        Self {
            record,
            presence,
            agents: Agents::default(),
            silent_at_ms,
            slots: BTreeMap::new(),
            guard: None,
        }
    }

    /// The record for the store. It never says `Suspect`, which is soon over.
    pub(super) fn stored(&self) -> BoxRecord {
        BoxRecord { state: self.state_ignoring_suspicion(), ..self.record.clone() }
    }

    fn state_ignoring_suspicion(&self) -> BoxState {
        match (self.presence, &self.record.drain) {
            (Presence::Dead, _) => BoxState::Dead,
            (_, Some(_)) => BoxState::Draining,
            (_, None) => BoxState::Ready,
        }
    }

    pub(super) fn state(&self) -> BoxState {
        match self.presence {
            Presence::Suspect => BoxState::Suspect,
            Presence::Ready | Presence::Dead => self.state_ignoring_suspicion(),
        }
    }

    /// Whether its leases are to move away.
    pub(super) fn is_emptied(&self) -> bool {
        self.record.drain.as_ref().is_some_and(|drain| drain.drain)
    }

    /// Whether new leases may come here.
    pub(super) fn takes_leases(&self) -> bool {
        self.presence == Presence::Ready && self.record.drain.is_none()
    }
}

/// Whether a GPU is clean: no borrower of any epoch is still there or can come back.
pub(super) fn is_clean(gpu: &Gpu) -> bool {
    gpu.cleaned_epoch >= gpu.epoch
}

impl Ledger {
    /// Tells the stock how a GPU stands now. To be called after every change to it or its box.
    pub(super) fn restand(&mut self, id: &GpuId) {
        self.restand_one(id);
        // A seat for guests and its host stand as they do together.
        if let Some(partner) = self.partner_of(id) {
            self.restand_one(&partner);
            self.unseat_forsaken(id);
            self.unseat_forsaken(&partner);
        }
    }

    fn restand_one(&mut self, id: &GpuId) {
        let Some(owner) = self.boxes.get(&id.box_name) else { return };
        let Some(entry) = owner.slots.get(&id.slot) else { return };
        let (standing, place) = (self.standing(owner, &entry.gpu), entry.place);
        let gains = self.stock.gains();
        self.stock.set(place, standing);
        self.restand_seat(&id.box_name, id.slot);
        // A lease that waits for the device with its data may get it back.
        self.queue_stirred |= !self.returning.is_empty();
        if self.stock.gains() != gains {
            self.queue_stirred = true;
            self.spares_stirred = true;
        }
    }

    fn standing(&self, owner: &BoxEntry, gpu: &Gpu) -> Standing {
        self.standing_together(owner, gpu, self.standing_alone(owner, gpu))
    }

    /// How a GPU stands if its seat is empty.
    pub(super) fn standing_alone(&self, owner: &BoxEntry, gpu: &Gpu) -> Standing {
        let clean = is_clean(gpu) && gpu.state == GpuState::Free;
        #[cfg(test)]
        let clean = clean
            || (self.mutated(crate::simulation::Mutation::GrantUncleaned)
                && gpu.guest.is_none()
                && gpu.state == GpuState::Cleaning);
        match gpu.state {
            GpuState::Bad | GpuState::BurnIn | GpuState::Absent => Standing::Gone,
            _ if owner.presence == Presence::Dead => Standing::Gone,
            _ if !clean || (gpu.state == GpuState::Free && !gpu.holders.is_empty()) => Standing::Busy,
            _ if !gpu.health.ok || gpu.taint.is_some() || !owner.takes_leases() => Standing::Busy,
            // A borrower could not reach the worker of such a GPU.
            _ if gpu.unready.is_some() => Standing::Busy,
            _ if gpu.spare => Standing::Spare,
            _ => Standing::Usable,
        }
    }

    pub(super) fn restand_box(&mut self, name: &Name) {
        for id in self.gpus_of(name) {
            self.restand(&id);
        }
    }

    pub(super) fn gpus_of(&self, name: &Name) -> Vec<GpuId> {
        let slots = self.boxes.get(name).map(|entry| &entry.slots);
        slots.into_iter().flatten().map(|(_, entry)| entry.gpu.id.clone()).collect()
    }

    /// A box has been silent for a moment, or for too long.
    pub(super) fn on_silence(&mut self, name: &Name) {
        let (now_ms, wait) =
            (self.now_ms, self.settings.dead_after_ms.saturating_sub(self.settings.suspect_after_ms));
        let Some(entry) = self.boxes.get_mut(name) else { return };
        self.silences.remove(&(entry.silent_at_ms, name.clone()));
        match entry.presence {
            Presence::Ready => {
                entry.presence = Presence::Suspect;
                entry.silent_at_ms += wait;
                self.silences.insert((entry.silent_at_ms, name.clone()));
                self.restand_box(name);
            }
            Presence::Suspect => {
                entry.presence = Presence::Dead;
                let silence_ms = now_ms.saturating_sub(entry.record.last_seen_ms);
                self.draft.boxes.insert(name.clone());
                self.note(
                    Note::new(EventKind::BoxDead, format!("box {name} has been silent for {silence_ms} ms"))
                        .of_box(name),
                );
                self.restand_box(name);
                self.lose_holders_of_box(name);
            }
            Presence::Dead => {}
        }
    }

    /// The box is dead: its holders become unsettled. `settle` moves granted leases and ends releasing ones, one by
    /// one and later: all at once would be more than one outcome may write.
    pub(super) fn lose_holders_of_box(&mut self, name: &Name) {
        let slots = self.boxes.get(name).into_iter().flat_map(|entry| entry.slots.values());
        let holders = slots.flat_map(|entry| &entry.gpu.holders).map(|holder| holder.lease);
        self.unsettled.extend(holders);
    }

    /// Notes that a box was heard now, and when it becomes suspect if it is not heard again.
    pub(super) fn listen_to(&mut self, name: &Name) {
        let due = self.now_ms + self.settings.suspect_after_ms;
        let Some(entry) = self.boxes.get_mut(name) else { return };
        entry.record.last_seen_ms = self.now_ms;
        self.silences.remove(&(entry.silent_at_ms, name.clone()));
        entry.silent_at_ms = due;
        self.silences.insert((due, name.clone()));
    }
}
