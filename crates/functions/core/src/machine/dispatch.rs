//! Who gets an instance, and who a new one.

use super::{Action, Instance, InstanceId, InstanceState, Kind, Link, Machine, SlotId, Stage, Verdict};
use crate::record::FunctionKey;

impl Machine {
    /// Gives idle instances to those that wait, and starts instances for the others.
    pub(super) fn dispatch(&mut self, now_ms: u64, actions: &mut Vec<Action>) {
        self.clear_gpus(actions);
        loop {
            let functions = &self.functions;
            let next =
                self.queue.pop(|key| functions.get(key).is_some_and(|function| !function.idle.is_empty()));
            let Some((key, id)) = next else { break };
            if self.is_too_old(&id, now_ms) {
                if let Some(invocation) = self.invocations.get_mut(&id) {
                    invocation.stage = Stage::Running;
                }
                self.finish(&id, Verdict::Expired, actions);
                continue;
            }
            self.deliver(&key, id, now_ms, actions);
        }
        for key in self.queue.functions() {
            let waiting = self.queue.count_of(&key);
            let mut starting = self.starting(&key);
            while starting < waiting && self.start(&key, now_ms, actions) {
                starting += 1;
            }
        }
    }

    fn is_too_old(&self, id: &str, now_ms: u64) -> bool {
        let Some(invocation) = self.invocations.get(id) else { return false };
        let Kind::Async { accepted_ms, .. } = invocation.kind else { return false };
        let age_max_ms = self.functions.get(&invocation.key).map(|function| function.spec.age_max_ms);
        age_max_ms.is_some_and(|most| now_ms.saturating_sub(accepted_ms) > most)
    }

    fn deliver(&mut self, key: &FunctionKey, id: String, now_ms: u64, actions: &mut Vec<Action>) {
        let Some(function) = self.functions.get_mut(key) else { return };
        // The one that was idle last: the others cool down and end.
        let Some(instance) = function.idle.pop_last() else { return };
        let deadline_ms = now_ms + function.spec.timeout_ms;
        if let Some(invocation) = self.invocations.get_mut(&id) {
            invocation.stage = Stage::Running;
        }
        if let Some(chosen) = self.instances.get_mut(&instance) {
            chosen.has_served = true;
            chosen.state = InstanceState::Busy { id: id.clone(), since_ms: now_ms, deadline_ms };
        }
        actions.push(Action::Deliver { instance, id, deadline_ms });
    }

    fn starting(&self, key: &FunctionKey) -> usize {
        let is_starting = |instance: &Instance| {
            matches!(instance.state, InstanceState::Starting { .. } | InstanceState::Between { .. })
                && instance.key == *key
        };
        self.instances.values().filter(|instance| is_starting(instance)).count()
    }

    /// Starts one more instance, if everything allows it.
    fn start(&mut self, key: &FunctionKey, now_ms: u64, actions: &mut Vec<Action>) -> bool {
        let Some(function) = self.functions.get(key) else { return false };
        let spec = function.spec.clone();
        let alive = |instance: &&Instance| instance.state != InstanceState::Ending;
        let of_function =
            self.instances.values().filter(alive).filter(|instance| instance.key == *key).count();
        let is_active = |instance: &&Instance| {
            instance.key.tenant == key.tenant
                && !matches!(instance.state, InstanceState::Idle { .. } | InstanceState::Ending)
        };
        let of_tenant = self.instances.values().filter(is_active).count();
        #[cfg(test)]
        let of_function = if self.mutated(crate::simulation::Mutation::Overbook) { 0 } else { of_function };
        let is_held = function.not_before_ms > now_ms
            || spec.concurrency.is_some_and(|limit| of_function >= limit as usize)
            || of_tenant >= self.settings.tenant_instances_max;
        if is_held || !self.make_room(key, spec.memory_mb, actions) {
            return false;
        }
        let slot = match spec.gpu_mb {
            None => None,
            Some(declared_mb) => {
                let Some(slot) = self.take_slot(key, declared_mb, now_ms, actions) else {
                    // One that has an instance is served, if slowly.
                    if of_function == 0 && self.has_waited_long(key, now_ms) {
                        self.reserve(key, declared_mb);
                    }
                    return false;
                };
                Some(slot)
            }
        };
        self.next_instance += 1;
        let id = InstanceId(self.next_instance);
        let instance = Instance {
            key: key.clone(),
            revision: spec.revision,
            memory_mb: spec.memory_mb,
            gpu_mb: spec.gpu_mb.unwrap_or(0),
            slot,
            survives: spec.survives,
            link: Link::None,
            moving_to: None,
            is_told_to_move: false,
            is_away: false,
            moved_ms: None,
            has_served: false,
            state: InstanceState::Starting { since_ms: now_ms },
        };
        self.instances.insert(id, instance);
        actions.push(Action::Start { instance: id, key: key.clone(), revision: spec.revision, slot });
        true
    }

    /// Whether the oldest of a function has waited so long that it is not overtaken any more.
    fn has_waited_long(&self, key: &FunctionKey, now_ms: u64) -> bool {
        let oldest = self.queue.oldest_of(key).and_then(|id| self.invocations.get(id));
        oldest.is_some_and(|oldest| oldest.queued_ms + self.settings.overtake_ms <= now_ms)
    }

    /// Whether another instance fits into this machine. If not, the instance that has been idle for longest ends, unless its
    /// own function has waiting invocations.
    fn make_room(&mut self, key: &FunctionKey, memory_mb: u32, actions: &mut Vec<Action>) -> bool {
        let used_mb: u64 = self.instances.values().map(|instance| u64::from(instance.memory_mb)).sum();
        let fits = self.instances.len() < self.settings.instances_max
            && used_mb + u64::from(memory_mb) <= self.settings.memory_max_mb;
        if fits {
            return true;
        }
        // One at a time: what ends already makes room soon.
        if self.instances.values().any(|instance| instance.state == InstanceState::Ending) {
            return false;
        }
        let oldest = self
            .instances
            .iter()
            .filter(|(_, instance)| instance.key != *key && self.queue.count_of(&instance.key) == 0)
            .filter_map(|(id, instance)| match instance.state {
                InstanceState::Idle { since_ms } => Some((since_ms, *id)),
                _ => None,
            })
            .min();
        if let Some((_, id)) = oldest {
            self.kill(id, actions);
        }
        false
    }

    pub(super) fn slot_instances(&self, slot: SlotId) -> impl Iterator<Item = (InstanceId, &Instance)> {
        let of_it = move |(_, instance): &(&InstanceId, &Instance)| instance.slot == Some(slot);
        self.instances.iter().filter(of_it).map(|(id, instance)| (*id, instance))
    }
}
