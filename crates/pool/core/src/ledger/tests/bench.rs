//! A ledger with a store and boxes that do as they are told.

use super::super::*;
use pool_api::{
    BoxKind, BoxOrders, BoxReport, Gpu, GpuReport, GuardReport, Health, Lease, LeaseRequest, LeaseState, Want,
};

pub(super) struct Slot {
    pub(super) report: GpuReport,
    want: Option<Want>,
}

pub(super) struct TestBox {
    pub(super) kind: BoxKind,
    pub(super) agent: String,
    sequence: u64,
    pub(super) paths: Vec<String>,
    pub(super) slots: Vec<Slot>,
    pub(super) guard: Option<GuardReport>,
}

pub(super) struct Bench {
    pub(super) ledger: Ledger,
    /// What has been committed.
    pub(super) store: BTreeMap<String, Vec<u8>>,
    pub(super) writes: usize,
    pub(super) now_ms: u64,
    pub(super) boxes: BTreeMap<Name, TestBox>,
    dice: SplitMix,
    settings: Settings,
}

pub(super) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub(super) fn tenant() -> Name {
    name("t")
}

pub(super) fn model(text: &str) -> Model {
    Model::new(text).unwrap()
}

pub(super) fn gpu_report(model: &str, slot: u8, kind: BoxKind) -> GpuReport {
    GpuReport {
        slot,
        model: Model::new(model).unwrap(),
        memory_bytes: 140 << 30,
        uuid: format!("uuid-{model}-{slot}"),
        nvlink_group: (kind == BoxKind::Nvlink).then_some(0),
        only_pcie: false,
        guest: None,
        part: None,
        health: Health::OK,
        bound_epoch: 0,
        cleaned_epoch: 0,
        ready: true,
        unready: None,
        endpoints: vec![format!("10.0.0.1:{}", 4000 + u16::from(slot))],
        counters: None,
        burn_in: None,
        must_leave: false,
        sharing: None,
    }
}

impl Bench {
    pub(super) fn with_boxes(boxes: &[(&str, BoxKind, &str, u8)]) -> Self {
        Self::with_settings(Settings::default(), boxes)
    }

    pub(super) fn with_settings(settings: Settings, boxes: &[(&str, BoxKind, &str, u8)]) -> Self {
        let mut bench = Self {
            ledger: Ledger::new(settings.clone(), 1_000_000),
            store: BTreeMap::new(),
            writes: 0,
            now_ms: 1_000_000,
            boxes: BTreeMap::new(),
            dice: SplitMix::new(1),
            settings,
        };
        for &(box_name, kind, model, gpus) in boxes {
            let slot = |slot| Slot { report: gpu_report(model, slot, kind), want: None };
            let agent = format!("agent-{box_name}");
            let entry = TestBox {
                kind,
                agent,
                sequence: 0,
                paths: vec!["10.0.0.1".into(), "udp:10.0.0.1:7000".into()],
                slots: (0..gpus).map(slot).collect(),
                guard: None,
            };
            bench.boxes.insert(name(box_name), entry);
            bench.report(box_name);
        }
        bench
    }

    fn commit(&mut self, outcome: &Outcome) {
        assert!(outcome.writes.len() <= WRITES_MAX);
        self.writes += outcome.writes.len();
        for (key, value) in &outcome.writes {
            match value {
                Some(value) => self.store.insert(key.clone(), value.clone()),
                None => self.store.remove(key),
            };
        }
    }

    pub(super) fn apply(&mut self, command: &Command) -> Result<Answer, Refusal> {
        let outcome = self.ledger.apply(command, self.now_ms, &mut self.dice)?;
        self.commit(&outcome);
        self.tick();
        Ok(outcome.answer)
    }

    pub(super) fn tick(&mut self) {
        while let Some(outcome) = self.ledger.tick(self.now_ms) {
            self.commit(&outcome);
        }
        assert_eq!(self.ledger.inconsistencies(), Vec::<String>::new());
    }

    /// The report a box would send now.
    pub(super) fn next_report(&mut self, box_name: &str) -> BoxReport {
        let entry = self.boxes.get_mut(&name(box_name)).unwrap();
        entry.sequence += 1;
        BoxReport {
            agent: entry.agent.clone(),
            sequence: entry.sequence,
            kind: entry.kind,
            rack: "r1".into(),
            paths: entry.paths.clone(),
            gpus: entry.slots.iter().map(|slot| slot.report.clone()).collect(),
            guard: entry.guard.clone(),
        }
    }

    pub(super) fn send(&mut self, box_name: &str, report: BoxReport) -> Result<BoxOrders, Refusal> {
        match self.apply(&Command::Report { box_name: name(box_name), report })? {
            Answer::Orders(orders) => Ok(orders),
            other => panic!("{other:?}"),
        }
    }

    /// A box does what it was told last, reports, and hears what to do next.
    pub(super) fn report(&mut self, box_name: &str) -> BoxOrders {
        for slot in &mut self.boxes.get_mut(&name(box_name)).unwrap().slots {
            match &slot.want {
                Some(Want::Clean { epoch }) => {
                    slot.report.cleaned_epoch = slot.report.cleaned_epoch.max(*epoch)
                }
                Some(Want::Serve { epoch, .. }) => {
                    slot.report.bound_epoch = slot.report.bound_epoch.max(*epoch)
                }
                _ => {}
            }
        }
        let report = self.next_report(box_name);
        let orders = self.send(box_name, report).unwrap();
        for order in &orders.slots {
            let slots = &mut self.boxes.get_mut(&name(box_name)).unwrap().slots;
            let slot = slots.iter_mut().find(|slot| slot.report.slot == order.slot).unwrap();
            slot.want = Some(order.want.clone());
        }
        orders
    }

    /// The box is another machine now, which has served nobody.
    pub(super) fn forget_epochs(&mut self, box_name: &str) {
        for slot in &mut self.boxes.get_mut(&name(box_name)).unwrap().slots {
            (slot.report.bound_epoch, slot.report.cleaned_epoch, slot.want) = (0, 0, None);
        }
    }

    pub(super) fn report_all(&mut self) {
        let names: Vec<String> = self.boxes.keys().map(ToString::to_string).collect();
        for box_name in names {
            self.report(&box_name);
        }
    }

    /// Reports until nothing changes any more.
    pub(super) fn settle(&mut self) {
        for _ in 0..3 {
            self.report_all();
        }
    }

    pub(super) fn slot(&mut self, box_name: &str, slot: usize) -> &mut GpuReport {
        &mut self.boxes.get_mut(&name(box_name)).unwrap().slots[slot].report
    }

    pub(super) fn forget_slot(&mut self, box_name: &str, slot: usize) {
        self.boxes.get_mut(&name(box_name)).unwrap().slots.remove(slot);
    }

    pub(super) fn add_slot(&mut self, box_name: &str, report: GpuReport) {
        self.boxes.get_mut(&name(box_name)).unwrap().slots.push(Slot { report, want: None });
    }

    pub(super) fn lease(&mut self, request: LeaseRequest) -> Lease {
        self.lease_for(&tenant(), request)
    }

    pub(super) fn lease_for(&mut self, tenant: &Name, request: LeaseRequest) -> Lease {
        self.create(tenant, request, None).unwrap()
    }

    pub(super) fn try_lease(&mut self, request: LeaseRequest) -> Result<Lease, Refusal> {
        self.create(&tenant(), request, None)
    }

    pub(super) fn lease_with_key(&mut self, key: &str, request: LeaseRequest) -> Result<Lease, Refusal> {
        self.create(&tenant(), request, Some(key.to_owned()))
    }

    fn create(
        &mut self,
        tenant: &Name,
        request: LeaseRequest,
        key: Option<String>,
    ) -> Result<Lease, Refusal> {
        let command = Command::CreateLease {
            owner: "o".into(),
            token: None,
            tenant: tenant.clone(),
            request,
            idempotency_key: key,
        };
        let Answer::Lease(lease) = self.apply(&command)? else { panic!("no lease") };
        Ok(*lease)
    }

    pub(super) fn renew(&mut self, lease: LeaseId) -> Result<Lease, Refusal> {
        let Answer::Lease(lease) = self.apply(&Command::Renew { lease })? else { panic!("no lease") };
        Ok(*lease)
    }

    pub(super) fn release(&mut self, lease: LeaseId) -> Lease {
        let command = Command::Release { lease, reason: "released".into() };
        let Answer::Lease(lease) = self.apply(&command).unwrap() else { panic!("no lease") };
        *lease
    }

    pub(super) fn show(&self, id: LeaseId) -> Lease {
        self.ledger.lease(id).unwrap().clone()
    }

    pub(super) fn state(&self, id: LeaseId) -> LeaseState {
        self.show(id).state
    }

    pub(super) fn gpu(&self, id: &str) -> Gpu {
        self.ledger.gpu(&id.parse().unwrap()).unwrap()
    }

    /// Time passes, and boxes report meanwhile.
    pub(super) fn pass(&mut self, ms: u64) {
        self.pass_with_reports(ms, 1_000, |_| {});
    }

    pub(super) fn pass_with_reports(&mut self, ms: u64, step_ms: u64, mut each: impl FnMut(&mut Self)) {
        let end_ms = self.now_ms + ms;
        while self.now_ms < end_ms {
            self.now_ms = (self.now_ms + step_ms).min(end_ms);
            self.report_all();
            each(self);
        }
        self.tick();
    }

    /// Time passes in silence.
    pub(super) fn pass_silently(&mut self, ms: u64) {
        self.now_ms += ms;
        self.tick();
    }

    /// Another leader begins.
    pub(super) fn reload(&mut self) {
        self.ledger = Ledger::load(&self.store, self.settings.clone(), self.now_ms).unwrap();
        self.tick();
    }
}
