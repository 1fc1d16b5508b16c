//! Carries out what the machine says. Nothing here waits: the desk's lock is held.

use super::{Desk, InstanceDesk, Reply, State, Work, verdicts};
use crate::gpus::{GpuPart, NoPart};
use crate::runtime;
use crate::spawner::{Job, StartOrder};
use functions::{Action, Event, Function, FunctionKey, InstanceId, SlotId};
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
            Action::Kill { instance } => {
                if let Some(killed) = state.instances.get_mut(&instance) {
                    killed.is_killed = true;
                }
                self.spawn(Job::Kill(instance));
            }
            Action::Finish { id, verdict, attempts } => {
                let Some(pending) = state.pending.remove(&id) else { return };
                state.pending_bytes = state.pending_bytes.saturating_sub(pending.payload.len());
                if let Some(next) = self.finish(state, &id, pending, verdict, attempts) {
                    self.take_async(state, next);
                }
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
                    let outlook = state.machine.outlook(&pending.key, self.now_ms());
                    let _ = reply.send(Err(verdicts::refused(&pending.key, refusal, outlook)));
                }
            }
            Action::AskGpu { slot, tenant, declared_mb } => {
                if let Some(gpus) = self.gpus.get() {
                    gpus.ask(slot, &tenant, declared_mb);
                }
            }
            Action::ReturnGpu { slot } => {
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
        let desk = InstanceDesk {
            key: key.clone(),
            work,
            running: None,
            is_killed: false,
            init_error: None,
            pipes: None,
            _api: api,
        };
        state.instances.insert(instance, desk);
        let this = self.clone();
        // Outside of the lock: a listener is bound first, because the process is told its address.
        self.runtime.spawn(async move {
            let runtime_api = match runtime::listen(&this, instance, &function, orders, stop).await {
                Ok(runtime_api) => runtime_api,
                Err(error) => {
                    return this.ended(instance, format!("its Runtime API cannot listen: {error}"));
                }
            };
            let gpu = match slot {
                None => None,
                Some(slot) => match this.clone().open_gpu(instance, &function, slot).await {
                    Ok(environment) => Some(environment),
                    Err(error) => return this.ended(instance, error.to_string()),
                },
            };
            this.launch(StartOrder { instance, function, runtime_api, gpu });
        });
    }

    /// A part of a GPU for one instance. The pool may take its time.
    async fn open_gpu(
        self: Arc<Self>,
        instance: InstanceId,
        function: &Function,
        slot: SlotId,
    ) -> Result<Vec<(String, String)>, NoPart> {
        let tenant = function.key.tenant.clone();
        let declared_mb = function.configuration.gpu_mb().unwrap_or(0);
        let open = move || {
            let folder = self.cache.gpu(instance, &tenant)?;
            let gpus = self.gpus.get().ok_or(NoPart::Ends)?;
            Ok(gpus.open(&GpuPart { slot, tenant, instance, declared_mb, folder })?)
        };
        tokio::task::spawn_blocking(open).await.unwrap_or(Err(NoPart::Ends))
    }

    /// Has a process started, unless the instance was killed meanwhile: under the lock, so that an order to kill comes after
    /// this one or is seen here.
    fn launch(self: &Arc<Self>, order: StartOrder) {
        let instance = order.instance;
        {
            let state = locks::lock(&self.state);
            if state.instances.get(&instance).is_some_and(|instance| !instance.is_killed) {
                return self.spawn(Job::Start(Box::new(order)));
            }
        }
        self.cache.forget_instance(instance);
        self.ended(instance, "it was to end before it was started".to_owned());
    }
}

fn deliver(state: &mut State, instance: InstanceId, id: String, deadline_ms: u64) {
    let Some(payload) = state.pending.get(&id).map(|pending| pending.payload.clone()) else { return };
    if let Some(desk) = state.instances.get_mut(&instance) {
        desk.running = Some(id.clone());
        let _ = desk.work.send(Work { id, payload, deadline_ms });
    }
}
