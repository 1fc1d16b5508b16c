//! The life of instances.

use super::{Action, Instance, InstanceId, InstanceState, Link, Machine, Verdict};
use crate::record::FunctionKey;

/// The weight of the newest duration in the mean: one part of eight.
const MEAN_PARTS: u64 = 8;

fn mean(before_ms: u64, took_ms: u64) -> u64 {
    if before_ms == 0 { took_ms } else { (before_ms * (MEAN_PARTS - 1) + took_ms) / MEAN_PARTS }
}

impl Machine {
    pub(super) fn asked(&mut self, id: InstanceId, now_ms: u64, actions: &mut Vec<Action>) {
        let Some(instance) = self.instances.get_mut(&id) else { return };
        if instance.state == InstanceState::Ending {
            return;
        }
        // An instance that asks without having answered has thrown its invocation away.
        if let InstanceState::Busy { id: lost, .. } = &instance.state {
            let lost = lost.clone();
            instance.state = InstanceState::Idle { since_ms: now_ms };
            self.conclude(&lost, Verdict::Died, now_ms, actions);
        }
        let Some(instance) = self.instances.get_mut(&id) else { return };
        // Its next program would look for a GPU where it is not any more.
        let has_no_way = instance.is_away && instance.link == Link::None;
        let function = self.functions.get_mut(&instance.key);
        match function.filter(|function| function.spec.revision == instance.revision && !has_no_way) {
            Some(function) => {
                if let InstanceState::Starting { since_ms } = instance.state {
                    function.start_ms = mean(function.start_ms, now_ms.saturating_sub(since_ms));
                }
                (function.failures, function.not_before_ms) = (0, 0);
                function.idle.insert(id);
                instance.state = InstanceState::Idle { since_ms: now_ms };
            }
            None => self.kill(id, actions),
        }
    }

    pub(super) fn answered(
        &mut self,
        instance: InstanceId,
        id: &str,
        is_success: bool,
        now_ms: u64,
        actions: &mut Vec<Action>,
    ) {
        let Some(answering) = self.instances.get_mut(&instance) else { return };
        let InstanceState::Busy { id: running, since_ms, .. } = &answering.state else { return };
        if running != id {
            return;
        }
        let took_ms = now_ms.saturating_sub(*since_ms);
        if let Some(function) = self.functions.get_mut(&answering.key) {
            function.mean_ms = mean(function.mean_ms, took_ms);
        }
        answering.state = InstanceState::Between { since_ms: now_ms };
        // Errors of CUDA stay: an instance whose session or context is lost would fail for ever.
        if !is_success && answering.slot.is_some() {
            self.kill(instance, actions);
        }
        let verdict = if is_success { Verdict::Succeeded } else { Verdict::Failed };
        self.conclude(id, verdict, now_ms, actions);
    }

    pub(super) fn ended(&mut self, id: InstanceId, now_ms: u64, actions: &mut Vec<Action>) {
        let Some(instance) = self.instances.remove(&id) else { return };
        if let Some(function) = self.functions.get_mut(&instance.key) {
            function.idle.remove(&id);
        }
        for slot in instance.slot.into_iter().chain(instance.moving_to) {
            self.leave_slot(slot, instance.gpu_mb, now_ms, actions);
        }
        match instance.state {
            InstanceState::Busy { id: running, .. } => {
                self.conclude(&running, Verdict::Died, now_ms, actions)
            }
            InstanceState::Starting { .. } => {
                self.failed_to_start(&instance.key, instance.revision, now_ms, actions)
            }
            InstanceState::Between { .. } | InstanceState::Idle { .. } | InstanceState::Ending => {}
        }
    }

    /// Contains a crash loop: each failure costs one invocation, and a pause that grows.
    fn failed_to_start(&mut self, key: &FunctionKey, revision: u64, now_ms: u64, actions: &mut Vec<Action>) {
        let settings = &self.settings;
        let Some(function) = self.functions.get_mut(key) else { return };
        if function.spec.revision != revision {
            return;
        }
        function.failures += 1;
        let delay = settings.crash_delay_ms.saturating_mul(1 << (function.failures - 1).min(20));
        function.not_before_ms = now_ms + delay.min(settings.crash_delay_max_ms);
        if let Some(id) = self.queue.pop_of(key) {
            if let Some(invocation) = self.invocations.get_mut(&id) {
                invocation.stage = super::Stage::Running;
            }
            self.conclude(&id, Verdict::NotStarted, now_ms, actions);
        }
    }

    pub(super) fn kill(&mut self, id: InstanceId, actions: &mut Vec<Action>) {
        let Some(instance) = self.instances.get_mut(&id) else { return };
        if instance.state == InstanceState::Ending {
            return;
        }
        instance.state = InstanceState::Ending;
        if let Some(function) = self.functions.get_mut(&instance.key) {
            function.idle.remove(&id);
        }
        actions.push(Action::Kill { instance: id });
    }

    pub(super) fn kill_where(&mut self, actions: &mut Vec<Action>, wanted: impl Fn(&Instance) -> bool) {
        let found: Vec<InstanceId> =
            self.instances.iter().filter(|(_, instance)| wanted(instance)).map(|(id, _)| *id).collect();
        for id in found {
            self.kill(id, actions);
        }
    }

    /// What time ends: invocations, instances that never came up or stay idle, pauses.
    pub(super) fn tick(&mut self, now_ms: u64, actions: &mut Vec<Action>) {
        self.revive(now_ms);
        let (warm_ms, start_ms) = (self.settings.keep_warm_ms, self.settings.start_timeout_ms);
        let mut late = Vec::new();
        let mut stuck = Vec::new();
        for (id, instance) in &self.instances {
            match &instance.state {
                InstanceState::Busy { id: running, deadline_ms, since_ms } if *deadline_ms <= now_ms => {
                    late.push((*id, running.clone(), deadline_ms - since_ms));
                }
                InstanceState::Starting { since_ms } if since_ms + start_ms <= now_ms => stuck.push(*id),
                _ => {}
            }
        }
        for (instance, id, limit_ms) in late {
            self.kill(instance, actions);
            self.conclude(&id, Verdict::TimedOut { limit_ms }, now_ms, actions);
        }
        for id in stuck {
            if let Some(key) = self.instances.get(&id).map(|instance| instance.key.clone()) {
                let revision = self.instances[&id].revision;
                self.kill(id, actions);
                self.failed_to_start(&key, revision, now_ms, actions);
            }
        }
        self.kill_where(actions, |instance| {
            matches!(instance.state, InstanceState::Idle { since_ms } if since_ms + warm_ms <= now_ms)
                || matches!(instance.state, InstanceState::Between { since_ms } if since_ms + start_ms <= now_ms)
        });
        self.return_empty_gpus(now_ms, actions);
        self.balance(now_ms, actions);
    }
}
