//! What happens to invocations and instances: one event in, actions out.
//!
//! ```text
//!   invocation:  accepted ─▶ queued ─▶ running ─▶ finished            asynchronous ones that failed: ─▶ delayed ─▶ queued
//!   instance:    starting ─▶ idle ⇄ busy ─▶ ending ─▶ gone            any but `gone` ─▶ ending when it is killed
//! ```
//!
//! The shell carries actions out in their order. It may be late, but it does each: then each invocation that was accepted is
//! finished exactly once, however instances end.

mod dispatch;
mod instances;
mod invocations;
mod moves;
mod outlook;
mod slots;

use crate::balance::Crowd;
use crate::places::{Fit, Slot};
use crate::queue::FairQueue;
use crate::record::FunctionKey;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A process that runs one function, one invocation at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceId(pub u64);

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "instance-{}", self.0)
    }
}

/// A GPU that the service holds a lease of, or asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub u64);

/// How much there may be, and how long things take.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Instances at once.
    pub instances_max: usize,
    /// Memory of all instances together.
    pub memory_max_mb: u64,
    /// Busy and starting instances of one tenant.
    pub tenant_instances_max: usize,
    /// Invocations of one tenant that wait; more synchronous ones are refused.
    pub tenant_queue_max: usize,
    /// An idle instance is kept so long.
    pub keep_warm_ms: u64,
    /// An instance that has not asked for work after so long has failed.
    pub start_timeout_ms: u64,
    /// Before a failed asynchronous invocation is tried again; twice as long before the next time.
    pub retry_delay_ms: u64,
    /// After an instance that failed to start, or a GPU that the pool refused; doubled for each further one.
    pub crash_delay_ms: u64,
    /// At most so long.
    pub crash_delay_max_ms: u64,
    /// Instances on one GPU.
    pub sharing: u32,
    /// GPUs at once.
    pub gpus_max: usize,
    /// A GPU without instances is kept so long.
    pub gpu_keep_ms: u64,
    /// Which GPU.
    pub fit: Fit,
    /// Whether instances of different tenants may be on one GPU.
    pub tenants_share: bool,
    /// A function that has waited so long for a place on a GPU is not overtaken any more.
    pub overtake_ms: u64,
    /// When two or more instances run on one GPU and none on another for so long, one that can moves; never, without it.
    pub balance_after_ms: Option<u64>,
    /// An instance that moved, or could not, stays where it is for so long.
    pub balance_rest_ms: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            instances_max: 64,
            memory_max_mb: 16 << 10,
            tenant_instances_max: 64,
            tenant_queue_max: 10_000,
            keep_warm_ms: 300_000,
            start_timeout_ms: 120_000,
            retry_delay_ms: 60_000,
            crash_delay_ms: 100,
            crash_delay_max_ms: 30_000,
            sharing: 1,
            gpus_max: 0,
            gpu_keep_ms: 10_000,
            fit: Fit::Best,
            tenants_share: false,
            overtake_ms: 2_000,
            balance_after_ms: None,
            balance_rest_ms: 30_000,
        }
    }
}

/// What the machine needs to know of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Instances of another one retire.
    pub revision: u64,
    /// An invocation may take so long.
    pub timeout_ms: u64,
    /// Memory of an instance.
    pub memory_mb: u32,
    /// GPU memory of an instance; none without a GPU.
    pub gpu_mb: Option<u32>,
    /// Its instances go on elsewhere when their GPU is lost, and can be moved.
    pub survives: bool,
    /// Instances at once.
    pub concurrency: Option<u32>,
    /// How often an asynchronous invocation is tried again.
    pub retries: u8,
    /// An asynchronous invocation older than this is not tried again.
    pub age_max_ms: u64,
}

/// How an invocation was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A client waits for the answer.
    Sync,
    /// It is kept in the store.
    Async {
        /// How often it failed already.
        attempts: u8,
        /// When it was accepted.
        accepted_ms: u64,
    },
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A function was deployed or changed.
    Deployed {
        /// Which.
        key: FunctionKey,
        /// What it is now.
        spec: Spec,
    },
    /// A function was deleted.
    Removed {
        /// Which.
        key: FunctionKey,
    },
    /// An invocation was accepted; an asynchronous one is in the store.
    Invoked {
        /// Its request id.
        id: String,
        /// Of which function.
        key: FunctionKey,
        /// How.
        kind: Kind,
    },
    /// The client of a synchronous invocation went away.
    Abandoned {
        /// Its request id.
        id: String,
    },
    /// An instance asks for its next invocation.
    Asked {
        /// Which.
        instance: InstanceId,
    },
    /// An instance has answered.
    Answered {
        /// Which.
        instance: InstanceId,
        /// What it was given.
        id: String,
        /// With a result, not an error.
        is_success: bool,
    },
    /// An instance's process is gone, whatever the reason.
    Ended {
        /// Which.
        instance: InstanceId,
    },
    /// A GPU that was asked for is there.
    GpuGranted {
        /// Which.
        slot: SlotId,
        /// How much memory it has.
        total_mb: u64,
    },
    /// A GPU is gone, or will not come.
    GpuLost {
        /// Which.
        slot: SlotId,
    },
    /// A lease has another worker or another GPU than before, or waits for one: all sessions there are lost, and the place is
    /// still held.
    GpuChanged {
        /// Which.
        slot: SlotId,
        /// It has a GPU.
        is_there: bool,
    },
    /// How well the program of an instance is protected, as its CUDA library says.
    Linked {
        /// Which.
        instance: InstanceId,
        /// How well.
        link: Link,
    },
    /// A program has lost its session, and its own GPU does not take it again.
    Stranded {
        /// Which.
        instance: InstanceId,
    },
    /// No place was found for a program that has lost its session.
    GivenUp {
        /// Which.
        instance: InstanceId,
    },
    /// The program goes on where [`Action::Move`] sent it.
    Moved {
        /// Which.
        instance: InstanceId,
    },
    /// The program goes on where it was.
    NotMoved {
        /// Which.
        instance: InstanceId,
    },
    /// Time has passed.
    Tick,
}

/// What is known of an instance's connection to its GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Link {
    /// It has none that could go on elsewhere.
    #[default]
    None,
    /// It has one that outlives a loss, as long as nothing else is lost.
    Attached,
    /// What it had last is safe: it can be moved.
    Protected,
}

/// How busy a GPU is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuLoad {
    /// Which.
    pub slot: SlotId,
    /// Instances that have a place there.
    pub instances: u32,
    /// Those that have an invocation.
    pub running: u32,
}

/// How an invocation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The function answered.
    Succeeded,
    /// The function answered with an error.
    Failed,
    /// It took longer than it may.
    TimedOut {
        /// How long that is.
        limit_ms: u64,
    },
    /// Its process ended.
    Died,
    /// No instance of the function could be started.
    NotStarted,
    /// The GPU was lost.
    GpuLost,
    /// The function was deleted meanwhile.
    FunctionGone,
    /// It waited longer than it may.
    Expired,
}

/// Why a synchronous invocation is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such function.
    NoFunction,
    /// All instances that the function may have are busy.
    Concurrency {
        /// How many that are.
        limit: u32,
    },
    /// Too many of this tenant wait already.
    QueueFull {
        /// How many may.
        limit: usize,
    },
    /// An invocation of this id is known already.
    Known,
}

/// What the shell is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start a process.
    Start {
        /// Its name from now on.
        instance: InstanceId,
        /// Which function it runs.
        key: FunctionKey,
        /// Of which revision.
        revision: u64,
        /// On which GPU.
        slot: Option<SlotId>,
    },
    /// Give an instance its next invocation.
    Deliver {
        /// Which.
        instance: InstanceId,
        /// What.
        id: String,
        /// It has until then.
        deadline_ms: u64,
    },
    /// Kill a process and all that it started; [`Event::Ended`] follows.
    Kill {
        /// Which.
        instance: InstanceId,
    },
    /// Tell the client, or write the report.
    Finish {
        /// Which.
        id: String,
        /// How it ended.
        verdict: Verdict,
        /// How often it was tried.
        attempts: u8,
    },
    /// Write that an asynchronous invocation failed so often; it is tried again later.
    Retried {
        /// Which.
        id: String,
        /// How often it was tried.
        attempts: u8,
    },
    /// A synchronous invocation is not accepted.
    Refuse {
        /// Which.
        id: String,
        /// Why.
        refusal: Refusal,
    },
    /// Ask the pool for a GPU; [`Event::GpuGranted`] or [`Event::GpuLost`] follows.
    AskGpu {
        /// Its name from now on.
        slot: SlotId,
        /// For whom.
        tenant: String,
        /// How much memory it must have at least.
        declared_mb: u32,
        /// Only if the pool has one free now: nothing waits for it, but instances are in each other's way.
        is_spare: bool,
    },
    /// Have a running program go on at another GPU; [`Event::Moved`] or [`Event::NotMoved`] follows.
    Move {
        /// Which.
        instance: InstanceId,
        /// There it has its place already.
        to: SlotId,
    },
    /// Give a GPU back.
    ReturnGpu {
        /// Which.
        slot: SlotId,
    },
}

/// What a client that would invoke now can expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// How many would be served before.
    pub ahead: usize,
    /// How long until an instance takes it, by how long those before it and its own start took lately.
    pub wait_ms: u64,
}

/// Where an invocation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whereabouts {
    /// It waits.
    Queued(Outlook),
    /// An instance has it.
    Running,
    /// It failed, and is tried again then.
    Delayed {
        /// When.
        until_ms: u64,
    },
}

#[derive(Debug)]
struct FunctionState {
    spec: Spec,
    /// Instances that failed to start, in a row.
    failures: u32,
    not_before_ms: u64,
    /// How long an invocation takes: a moving mean.
    mean_ms: u64,
    /// How long an instance takes to come up, likewise.
    start_ms: u64,
    idle: BTreeSet<InstanceId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum InstanceState {
    Starting {
        since_ms: u64,
    },
    /// It has answered and not asked for its next invocation yet.
    Between {
        since_ms: u64,
    },
    Idle {
        since_ms: u64,
    },
    Busy {
        id: String,
        since_ms: u64,
        deadline_ms: u64,
    },
    Ending,
}

#[derive(Debug)]
struct Instance {
    key: FunctionKey,
    revision: u64,
    memory_mb: u32,
    /// What it declared; nothing without a GPU.
    gpu_mb: u32,
    slot: Option<SlotId>,
    /// Its program can go on elsewhere.
    survives: bool,
    link: Link,
    /// Where it is on its way to: it has a place there beside the one that it is at.
    moving_to: Option<SlotId>,
    /// It was told to move and has not answered: until then its program may come up at the target.
    is_told_to_move: bool,
    /// It is elsewhere than its environment says: its program is, and another program of it would not find the place.
    is_away: bool,
    /// When it last moved, or could not.
    moved_ms: Option<u64>,
    /// It was given an invocation.
    has_served: bool,
    state: InstanceState,
}

#[derive(Debug)]
struct Invocation {
    key: FunctionKey,
    kind: Kind,
    stage: Stage,
    /// When it was last put into the queue.
    queued_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Queued,
    Running,
    Delayed { until_ms: u64 },
}

/// All that is known of functions, invocations and instances.
#[derive(Debug, Default)]
pub struct Machine {
    settings: Settings,
    functions: BTreeMap<FunctionKey, FunctionState>,
    instances: BTreeMap<InstanceId, Instance>,
    invocations: BTreeMap<String, Invocation>,
    queue: FairQueue,
    delayed: BTreeSet<(u64, String)>,
    slots: BTreeMap<u64, Slot>,
    /// GPUs that the pool was asked for.
    asked: BTreeMap<SlotId, slots::Asked>,
    /// How crowded each GPU is, and since when.
    crowds: BTreeMap<SlotId, (Crowd, u64)>,
    /// When the pool may be asked again for a GPU that only spreads the load.
    spare_not_before_ms: u64,
    /// How often the pool refused a GPU, in a row, and when it may be asked again.
    gpu_refusals: u32,
    gpus_not_before_ms: u64,
    /// GPUs that are given back as soon as their last instance is gone.
    returning: BTreeSet<SlotId>,
    reserved: Option<slots::Reserved>,
    next_instance: u64,
    next_slot: u64,
    #[cfg(test)]
    pub(crate) mutation: Option<crate::simulation::Mutation>,
}

impl Machine {
    /// Nothing deployed yet.
    pub fn new(settings: Settings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// Takes an event in, and says what to do.
    pub fn step(&mut self, event: Event, now_ms: u64) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Deployed { key, spec } => self.deployed(key, spec, &mut actions),
            Event::Removed { key } => self.removed(&key, &mut actions),
            Event::Invoked { id, key, kind } => self.invoked(id, key, kind, now_ms, &mut actions),
            Event::Abandoned { id } => self.abandoned(&id),
            Event::Asked { instance } => self.asked(instance, now_ms, &mut actions),
            Event::Answered { instance, id, is_success } => {
                self.answered(instance, &id, is_success, now_ms, &mut actions);
            }
            Event::Ended { instance } => self.ended(instance, now_ms, &mut actions),
            Event::GpuGranted { slot, total_mb } => self.gpu_granted(slot, total_mb, now_ms, &mut actions),
            Event::GpuLost { slot } => self.gpu_lost(slot, now_ms, &mut actions),
            Event::GpuChanged { slot, is_there } => self.gpu_changed(slot, is_there, now_ms, &mut actions),
            Event::Linked { instance, link } => self.linked(instance, link),
            Event::Stranded { instance } => self.stranded(instance, now_ms, &mut actions),
            Event::GivenUp { instance } => self.given_up(instance, now_ms, &mut actions),
            Event::Moved { instance } => self.moved(instance, now_ms, &mut actions),
            Event::NotMoved { instance } => self.not_moved(instance, now_ms, &mut actions),
            Event::Tick => self.tick(now_ms, &mut actions),
        }
        self.dispatch(now_ms, &mut actions);
        actions
    }

    /// How many instances a function has: starting, idle, busy.
    pub fn instances_of(&self, key: &FunctionKey) -> (usize, usize, usize) {
        let of = |wanted: fn(&InstanceState) -> bool| {
            self.instances.values().filter(|instance| instance.key == *key && wanted(&instance.state)).count()
        };
        (
            of(|state| matches!(state, InstanceState::Starting { .. } | InstanceState::Between { .. })),
            of(|state| matches!(state, InstanceState::Idle { .. })),
            of(|state| matches!(state, InstanceState::Busy { .. })),
        )
    }

    /// Whether an instance was given this invocation and has not answered.
    pub fn is_running(&self, instance: InstanceId, id: &str) -> bool {
        let state = self.instances.get(&instance).map(|instance| &instance.state);
        matches!(state, Some(InstanceState::Busy { id: running, .. }) if running == id)
    }

    /// How many invocations of a function wait for an instance.
    pub fn waiting_of(&self, key: &FunctionKey) -> usize {
        self.queue.count_of(key)
    }

    /// How many invocations wait.
    pub fn waiting(&self) -> usize {
        self.queue.len() + self.delayed.len()
    }

    #[cfg(test)]
    fn mutated(&self, mutation: crate::simulation::Mutation) -> bool {
        self.mutation == Some(mutation)
    }
}
