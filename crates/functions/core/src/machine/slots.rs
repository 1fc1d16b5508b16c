//! GPUs that the service holds, asks for and gives back.

use super::{Action, Instance, InstanceId, InstanceState, Machine, SlotId, Verdict};
use crate::balance::Crowd;
use crate::places::{Fit, Rules, Slot};
use crate::record::FunctionKey;
use std::collections::BTreeSet;

/// A GPU on which room is made for one function that has waited for long.
#[derive(Clone, Debug)]
pub(super) struct Reserved {
    pub(super) slot: SlotId,
    pub(super) key: FunctionKey,
}

/// A GPU that the pool was asked for.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) tenant: String,
    pub(super) declared_mb: u32,
    /// It is to spread the load, and no invocation waits for it.
    pub(super) is_spare: bool,
}

/// A pool without a free GPU is not asked for a spare one again for so long.
const SPARE_AGAIN_AFTER_MS: u64 = 10_000;

impl Machine {
    pub(super) fn rules(&self) -> Rules {
        let settings = &self.settings;
        Rules { sharing: settings.sharing, tenants_share: settings.tenants_share, fit: settings.fit }
    }

    /// The GPU that has room for one more instance of this function.
    pub(super) fn place_for(&self, key: &FunctionKey, declared_mb: u32) -> Option<u64> {
        let reserved = self.reserved.as_ref();
        let is_open = |id: u64| {
            !self.returning.contains(&SlotId(id))
                && reserved.is_none_or(|reserved| reserved.slot.0 != id || reserved.key == *key)
        };
        #[cfg(test)]
        if self.mutated(crate::simulation::Mutation::Overfill) {
            return self.rules().choose(&self.slots, key, 0, is_open);
        }
        #[cfg(test)]
        if self.mutated(crate::simulation::Mutation::MixTenants) {
            let mixed = Rules { tenants_share: true, ..self.rules() };
            return mixed.choose(&self.slots, key, declared_mb, is_open);
        }
        self.rules().choose(&self.slots, key, declared_mb, is_open)
    }

    /// Whether one more instance of this function could have a GPU now or when the pool grants one.
    pub(super) fn has_gpu_for(&self, key: &FunctionKey, declared_mb: u32) -> bool {
        self.place_for(key, declared_mb).is_some()
            || self.slots.len() + self.asked.len() < self.settings.gpus_max
    }

    /// A place on a GPU for one more instance. If there is none, the pool is asked, or idle instances end.
    pub(super) fn take_slot(
        &mut self,
        key: &FunctionKey,
        declared_mb: u32,
        now_ms: u64,
        actions: &mut Vec<Action>,
    ) -> Option<SlotId> {
        if let Some(slot) = self.place_for(key, declared_mb) {
            let place = self.slots.get_mut(&slot)?;
            place.used += 1;
            place.used_mb += u64::from(declared_mb);
            place.had.insert(key.clone());
            self.reserved = self.reserved.take().filter(|reserved| reserved.key != *key);
            return Some(SlotId(slot));
        }
        // One question at a time: when it is answered, the next is asked.
        let shared = self.settings.tenants_share;
        let is_coming = self
            .asked
            .values()
            .any(|asked| (shared || asked.tenant == key.tenant) && asked.declared_mb >= declared_mb);
        if is_coming {
            return None;
        }
        if self.slots.len() + self.asked.len() < self.settings.gpus_max {
            if self.gpus_not_before_ms <= now_ms {
                self.ask_gpu(key.tenant.clone(), declared_mb, false, actions);
            }
        } else if !self.end_idle_for(key, declared_mb, actions) && self.returning.is_empty() {
            self.free_a_gpu(key, declared_mb, actions);
        }
        None
    }

    pub(super) fn ask_gpu(
        &mut self,
        tenant: String,
        declared_mb: u32,
        is_spare: bool,
        actions: &mut Vec<Action>,
    ) {
        self.next_slot += 1;
        let slot = SlotId(self.next_slot);
        self.asked.insert(slot, Asked { tenant: tenant.clone(), declared_mb, is_spare });
        actions.push(Action::AskGpu { slot, tenant, declared_mb, is_spare });
    }

    /// Ends idle instances that nobody waits for, so that one more fits beside the others. True if room will be there.
    fn end_idle_for(&mut self, key: &FunctionKey, declared_mb: u32, actions: &mut Vec<Action>) -> bool {
        let rules = self.rules();
        let mut choices: Vec<(u64, Vec<InstanceId>)> = Vec::new();
        for (id, slot) in &self.slots {
            let slot_id = SlotId(*id);
            let is_held = self.reserved.as_ref().is_some_and(|held| held.slot == slot_id && held.key != *key);
            let is_shut = slot.is_down || self.returning.contains(&slot_id);
            if !rules.admits(slot, &key.tenant) || is_held || is_shut {
                continue;
            }
            let mut quiet: Vec<(u64, InstanceId)> = self
                .slot_instances(slot_id)
                .filter(|(_, instance)| self.queue.count_of(&instance.key) == 0)
                .filter_map(|(id, instance)| match instance.state {
                    InstanceState::Idle { since_ms } => Some((since_ms, id)),
                    _ => None,
                })
                .collect();
            quiet.sort_unstable();
            let oldest = quiet.first().map_or(u64::MAX, |(since_ms, _)| *since_ms);
            if let Some(ends) = self.enough(slot_id, quiet, declared_mb) {
                choices.push((oldest, ends));
            }
        }
        let chosen = match self.settings.fit {
            Fit::FewestMoves => choices.into_iter().min_by_key(|(oldest, ends)| (ends.len(), *oldest)),
            Fit::Best | Fit::Worst => choices.into_iter().min_by_key(|(oldest, ends)| (*oldest, ends.len())),
        };
        let Some((_, ends)) = chosen else { return false };
        for id in ends {
            self.kill(id, actions);
        }
        true
    }

    /// As many of these instances, in their order, as must end until one more fits; none if all are not enough. Those that
    /// end already count as gone.
    fn enough(
        &self,
        slot: SlotId,
        mut from: Vec<(u64, InstanceId)>,
        declared_mb: u32,
    ) -> Option<Vec<InstanceId>> {
        let rules = self.rules();
        let place = self.slots.get(&slot.0)?;
        let is_there = |(_, instance): &(InstanceId, &Instance)| instance.state != InstanceState::Ending;
        let mut used = 0;
        let mut used_mb = 0;
        for (_, instance) in self.slot_instances(slot).filter(is_there) {
            used += 1;
            used_mb += u64::from(instance.gpu_mb);
        }
        let mut ends = Vec::new();
        from.reverse();
        while !rules.fits(place, used, used_mb, declared_mb) {
            let (_, id) = from.pop()?;
            used -= 1;
            used_mb -= u64::from(self.instances.get(&id)?.gpu_mb);
            ends.push(id);
        }
        Some(ends)
    }

    /// Ends the idle instances of a GPU that none works on and that is of no use to this function, so that it can be given back
    /// for another.
    fn free_a_gpu(&mut self, key: &FunctionKey, declared_mb: u32, actions: &mut Vec<Action>) {
        let rules = self.rules();
        let is_useless = |slot: &Slot| {
            slot.is_down || !rules.admits(slot, &key.tenant) || slot.total_mb < u64::from(declared_mb)
        };
        let is_reserved = |slot: SlotId| self.reserved.as_ref().is_some_and(|held| held.slot == slot);
        let is_quiet = |slot: SlotId| {
            self.slot_instances(slot).all(|(_, instance)| match instance.state {
                InstanceState::Idle { .. } => self.queue.count_of(&instance.key) == 0,
                InstanceState::Ending => true,
                _ => false,
            })
        };
        let mut useless = self.slots.iter().filter(|(_, slot)| is_useless(slot)).map(|(id, _)| SlotId(*id));
        let Some(slot) = useless.find(|slot| !is_reserved(*slot) && is_quiet(*slot)) else { return };
        self.returning.insert(slot);
        self.drain(slot, actions);
    }

    fn drain(&mut self, slot: SlotId, actions: &mut Vec<Action>) {
        for (_, id) in self.idle_of(slot) {
            self.kill(id, actions);
        }
        self.return_if_empty(slot, actions);
    }

    /// Idle instances of a GPU that may end, oldest first. One that has not served yet serves first: else two functions that
    /// wait for the same GPU would end each other's instances for ever.
    fn idle_of(&self, slot: SlotId) -> Vec<(u64, InstanceId)> {
        let may_end = |instance: &Instance| instance.has_served || self.queue.count_of(&instance.key) == 0;
        let mut idle: Vec<(u64, InstanceId)> = self
            .slot_instances(slot)
            .filter(|(_, instance)| may_end(instance))
            .filter_map(|(id, instance)| match instance.state {
                InstanceState::Idle { since_ms } => Some((since_ms, id)),
                _ => None,
            })
            .collect();
        idle.sort_unstable();
        idle
    }

    /// A function has waited for long, because others are always sooner where it would fit: a GPU is cleared for it. What runs
    /// there goes on; what is idle there ends, and nothing new begins until the one that waits has its place.
    pub(super) fn reserve(&mut self, key: &FunctionKey, declared_mb: u32) {
        if self.reserved.is_some() || !self.returning.is_empty() || !self.asked.is_empty() {
            return;
        }
        let rules = self.rules();
        let found = self
            .slots
            .iter()
            .filter(|(_, slot)| !slot.is_down)
            .filter(|(_, slot)| slot.total_mb >= u64::from(declared_mb) || !rules.admits(slot, &key.tenant))
            .min_by_key(|(id, slot)| (!rules.admits(slot, &key.tenant), slot.used, **id));
        let Some((id, slot)) = found else { return };
        let (slot_id, is_own) = (SlotId(*id), rules.admits(slot, &key.tenant));
        if is_own {
            self.reserved = Some(Reserved { slot: slot_id, key: key.clone() });
        } else {
            self.returning.insert(slot_id);
        }
    }

    /// Goes on with clearing GPUs: before idle instances are given work.
    pub(super) fn clear_gpus(&mut self, actions: &mut Vec<Action>) {
        for slot in self.returning.clone() {
            self.drain(slot, actions);
        }
        let Some(Reserved { slot, key }) = self.reserved.clone() else { return };
        let declared_mb = self.functions.get(&key).and_then(|function| function.spec.gpu_mb);
        let is_wanted = self.queue.count_of(&key) > 0 && self.slots.contains_key(&slot.0);
        let Some(declared_mb) = declared_mb.filter(|_| is_wanted) else {
            self.reserved = None;
            return;
        };
        let idle = self.idle_of(slot);
        let all: Vec<InstanceId> = idle.iter().map(|(_, id)| *id).collect();
        // Not yet enough: what is idle ends all the same, or it would be given work again.
        for id in self.enough(slot, idle, declared_mb).unwrap_or(all) {
            self.kill(id, actions);
        }
    }

    pub(super) fn gpu_granted(
        &mut self,
        slot: SlotId,
        total_mb: u64,
        now_ms: u64,
        actions: &mut Vec<Action>,
    ) {
        let Some(asked) = self.asked.remove(&slot) else {
            return actions.push(Action::ReturnGpu { slot });
        };
        if total_mb < u64::from(asked.declared_mb) {
            actions.push(Action::ReturnGpu { slot });
            return self.refused(&asked, now_ms, actions);
        }
        if asked.is_spare {
            // It was asked for because others have been crowded for long enough.
            self.crowds.insert(slot, (Crowd::Idle, 0));
        }
        let tenant = asked.tenant;
        self.gpu_refusals = 0;
        let had = BTreeSet::new();
        let place =
            Slot { tenant, total_mb, used_mb: 0, used: 0, empty_since_ms: now_ms, had, is_down: false };
        self.slots.insert(slot.0, place);
    }

    pub(super) fn gpu_lost(&mut self, slot: SlotId, now_ms: u64, actions: &mut Vec<Action>) {
        self.returning.remove(&slot);
        let Some(place) = self.slots.remove(&slot.0) else {
            // The pool will not give one: an invocation that waits for it is told, and the next one asks again.
            if let Some(asked) = self.asked.remove(&slot) {
                self.refused(&asked, now_ms, actions);
            }
            return;
        };
        debug_assert!(place.used as usize >= self.slot_instances(slot).count());
        let there: Vec<InstanceId> = self.slot_instances(slot).map(|(id, _)| id).collect();
        for instance in there {
            if !self.rehome(instance, now_ms, actions) {
                self.given_up(instance, now_ms, actions);
            }
        }
    }

    fn refused(&mut self, asked: &Asked, now_ms: u64, actions: &mut Vec<Action>) {
        if asked.is_spare {
            self.spare_not_before_ms = now_ms + SPARE_AGAIN_AFTER_MS;
        } else {
            self.refuse_one(&asked.tenant, asked.declared_mb, now_ms, actions);
        }
    }

    /// Each refusal costs one invocation, and a pause that grows.
    fn refuse_one(&mut self, tenant: &str, declared_mb: u32, now_ms: u64, actions: &mut Vec<Action>) {
        self.gpu_refusals += 1;
        let pause_ms = self.settings.crash_delay_ms.saturating_mul(1 << (self.gpu_refusals - 1).min(20));
        self.gpus_not_before_ms = now_ms + pause_ms.min(self.settings.crash_delay_max_ms);
        let wants = self.queue.functions().into_iter().find(|key| {
            let spec = self.functions.get(key).map(|function| &function.spec);
            key.tenant == tenant && spec.is_some_and(|spec| spec.gpu_mb == Some(declared_mb))
        });
        let Some(key) = wants else { return };
        if let Some(id) = self.queue.pop_of(&key) {
            if let Some(invocation) = self.invocations.get_mut(&id) {
                invocation.stage = super::Stage::Running;
            }
            self.conclude(&id, Verdict::GpuLost, now_ms, actions);
        }
    }

    pub(super) fn leave_slot(&mut self, slot: SlotId, gpu_mb: u32, now_ms: u64, actions: &mut Vec<Action>) {
        if let Some(place) = self.slots.get_mut(&slot.0) {
            place.used = place.used.saturating_sub(1);
            place.used_mb = place.used_mb.saturating_sub(u64::from(gpu_mb));
            place.empty_since_ms = now_ms;
        }
        if self.returning.contains(&slot) {
            self.return_if_empty(slot, actions);
        }
    }

    fn return_if_empty(&mut self, slot: SlotId, actions: &mut Vec<Action>) {
        if self.slots.get(&slot.0).is_some_and(|place| place.used == 0) {
            self.slots.remove(&slot.0);
            self.returning.remove(&slot);
            actions.push(Action::ReturnGpu { slot });
        }
    }

    pub(super) fn return_empty_gpus(&mut self, now_ms: u64, actions: &mut Vec<Action>) {
        let keep_ms = self.settings.gpu_keep_ms;
        let is_over = |place: &Slot| place.used == 0 && place.empty_since_ms + keep_ms <= now_ms;
        let over: Vec<SlotId> =
            self.slots.iter().filter(|(_, place)| is_over(place)).map(|(id, _)| SlotId(*id)).collect();
        for slot in over {
            self.slots.remove(&slot.0);
            self.returning.remove(&slot);
            actions.push(Action::ReturnGpu { slot });
        }
    }
}
