//! Everything there is in one run, and what goes wrong.

use super::Mutation;
use super::borrower::Borrower;
use super::checker::Checker;
use super::host::Host;
use super::manager::Manager;
use super::network::{Agenda, Happening, Party};
use super::rack::Rack;
use crate::{Answer, Command, Dice, Settings, SplitMix};
use pool_api::{BoxKind, GpuState, HostRequest, Model, Name, Quota, SpareRequest, TenantRequest};
use pool_store::{Memory, Revision, Store, Watch};
use std::time::Duration;

/// One run.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    /// How long things go wrong.
    pub(crate) chaos_ms: u64,
    /// How long everything then has to come to rest.
    pub(crate) rest_ms: u64,
    pub(crate) mutation: Option<Mutation>,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub(crate) violations: Vec<String>,
    pub(crate) steps: u64,
    pub(crate) commits: u64,
    pub(crate) leaders: u64,
    pub(crate) grants: u64,
    pub(crate) moves: u64,
    pub(crate) admissions: u64,
    pub(crate) plugs: u64,
    pub(crate) expiries: u64,
    pub(crate) reclaims: u64,
    pub(crate) operations: u64,
    pub(crate) words: u64,
    pub(crate) arrivals: u64,
    pub(crate) parks: u64,
    pub(crate) guests: u64,
    pub(crate) meetings: u64,
    pub(crate) evictions: u64,
    pub(crate) suspensions: u64,
    pub(crate) parts: u64,
    pub(crate) crowds: u64,
}

pub(super) struct World {
    pub(super) scenario: Scenario,
    pub(super) now_ms: u64,
    end_ms: u64,
    pub(super) dice: SplitMix,
    pub(super) agenda: Agenda,
    store: Memory,
    watch: Watch,
    pub(super) managers: Vec<Manager>,
    pub(super) racks: Vec<Rack>,
    pub(super) hosts: Vec<Host>,
    pub(super) borrowers: Vec<Borrower>,
    pub(super) checker: Checker,
    /// Of a thousand messages, how many are lost.
    loss_milli: u32,
    pub(super) leaders: u64,
    pub(super) commits: u64,
}

/// How many boxes there are.
const RACKS: usize = 7;

const START_MS: u64 = 1_000_000_000;
const HOUR_MS: i64 = 3_600_000;

/// Plays one run to its end.
pub(crate) fn run(scenario: Scenario) -> Report {
    let mut world = World::new(scenario);
    let mut steps = 0;
    while let Some((at_ms, what)) = world.agenda.next() {
        if at_ms > world.end_ms || !world.checker.violations.is_empty() {
            break;
        }
        world.store.advance(Duration::from_millis(at_ms - world.now_ms));
        world.now_ms = at_ms;
        world.happen(what);
        world.observe();
        steps += 1;
    }
    if world.checker.violations.is_empty() {
        world.checker.at_rest();
        for (index, borrower) in world.borrowers.iter().enumerate() {
            if !borrower.is_resting() || borrower.operations != borrower.finished {
                let what = format!("borrower {index} never finished: {borrower:?}");
                world.checker.violations.push(what);
            }
        }
    }
    Report {
        violations: world.checker.violations,
        steps,
        commits: world.commits,
        leaders: world.leaders,
        grants: world.checker.grants_seen,
        moves: world.checker.moves_seen,
        admissions: world.checker.admissions,
        plugs: world.checker.plugs,
        expiries: world.checker.expiries,
        reclaims: world.checker.reclaims,
        words: world.checker.words,
        arrivals: world.checker.arrivals,
        parks: world.checker.parks,
        guests: world.checker.guests,
        meetings: world.checker.meetings,
        evictions: world.checker.evictions,
        suspensions: world.checker.suspensions,
        parts: world.checker.parts,
        crowds: world.checker.crowds,
        operations: world.borrowers.iter().map(|borrower| borrower.operations).sum(),
    }
}

impl World {
    fn new(scenario: Scenario) -> Self {
        let store = Memory::new();
        let watch = store.watch("", Revision(0)).expect("a store in memory can be watched");
        let name = |text: String| Name::new(&text).expect("it is a name");
        let model = |text| Model::new(text).expect("it is a model");
        let rack = |index: usize| {
            let kind = if index.is_multiple_of(3) { BoxKind::Nvlink } else { BoxKind::Pcie };
            let slots = if index.is_multiple_of(3) { 4 } else { 2 };
            let model = model(if index < 4 || index == RACKS - 1 { "H200" } else { "A100" });
            // The last box lends its GPU in parts, which hosts cannot have.
            if index == RACKS - 1 {
                return Rack::new(name(format!("b{index}")), BoxKind::Pcie, model, 1).with_parts(4);
            }
            let mut rack = Rack::new(name(format!("b{index}")), kind, model, slots);
            // One box has no PCIe plane.
            if index != 1 {
                rack.paths.push(format!("udp:127.0.0.1:{}", 7000 + index));
            }
            // Every second box has seats for guests. One of these seats strangers together, one has promised its memory twice.
            match index.is_multiple_of(2) {
                true => rack.with_seats(index == 2).overcommitted(index == 4),
                false => rack,
            }
        };
        let mut world = Self {
            now_ms: START_MS,
            end_ms: START_MS + scenario.chaos_ms + scenario.rest_ms,
            dice: SplitMix::new(scenario.seed),
            agenda: Agenda::default(),
            managers: vec![
                Manager::new(store.client(), 2 * HOUR_MS),
                Manager::new(store.client(), -3 * HOUR_MS / 2),
            ],
            racks: (0..RACKS).map(rack).collect(),
            hosts: (0..3).map(|index| Host::new(name(format!("h{index}")), 2 + index)).collect(),
            borrowers: (0..12).map(|index| Borrower::new(name(format!("t{}", index % 3)))).collect(),
            checker: Checker::default(),
            loss_milli: 0,
            leaders: 0,
            commits: 0,
            store,
            watch,
            scenario,
        };
        world.checker.grace_ms = world.settings().grace_ms;
        for index in 0..world.racks.len() {
            let at_ms = world.now_ms + u64::from(world.chance(1_000));
            world.agenda.put(at_ms, Happening::Wake(Party::Box(index)));
        }
        for index in 0..world.hosts.len() {
            let at_ms = world.now_ms + u64::from(world.chance(1_000));
            world.agenda.put(at_ms, Happening::Wake(Party::Host(index)));
        }
        for index in 0..world.borrowers.len() {
            let at_ms = world.now_ms + u64::from(world.chance(3_000));
            world.agenda.put(at_ms, Happening::Wake(Party::Borrower(index)));
        }
        for index in 0..world.managers.len() {
            world.agenda.put(world.now_ms + 10 * index as u64, Happening::WakeManager(index));
        }
        world.agenda.put(world.now_ms, Happening::Wake(Party::Operator));
        world.agenda.put(world.now_ms, Happening::Chaos);
        world
    }

    pub(super) fn chance(&mut self, bound: u32) -> u32 {
        self.dice.below(bound)
    }

    pub(super) fn picks(&mut self, count: usize) -> usize {
        self.chance(count as u32) as usize
    }

    pub(super) fn is_closing(&self) -> bool {
        self.now_ms >= START_MS + self.scenario.chaos_ms
    }

    pub(super) fn settings(&self) -> Settings {
        Settings {
            mutation: self.scenario.mutation,
            patience_ms: 8_000,
            reclaim_after_ms: 2_000,
            ended_keep_ms: 20_000,
            move_grace_ms: 4_000,
            seat_grace_ms: 4_000,
            // Some leases live longer than this, so that their renewals have to be written.
            grace_ms: 40_000,
            ..Settings::default()
        }
    }

    /// Shows the checker what has been committed.
    pub(super) fn observe(&mut self) {
        while let Ok(Some(changes)) = self.watch.try_recv() {
            self.checker.committed(self.now_ms, &changes);
            let _ = self.store.compact(changes.revision.next());
        }
    }

    /// Sends something: it arrives late, twice or never.
    pub(super) fn send(&mut self, what: Happening) {
        let closing = self.is_closing();
        if !closing && self.chance(1000) < self.loss_milli {
            return;
        }
        let delay = |world: &mut Self| match world.chance(if closing { 20 } else { 22 }) {
            20 => 200 + u64::from(world.chance(2_000)),
            21 => 2_000 + u64::from(world.chance(20_000)),
            _ => 1 + u64::from(world.chance(20)),
        };
        if !closing && self.chance(50) == 0 {
            let at_ms = self.now_ms + delay(self);
            self.agenda.put(at_ms, what.clone());
        }
        // A borrower that kept an old token tries it again long after.
        if !closing && matches!(what, Happening::Knock { .. }) && self.chance(5) == 0 {
            let at_ms = self.now_ms + u64::from(self.chance(40_000));
            self.agenda.put(at_ms, what.clone());
        }
        let at_ms = self.now_ms + delay(self);
        self.agenda.put(at_ms, what);
    }

    pub(super) fn ask(&mut self, manager: usize, from: Party, request: u64, command: Command) {
        self.send(Happening::Ask { manager, from, request, command });
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Ask { manager, from, request, command } => {
                self.requested(manager, from, request, command)
            }
            Happening::Told { to, request, done_ms, answer } => match (to, answer) {
                (Party::Box(index), Ok(Answer::Orders(orders))) => self.obey(index, request, &orders),
                (Party::Host(index), Ok(Answer::HostOrders(orders))) => {
                    self.obey_host(index, request, &orders);
                }
                (Party::Box(_) | Party::Host(_) | Party::Operator, _) => {}
                (Party::Borrower(index), answer) => {
                    let until_ms = self.borrowers[index].frozen_until_ms;
                    if self.now_ms < until_ms {
                        return self.agenda.put(until_ms, Happening::Told { to, request, done_ms, answer });
                    }
                    self.hear(index, request, done_ms, answer);
                }
            },
            Happening::Knock { borrower, life, gpu, lease, epoch } => {
                self.knock(borrower, life, &gpu, lease, epoch)
            }
            Happening::Opened { borrower, life, gpu, epoch, admitted } => {
                self.opened(borrower, life, gpu, epoch, admitted);
            }
            Happening::Closed { borrower, life, gpu, epoch } => self.closed(borrower, life, gpu, epoch),
            Happening::Flush { manager } => self.flush(manager),
            Happening::Wake(Party::Box(index)) => self.wake_rack(index),
            Happening::Wake(Party::Host(index)) => self.wake_host(index),
            Happening::Wake(Party::Borrower(index)) => self.wake_borrower(index),
            Happening::Wake(Party::Operator) => self.wake_operator(),
            Happening::WakeManager(index) => self.wake_manager(index),
            Happening::Done { rack, run, slot, work } => self.done(rack, run, slot, work),
            Happening::Chaos => self.chaos(),
        }
    }

    /// Repairs what is bad and undoes what was done by hand, in the end all of it.
    fn wake_operator(&mut self) {
        self.agenda.put(self.now_ms + 1_000, Happening::Wake(Party::Operator));
        let closing = self.is_closing();
        let gpus: Vec<_> = self.checker.gpus.values().cloned().collect();
        for gpu in gpus {
            if !closing && self.chance(6) > 0 {
                continue;
            }
            let manager = self.picks(self.managers.len());
            if gpu.state == GpuState::Bad {
                let index =
                    self.racks.iter().position(|rack| rack.name == gpu.box_name).expect("it is known");
                let number = self.racks[index].number(gpu.slot);
                self.racks[index].slots[number].broken = self.chance(8) == 0 && !closing;
                self.ask(manager, Party::Operator, 0, Command::Repair { gpu: gpu.id.clone() });
                // Now and then another operator finds it bad again while it is tested.
                if !closing && self.chance(4) == 0 {
                    let reason = "chaos".to_owned();
                    self.ask(manager, Party::Operator, 0, Command::Break { gpu: gpu.id.clone(), reason });
                }
            }
            if gpu.taint.is_some() {
                self.ask(manager, Party::Operator, 0, Command::Untaint { gpu: gpu.id });
            }
        }
        let hosts: Vec<_> = self.checker.hosts.values().cloned().collect();
        for host in hosts.iter().filter(|host| host.record.tenants.len() < 3) {
            let manager = self.picks(self.managers.len());
            let tenants = (0..3).map(|index| Name::new(&format!("t{index}")).expect("it is a name"));
            let request = HostRequest { tenants: tenants.collect() };
            self.ask(
                manager,
                Party::Operator,
                0,
                Command::SetHost { host: host.record.name.clone(), request },
            );
        }
        if closing {
            for index in 0..self.racks.len() {
                let (manager, box_name) = (self.picks(self.managers.len()), self.racks[index].name.clone());
                self.ask(manager, Party::Operator, 0, Command::UndrainBox { box_name });
            }
        }
    }

    fn chaos(&mut self) {
        if self.is_closing() {
            for rack in &mut self.racks {
                rack.frozen_until_ms = 0;
                for slot in &mut rack.slots {
                    slot.broken = false;
                }
            }
            for host in &mut self.hosts {
                host.frozen_until_ms = 0;
            }
            self.loss_milli = 0;
            let _ = self.store.deliver_late();
            return;
        }
        let after_ms = 50 + u64::from(self.chance(1_500));
        self.agenda.put(self.now_ms + after_ms, Happening::Chaos);
        let rack = self.picks(self.racks.len());
        let borrower = self.picks(self.borrowers.len());
        let manager = self.picks(self.managers.len());
        let short_ms = u64::from(self.chance(4_000));
        let long_ms = u64::from(self.chance(25_000));
        let host = self.picks(self.hosts.len());
        let bay = self.picks(self.hosts[host].bays.len());
        match self.chance(18) {
            14 if self.hosts[host].down_until_ms.is_none() => {
                let for_ms = if self.chance(2) == 0 { short_ms } else { long_ms };
                self.crash_host(host, for_ms);
            }
            15 => self.hosts[host].frozen_until_ms = self.now_ms + long_ms,
            16 => self.hosts[host].bays[bay].stubborn_until_ms = self.now_ms + long_ms,
            17 if self.hosts[host].down_until_ms.is_none() => self.give_up(host, bay),
            0 if self.racks[rack].down_until_ms.is_none() => {
                let for_ms = if self.chance(2) == 0 { short_ms } else { long_ms };
                self.crash_rack(rack, for_ms);
            }
            1 => self.racks[rack].frozen_until_ms = self.now_ms + long_ms,
            2 if self.racks[rack].down_until_ms.is_none() => self.restart_agent(rack),
            3 => {
                let slot = self.picks(self.racks[rack].slots.len());
                self.break_slot(rack, slot);
            }
            4 => self.crash_borrower(borrower),
            5 => self.borrowers[borrower].frozen_until_ms = self.now_ms + long_ms,
            6 => {
                let until_ms = self.now_ms + short_ms;
                self.managers[manager].crash(until_ms);
            }
            7 => self.managers[manager].frozen_until_ms = self.now_ms + short_ms,
            8 | 9 => {
                let _ = self.store.deliver_late();
            }
            10 => self.loss_milli = [0, 0, 20, 300][self.chance(4) as usize],
            _ => self.operate(rack, manager),
        }
    }

    fn operate(&mut self, rack: usize, manager: usize) {
        let slot = self.picks(self.racks[rack].slots.len());
        let (gpu, box_name) = (self.racks[rack].gpu(slot), self.racks[rack].name.clone());
        let (reason, by) = ("chaos".to_owned(), "operator".to_owned());
        let model = self.racks[rack].model.clone();
        let tenant = Name::new(&format!("t{}", self.chance(3))).expect("it is a name");
        let guaranteed = self.chance(4);
        self.operate_survivors(manager, &box_name);
        let command = match self.chance(8) {
            0 => Command::Taint { gpu, reason, by, drain: false },
            1 => Command::Taint { gpu, reason, by, drain: true },
            2 => Command::DrainBox { box_name, reason, by },
            3 => Command::UndrainBox { box_name },
            4 => Command::Break { gpu, reason },
            5 | 6 => {
                let quotas = [(model, Quota { guaranteed, limit: None })].into();
                let request = TenantRequest { quotas, ..TenantRequest::default() };
                Command::SetTenant { name: tenant, request }
            }
            _ => Command::SetSpares { model, request: SpareRequest { count: self.chance(3) } },
        };
        self.ask(manager, Party::Operator, 0, command);
    }

    /// Asks for something of a lease whose program outlives losses.
    fn operate_survivors(&mut self, manager: usize, box_name: &Name) {
        let survives = |lease: &&pool_api::Lease| lease.state.is_live() && !lease.request.survive.is_none();
        let leases: Vec<_> = self.checker.leases.values().filter(survives).map(|lease| lease.id).collect();
        if leases.is_empty() {
            return;
        }
        let lease = leases[self.picks(leases.len())];
        let to_box = (self.chance(4) == 0).then(|| box_name.clone());
        let command = match self.chance(8) {
            0..=4 => Command::Move { lease, gpu: None, to_box, by: "operator".into() },
            5 => Command::Drill { lease },
            6 => Command::Suspend { lease },
            _ => Command::Resume { lease },
        };
        self.ask(manager, Party::Operator, 0, command);
    }
}
