//! A world around the machine in which everything breaks, and a checker that notices what must not happen.
//!
//! Instances answer, fail, hang, die and never come up; GPUs are lost and refused; the service itself is killed and starts
//! again from what its store holds. The store takes an asynchronous invocation before the machine hears of it, and a report
//! takes the invocation out: that is the shell's part of the promise, and it is modelled here as the shell does it.

use crate::machine::{Action, Event, InstanceId, Kind, Link, Machine, Settings, SlotId, Spec, Verdict};
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
    /// An instance moves to a GPU that has not the memory for it.
    MoveWithoutRoom,
    /// An instance that moves has no place where it goes.
    MoveUnbooked,
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
    moving_to: Option<SlotId>,
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
    moves: u32,
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
        balance_after_ms: (!seed.is_multiple_of(5)).then_some(30),
        balance_rest_ms: 100,
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
        survives: false,
        concurrency: Some(LIMIT),
        retries: 2,
        age_max_ms: u64::MAX,
    };
    let gpu = |mb| Spec { gpu_mb: Some(mb), ..plain.clone() };
    let lasting = |mb| Spec { survives: true, timeout_ms: 4_000, ..gpu(mb) };
    vec![
        (key("a", "cpu"), plain.clone()),
        (key("a", "gpu"), gpu(300)),
        (key("a", "large"), gpu(900)),
        (key("b", "cpu"), Spec { memory_mb: 512, ..plain.clone() }),
        (key("b", "gpu"), gpu(450)),
        (key("b", "lasting"), lasting(300)),
        (key("a", "lasting"), lasting(250)),
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
            moves: 0,
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
        let actions = self.machine.step(event, self.now_ms);
        for (id, process) in self.processes.iter_mut().filter(|(_, process)| !process.is_killed) {
            process.slot = self.machine.slot_of(*id);
        }
        actions.into_iter().for_each(|action| self.act(action));
        self.check_places();
    }

    /// A program that lives is on a GPU that is held, and no GPU has more than it may, with those that are on their way to it.
    fn check_places(&mut self) {
        let is_held = |process: &Process| process.slot.is_none_or(|slot| self.gpus.contains(&slot));
        if !self.processes.values().all(|process| process.is_killed || is_held(process)) {
            self.wrong.push("a program is on a GPU that is not held".to_owned());
        }
        for slot in &self.gpus {
            let is_there = |p: &&Process| p.slot == Some(*slot) || p.moving_to == Some(*slot);
            let there: Vec<&Process> = self.processes.values().filter(is_there).collect();
            let gpu_mb: u64 = there.iter().map(|p| declared_mb(&p.key)).sum();
            let is_one = there.iter().all(|p| p.key.tenant == there[0].key.tenant);
            if gpu_mb > GPU_MB || there.len() > SHARING as usize {
                self.wrong.push("a GPU has more than it may".to_owned());
            }
            if !is_one && !settings(self.seed).tenants_share {
                self.wrong.push("tenants are on one GPU though they may not".to_owned());
            }
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
            Action::Move { instance, to } => self.moves(instance, to),
        }
    }

    fn moves(&mut self, instance: InstanceId, to: SlotId) {
        self.check(self.gpus.contains(&to), "an instance moves to a GPU that is not held");
        let Some(process) = self.processes.get_mut(&instance) else { return };
        let is_able = process.key.name == "lasting" && process.running.is_some() && process.slot != Some(to);
        process.moving_to = Some(to);
        self.moves += 1;
        self.check(is_able, "an instance moves that does not run, or cannot");
    }

    /// A program says what became of its move, or what its protection is.
    fn tell(&mut self, instance: InstanceId, luck: u64) {
        let Some(process) = self.processes.get_mut(&instance) else { return };
        if process.is_killed || process.key.name != "lasting" || !process.is_up {
            return;
        }
        let link = [Link::None, Link::Attached, Link::Protected][(luck as usize).min(2)];
        match process.moving_to.take() {
            Some(_) if luck.is_multiple_of(3) => self.step(Event::NotMoved { instance }),
            Some(_) => self.step(Event::Moved { instance }),
            None => self.step(Event::Linked { instance, link }),
        }
    }

    fn started(&mut self, instance: InstanceId, key: FunctionKey, slot: Option<SlotId>) {
        let of_it = self.processes.values().filter(|p| p.key == key && !p.is_killed).count();
        self.check(of_it < LIMIT as usize, "a function has more instances than it may");
        let needs_gpu = declared_mb(&key) > 0;
        self.check(slot.is_some() == needs_gpu, "an instance has a GPU if its function declared one");
        let process = Process {
            key: key.clone(),
            slot,
            moving_to: None,
            running: None,
            is_up: false,
            is_killed: false,
        };
        self.processes.insert(instance, process);
        let memory_mb = |p: &Process| if p.key.tenant == "b" && p.key.name == "cpu" { 512 } else { 128 };
        let sum_mb: u64 = self.processes.values().map(memory_mb).sum();
        self.check(sum_mb <= 1024 && self.processes.len() <= 8, "instances take more than the machine has");
        let Some(slot) = slot else { return };
        self.check(self.gpus.contains(&slot), "an instance is on a GPU that is not held");
        // Those that were killed have their memory until they are gone.
        let there: Vec<&FunctionKey> = self
            .processes
            .values()
            .filter(|p| [p.slot, p.moving_to].contains(&Some(slot)))
            .map(|p| &p.key)
            .collect();
        let gpu_mb: u64 = there.iter().map(|key| declared_mb(key)).sum();
        let (count, is_one) = (there.len(), there.iter().all(|other| other.tenant == key.tenant));
        self.check(gpu_mb <= GPU_MB, "a GPU has instances that declared more memory than it has");
        self.check(count <= SHARING as usize, "a GPU has more instances than the sharing factor");
        self.check(is_one || settings(self.seed).tenants_share, "tenants are on one GPU though they may not");
    }

    fn invoke(&mut self) {
        self.next += 1;
        let id = format!("i{}", self.next);
        // Half of them are of those that survive, so that there is something to move.
        let mut choice = functions();
        if self.dice.roll(2) == 0 {
            choice.retain(|(_, spec)| spec.survives);
        }
        let at = self.dice.roll(choice.len() as u64) as usize;
        let (key, _) = choice.swap_remove(at);
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
                    let luck = self.dice.roll(12);
                    self.tell(all[at], luck);
                    // Some run for longer than the others, so that they are beside each other for a while.
                    let is_long = self.processes.get(&all[at]).is_some_and(|p| p.key.name == "lasting");
                    if is_calm || !is_long || self.dice.roll(8) == 0 {
                        self.live(all[at], is_calm);
                    }
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
            10 => match (self.gpus.first().copied(), self.dice.roll(3)) {
                (Some(slot), 0) => {
                    self.gpus.remove(&slot);
                    self.step(Event::GpuLost { slot });
                }
                (Some(slot), 1) => {
                    let is_there = self.dice.roll(4) > 0;
                    self.step(Event::GpuChanged { slot, is_there });
                }
                _ => {
                    let lost = self.processes.iter().find(|(_, p)| p.key.name == "lasting" && !p.is_killed);
                    let Some(instance) = lost.map(|(id, _)| *id) else { return };
                    let is_over = self.dice.roll(2) == 0;
                    self.step(if is_over {
                        Event::GivenUp { instance }
                    } else {
                        Event::Stranded { instance }
                    });
                }
            },
            _ => {
                if let Some(id) = self.clients.pop_first() {
                    self.abandoned.insert(id.clone());
                    self.step(Event::Abandoned { id });
                }
            }
        }
    }

    /// Chaos, then calm in which everything must come to its end.
    fn run(self) -> Vec<String> {
        self.run_counting().0
    }

    /// The same, and how often an instance moved.
    fn run_counting(mut self) -> (Vec<String>, u32) {
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
        (self.wrong, self.moves)
    }
}

const SEEDS: u64 = 60;

#[test]
fn whatever_breaks_each_accepted_invocation_is_reported_once_and_no_limit_is_passed() {
    let mut moves = 0;
    for seed in 0..SEEDS {
        let (wrong, moved) = World::new(seed, None).run_counting();
        assert!(wrong.is_empty(), "seed {seed}: {wrong:?}");
        moves += moved;
    }
    assert!(moves > 20, "the world has too few moves to say anything of them: {moves}");
}

#[test]
fn the_checker_notices_faults() {
    let mutations = [
        Mutation::FinishTwice,
        Mutation::LoseRetries,
        Mutation::Overbook,
        Mutation::Overfill,
        Mutation::MixTenants,
        Mutation::MoveWithoutRoom,
        Mutation::MoveUnbooked,
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
