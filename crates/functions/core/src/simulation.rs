//! A world around the machine in which everything breaks, and a checker that notices what must not happen.
//!
//! Instances answer, fail, hang, die and never come up; GPUs are lost and refused; the service itself is killed and starts
//! again from what its store holds. The store takes an asynchronous invocation before the machine hears of it, and a report
//! takes the invocation out: that is the shell's part of the promise, and it is modelled here as the shell does it.

use crate::machine::{Action, Event, InstanceId, Kind, Machine, Settings, SlotId, Spec, Verdict};
use crate::places::Fit;
use crate::record::FunctionKey;
use std::collections::{BTreeMap, BTreeSet};

/// A fault that the checker must notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// An invocation is finished twice.
    FinishTwice,
    /// An asynchronous invocation that failed is forgotten.
    LoseRetries,
    /// A function has more instances than it may.
    Overbook,
    /// A GPU has instances that declared more memory than it has.
    Overfill,
    /// Tenants are on one GPU though they may not.
    MixTenants,
}

/// Numbers that look random and are the same every time (splitmix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }
}

#[derive(Debug)]
struct Process {
    key: FunctionKey,
    slot: Option<SlotId>,
    running: Option<String>,
    is_up: bool,
    is_killed: bool,
}

struct World {
    machine: Machine,
    seed: u64,
    mutation: Option<Mutation>,
    dice: Dice,
    now_ms: u64,
    /// What the store holds: asynchronous invocations with their attempts and time.
    stored: BTreeMap<String, (FunctionKey, u8, u64)>,
    reported: BTreeMap<String, u32>,
    executed: BTreeSet<String>,
    accepted: BTreeSet<String>,
    /// Synchronous ones whose client still waits.
    clients: BTreeSet<String>,
    /// Those whose client went away: they may still be finished, once.
    abandoned: BTreeSet<String>,
    processes: BTreeMap<InstanceId, Process>,
    gpus: BTreeSet<SlotId>,
    asked: BTreeSet<SlotId>,
    next: u64,
    wrong: Vec<String>,
}

const LIMIT: u32 = 3;

const GPU_MB: u64 = 1000;
const SHARING: u32 = 3;

/// Seeds go through all policies, with and without tenants that share.
fn settings(seed: u64) -> Settings {
    Settings {
        instances_max: 8,
        memory_max_mb: 1024,
        tenant_queue_max: 50,
        keep_warm_ms: 2_000,
        start_timeout_ms: 3_000,
        retry_delay_ms: 500,
        sharing: SHARING,
        gpus_max: 2,
        gpu_keep_ms: 1_000,
        fit: [Fit::Best, Fit::Worst, Fit::FewestMoves][seed as usize % 3],
        tenants_share: seed.is_multiple_of(2),
        overtake_ms: 1_000,
        ..Settings::default()
    }
}

fn functions() -> Vec<(FunctionKey, Spec)> {
    let key = |tenant: &str, name: &str| FunctionKey { tenant: tenant.to_owned(), name: name.to_owned() };
    let plain = Spec {
        revision: 1,
        timeout_ms: 400,
        memory_mb: 128,
        gpu_mb: None,
        concurrency: Some(LIMIT),
        retries: 2,
        age_max_ms: u64::MAX,
    };
    let gpu = |mb| Spec { gpu_mb: Some(mb), ..plain.clone() };
    vec![
        (key("a", "cpu"), plain.clone()),
        (key("a", "gpu"), gpu(300)),
        (key("a", "large"), gpu(900)),
        (key("b", "cpu"), Spec { memory_mb: 512, ..plain.clone() }),
        (key("b", "gpu"), gpu(450)),
    ]
}

fn declared_mb(key: &FunctionKey) -> u64 {
    let found = functions().into_iter().find(|(other, _)| other == key);
    found.and_then(|(_, spec)| spec.gpu_mb).map_or(0, u64::from)
}

impl World {
    fn new(seed: u64, mutation: Option<Mutation>) -> Self {
        let mut world = Self {
            machine: Machine::default(),
            seed,
            mutation,
            dice: Dice(seed),
            now_ms: 1_000,
            stored: BTreeMap::new(),
            reported: BTreeMap::new(),
            executed: BTreeSet::new(),
            accepted: BTreeSet::new(),
            clients: BTreeSet::new(),
            abandoned: BTreeSet::new(),
            processes: BTreeMap::new(),
            gpus: BTreeSet::new(),
            asked: BTreeSet::new(),
            next: 0,
            wrong: Vec::new(),
        };
        world.boot();
        world
    }

    /// Kills the service and all that it started, and starts it again.
    fn boot(&mut self) {
        self.machine = Machine::new(settings(self.seed));
        self.machine.mutation = self.mutation;
        self.processes.clear();
        self.clients.clear();
        self.abandoned.clear();
        self.gpus.clear();
        self.asked.clear();
        for (key, spec) in functions() {
            self.step(Event::Deployed { key, spec });
        }
        for (id, (key, attempts, accepted_ms)) in self.stored.clone() {
            self.step(Event::Invoked { id, key, kind: Kind::Async { attempts, accepted_ms } });
        }
    }

    fn step(&mut self, event: Event) {
        for action in self.machine.step(event, self.now_ms) {
            self.act(action);
        }
    }

    fn check(&mut self, holds: bool, rule: &str) {
        if !holds {
            self.wrong.push(rule.to_owned());
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Start { instance, key, slot, .. } => self.started(instance, key, slot),
            Action::Deliver { instance, id, .. } => {
                let idle = self
                    .processes
                    .get(&instance)
                    .is_some_and(|p| p.is_up && !p.is_killed && p.running.is_none());
                self.check(idle, "an invocation goes to an instance that did not ask");
                if let Some(process) = self.processes.get_mut(&instance) {
                    process.running = Some(id.clone());
                    self.executed.insert(id);
                }
            }
            Action::Kill { instance } => {
                if let Some(process) = self.processes.get_mut(&instance) {
                    process.is_killed = true;
                }
            }
            Action::Finish { id, .. } => {
                let was_stored = self.stored.remove(&id).is_some();
                let was_waited = self.clients.remove(&id) || self.abandoned.remove(&id);
                if self.accepted.contains(&id) {
                    *self.reported.entry(id).or_default() += 1;
                } else {
                    self.check(was_stored || was_waited, "a synchronous invocation is answered twice");
                }
            }
            Action::Retried { id, attempts } => {
                if let Some(stored) = self.stored.get_mut(&id) {
                    stored.1 = attempts;
                }
            }
            Action::Refuse { id, .. } => {
                let waited = self.clients.remove(&id);
                self.check(waited, "an invocation is refused that nobody waits for");
            }
            Action::AskGpu { slot, .. } => {
                self.asked.insert(slot);
                let count = self.asked.len() + self.gpus.len();
                self.check(count <= 2, "more GPUs are asked for than allowed");
            }
            Action::ReturnGpu { slot } => {
                self.gpus.remove(&slot);
            }
        }
    }

    fn started(&mut self, instance: InstanceId, key: FunctionKey, slot: Option<SlotId>) {
        let of_it = self.processes.values().filter(|p| p.key == key && !p.is_killed).count();
        self.check(of_it < LIMIT as usize, "a function has more instances than it may");
        let needs_gpu = declared_mb(&key) > 0;
        self.check(slot.is_some() == needs_gpu, "an instance has a GPU if its function declared one");
        let process = Process { key: key.clone(), slot, running: None, is_up: false, is_killed: false };
        self.processes.insert(instance, process);
        let memory_mb = |p: &Process| if p.key.tenant == "b" && p.key.name == "cpu" { 512 } else { 128 };
        let sum_mb: u64 = self.processes.values().map(memory_mb).sum();
        self.check(sum_mb <= 1024 && self.processes.len() <= 8, "instances take more than the machine has");
        let Some(slot) = slot else { return };
        self.check(self.gpus.contains(&slot), "an instance is on a GPU that is not held");
        // Those that were killed have their memory until they are gone.
        let there: Vec<&FunctionKey> =
            self.processes.values().filter(|p| p.slot == Some(slot)).map(|p| &p.key).collect();
        let gpu_mb: u64 = there.iter().map(|key| declared_mb(key)).sum();
        let (count, is_one) = (there.len(), there.iter().all(|other| other.tenant == key.tenant));
        self.check(gpu_mb <= GPU_MB, "a GPU has instances that declared more memory than it has");
        self.check(count <= SHARING as usize, "a GPU has more instances than the sharing factor");
        self.check(is_one || settings(self.seed).tenants_share, "tenants are on one GPU though they may not");
    }

    fn invoke(&mut self) {
        self.next += 1;
        let id = format!("i{}", self.next);
        let at = self.dice.roll(functions().len() as u64) as usize;
        let (key, _) = functions().swap_remove(at);
        let kind = if self.dice.roll(2) == 0 {
            self.clients.insert(id.clone());
            Kind::Sync
        } else {
            self.accepted.insert(id.clone());
            self.stored.insert(id.clone(), (key.clone(), 0, self.now_ms));
            Kind::Async { attempts: 0, accepted_ms: self.now_ms }
        };
        self.step(Event::Invoked { id, key, kind });
    }

    /// A process does something.
    fn live(&mut self, instance: InstanceId, is_calm: bool) {
        let luck = self.dice.roll(10);
        let Some(process) = self.processes.get_mut(&instance) else { return };
        let dies = process.is_killed || (!is_calm && luck == 0);
        if dies {
            self.processes.remove(&instance);
            return self.step(Event::Ended { instance });
        }
        match process.running.clone() {
            None if !process.is_up => {
                process.is_up = true;
                self.step(Event::Asked { instance });
            }
            None => {}
            Some(_) if !is_calm && luck == 1 => {}
            Some(id) => {
                process.running = None;
                let is_success = is_calm || luck != 2;
                self.step(Event::Answered { instance, id, is_success });
                self.step(Event::Asked { instance });
            }
        }
    }

    fn turn(&mut self, is_calm: bool) {
        self.now_ms += 1 + self.dice.roll(60);
        match self.dice.roll(if is_calm { 8 } else { 12 }) {
            0..=3 => {
                let all: Vec<InstanceId> = self.processes.keys().copied().collect();
                if !all.is_empty() {
                    let at = self.dice.roll(all.len() as u64) as usize;
                    self.live(all[at], is_calm);
                }
            }
            4 => {
                if let Some(slot) = self.asked.pop_first() {
                    let refused = !is_calm && self.dice.roll(3) == 0;
                    if refused {
                        self.step(Event::GpuLost { slot });
                    } else {
                        self.gpus.insert(slot);
                        self.step(Event::GpuGranted { slot, total_mb: GPU_MB });
                    }
                }
            }
            5..=7 => self.step(Event::Tick),
            8 | 9 => self.invoke(),
            10 if self.dice.roll(20) == 0 => self.boot(),
            10 => {
                if let Some(slot) = self.gpus.pop_first() {
                    self.step(Event::GpuLost { slot });
                }
            }
            _ => {
                if let Some(id) = self.clients.pop_first() {
                    self.abandoned.insert(id.clone());
                    self.step(Event::Abandoned { id });
                }
            }
        }
    }

    /// Chaos, then calm in which everything must come to its end.
    fn run(mut self) -> Vec<String> {
        for _ in 0..2_000 {
            self.turn(false);
        }
        for _ in 0..30_000 {
            self.turn(true);
            if self.stored.is_empty() && self.clients.is_empty() {
                break;
            }
        }
        let left = self.stored.len() + self.clients.len();
        self.check(left == 0, "an invocation is never finished");
        let all_once = self.accepted.iter().all(|id| self.reported.get(id) == Some(&1));
        self.check(all_once, "an accepted invocation is not reported exactly once");
        self.wrong
    }
}

const SEEDS: u64 = 60;

#[test]
fn whatever_breaks_each_accepted_invocation_is_reported_once_and_no_limit_is_passed() {
    for seed in 0..SEEDS {
        let wrong = World::new(seed, None).run();
        assert!(wrong.is_empty(), "seed {seed}: {wrong:?}");
    }
}

#[test]
fn the_checker_notices_faults() {
    let mutations = [
        Mutation::FinishTwice,
        Mutation::LoseRetries,
        Mutation::Overbook,
        Mutation::Overfill,
        Mutation::MixTenants,
    ];
    for mutation in mutations {
        let noticed = (0..SEEDS).any(|seed| !World::new(seed, Some(mutation)).run().is_empty());
        assert!(noticed, "{mutation:?}");
    }
}

/// Small ones come all the time and fit whenever one of them ends. The large one needs the whole GPU: it must have its turn.
#[test]
fn a_large_function_is_not_overtaken_for_ever() {
    for fit in [Fit::Best, Fit::Worst, Fit::FewestMoves] {
        let key = |name: &str| FunctionKey { tenant: "a".to_owned(), name: name.to_owned() };
        let settings = Settings { sharing: 3, gpus_max: 1, fit, overtake_ms: 1_000, ..Settings::default() };
        let mut machine = Machine::new(settings);
        let spec = |mb| Spec { gpu_mb: Some(mb), concurrency: None, ..functions().swap_remove(0).1 };
        machine.step(Event::Deployed { key: key("small"), spec: spec(300) }, 0);
        machine.step(Event::Deployed { key: key("large"), spec: spec(900) }, 0);
        let (mut queue, mut running) = (Vec::new(), Vec::new());
        let mut served_at = None;
        for turn in 0..400_u64 {
            let now_ms = turn * 20;
            let name = if turn == 20 { "large" } else { "small" };
            let id = format!("{name}{turn}");
            queue.extend(machine.step(Event::Invoked { id, key: key(name), kind: Kind::Sync }, now_ms));
            queue.extend(machine.step(Event::Tick, now_ms));
            if turn % 5 == 0
                && let Some((instance, id)) = running.pop()
            {
                let answered = Event::Answered { instance, id, is_success: true };
                queue.extend(machine.step(answered, now_ms));
                queue.extend(machine.step(Event::Asked { instance }, now_ms));
            }
            while let Some(action) = queue.pop() {
                match action {
                    Action::Start { instance, .. } => {
                        queue.extend(machine.step(Event::Asked { instance }, now_ms));
                    }
                    Action::Deliver { instance, id, .. } => {
                        if id.starts_with("large") {
                            served_at = Some(now_ms);
                        }
                        running.push((instance, id));
                    }
                    Action::Kill { instance } => {
                        running.retain(|(other, _)| *other != instance);
                        queue.extend(machine.step(Event::Ended { instance }, now_ms));
                    }
                    Action::AskGpu { slot, .. } => {
                        queue.extend(machine.step(Event::GpuGranted { slot, total_mb: GPU_MB }, now_ms));
                    }
                    _ => {}
                }
            }
        }
        assert!(served_at.is_some_and(|at| at < 4_000), "{fit:?}: {served_at:?}");
    }
}

#[test]
fn an_event_that_waits_for_too_long_expires() {
    let (key, spec) = functions().swap_remove(0);
    let mut machine = Machine::new(settings(0));
    machine.step(Event::Deployed { key: key.clone(), spec: Spec { age_max_ms: 1_000, ..spec } }, 0);
    let kind = Kind::Async { attempts: 0, accepted_ms: 0 };
    let started = machine.step(Event::Invoked { id: "late".to_owned(), key, kind }, 0);
    let Some(Action::Start { instance, .. }) = started.first() else { panic!("{started:?}") };
    let actions = machine.step(Event::Asked { instance: *instance }, 2_000);
    let expired = Action::Finish { id: "late".to_owned(), verdict: Verdict::Expired, attempts: 0 };
    assert_eq!(actions, [expired]);
}

#[test]
fn an_instance_that_failed_on_a_gpu_is_not_used_again() {
    let mut machine = Machine::new(settings(0));
    let key = FunctionKey { tenant: "a".to_owned(), name: "gpu".to_owned() };
    let (_, spec) = functions().into_iter().find(|(other, _)| *other == key).unwrap();
    machine.step(Event::Deployed { key: key.clone(), spec }, 0);
    let asks = machine.step(Event::Invoked { id: "one".to_owned(), key, kind: Kind::Sync }, 0);
    let Some(Action::AskGpu { slot, .. }) = asks.first() else { panic!("{asks:?}") };
    let started = machine.step(Event::GpuGranted { slot: *slot, total_mb: GPU_MB }, 0);
    let Some(Action::Start { instance, .. }) = started.first() else { panic!("{started:?}") };
    let instance = *instance;
    machine.step(Event::Asked { instance }, 1);
    let answered = Event::Answered { instance, id: "one".to_owned(), is_success: false };
    assert!(machine.step(answered, 2).contains(&Action::Kill { instance }));
}

/// A pool that refuses, because a credential or a quota is wrong, is not asked ten times a second for as long as it lasts.
#[test]
fn a_pool_that_refuses_is_asked_less_and_less_often() {
    let mut machine = Machine::new(Settings { gpus_max: 1, retry_delay_ms: 100, ..Settings::default() });
    let key = FunctionKey { tenant: "a".to_owned(), name: "gpu".to_owned() };
    let (_, spec) = functions().into_iter().find(|(other, _)| *other == key).unwrap();
    machine.step(Event::Deployed { key: key.clone(), spec }, 0);
    let kind = Kind::Async { attempts: 0, accepted_ms: 0 };
    let mut queue = machine.step(Event::Invoked { id: "one".to_owned(), key, kind }, 0);
    let mut asked = Vec::new();
    for now_ms in (0..200_000).step_by(20) {
        queue.extend(machine.step(Event::Tick, now_ms));
        while let Some(action) = queue.pop() {
            assert!(!matches!(action, Action::Finish { .. }), "it waits for a GPU, and that is no attempt");
            if let Action::AskGpu { slot, .. } = action {
                asked.push((now_ms, slot));
                queue.extend(machine.step(Event::GpuLost { slot }, now_ms));
            }
        }
    }
    assert!((4..20).contains(&asked.len()), "{asked:?}");
    let longest = asked.windows(2).map(|pair| pair[1].0 - pair[0].0).max().unwrap_or(0);
    assert!(longest <= Settings::default().crash_delay_max_ms + 200, "{asked:?}");
}

#[test]
fn who_waits_is_told_for_how_long_though_its_function_never_ran() {
    let mut machine = Machine::new(Settings { instances_max: 1, ..settings(0) });
    let all = functions();
    for (key, spec) in &all {
        machine.step(Event::Deployed { key: key.clone(), spec: spec.clone() }, 0);
    }
    let (first, other) = (&all[0].0, &all[3].0);
    let invoked = |id: &str, key: &FunctionKey| Event::Invoked {
        id: id.to_owned(),
        key: key.clone(),
        kind: Kind::Sync,
    };
    assert_eq!(machine.outlook(first, 0).ahead, 0);
    let started = machine.step(invoked("one", first), 0);
    let Some(Action::Start { instance, .. }) = started.first() else { panic!("{started:?}") };
    machine.step(Event::Asked { instance: *instance }, 100);
    machine.step(invoked("two", other), 200);
    let told = machine.outlook(other, 300);
    // Behind one that never ran, and one that has run for 200 ms.
    assert_eq!((told.ahead, told.wait_ms), (1, 300));
    assert!(matches!(machine.whereabouts("one", 300), Some(crate::Whereabouts::Running)));
    assert!(
        matches!(machine.whereabouts("two", 300), Some(crate::Whereabouts::Queued(told)) if told.ahead == 0)
    );
}
