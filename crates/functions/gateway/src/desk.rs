//! The state of the service behind one lock: the machine, what invocations carry, what waits for answers.

mod actions;
mod destinations;
mod lasting;
mod verdicts;

use crate::answer::Problem;
use crate::cache::Cache;
use crate::clock::Clock;
use crate::gpus::{GpuNews, Gpus};
use crate::keeper::Keeper;
use crate::keys::Keys;
use crate::line::Line;
use crate::logs::Logs;
use crate::metrics::Counts;
use crate::pipes::Pipes;
use crate::spawner::Job;
use functions::{
    Event, Function, FunctionKey, GpuLoad, InstanceId, Kind, Machine, Outlook, Queued, RetryRules, SlotId,
    Spec, Survive, Whereabouts,
};
use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, OnceLock};
use tokio::sync::{mpsc, oneshot, watch};

/// What an instance is given.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub(crate) id: String,
    pub(crate) payload: Arc<Vec<u8>>,
    pub(crate) deadline_ms: u64,
}

/// How a synchronous invocation ended.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) body: Vec<u8>,
    pub(crate) is_error: bool,
}

/// Accepted invocations that wait or run; more are refused.
const PENDING_MAX: usize = 100_000;
/// Their payloads together.
const PENDING_BYTES_MAX: usize = 1 << 30;

struct Pending {
    key: FunctionKey,
    payload: Arc<Vec<u8>>,
    reply: Reply,
    /// What the instance answered.
    answer: Option<Vec<u8>>,
    /// How its instance ended.
    ending: Option<String>,
}

enum Reply {
    Sync(oneshot::Sender<Result<Answer, Problem>>),
    Async(Queued),
}

/// A move under way.
struct Moving {
    from: SlotId,
    to: SlotId,
    /// The GPU that the program was told to go to; empty until a way was found.
    spot: String,
}

struct InstanceDesk {
    key: FunctionKey,
    work: mpsc::UnboundedSender<Work>,
    running: Option<String>,
    /// It is to end; its process may not be there yet.
    is_killed: bool,
    /// What it said about its failed start.
    init_error: Option<Vec<u8>>,
    /// The line to its CUDA library, if its program survives.
    line: Option<Arc<Line>>,
    /// It was told to move and has not answered.
    moving: Option<Moving>,
    /// Where it prints to; none before its process is there.
    pipes: Option<Arc<Pipes>>,
    /// Ends its Runtime API when this is dropped.
    _api: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    machine: Machine,
    functions: BTreeMap<FunctionKey, Function>,
    pending: HashMap<String, Pending>,
    pending_bytes: usize,
    instances: HashMap<InstanceId, InstanceDesk>,
    gpu_refusal: String,
    /// What the last instance of a function that failed to start said.
    init_errors: HashMap<FunctionKey, Vec<u8>>,
}

/// The desk.
pub(crate) struct Desk {
    state: Mutex<State>,
    pub(crate) keeper: Keeper,
    pub(crate) keys: Keys,
    pub(crate) logs: Logs,
    pub(crate) cache: Cache,
    pub(crate) users: Arc<crate::users::Users>,
    pub(crate) region: String,
    clock: Clock,
    pub(crate) spawner: OnceLock<Sender<Job>>,
    pub(crate) gpus: OnceLock<Arc<dyn Gpus>>,
    pub(crate) counts: Counts,
    /// For functions that do not say how they survive.
    survive: Survive,
    pub(crate) runtime: tokio::runtime::Handle,
}

/// What a desk is made of.
pub(crate) struct Parts {
    pub(crate) machine: functions::Settings,
    pub(crate) keeper: Keeper,
    pub(crate) cache: Cache,
    pub(crate) users: Arc<crate::users::Users>,
    pub(crate) region: String,
    pub(crate) survive: Survive,
    pub(crate) runtime: tokio::runtime::Handle,
}

impl Desk {
    pub(crate) fn new(parts: Parts) -> Arc<Self> {
        let state = State { machine: Machine::new(parts.machine), ..State::default() };
        Arc::new(Self {
            state: Mutex::new(state),
            keeper: parts.keeper,
            keys: Keys::default(),
            logs: Logs::default(),
            cache: parts.cache,
            users: parts.users,
            region: parts.region,
            clock: Clock::start(),
            spawner: OnceLock::new(),
            gpus: OnceLock::new(),
            counts: Counts::default(),
            survive: parts.survive,
            runtime: parts.runtime,
        })
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    pub(crate) fn function(&self, key: &FunctionKey) -> Option<Function> {
        locks::lock(&self.state).functions.get(key).cloned()
    }

    pub(crate) fn functions_of(&self, tenant: &str) -> Vec<Function> {
        let state = locks::lock(&self.state);
        state.functions.values().filter(|function| function.key.tenant == tenant).cloned().collect()
    }

    /// Starting, idle and busy instances, how many wait, and what the next one can expect.
    pub(crate) fn standing(&self, key: &FunctionKey) -> ((usize, usize, usize), usize, Outlook) {
        let state = locks::lock(&self.state);
        (
            state.machine.instances_of(key),
            state.machine.waiting_of(key),
            state.machine.outlook(key, self.now_ms()),
        )
    }

    /// Where an invocation of a tenant is, and of which function; none if it is over or another's.
    pub(crate) fn whereabouts(&self, tenant: &str, id: &str) -> Option<(FunctionKey, Whereabouts)> {
        let state = locks::lock(&self.state);
        let key = state.pending.get(id).map(|pending| pending.key.clone())?;
        let found = state.machine.whereabouts(id, self.now_ms())?;
        (key.tenant == tenant).then_some((key, found))
    }

    pub(crate) fn deploy(self: &Arc<Self>, function: Function) {
        let mut state = locks::lock(&self.state);
        let (key, spec) = (function.key.clone(), self.spec_of(&function));
        state.init_errors.remove(&key);
        state.functions.insert(key.clone(), function);
        self.apply(&mut state, Event::Deployed { key, spec });
    }

    pub(crate) fn remove(self: &Arc<Self>, key: &FunctionKey) {
        let mut state = locks::lock(&self.state);
        state.functions.remove(key);
        self.apply(&mut state, Event::Removed { key: key.clone() });
        self.logs.forget(key);
    }

    /// Whether any function of the tenant has this code.
    pub(crate) fn is_code_used(&self, tenant: &str, code: &str) -> bool {
        let state = locks::lock(&self.state);
        state.functions.values().any(|function| function.key.tenant == tenant && function.code == code)
    }

    /// Invokes and returns where the answer comes.
    pub(crate) fn invoke_sync(
        self: &Arc<Self>,
        id: &str,
        key: &FunctionKey,
        payload: Vec<u8>,
    ) -> oneshot::Receiver<Result<Answer, Problem>> {
        let (reply, answer) = oneshot::channel();
        let mut state = locks::lock(&self.state);
        if let Err(problem) = has_room(&state) {
            let _ = reply.send(Err(problem));
            return answer;
        }
        self.add(&mut state, id, key, payload, Reply::Sync(reply));
        self.apply(&mut state, Event::Invoked { id: id.to_owned(), key: key.clone(), kind: Kind::Sync });
        answer
    }

    /// Whether another asynchronous invocation may be accepted.
    pub(crate) fn check_room(&self) -> Result<(), Problem> {
        has_room(&locks::lock(&self.state))
    }

    /// Takes one that is in the store.
    pub(crate) fn invoke_async(self: &Arc<Self>, queued: Queued) {
        self.take_async(&mut locks::lock(&self.state), queued);
    }

    fn take_async(self: &Arc<Self>, state: &mut State, queued: Queued) {
        let (id, key) = (queued.id.clone(), queued.key.clone());
        let kind = Kind::Async { attempts: queued.attempts, accepted_ms: queued.accepted_ms };
        let payload = queued.payload.clone().into_bytes();
        self.add(state, &id, &key, payload, Reply::Async(queued));
        self.apply(state, Event::Invoked { id, key, kind });
    }

    fn add(&self, state: &mut State, id: &str, key: &FunctionKey, payload: Vec<u8>, reply: Reply) {
        state.pending_bytes += payload.len();
        let pending =
            Pending { key: key.clone(), payload: Arc::new(payload), reply, answer: None, ending: None };
        state.pending.insert(id.to_owned(), pending);
    }

    /// The client of a synchronous invocation has gone.
    pub(crate) fn abandon(self: &Arc<Self>, id: &str) {
        let mut state = locks::lock(&self.state);
        self.apply(&mut state, Event::Abandoned { id: id.to_owned() });
    }

    pub(crate) fn asked(self: &Arc<Self>, instance: InstanceId) {
        let mut state = locks::lock(&self.state);
        if let Some(asking) = state.instances.get_mut(&instance) {
            asking.running = None;
        }
        self.apply(&mut state, Event::Asked { instance });
    }

    /// Takes an instance's answer; false if it was not asked.
    pub(crate) fn answered(
        self: &Arc<Self>,
        instance: InstanceId,
        id: &str,
        is_success: bool,
        body: Vec<u8>,
    ) -> bool {
        let mut state = locks::lock(&self.state);
        if !state.machine.is_running(instance, id) {
            return false;
        }
        if let Some(pending) = state.pending.get_mut(id) {
            pending.answer = Some(body);
        }
        self.apply(&mut state, Event::Answered { instance, id: id.to_owned(), is_success });
        true
    }

    pub(crate) fn init_failed(&self, instance: InstanceId, body: Vec<u8>) {
        if let Some(failed) = locks::lock(&self.state).instances.get_mut(&instance) {
            failed.init_error = Some(body);
        }
    }

    /// A process is gone.
    pub(crate) fn ended(self: &Arc<Self>, instance: InstanceId, how: String) {
        let mut state = locks::lock(&self.state);
        if let Some(gone) = state.instances.remove(&instance) {
            if let Some(pending) = gone.running.as_ref().and_then(|id| state.pending.get_mut(id)) {
                pending.ending = Some(how.clone());
            }
            let said = gone.init_error.unwrap_or_else(|| verdicts::error_body("Runtime.ExitError", &how));
            state.init_errors.insert(gone.key, said);
        }
        self.apply(&mut state, Event::Ended { instance });
    }

    /// A process was started that prints there.
    pub(crate) fn prints_to(&self, instance: InstanceId, pipes: &Arc<Pipes>) {
        if let Some(found) = locks::lock(&self.state).instances.get_mut(&instance) {
            found.pipes = Some(pipes.clone());
        }
    }

    /// Waits until what an instance has printed so far is in the logs: one that never stops printing is not waited for.
    pub(crate) async fn logs_settle(&self, instance: InstanceId) {
        const TRIES: u32 = 50;
        let pipes = locks::lock(&self.state).instances.get(&instance).and_then(|found| found.pipes.clone());
        let Some(pipes) = pipes else { return };
        for _ in 0..TRIES {
            if pipes.are_drained() {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }

    /// What an instance works on.
    pub(crate) fn running(&self, instance: InstanceId) -> Option<String> {
        locks::lock(&self.state).instances.get(&instance)?.running.clone()
    }

    pub(crate) fn tick(self: &Arc<Self>) {
        let mut state = locks::lock(&self.state);
        self.apply(&mut state, Event::Tick);
    }

    pub(crate) fn gpu_news(self: &Arc<Self>, news: GpuNews) {
        let mut state = locks::lock(&self.state);
        match news {
            GpuNews::Granted { slot, total_mb } => {
                self.apply(&mut state, Event::GpuGranted { slot, total_mb });
            }
            GpuNews::Changed { slot, is_there, why } => {
                tracing::warn!(slot = slot.0, why, "a GPU has changed; programs that survive go on there");
                self.apply(&mut state, Event::GpuChanged { slot, is_there });
            }
            GpuNews::Lost { slot, why } => {
                tracing::warn!(slot = slot.0, why, "a GPU is lost");
                state.gpu_refusal = why;
                self.apply(&mut state, Event::GpuLost { slot });
            }
        }
    }

    /// How busy each GPU is.
    pub(crate) fn loads(&self) -> Vec<GpuLoad> {
        locks::lock(&self.state).machine.loads()
    }

    /// How instances of a function outlive the loss of their GPU.
    fn survive_of(&self, function: &Function) -> Survive {
        function.configuration.survive().unwrap_or_else(|| self.survive.clone())
    }

    fn spec_of(&self, function: &Function) -> Spec {
        let configuration = &function.configuration;
        let RetryRules { attempts, age_s } = configuration.retry;
        let gpu_mb = configuration.gpu_mb();
        Spec {
            revision: function.revision,
            timeout_ms: u64::from(configuration.timeout_s) * 1000,
            memory_mb: configuration.memory_mb,
            gpu_mb,
            survives: gpu_mb.is_some() && self.survive_of(function).is_on(),
            concurrency: configuration.concurrency,
            retries: attempts,
            age_max_ms: u64::from(age_s) * 1000,
        }
    }
}

fn has_room(state: &State) -> Result<(), Problem> {
    if state.pending.len() >= PENDING_MAX || state.pending_bytes >= PENDING_BYTES_MAX {
        let message = "Rate Exceeded: too many invocations wait; try again later";
        return Err(Problem::new(429, "TooManyRequestsException", message));
    }
    Ok(())
}
