//! From acceptance to the report.

use super::{Action, FunctionState, InstanceState, Invocation, Kind, Machine, Refusal, Spec, Stage, Verdict};
use crate::record::FunctionKey;
use std::collections::BTreeSet;

impl Machine {
    pub(super) fn deployed(&mut self, key: FunctionKey, spec: Spec, actions: &mut Vec<Action>) {
        let revision = spec.revision;
        match self.functions.get_mut(&key) {
            Some(function) => {
                if function.spec.revision != revision {
                    (function.failures, function.not_before_ms) = (0, 0);
                }
                function.spec = spec;
            }
            None => {
                let idle = BTreeSet::new();
                let function =
                    FunctionState { spec, failures: 0, not_before_ms: 0, mean_ms: 0, start_ms: 0, idle };
                self.functions.insert(key.clone(), function);
            }
        }
        // Those that are busy end when they ask for their next invocation.
        let is_old = |state: &InstanceState| !matches!(state, InstanceState::Busy { .. });
        self.kill_where(actions, |instance| {
            instance.key == key && instance.revision != revision && is_old(&instance.state)
        });
    }

    pub(super) fn removed(&mut self, key: &FunctionKey, actions: &mut Vec<Action>) {
        let of_it: Vec<String> = self
            .invocations
            .iter()
            .filter(|(_, invocation)| invocation.key == *key)
            .map(|(id, _)| id.clone())
            .collect();
        for id in of_it {
            self.finish(&id, Verdict::FunctionGone, actions);
        }
        self.kill_where(actions, |instance| instance.key == *key);
        self.functions.remove(key);
    }

    pub(super) fn invoked(
        &mut self,
        id: String,
        key: FunctionKey,
        kind: Kind,
        now_ms: u64,
        actions: &mut Vec<Action>,
    ) {
        if self.invocations.contains_key(&id) {
            // A stored invocation that is told twice is one invocation.
            if kind == Kind::Sync {
                actions.push(Action::Refuse { id, refusal: Refusal::Known });
            }
            return;
        }
        if kind == Kind::Sync
            && let Some(refusal) = self.refusal(&key)
        {
            actions.push(Action::Refuse { id, refusal });
            return;
        }
        let invocation = Invocation { key: key.clone(), kind, stage: Stage::Queued, queued_ms: now_ms };
        self.invocations.insert(id.clone(), invocation);
        let Some(function) = self.functions.get(&key) else {
            return self.finish(&id, Verdict::FunctionGone, actions);
        };
        match kind {
            // It failed before the service was last started: it waits as if it had failed now.
            Kind::Async { attempts: attempts @ 1.., .. } => {
                self.delay(&id, now_ms + retry_delay(self.settings.retry_delay_ms, attempts));
            }
            Kind::Async { accepted_ms, .. }
                if now_ms.saturating_sub(accepted_ms) > function.spec.age_max_ms =>
            {
                self.finish(&id, Verdict::Expired, actions);
            }
            Kind::Async { .. } | Kind::Sync => self.queue.push(&key, id),
        }
    }

    fn refusal(&self, key: &FunctionKey) -> Option<Refusal> {
        let Some(function) = self.functions.get(key) else { return Some(Refusal::NoFunction) };
        if let Some(limit) = function.spec.concurrency {
            let running = self
                .instances
                .values()
                .filter(|instance| {
                    instance.key == *key && matches!(instance.state, InstanceState::Busy { .. })
                })
                .count();
            if running + self.queue.count_of(key) >= limit as usize {
                return Some(Refusal::Concurrency { limit });
            }
        }
        let limit = self.settings.tenant_queue_max;
        (self.queue.count_of_tenant(&key.tenant) >= limit).then_some(Refusal::QueueFull { limit })
    }

    pub(super) fn abandoned(&mut self, id: &str) {
        let Some(invocation) = self.invocations.get(id) else { return };
        // One that runs goes on: its side effects have begun.
        if invocation.kind == Kind::Sync && invocation.stage == Stage::Queued {
            let key = invocation.key.clone();
            self.queue.remove(&key, id);
            self.invocations.remove(id);
        }
    }

    /// An invocation ended so. An asynchronous one may be tried again.
    pub(super) fn conclude(&mut self, id: &str, verdict: Verdict, now_ms: u64, actions: &mut Vec<Action>) {
        let Some(invocation) = self.invocations.get_mut(id) else { return };
        let Kind::Async { attempts, accepted_ms } = &mut invocation.kind else {
            return self.finish(id, verdict, actions);
        };
        let (attempts, accepted_ms) = (attempts, *accepted_ms);
        // That the GPU was lost is not the function's doing: it is no attempt.
        if verdict != Verdict::GpuLost {
            *attempts = attempts.saturating_add(1);
        }
        let tried = *attempts;
        let spec = self.functions.get(&invocation.key).map(|function| &function.spec);
        let may_again = spec.is_some_and(|spec| {
            tried <= spec.retries && now_ms.saturating_sub(accepted_ms) <= spec.age_max_ms
        });
        #[cfg(test)]
        if self.mutated(crate::simulation::Mutation::LoseRetries)
            && may_again
            && verdict != Verdict::Succeeded
        {
            self.invocations.remove(id);
            return;
        }
        if verdict == Verdict::Succeeded || !may_again {
            return self.finish(id, verdict, actions);
        }
        actions.push(Action::Retried { id: id.to_owned(), attempts: tried });
        self.delay(id, now_ms + retry_delay(self.settings.retry_delay_ms, tried));
    }

    fn delay(&mut self, id: &str, until_ms: u64) {
        if let Some(invocation) = self.invocations.get_mut(id) {
            invocation.stage = Stage::Delayed { until_ms };
            self.delayed.insert((until_ms, id.to_owned()));
        }
    }

    /// Puts those back into the queue whose time has come.
    pub(super) fn revive(&mut self, now_ms: u64) {
        while let Some((until_ms, id)) = self.delayed.first().cloned() {
            if until_ms > now_ms {
                return;
            }
            self.delayed.remove(&(until_ms, id.clone()));
            if let Some(invocation) = self.invocations.get_mut(&id) {
                (invocation.stage, invocation.queued_ms) = (Stage::Queued, now_ms);
                self.queue.push(&invocation.key.clone(), id);
            }
        }
    }

    /// The end of an invocation, said once: after this it is not known any more.
    pub(super) fn finish(&mut self, id: &str, verdict: Verdict, actions: &mut Vec<Action>) {
        #[cfg(test)]
        if self.mutated(crate::simulation::Mutation::FinishTwice) && self.invocations.contains_key(id) {
            actions.push(Action::Finish { id: id.to_owned(), verdict, attempts: 1 });
        }
        let Some(invocation) = self.invocations.remove(id) else { return };
        match invocation.stage {
            Stage::Queued => {
                self.queue.remove(&invocation.key, id);
            }
            Stage::Delayed { until_ms } => {
                self.delayed.remove(&(until_ms, id.to_owned()));
            }
            Stage::Running => {}
        }
        let attempts = match invocation.kind {
            Kind::Sync => 1,
            Kind::Async { attempts, .. } => attempts,
        };
        actions.push(Action::Finish { id: id.to_owned(), verdict, attempts });
    }
}

fn retry_delay(first_ms: u64, attempts: u8) -> u64 {
    first_ms.saturating_mul(1 << attempts.saturating_sub(1).min(16))
}
