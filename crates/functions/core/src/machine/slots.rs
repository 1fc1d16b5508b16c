//! GPUs that the service holds, asks for and gives back.

use super::{Action, InstanceId, InstanceState, Machine, SlotId, Verdict};
use crate::places::{self, Slot};

impl Machine {
    /// A place on a GPU for one more instance. If there is none, the pool is asked.
    pub(super) fn take_slot(
        &mut self,
        tenant: &str,
        declared_mb: u32,
        actions: &mut Vec<Action>,
    ) -> Option<SlotId> {
        let chosen = places::choose(&self.slots, tenant, declared_mb, self.settings.fit).map(SlotId);
        if let Some(slot) = chosen.filter(|slot| !self.returning.contains(slot)) {
            self.slots.get_mut(&slot.0)?.used += 1;
            return Some(slot);
        }
        // One question at a time: when it is answered, the next is asked.
        let wanted = (tenant.to_owned(), declared_mb);
        if self.asked.values().any(|asked| *asked == wanted) {
            return None;
        }
        if self.slots.len() + self.asked.len() < self.settings.gpus_max {
            self.next_slot += 1;
            let slot = SlotId(self.next_slot);
            self.asked.insert(slot, wanted);
            actions.push(Action::AskGpu { slot, tenant: tenant.to_owned(), declared_mb });
        } else if self.returning.is_empty() {
            self.free_a_gpu(actions);
        }
        None
    }

    /// Ends the idle instances of the GPU that none works on, so that it can go to another tenant or size.
    fn free_a_gpu(&mut self, actions: &mut Vec<Action>) {
        let is_quiet = |slot: SlotId| {
            self.slot_instances(slot).all(|(_, instance)| match instance.state {
                InstanceState::Idle { .. } => self.queue.count_of(&instance.key) == 0,
                InstanceState::Ending => true,
                _ => false,
            })
        };
        let Some(slot) = self.slots.keys().map(|id| SlotId(*id)).find(|slot| is_quiet(*slot)) else { return };
        self.returning.insert(slot);
        let there: Vec<InstanceId> = self.slot_instances(slot).map(|(id, _)| id).collect();
        for id in there {
            self.kill(id, actions);
        }
        self.return_if_empty(slot, actions);
    }

    pub(super) fn gpu_granted(
        &mut self,
        slot: SlotId,
        total_mb: u64,
        now_ms: u64,
        actions: &mut Vec<Action>,
    ) {
        let Some((tenant, declared_mb)) = self.asked.remove(&slot) else {
            return actions.push(Action::ReturnGpu { slot });
        };
        let room = places::room(total_mb, declared_mb, self.settings.sharing);
        if room == 0 {
            return actions.push(Action::ReturnGpu { slot });
        }
        let place = Slot { tenant, declared_mb, room, used: 0, empty_since_ms: now_ms };
        self.slots.insert(slot.0, place);
    }

    pub(super) fn gpu_lost(&mut self, slot: SlotId, now_ms: u64, actions: &mut Vec<Action>) {
        self.returning.remove(&slot);
        let Some(place) = self.slots.remove(&slot.0) else {
            // The pool will not give one: an invocation that waits for it is told, and the next one asks again.
            if let Some((tenant, declared_mb)) = self.asked.remove(&slot) {
                self.refuse_one(&tenant, declared_mb, now_ms, actions);
            }
            return;
        };
        debug_assert!(place.used as usize >= self.slot_instances(slot).count());
        let there: Vec<(InstanceId, Option<String>)> = self
            .slot_instances(slot)
            .map(|(id, instance)| match &instance.state {
                InstanceState::Busy { id: running, .. } => (id, Some(running.clone())),
                _ => (id, None),
            })
            .collect();
        for (instance, running) in there {
            self.kill(instance, actions);
            if let Some(id) = running {
                self.conclude(&id, Verdict::GpuLost, now_ms, actions);
            }
        }
    }

    fn refuse_one(&mut self, tenant: &str, declared_mb: u32, now_ms: u64, actions: &mut Vec<Action>) {
        let wants = self.queue.functions().into_iter().find(|key| {
            let spec = self.functions.get(key).map(|function| &function.spec);
            key.tenant == tenant && spec.is_some_and(|spec| spec.gpu_mb == Some(declared_mb))
        });
        let Some(key) = wants else { return };
        if let Some(function) = self.functions.get_mut(&key) {
            function.not_before_ms = now_ms + self.settings.crash_delay_ms;
        }
        if let Some(id) = self.queue.pop_of(&key) {
            if let Some(invocation) = self.invocations.get_mut(&id) {
                invocation.stage = super::Stage::Running;
            }
            self.conclude(&id, Verdict::GpuLost, now_ms, actions);
        }
    }

    pub(super) fn leave_slot(&mut self, slot: SlotId, now_ms: u64, actions: &mut Vec<Action>) {
        if let Some(place) = self.slots.get_mut(&slot.0) {
            place.used = place.used.saturating_sub(1);
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
