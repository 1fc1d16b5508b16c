//! A box: it lets borrowers in by its own rule, and does what it is told.

use super::Mutation;
use super::network::{Happening, Party};
use super::world::World;
use crate::{Dice, SplitMix};
use pool_api::{
    BoxKind, BoxOrders, BoxReport, BurnIn, FIRST_GUEST_SLOT, GpuId, GpuReport, Guest, Health, LeaseId, Model,
    Name, Part, SeatLoad, Want,
};

#[derive(Debug)]
pub(super) struct Rack {
    pub(super) name: Name,
    pub(super) kind: BoxKind,
    pub(super) model: Model,
    /// GPUs, then the seats for guests on them.
    pub(super) slots: Vec<Slot>,
    /// How many of the slots are no seats.
    gpus: usize,
    /// In how many parts each GPU is lent; 0: as a whole.
    parts: u8,
    /// Guests may be of other tenants.
    any_tenant: bool,
    overcommit: bool,
    /// Counts runs of the agent.
    pub(super) run: u64,
    pub(super) sequence: u64,
    pub(super) down_until_ms: Option<u64>,
    pub(super) frozen_until_ms: u64,
    work: u64,
    /// Addresses of the PCIe plane.
    pub(super) paths: Vec<String>,
}

#[derive(Debug, Default)]
pub(super) struct Slot {
    /// On disk.
    bound: u64,
    /// On disk.
    cleaned: u64,
    pub(super) session: Option<Session>,
    pub(super) broken: bool,
    /// The lease that has data on it.
    data: Option<LeaseId>,
    busy: Option<(u64, Work)>,
    burn_in: Option<BurnIn>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Clean(u64),
    BurnIn(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Session {
    pub(super) borrower: usize,
    pub(super) life: u64,
    pub(super) lease: LeaseId,
    pub(super) epoch: u64,
}

impl Rack {
    pub(super) fn new(name: Name, kind: BoxKind, model: Model, slots: usize) -> Self {
        Self {
            name,
            kind,
            model,
            slots: (0..slots).map(|_| Slot::default()).collect(),
            gpus: slots,
            parts: 0,
            any_tenant: false,
            overcommit: false,
            run: 1,
            sequence: 0,
            down_until_ms: None,
            frozen_until_ms: 0,
            work: 0,
            paths: Vec::new(),
        }
    }

    /// The same box with a seat for guests on each GPU.
    pub(super) fn with_seats(mut self, any_tenant: bool) -> Self {
        self.any_tenant = any_tenant;
        self.slots.resize_with(2 * self.gpus, Slot::default);
        self
    }

    /// The same box with seats whose memory is promised twice.
    pub(super) fn overcommitted(mut self, is_it: bool) -> Self {
        self.overcommit = is_it;
        self
    }

    /// The same box with so many parts of each GPU instead of the GPUs.
    pub(super) fn with_parts(mut self, count: u8) -> Self {
        self.parts = count;
        self.gpus *= usize::from(count);
        self.slots.resize_with(self.gpus, Slot::default);
        self
    }

    pub(super) fn gpu(&self, number: usize) -> GpuId {
        let slot = match number.checked_sub(self.gpus) {
            Some(seat) => FIRST_GUEST_SLOT + seat as u8,
            None => number as u8,
        };
        GpuId { box_name: self.name.clone(), slot }
    }

    /// Which of [`Rack::slots`] this is.
    pub(super) fn number(&self, slot: u8) -> usize {
        match slot.checked_sub(FIRST_GUEST_SLOT) {
            Some(seat) => self.gpus + usize::from(seat),
            None => usize::from(slot),
        }
    }

    /// What a GPU or a seat on it is reported as.
    fn guest(&self, number: usize) -> Option<Guest> {
        let of = number.checked_sub(self.gpus)? as u8;
        Some(Guest { of, any_tenant: self.any_tenant, overcommit: self.overcommit })
    }

    /// What part of a GPU is in a slot.
    fn part(&self, number: usize) -> Option<Part> {
        let of = (number as u8).checked_div(self.parts)?;
        Some(Part::new(of, self.parts))
    }

    fn memory_bytes(&self, number: usize) -> u64 {
        let whole = 80 << 30;
        match (self.guest(number), self.part(number)) {
            (Some(_), _) => whole / 4,
            (None, Some(part)) => whole / u64::from(part.count()),
            (None, None) => whole,
        }
    }

    /// What it has measured of the online programs beside a seat: nothing at first, then something else each time.
    fn sharing(&self, number: usize) -> Option<SeatLoad> {
        self.guest(number)?;
        let mut dice = SplitMix::new(self.run << 40 | self.sequence << 8 | number as u64);
        let load =
            SeatLoad { online_busy_milli: dice.below(1001), online_periods_milli: dice.below(600_000) };
        (self.sequence > 10).then_some(load)
    }

    fn report(&mut self) -> BoxReport {
        self.sequence += 1;
        let gpu = |(number, slot): (usize, &Slot)| GpuReport {
            slot: self.gpu(number).slot,
            model: self.model.clone(),
            memory_bytes: self.memory_bytes(number),
            uuid: match self.part(number) {
                Some(part) => format!("{}-{}", self.name, part.of),
                None => format!("{}-{}", self.name, number % self.gpus),
            },
            nvlink_group: (self.kind == BoxKind::Nvlink).then_some(0),
            only_pcie: false,
            guest: self.guest(number),
            part: self.part(number),
            health: if slot.broken { Health::bad("simulated") } else { Health::OK },
            bound_epoch: slot.bound,
            cleaned_epoch: slot.cleaned,
            ready: true,
            unready: None,
            endpoints: vec![format!("{}:{number}", self.name)],
            counters: None,
            burn_in: slot.burn_in.clone(),
            must_leave: false,
            sharing: self.sharing(number),
        };
        BoxReport {
            agent: format!("run-{}", self.run),
            sequence: self.sequence,
            kind: self.kind,
            rack: "r".into(),
            paths: self.paths.clone(),
            gpus: self.slots.iter().enumerate().map(gpu).collect(),
            guard: None,
        }
    }
}

impl World {
    /// The box reports, to every manager it knows.
    pub(super) fn wake_rack(&mut self, index: usize) {
        let at_ms = self.now_ms;
        let rack = &mut self.racks[index];
        if let Some(until_ms) = rack.down_until_ms {
            if at_ms < until_ms {
                return self.agenda.put(until_ms, Happening::Wake(Party::Box(index)));
            }
            self.start_rack(index);
        }
        let rack = &mut self.racks[index];
        if at_ms < rack.frozen_until_ms {
            let until_ms = rack.frozen_until_ms;
            return self.agenda.put(until_ms, Happening::Wake(Party::Box(index)));
        }
        let (report, box_name) = (rack.report(), rack.name.clone());
        // An answer belongs to the process that asked.
        let request = rack.run << 32 | rack.sequence;
        for manager in 0..self.managers.len() {
            let command = crate::Command::Report { box_name: box_name.clone(), report: report.clone() };
            self.ask(manager, Party::Box(index), request, command);
        }
        let after_ms = 700 + u64::from(self.chance(600));
        self.agenda.put(at_ms + after_ms, Happening::Wake(Party::Box(index)));
    }

    pub(super) fn crash_rack(&mut self, index: usize, for_ms: u64) {
        let until_ms = self.now_ms + for_ms;
        let gpus: Vec<usize> = (0..self.racks[index].slots.len()).collect();
        for slot in gpus {
            self.end_session(index, slot);
            self.racks[index].slots[slot].busy = None;
            self.racks[index].slots[slot].burn_in = None;
        }
        self.racks[index].down_until_ms = Some(until_ms);
        self.racks[index].run += 1;
    }

    fn start_rack(&mut self, index: usize) {
        let scrub = self.chance(2) == 0;
        let forgets = self.scenario.mutation == Some(Mutation::BoxForgets);
        let lost: Vec<GpuId> = match forgets || scrub {
            true => (0..self.racks[index].slots.len()).map(|slot| self.racks[index].gpu(slot)).collect(),
            false => Vec::new(),
        };
        lost.iter().for_each(|gpu| self.checker.lost_data(gpu));
        let rack = &mut self.racks[index];
        rack.down_until_ms = None;
        rack.sequence = 0;
        for slot in &mut rack.slots {
            if forgets {
                (slot.bound, slot.cleaned) = (0, 0);
            } else if scrub {
                // Nothing survived the restart, so all that was ever let in is gone.
                slot.cleaned = slot.cleaned.max(slot.bound);
            }
            if forgets || scrub {
                slot.data = None;
            }
        }
    }

    /// Only the agent restarts; borrowers stay in.
    pub(super) fn restart_agent(&mut self, index: usize) {
        let rack = &mut self.racks[index];
        rack.run += 1;
        rack.sequence = 0;
        for slot in &mut rack.slots {
            slot.busy = None;
            slot.burn_in = None;
        }
    }

    pub(super) fn break_slot(&mut self, index: usize, slot: usize) {
        self.racks[index].slots[slot].broken = true;
        self.end_session(index, slot);
    }

    fn is_up(&self, index: usize) -> bool {
        let rack = &self.racks[index];
        rack.down_until_ms.is_none() && self.now_ms >= rack.frozen_until_ms
    }

    /// Orders arrive: only the answer to the latest report counts.
    pub(super) fn obey(&mut self, index: usize, request: u64, orders: &BoxOrders) {
        let rack = &self.racks[index];
        if !self.is_up(index) || request != (rack.run << 32 | rack.sequence) {
            return;
        }
        for order in &orders.slots {
            let number = self.racks[index].number(order.slot);
            match &order.want {
                Want::Serve { lease, epoch, since_epoch, pcie: Some(pairing), .. } => {
                    let to = (&pairing.host, pairing.host_slot);
                    self.pair(index, number, *lease, (*epoch, *since_epoch), to);
                }
                Want::Idle | Want::Serve { .. } => {}
                Want::Clean { epoch } => self.begin(index, number, Work::Clean(*epoch)),
                Want::BurnIn { epoch } => self.begin(index, number, Work::BurnIn(*epoch)),
                Want::Off => self.end_session(index, number),
            }
        }
    }

    /// The box proxy writes its table: this host, under this epoch, by the rule by which borrowers are let in.
    ///
    /// What the same lease has left there since an epoch is its own; what another has left is scrubbed first.
    fn pair(
        &mut self,
        index: usize,
        number: usize,
        lease: LeaseId,
        (epoch, since): (u64, u64),
        to: (&Name, u8),
    ) {
        let (now_ms, gpu) = (self.now_ms, self.racks[index].gpu(number));
        let slot = &mut self.racks[index].slots[number];
        let is_new = epoch > slot.bound && slot.busy.is_none() && slot.session.is_none();
        if slot.broken || epoch <= slot.cleaned || !(epoch == slot.bound || is_new) {
            return;
        }
        if is_new {
            if slot.bound > slot.cleaned && slot.bound < since {
                slot.cleaned = since - 1;
                let scrubbed = slot.data.take();
                scrubbed.into_iter().for_each(|lease| self.checker.scrubbed(&gpu, lease));
            }
            let found = slot.data.replace(lease);
            self.checker.handed_over(now_ms, &gpu, lease, found);
        }
        slot.bound = epoch;
        self.checker.paired(&gpu, epoch, to);
    }

    /// Whether a box lets a host in with this epoch.
    pub(super) fn is_bound(&self, gpu: &GpuId, epoch: u64) -> bool {
        let rack = self.racks.iter().find(|rack| rack.name == gpu.box_name).expect("it is known");
        rack.slots[rack.number(gpu.slot)].bound >= epoch
    }

    fn begin(&mut self, index: usize, number: usize, work: Work) {
        let slot = &self.racks[index].slots[number];
        let done = match work {
            Work::Clean(epoch) => slot.cleaned >= epoch,
            Work::BurnIn(epoch) => slot.burn_in.as_ref().is_some_and(|result| result.epoch == epoch),
        };
        if done || slot.busy.is_some_and(|(_, doing)| doing == work) {
            return;
        }
        // The session that is in is ended before anything else.
        if let Some(session) = slot.session {
            let epoch = match work {
                Work::Clean(epoch) | Work::BurnIn(epoch) => epoch,
            };
            if session.epoch <= epoch {
                self.end_session(index, number);
            }
        }
        let takes_ms = 50 + u64::from(self.chance(1_500));
        let rack = &mut self.racks[index];
        rack.work += 1;
        rack.slots[number].busy = Some((rack.work, work));
        let what = Happening::Done { rack: index, run: rack.run, slot: number, work: rack.work };
        self.agenda.put(self.now_ms + takes_ms, what);
    }

    pub(super) fn done(&mut self, index: usize, run: u64, number: usize, work: u64) {
        let gpu = self.racks[index].gpu(number);
        let rack = &mut self.racks[index];
        if rack.run != run || rack.down_until_ms.is_some() {
            return;
        }
        let slot = &mut rack.slots[number];
        let Some((_, doing)) = slot.busy.filter(|(id, _)| *id == work) else { return };
        slot.busy = None;
        match doing {
            Work::Clean(epoch) => {
                slot.cleaned = slot.cleaned.max(epoch);
                // A lease that was admitted with a later epoch is not meant.
                if slot.bound <= epoch
                    && let Some(lease) = slot.data.take()
                {
                    self.checker.scrubbed(&gpu, lease);
                }
                assert!(
                    slot.session.is_none_or(|session| session.epoch > epoch),
                    "cleaned under somebody's feet"
                );
            }
            Work::BurnIn(epoch) => {
                slot.burn_in = Some(BurnIn { epoch, passed: !slot.broken, detail: "simulated".into() });
                slot.data = None;
                self.checker.lost_data(&gpu);
            }
        }
    }

    /// The rule by which a box admits borrowers, without asking a manager.
    pub(super) fn knock(&mut self, borrower: usize, life: u64, gpu: &GpuId, lease: LeaseId, epoch: u64) {
        let index =
            self.racks.iter().position(|rack| rack.name == gpu.box_name).expect("GPUs are of known boxes");
        if self.racks[index].down_until_ms.is_some() {
            return;
        }
        let mutation = self.scenario.mutation;
        let number = self.racks[index].number(gpu.slot);
        let slot = &mut self.racks[index].slots[number];
        let clean = slot.bound <= slot.cleaned || mutation == Some(Mutation::BoxAdmitsUncleaned);
        let cleaning = slot.busy.is_some();
        let admitted = !slot.broken
            && !cleaning
            && epoch > slot.cleaned
            && (epoch == slot.bound || (epoch > slot.bound && clean));
        if admitted {
            slot.bound = epoch;
            slot.data = Some(lease);
            if slot.session.is_none_or(|session| session.borrower != borrower || session.life != life) {
                let session = Session { borrower, life, lease, epoch };
                let before = slot.session;
                // A second connection of the same lease takes over from the first.
                if before.is_some_and(|before| before.lease == lease && before.epoch == epoch) {
                    self.end_session(index, number);
                }
                self.checker.admitted(self.now_ms, gpu, session);
                self.racks[index].slots[number].session = Some(session);
            }
        }
        let what = Happening::Opened { borrower, life, gpu: gpu.clone(), epoch, admitted };
        self.send(what);
    }

    pub(super) fn end_session(&mut self, index: usize, number: usize) {
        let gpu = self.racks[index].gpu(number);
        let Some(session) = self.racks[index].slots[number].session.take() else { return };
        self.checker.left(&gpu, session);
        let Session { borrower, life, epoch, .. } = session;
        self.send(Happening::Closed { borrower, life, gpu, epoch });
    }

    /// A borrower ends its session on one GPU.
    pub(super) fn hang_up_at(&mut self, borrower: usize, life: u64, gpu: &GpuId) {
        let index = self.racks.iter().position(|rack| rack.name == gpu.box_name).expect("it is known");
        let number = self.racks[index].number(gpu.slot);
        let session = self.racks[index].slots[number].session;
        if session.is_some_and(|session| session.borrower == borrower && session.life == life) {
            self.end_session(index, number);
        }
    }

    /// A borrower's connections break.
    pub(super) fn hang_up(&mut self, borrower: usize, life: u64) {
        for index in 0..self.racks.len() {
            for number in 0..self.racks[index].slots.len() {
                let session = self.racks[index].slots[number].session;
                if session.is_some_and(|session| session.borrower == borrower && session.life == life) {
                    self.end_session(index, number);
                }
            }
        }
    }
}
