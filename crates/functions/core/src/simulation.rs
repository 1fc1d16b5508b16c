//! A world around the machine in which everything breaks, and a checker that notices what must not happen.
//!
//! Instances answer, fail, hang, die and never come up; GPUs are lost and refused; the service itself is killed and starts
//! again from what its store holds. The store takes an asynchronous invocation before the machine hears of it, and a report
//! takes the invocation out: that is the shell's part of the promise, and it is modelled here as the shell does it.

use crate::machine::{Action, Event, InstanceId, Kind, Machine, Settings, SlotId, Spec};
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
    running: Option<String>,
    is_up: bool,
    is_killed: bool,
}

struct World {
    machine: Machine,
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

fn settings() -> Settings {
    Settings {
        instances_max: 8,
        memory_max_mb: 1024,
        tenant_queue_max: 50,
        keep_warm_ms: 2_000,
        start_timeout_ms: 3_000,
        retry_delay_ms: 500,
        sharing: 2,
        gpus_max: 2,
        gpu_keep_ms: 1_000,
        fit: Fit::Worst,
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
    let gpu = Spec { gpu_mb: Some(300), ..plain.clone() };
    vec![
        (key("a", "cpu"), plain.clone()),
        (key("a", "gpu"), gpu.clone()),
        (key("b", "cpu"), Spec { memory_mb: 512, ..plain }),
        (key("b", "gpu"), gpu),
    ]
}

impl World {
    fn new(seed: u64, mutation: Option<Mutation>) -> Self {
        let mut world = Self {
            machine: Machine::default(),
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
        self.machine = Machine::new(settings());
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
            Action::Start { instance, key, slot, .. } => {
                let of_it = self.processes.values().filter(|p| p.key == key && !p.is_killed).count();
                self.check(of_it < LIMIT as usize, "a function has more instances than it may");
                let needs_gpu = key.name == "gpu";
                self.check(slot.is_some() == needs_gpu, "an instance has a GPU if its function declared one");
                self.check(
                    slot.is_none_or(|slot| self.gpus.contains(&slot)),
                    "an instance is on a GPU that is not held",
                );
                let process = Process { key, running: None, is_up: false, is_killed: false };
                self.processes.insert(instance, process);
                let memory: u64 = self
                    .processes
                    .values()
                    .map(|p| if p.key.tenant == "b" && p.key.name == "cpu" { 512 } else { 128 })
                    .sum();
                self.check(
                    memory <= 1024 && self.processes.len() <= 8,
                    "instances take more than the machine has",
                );
            }
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

    fn invoke(&mut self) {
        self.next += 1;
        let id = format!("i{}", self.next);
        let at = self.dice.roll(4) as usize;
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
                        self.step(Event::GpuGranted { slot, total_mb: 1000 });
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
    for mutation in [Mutation::FinishTwice, Mutation::LoseRetries, Mutation::Overbook] {
        let noticed = (0..SEEDS).any(|seed| !World::new(seed, Some(mutation)).run().is_empty());
        assert!(noticed, "{mutation:?}");
    }
}
