//! Programs that go on at another GPU: because their own is lost, or because it is crowded and another one is idle.
//!
//! ```text
//!   Move: a place at the target is taken first, the one at the source is left when the program is there. Whatever fails, the
//!   instance has the place at which its program is.
//! ```

use super::{Action, GpuLoad, InstanceId, InstanceState, Link, Machine, SlotId, Verdict};
use crate::balance::{Crowd, Decision, Gpu, Policy, Runner, decide};

impl Machine {
    /// The GPU that an instance has its place on.
    pub fn slot_of(&self, instance: InstanceId) -> Option<SlotId> {
        self.instances.get(&instance)?.slot
    }

    /// How busy each GPU is.
    pub fn loads(&self) -> Vec<GpuLoad> {
        let load = |id: &u64| {
            let slot = SlotId(*id);
            GpuLoad { slot, instances: self.slots[id].used, running: self.running_at(slot) }
        };
        self.slots.keys().map(load).collect()
    }

    fn running_at(&self, slot: SlotId) -> u32 {
        let is_busy = |state: &InstanceState| matches!(state, InstanceState::Busy { .. });
        let running = self.slot_instances(slot).filter(|(_, instance)| is_busy(&instance.state)).count();
        let coming = self.instances.values().filter(|instance| instance.moving_to == Some(slot)).count();
        u32::try_from(running + coming).unwrap_or(u32::MAX)
    }

    pub(super) fn linked(&mut self, instance: InstanceId, link: Link) {
        if let Some(found) = self.instances.get_mut(&instance) {
            found.link = link;
        }
    }

    /// Sessions of a GPU are lost, and it is still held. Programs that can go on come back by themselves.
    pub(super) fn gpu_changed(
        &mut self,
        slot: SlotId,
        is_there: bool,
        now_ms: u64,
        actions: &mut Vec<Action>,
    ) {
        if let Some(place) = self.slots.get_mut(&slot.0) {
            place.is_down = !is_there;
        }
        let ends: Vec<InstanceId> = self
            .slot_instances(slot)
            .filter(|(_, instance)| !instance.survives || instance.link == Link::None)
            .map(|(id, _)| id)
            .collect();
        for instance in ends {
            self.given_up(instance, now_ms, actions);
        }
        // The next worker may be at another address.
        for instance in self.instances.values_mut().filter(|instance| instance.slot == Some(slot)) {
            instance.is_away = true;
        }
    }

    /// An instance without a place ends, and its invocation with it.
    pub(super) fn given_up(&mut self, id: InstanceId, now_ms: u64, actions: &mut Vec<Action>) {
        let running = match self.instances.get(&id).map(|instance| &instance.state) {
            Some(InstanceState::Busy { id: running, .. }) => Some(running.clone()),
            Some(_) => None,
            None => return,
        };
        self.kill(id, actions);
        if let Some(running) = running {
            self.conclude(&running, Verdict::GpuLost, now_ms, actions);
        }
    }

    /// Another GPU of the service takes the instance, if one has room. If none has, its own may still come back.
    pub(super) fn stranded(&mut self, id: InstanceId, now_ms: u64, actions: &mut Vec<Action>) {
        self.rehome(id, now_ms, actions);
    }

    /// Gives the instance a place on another GPU than its own. False: it cannot go on elsewhere, or there is no room.
    pub(super) fn rehome(&mut self, id: InstanceId, now_ms: u64, actions: &mut Vec<Action>) -> bool {
        let Some(instance) = self.instances.get(&id) else { return false };
        let can_go_on =
            instance.survives && instance.link != Link::None && instance.state != InstanceState::Ending;
        let (key, gpu_mb, from) = (instance.key.clone(), instance.gpu_mb, instance.slot);
        let coming = instance.moving_to.filter(|slot| self.slots.contains_key(&slot.0));
        // Its program may still come up at the target of its move, so no third place is given.
        let is_bound = instance.is_told_to_move && coming.is_none();
        if !can_go_on || is_bound {
            return false;
        }
        let to = match coming {
            Some(slot) => Some(slot),
            None => self.place_beside(from, &key, gpu_mb),
        };
        let Some(to) = to else { return false };
        if let Some(place) = self.slots.get_mut(&to.0).filter(|_| coming.is_none()) {
            place.used += 1;
            place.used_mb += u64::from(gpu_mb);
            place.had.insert(key);
        }
        if let Some(instance) = self.instances.get_mut(&id) {
            (instance.slot, instance.moving_to, instance.is_away) = (Some(to), None, true);
        }
        if let Some(from) = from {
            self.leave_slot(from, gpu_mb, now_ms, actions);
        }
        true
    }

    fn place_beside(
        &self,
        from: Option<SlotId>,
        key: &crate::record::FunctionKey,
        declared_mb: u32,
    ) -> Option<SlotId> {
        let is_open = |id: u64| from != Some(SlotId(id)) && self.is_open(SlotId(id));
        self.rules().choose(&self.slots, key, declared_mb, is_open).map(SlotId)
    }

    fn is_open(&self, slot: SlotId) -> bool {
        let is_reserved = self.reserved.as_ref().is_some_and(|reserved| reserved.slot == slot);
        let is_down = self.slots.get(&slot.0).is_none_or(|place| place.is_down);
        !is_reserved && !is_down && !self.returning.contains(&slot)
    }

    pub(super) fn moved(&mut self, id: InstanceId, now_ms: u64, actions: &mut Vec<Action>) {
        let Some(instance) = self.instances.get_mut(&id) else { return };
        instance.is_told_to_move = false;
        // Without one the source was lost meanwhile, and the target was its place already.
        let Some(to) = instance.moving_to.take() else { return };
        (instance.moved_ms, instance.is_away) = (Some(now_ms), true);
        let (from, gpu_mb) = (instance.slot.replace(to), instance.gpu_mb);
        if let Some(from) = from {
            self.leave_slot(from, gpu_mb, now_ms, actions);
        }
        if !self.slots.contains_key(&to.0) && !self.rehome(id, now_ms, actions) {
            self.given_up(id, now_ms, actions);
        }
    }

    pub(super) fn not_moved(&mut self, id: InstanceId, now_ms: u64, actions: &mut Vec<Action>) {
        let Some(instance) = self.instances.get_mut(&id) else { return };
        instance.is_told_to_move = false;
        let Some(to) = instance.moving_to.take() else { return };
        instance.moved_ms = Some(now_ms);
        let gpu_mb = instance.gpu_mb;
        self.leave_slot(to, gpu_mb, now_ms, actions);
    }

    /// Looks at all GPUs, and has one running instance move if that is due.
    pub(super) fn balance(&mut self, now_ms: u64, actions: &mut Vec<Action>) {
        let Some(after_ms) = self.settings.balance_after_ms else { return };
        self.watch_crowds(now_ms);
        // One at a time: the next decision sees what became of it.
        if self.instances.values().any(|instance| instance.is_told_to_move) {
            return;
        }
        let policy = Policy { after_ms, rest_ms: self.settings.balance_rest_ms, rules: self.rules() };
        let gpus: Vec<Gpu<'_>> = self
            .slots
            .iter()
            .map(|(id, slot)| {
                let id = SlotId(*id);
                let since_ms = self.crowds.get(&id).map_or(now_ms, |(_, since_ms)| *since_ms);
                Gpu { id, slot, running: self.running_at(id), since_ms, is_open: self.is_open(id) }
            })
            .collect();
        let runners = self.runners();
        #[cfg(test)]
        let runners = match self.mutated(crate::simulation::Mutation::MoveWithoutRoom) {
            true => runners.into_iter().map(|runner| Runner { gpu_mb: 0, ..runner }).collect(),
            false => runners,
        };
        match decide(&gpus, &runners, policy, now_ms) {
            Decision::Nothing => {}
            Decision::Move { instance, to } => self.move_there(instance, to, actions),
            Decision::Ask { tenant, declared_mb } => {
                let has_room = self.slots.len() + self.asked.len() < self.settings.gpus_max;
                let is_time = self.spare_not_before_ms.max(self.gpus_not_before_ms) <= now_ms;
                if has_room && is_time && self.asked.is_empty() {
                    self.ask_gpu(tenant, declared_mb, true, actions);
                }
            }
        }
    }

    fn move_there(&mut self, id: InstanceId, to: SlotId, actions: &mut Vec<Action>) {
        let Some(instance) = self.instances.get_mut(&id) else { return };
        (instance.moving_to, instance.is_told_to_move) = (Some(to), true);
        #[cfg(test)]
        let to_book =
            if self.mutation == Some(crate::simulation::Mutation::MoveUnbooked) { u64::MAX } else { to.0 };
        #[cfg(not(test))]
        let to_book = to.0;
        if let Some(place) = self.slots.get_mut(&to_book) {
            place.used += 1;
            place.used_mb += u64::from(instance.gpu_mb);
            place.had.insert(instance.key.clone());
        }
        actions.push(Action::Move { instance: id, to });
    }

    /// Running instances that can be moved.
    fn runners(&self) -> Vec<Runner<'_>> {
        let can_move = |instance: &super::Instance| {
            instance.survives
                && instance.link == Link::Protected
                && matches!(instance.state, InstanceState::Busy { .. })
        };
        self.instances
            .iter()
            .filter(|(_, instance)| can_move(instance))
            .filter_map(|(id, instance)| {
                Some(Runner {
                    id: *id,
                    at: instance.slot?,
                    tenant: &instance.key.tenant,
                    gpu_mb: instance.gpu_mb,
                    moved_ms: instance.moved_ms,
                })
            })
            .collect()
    }

    fn watch_crowds(&mut self, now_ms: u64) {
        let slots = &self.slots;
        self.crowds.retain(|slot, _| slots.contains_key(&slot.0));
        let seen: Vec<(SlotId, Crowd)> =
            self.slots.keys().map(|id| (SlotId(*id), Crowd::of(self.running_at(SlotId(*id))))).collect();
        for (slot, crowd) in seen {
            let known = self.crowds.entry(slot).or_insert((crowd, now_ms));
            if known.0 != crowd {
                *known = (crowd, now_ms);
            }
        }
    }
}

#[cfg(test)]
mod tests;
