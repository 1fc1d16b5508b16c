//! Boxes that get nothing new, and boxes that are taken off the list.
//!
//! A cordon is a drain that moves nothing: [`pool_api::BoxRecord::drain`] with its `drain` unset.

use super::boxes::Presence;
use super::command::{Answer, Refusal};
use super::stock::Standing;
use super::{Ledger, Note};
use pool_api::{EventKind, Name, Taint};

/// Where the floor is stored that removed boxes leave behind.
pub(super) const FLOOR_KEY: &str = "epochs/floor";

impl Ledger {
    /// Keeps new leases from a box; those it has stay. A box that is being emptied stays so.
    pub(super) fn cordon_box(&mut self, name: &Name, reason: &str, by: &str) -> Result<Answer, Refusal> {
        let since_ms = self.now_ms;
        let entry = self.boxes.get_mut(name).ok_or_else(|| Refusal::NoBox { box_name: name.clone() })?;
        if entry.record.drain.is_none() {
            entry.record.drain =
                Some(Taint { reason: reason.to_owned(), by: by.to_owned(), since_ms, drain: false });
            self.draft.boxes.insert(name.clone());
            let message = format!("box {name} gets no new leases, by {by}: {reason}");
            self.note(Note::new(EventKind::BoxDrained, message).of_box(name));
            self.restand_box(name);
        }
        Ok(self.show_box(name))
    }

    /// Forgets a box that is dead and has nothing of any lease. Should it report again, it is a new box.
    ///
    /// A new machine may take its name and know nothing of the epochs of before. A lease token of before must not be let in
    /// there, so the epochs of the GPUs that are forgotten stay below every grant that follows.
    pub(super) fn remove_box(&mut self, name: &Name) -> Result<Answer, Refusal> {
        let entry = self.boxes.get(name).ok_or_else(|| Refusal::NoBox { box_name: name.clone() })?;
        let in_use = |why: &str| Refusal::BoxInUse { box_name: name.clone(), why: why.to_owned() };
        if entry.presence != Presence::Dead {
            return Err(in_use("it reports to the manager"));
        }
        let has_any = |gpu: &pool_api::Gpu| {
            !gpu.holders.is_empty() || gpu.kept.is_some() || self.held.contains_key(&gpu.id)
        };
        if entry.slots.values().any(|slot| has_any(&slot.gpu)) {
            return Err(in_use("leases still have GPUs of it"));
        }
        let answer = self.show_box(name);
        let entry = self.boxes.remove(name).expect("it was there just now");
        self.silences.remove(&(entry.silent_at_ms, name.clone()));
        let given = entry.slots.values().map(|slot| slot.gpu.epoch.max(slot.gpu.cleaned_epoch));
        let highest = given.max().unwrap_or(0);
        if highest > self.epoch_floor {
            self.raise_floor(highest);
            self.draft.floor = true;
        }
        for slot in entry.slots.values() {
            self.stock.set(slot.place, Standing::Gone);
            self.seating.forget(slot.place);
            self.draft.gpus.insert(slot.gpu.id.clone());
        }
        self.draft.boxes.insert(name.clone());
        self.spares_stirred = true;
        Ok(answer)
    }
}
