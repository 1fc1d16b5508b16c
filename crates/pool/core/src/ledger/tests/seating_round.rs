//! One round of seating in a large pool: how much work the plan is, and that it is made once for all that wait.

use super::bench::{gpu_report, name};
use super::*;
use pool_api::{BoxReport, Class, Guest, SeatLoad};
use std::time::{Duration, Instant};

const BOXES: usize = 1_250;
const GPUS_PER_BOX: usize = 8;
const WAITING: usize = 2_000;
const GIB: u64 = 1 << 30;

struct Pool {
    ledger: Ledger,
    dice: SplitMix,
    now_ms: u64,
    sequence: u64,
    tenants: u32,
}

impl Pool {
    /// Nine of ten GPUs have an online lease; seats take no guests yet.
    fn new(tenants: u32) -> Self {
        let ledger = Ledger::new(Settings::default(), 1_000_000);
        let mut pool = Self { ledger, dice: SplitMix::new(1), now_ms: 1_000_000, sequence: 0, tenants };
        pool.report_all(false);
        pool.work();
        for _ in 0..BOXES * GPUS_PER_BOX * 9 / 10 {
            pool.ask(LeaseRequest { class: Class::Online, ..LeaseRequest::default() });
        }
        pool
    }

    fn apply(&mut self, command: &Command) {
        let _writes = self.ledger.apply(command, self.now_ms, &mut self.dice).unwrap();
    }

    /// How many outcomes there were to commit.
    fn work(&mut self) -> usize {
        std::iter::from_fn(|| self.ledger.tick(self.now_ms)).count()
    }

    fn ask(&mut self, request: LeaseRequest) {
        self.now_ms += 1;
        let tenant = name(&format!("t{}", self.dice.below(self.tenants)));
        let request = LeaseRequest { ttl_ms: 86_400_000, ..request };
        let command =
            Command::CreateLease { owner: "o".into(), token: None, tenant, request, idempotency_key: None };
        self.apply(&command);
    }

    /// All boxes report, without work in between.
    fn report_all(&mut self, is_ready: bool) {
        self.sequence += 1;
        for number in 0..BOXES {
            let report = self.report_of(number, is_ready);
            self.apply(&Command::Report { box_name: name(&format!("b{number}")), report });
        }
    }

    fn report_of(&mut self, number: usize, is_ready: bool) -> BoxReport {
        let model = ["A100", "H200"][number % 2];
        let memory_bytes = [24, 48, 80][number % 3] * GIB;
        let gpus = (0..GPUS_PER_BOX as u8).map(|slot| gpu_report(model, slot, BoxKind::Pcie)).collect();
        let mut report = BoxReport {
            agent: "a".into(),
            sequence: self.sequence,
            kind: BoxKind::Pcie,
            rack: "r".into(),
            paths: vec!["10.0.0.1".into()],
            gpus,
            guard: None,
        };
        for of in 0..GPUS_PER_BOX as u8 {
            let (busy, periods) = (self.dice.below(800), self.dice.below(400_000));
            let seat = gpu_report(model, 32 + of, BoxKind::Pcie);
            report.gpus.push(pool_api::GpuReport {
                memory_bytes,
                guest: Some(Guest { of, any_tenant: !number.is_multiple_of(4), overcommit: false }),
                uuid: format!("uuid-{model}-{of}"),
                ready: is_ready,
                sharing: Some(SeatLoad { online_busy_milli: busy, online_periods_milli: periods }),
                ..seat
            });
        }
        report
    }

    /// So many offline leases wait, of different sizes.
    fn queue(&mut self, count: usize) {
        for _ in 0..count {
            let gib = [4, 8, 16, 24, 32, 40, 64, 72][self.dice.below(8) as usize];
            let model = [None, Some("A100"), Some("H200")][self.dice.below(3) as usize];
            let priority = [20, 50, 60][self.dice.below(3) as usize];
            self.ask(LeaseRequest {
                class: Class::Offline,
                memory_bytes: Some(gib * GIB),
                model: model.map(super::bench::model),
                priority,
                ..LeaseRequest::default()
            });
        }
    }

    fn waiting(&self) -> usize {
        let is_pending = |entry: &&LeaseEntry| entry.lease.state == LeaseState::Pending;
        self.ledger.leases.values().filter(is_pending).count()
    }
}

#[test]
fn ten_thousand_gpus_and_two_thousand_waiting_guests_take_one_plan_of_a_few_milliseconds() {
    let mut pool = Pool::new(20);
    pool.queue(WAITING);
    assert_eq!(pool.waiting(), WAITING);
    let before = pool.ledger.plans_made().0;
    pool.report_all(true);
    let mut took = Duration::MAX;
    // The least of several, because other processes of this machine run in between.
    for _ in 0..10 {
        let began = Instant::now();
        pool.ledger.plan_seats();
        took = took.min(began.elapsed());
    }
    let (kinds, steps) = (pool.ledger.seat_kinds(), pool.ledger.plans_made().1);
    let (planned, began) = (pool.ledger.plans_made().0, Instant::now());
    let outcomes = pool.work();
    let round = began.elapsed();
    let plans = pool.ledger.plans_made().0 - planned;
    println!(
        "{} GPUs in {kinds} kinds of seats, {WAITING} waiting guests: a plan takes {steps} steps, {took:?}; the round {round:?} in \
         {outcomes} outcomes with {plans} plans more ({} before)",
        BOXES * GPUS_PER_BOX,
        planned - before,
    );
    assert_eq!(pool.waiting(), 0);
    assert_eq!(pool.ledger.inconsistencies(), Vec::<String>::new());
    assert_eq!(plans, 0, "the plan that was there lasts for all {WAITING}");
    assert!(steps < 20_000_000, "{steps} steps");
    assert!(cfg!(debug_assertions) || took < Duration::from_millis(100), "{took:?}");
}

/// More wait than there are seats, and of more kinds than one plan has.
#[test]
fn a_long_line_of_many_kinds_takes_few_plans() {
    let mut pool = Pool::new(40);
    for number in 0..12_000 {
        let memory_bytes = Some((1 + number % 8 * 10) * GIB);
        pool.ask(LeaseRequest { class: Class::Offline, memory_bytes, ..LeaseRequest::default() });
    }
    let before = pool.ledger.plans_made().0;
    pool.report_all(true);
    let outcomes = pool.work();
    let plans = pool.ledger.plans_made().0 - before;
    println!("{outcomes} outcomes, {plans} plans, {} wait", pool.waiting());
    assert!(plans <= 20, "{plans} plans");
    // Those that wait can have none of the seats that are left: they are of other tenants, or too small.
    assert!(pool.waiting() >= 12_000 - BOXES * GPUS_PER_BOX, "{} wait", pool.waiting());
    let is_pending = |entry: &&LeaseEntry| entry.lease.state == LeaseState::Pending;
    for entry in pool.ledger.leases.values().filter(is_pending).step_by(97) {
        let why = pool.ledger.explain(entry.lease.id).unwrap();
        assert!(why.filters.iter().all(|count| count.filter != pool_api::Filter::Usable), "{why:?}");
    }
}
