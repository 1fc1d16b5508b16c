//! Carries out what the machine says. Nothing here waits: the desk's lock is held.

use super::{Desk, InstanceDesk, Moving, Reply, State, Work, verdicts};
use crate::gpus::{GpuPart, GpuWay, NoPart};
use crate::line::Line;
use crate::runtime;
use crate::spawner::{Job, StartOrder};
use functions::{Action, Event, Function, FunctionKey, InstanceId, SlotId};
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

/// By this the CUDA library knows how its program survives.
const SURVIVE_VARIABLE: &str = "DXPU_SURVIVE";

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
            Action::AskGpu { slot, tenant, declared_mb, is_spare } => {
                if let Some(gpus) = self.gpus.get() {
                    gpus.ask(slot, &tenant, declared_mb, is_spare);
                }
            }
            Action::Move { instance, to } => self.begin_move(state, instance, to),
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
            line: None,
            moving: None,
            pipes: None,
            _api: api,
        };
        state.instances.insert(instance, desk);
        let this = self.clone();
        // Outside of the lock: a listener is bound first, because the process is told its address.
        self.runtime.spawn(async move {
            let runtime_api = match runtime::listen(&this, instance, &function, orders, stop.clone()).await {
                Ok(runtime_api) => runtime_api,
                Err(error) => {
                    return this.ended(instance, format!("its Runtime API cannot listen: {error}"));
                }
            };
            let gpu = match slot {
                None => None,
                Some(slot) => match this.clone().open_gpu(instance, &function, slot, stop).await {
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
        stop: watch::Receiver<bool>,
    ) -> Result<Vec<(String, String)>, NoPart> {
        let tenant = function.key.tenant.clone();
        let declared_mb = function.configuration.gpu_mb().unwrap_or(0);
        let survive = self.survive_of(function);
        let survives = survive.is_on();
        let folder = self.cache.gpu(instance, &tenant)?;
        let socket = folder.join("line");
        let this = self.clone();
        let open = move || {
            let gpus = self.gpus.get().ok_or(NoPart::Ends)?;
            Ok(gpus.open(&GpuPart { slot, tenant, instance, declared_mb, folder, survives, number: 0 })?)
        };
        let way: Result<GpuWay, NoPart> =
            tokio::task::spawn_blocking(open).await.unwrap_or(Err(NoPart::Ends));
        let GpuWay { mut environment, spot, .. } = way?;
        environment.push((SURVIVE_VARIABLE.to_owned(), survive.to_string()));
        if survives {
            let line = Line::listen(&this, instance, &socket, stop).map_err(NoPart::Line)?;
            line.is_at(spot);
            environment.push((keeper::SOCKET_VARIABLE.to_owned(), socket.display().to_string()));
            if let Some(found) = locks::lock(&this.state).instances.get_mut(&instance) {
                found.line = Some(line);
            }
        }
        Ok(environment)
    }

    /// Has a running program go to another GPU. Finding a way takes a while, so that is done outside of the lock.
    fn begin_move(self: &Arc<Self>, state: &mut State, instance: InstanceId, to: SlotId) {
        let from = state.machine.slot_of(instance);
        let found = state.instances.get_mut(&instance);
        let line = found.as_ref().and_then(|found| found.line.clone());
        let (Some(from), Some(found), Some(line)) = (from, found, line) else {
            return self.apply(state, Event::NotMoved { instance });
        };
        found.moving = Some(Moving { from, to, spot: String::new() });
        self.lead(instance, to, line);
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
