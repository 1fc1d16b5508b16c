//! Carries out what the machine says. Nothing here waits: the desk's lock is held.

use super::{Desk, InstanceDesk, Reply, State, Work, verdicts};
use crate::runtime;
use crate::spawner::{Job, StartOrder};
use functions::{Action, Event, FunctionKey, InstanceId, SlotId};
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

impl Desk {
    pub(super) fn apply(self: &Arc<Self>, state: &mut State, event: Event) {
        let now_ms = self.now_ms();
        for action in state.machine.step(event, now_ms) {
            self.act(state, action);
        }
    }

    fn act(self: &Arc<Self>, state: &mut State, action: Action) {
        match action {
            Action::Start { instance, key, slot, .. } => self.start(state, instance, &key, slot),
            Action::Deliver { instance, id, deadline_ms } => deliver(state, instance, id, deadline_ms),
            Action::Kill { instance } => self.spawn(Job::Kill(instance)),
            Action::Finish { id, verdict, attempts } => {
                let Some(pending) = state.pending.remove(&id) else { return };
                state.pending_bytes = state.pending_bytes.saturating_sub(pending.payload.len());
                self.finish(state, &id, pending, verdict, attempts);
            }
            Action::Retried { id, attempts } => {
                if let Some(pending) = state.pending.get_mut(&id) {
                    (pending.answer, pending.ending) = (None, None);
                    if let Reply::Async(queued) = &mut pending.reply {
                        queued.attempts = attempts;
                        self.keeper.retried(queued);
                    }
                }
            }
            Action::Refuse { id, refusal } => {
                let Some(pending) = state.pending.remove(&id) else { return };
                state.pending_bytes = state.pending_bytes.saturating_sub(pending.payload.len());
                if let Reply::Sync(reply) = pending.reply {
                    let outlook = state.machine.outlook(&pending.key);
                    let _ = reply.send(Err(verdicts::refused(&pending.key, refusal, outlook)));
                }
            }
            Action::AskGpu { slot, tenant, declared_mb } => {
                if let (Some(gpus), Ok(folder)) = (self.gpus.get(), self.cache.gpu(slot, &tenant)) {
                    gpus.ask(slot, &tenant, declared_mb, folder);
                }
            }
            Action::ReturnGpu { slot } => {
                state.gpus.remove(&slot);
                if let Some(gpus) = self.gpus.get() {
                    gpus.give_back(slot);
                }
            }
        }
    }

    fn spawn(&self, job: Job) {
        if let Some(spawner) = self.spawner.get() {
            let _ = spawner.send(job);
        }
    }

    fn start(
        self: &Arc<Self>,
        state: &mut State,
        instance: InstanceId,
        key: &FunctionKey,
        slot: Option<SlotId>,
    ) {
        let Some(function) = state.functions.get(key).cloned() else { return };
        let (work, orders) = mpsc::unbounded_channel();
        let (api, stop) = watch::channel(false);
        let desk = InstanceDesk { key: key.clone(), work, running: None, init_error: None, _api: api };
        state.instances.insert(instance, desk);
        let gpu = slot.map(|slot| state.gpus.get(&slot).cloned().unwrap_or_default());
        let (this, spawner) = (self.clone(), self.spawner.get().cloned());
        // Outside of the lock: a listener is bound first, because the process is told its address.
        self.runtime.spawn(async move {
            match runtime::listen(&this, instance, &function, orders, stop).await {
                Ok(runtime_api) => {
                    let order = StartOrder { instance, function, runtime_api, gpu };
                    if let Some(spawner) = spawner {
                        let _ = spawner.send(Job::Start(Box::new(order)));
                    }
                }
                Err(error) => this.ended(instance, format!("its Runtime API cannot listen: {error}")),
            }
        });
    }
}

fn deliver(state: &mut State, instance: InstanceId, id: String, deadline_ms: u64) {
    let Some(payload) = state.pending.get(&id).map(|pending| pending.payload.clone()) else { return };
    if let Some(desk) = state.instances.get_mut(&instance) {
        desk.running = Some(id.clone());
        let _ = desk.work.send(Work { id, payload, deadline_ms });
    }
}
