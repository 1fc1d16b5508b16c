//! What the ledger costs as the pool grows. The clock is the caller's: a core has none.

use super::queue::Wish;
use super::{Answer, Command, Ledger, Settings};
use crate::{Dice, SplitMix, records};
use pool_api::{
    BoxKind, BoxReport, GpuId, GpuReport, Health, Lease, LeaseId, LeaseRequest, LeaseState, Model, Name,
    SpareRequest, Topology,
};

/// GPUs in each box.
const GPUS_PER_BOX: usize = 8;
const MODELS: [&str; 4] = ["A100", "H100", "H200", "L40S"];

/// What was measured, in microseconds unless said otherwise.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// GPUs of the pool.
    pub gpus: usize,
    /// Leases when the pool was full.
    pub leases: usize,
    /// Choosing the GPUs of a request, nothing else.
    pub place_us_p50: f64,
    /// Choosing the GPUs of a request, nothing else.
    pub place_us_p99: f64,
    /// The same for requests of one GPU.
    pub place_single_us_p99: f64,
    /// Creating a lease that is granted at once: queue, placement, records and their JSON.
    pub grant_us_p50: f64,
    /// Creating a lease that is granted at once: queue, placement, records and their JSON.
    pub grant_us_p99: f64,
    /// Ending a lease.
    pub release_us_p99: f64,
    /// A report of a box of eight GPUs that says nothing new.
    pub report_us_p50: f64,
    /// A report of a box of eight GPUs that says nothing new.
    pub report_us_p99: f64,
    /// From a report of a bad GPU to its lease on another one.
    pub failover_us_p99: f64,
    /// Reading the whole pool from its records, in milliseconds.
    pub load_ms: f64,
    /// Bytes written for one grant, on average.
    pub grant_bytes: f64,
}

struct Yard<'a> {
    ledger: Ledger,
    boxes: Vec<(Name, BoxReport)>,
    live: Vec<LeaseId>,
    dice: SplitMix,
    now_ms: u64,
    clock_ns: &'a mut dyn FnMut() -> u64,
}

/// Builds a pool of so many GPUs, fills it, and then lets leases come and go, `rounds` of them.
///
/// `clock_ns` tells a time in nanoseconds; only differences count.
pub fn measure_ledger(gpus: usize, rounds: usize, clock_ns: &mut dyn FnMut() -> u64) -> Measured {
    let mut yard = Yard::new(gpus, clock_ns);
    let leases = yard.fill();
    let mut measured = Measured { gpus, leases, ..Measured::default() };
    let (mut place, mut single, mut grant, mut release, mut report, mut bytes) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        release.push(yard.release_one());
        let request = yard.request();
        yard.ledger.catch_up();
        let took = yard.place_only(&request);
        place.push(took);
        if request.gpus == 1 {
            single.push(took);
        }
        if let Some((took, size)) = yard.grant(request) {
            grant.push(took);
            bytes.push(size as f64);
        }
        report.push(yard.idle_report());
    }
    let mut failover: Vec<f64> = (0..rounds.min(200)).filter_map(|_| yard.fail_one()).collect();
    measured.place_us_p50 = quantile(&mut place, 0.5);
    measured.place_us_p99 = quantile(&mut place, 0.99);
    measured.place_single_us_p99 = quantile(&mut single, 0.99);
    measured.grant_us_p50 = quantile(&mut grant, 0.5);
    measured.grant_us_p99 = quantile(&mut grant, 0.99);
    measured.release_us_p99 = quantile(&mut release, 0.99);
    measured.report_us_p50 = quantile(&mut report, 0.5);
    measured.report_us_p99 = quantile(&mut report, 0.99);
    measured.failover_us_p99 = quantile(&mut failover, 0.99);
    measured.grant_bytes = bytes.iter().sum::<f64>() / bytes.len().max(1) as f64;
    measured.load_ms = yard.load();
    measured
}

fn quantile(times: &mut [f64], share: f64) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(((times.len().max(1) - 1) as f64 * share) as usize).copied().unwrap_or(0.0)
}

impl<'a> Yard<'a> {
    fn new(gpus: usize, clock_ns: &'a mut dyn FnMut() -> u64) -> Self {
        let mut yard = Self {
            ledger: Ledger::new(Settings::default(), 1_000_000),
            boxes: Vec::new(),
            live: Vec::new(),
            dice: SplitMix::new(1),
            now_ms: 1_000_000,
            clock_ns,
        };
        for number in 0..gpus / GPUS_PER_BOX {
            let kind = if number % 3 == 0 { BoxKind::Nvlink } else { BoxKind::Pcie };
            let model = Model::new(MODELS[number % MODELS.len()]).expect("it is a model");
            let gpu = |slot: usize| GpuReport {
                slot: slot as u8,
                model: model.clone(),
                memory_bytes: 80 << 30,
                uuid: format!("GPU-{number}-{slot}"),
                nvlink_group: (kind == BoxKind::Nvlink).then_some(0),
                only_pcie: false,
                guest: None,
                part: None,
                health: Health::OK,
                bound_epoch: 0,
                cleaned_epoch: 0,
                ready: true,
                unready: None,
                endpoints: vec![format!("box-{number}:{}", 7000 + slot)],
                counters: None,
                burn_in: None,
                must_leave: false,
                sharing: None,
            };
            let report = BoxReport {
                agent: "a".into(),
                sequence: 0,
                kind,
                rack: format!("rack-{}", number / 8),
                paths: vec![format!("box-{number}")],
                gpus: (0..GPUS_PER_BOX).map(gpu).collect(),
                guard: None,
            };
            let name = Name::new(&format!("box-{number}")).expect("it is a name");
            yard.boxes.push((name, report));
            yard.report(number);
        }
        for model in MODELS {
            let model = Model::new(model).expect("it is a model");
            let request = SpareRequest { count: (gpus / 1000).max(1) as u32 };
            yard.apply(&Command::SetSpares { model, request });
        }
        yard
    }

    fn apply(&mut self, command: &Command) -> Option<Answer> {
        let answer = self.ledger.apply(command, self.now_ms, &mut self.dice).ok()?.answer;
        self.tick();
        Some(answer)
    }

    fn tick(&mut self) {
        while let Some(outcome) = self.ledger.tick(self.now_ms) {
            drop(outcome);
        }
    }

    fn report(&mut self, number: usize) {
        let (name, report) = &mut self.boxes[number];
        report.sequence += 1;
        let command = Command::Report { box_name: name.clone(), report: report.clone() };
        self.apply(&command);
    }

    /// Mostly one GPU, of one model or any.
    fn request(&mut self) -> LeaseRequest {
        let gpus = [1, 1, 1, 1, 1, 1, 2, 2, 4, 8][self.dice.below(10) as usize];
        let model =
            MODELS.get(self.dice.below(6) as usize).map(|model| Model::new(model).expect("it is a model"));
        let topology = if gpus == 1 || self.dice.below(2) == 0 { Topology::Any } else { Topology::SameBox };
        LeaseRequest { gpus, model, topology, ttl_ms: 3_600_000, ..LeaseRequest::default() }
    }

    fn create(&self, request: LeaseRequest) -> Command {
        let tenant = Name::new("t").expect("it is a name");
        Command::CreateLease { owner: "o".into(), token: None, tenant, request, idempotency_key: None }
    }

    /// Leases until ten requests in a row find no room. Those are given up: the pool stays as full as that.
    fn fill(&mut self) -> usize {
        let mut refused = 0;
        while refused < 10 {
            let request = self.request();
            let command = self.create(request);
            match self.apply(&command) {
                Some(Answer::Lease(lease)) if lease.state == LeaseState::Granted => {
                    self.live.push(lease.id);
                    refused = 0;
                }
                Some(Answer::Lease(lease)) => {
                    self.apply(&Command::Release { lease: lease.id, reason: "released".into() });
                    refused += 1;
                }
                _ => refused += 1,
            }
        }
        self.live.len()
    }

    fn release_one(&mut self) -> f64 {
        let at = self.dice.below(self.live.len() as u32) as usize;
        let id = self.live.swap_remove(at);
        let lease = self.ledger.lease(id).expect("it is live").clone();
        let began = (self.clock_ns)();
        self.apply(&Command::Release { lease: id, reason: "released".into() });
        let took = (self.clock_ns)() - began;
        self.clean(&lease);
        took as f64 / 1e3
    }

    /// The boxes of a lease clean its GPUs and say so.
    fn clean(&mut self, lease: &Lease) {
        for grant in &lease.grants {
            let number = self.number(&grant.gpu);
            self.boxes[number].1.gpus[usize::from(grant.gpu.slot)].cleaned_epoch = grant.epoch;
            self.report(number);
        }
    }

    fn number(&self, gpu: &GpuId) -> usize {
        gpu.box_name.as_str()["box-".len()..].parse().expect("boxes are numbered")
    }

    fn place_only(&mut self, request: &LeaseRequest) -> f64 {
        let lease = Lease {
            id: LeaseId(0),
            tenant: Name::new("t").expect("it is a name"),
            owner: String::new(),
            token: None,
            request: request.clone(),
            state: LeaseState::Pending,
            grants: Vec::new(),
            model: None,
            created_ms: 0,
            granted_ms: None,
            expires_ms: 0,
            ended: None,
            moves: Vec::new(),
            moving: None,
            suspend_wanted: false,
            parking: None,
            version: 0,
        };
        let began = (self.clock_ns)();
        let wish = Wish::of(&lease);
        let need = wish.need(self.ledger.open_classes(&lease.tenant, &wish));
        let found = self.ledger.stock.choose(&need, &mut self.dice);
        let took = (self.clock_ns)() - began;
        drop(found);
        took as f64 / 1e3
    }

    fn grant(&mut self, request: LeaseRequest) -> Option<(f64, usize)> {
        let command = self.create(request);
        let began = (self.clock_ns)();
        let outcome = self.ledger.apply(&command, self.now_ms, &mut self.dice).ok()?;
        let took = (self.clock_ns)() - began;
        let Answer::Lease(lease) = outcome.answer else { return None };
        self.tick();
        if lease.state != LeaseState::Granted {
            self.apply(&Command::Release { lease: lease.id, reason: "released".into() });
            return None;
        }
        self.live.push(lease.id);
        let size = |(key, value): &(String, Option<Vec<u8>>)| key.len() + value.as_ref().map_or(0, Vec::len);
        Some((took as f64 / 1e3, outcome.writes.iter().map(size).sum()))
    }

    fn idle_report(&mut self) -> f64 {
        let number = self.dice.below(self.boxes.len() as u32) as usize;
        let (name, report) = &mut self.boxes[number];
        report.sequence += 1;
        let command = Command::Report { box_name: name.clone(), report: report.clone() };
        let began = (self.clock_ns)();
        self.apply(&command);
        ((self.clock_ns)() - began) as f64 / 1e3
    }

    /// A GPU of a lease of one GPU goes bad; tells how long the lease was without one.
    fn fail_one(&mut self) -> Option<f64> {
        let at = self.dice.below(self.live.len() as u32) as usize;
        let lease = self.ledger.lease(self.live[at])?.clone();
        let grant = lease.grants.first().filter(|_| lease.grants.len() == 1)?;
        let number = self.number(&grant.gpu);
        let (name, report) = &mut self.boxes[number];
        report.sequence += 1;
        report.gpus[usize::from(grant.gpu.slot)].health = Health::bad("measured");
        let command = Command::Report { box_name: name.clone(), report: report.clone() };
        let began = (self.clock_ns)();
        self.apply(&command);
        let took = (self.clock_ns)() - began;
        let moved = self.ledger.lease(lease.id)?;
        (moved.state == LeaseState::Granted && moved.grants[0].gpu != grant.gpu).then_some(took as f64 / 1e3)
    }

    /// Writes every record and reads the pool from them.
    fn load(&mut self) -> f64 {
        let mut records: Vec<(String, Vec<u8>)> = Vec::new();
        for (name, owner) in &self.ledger.boxes {
            records.push((format!("box/{name}"), records::BOX.encode(&owner.stored())));
            let gpus = owner.slots.values();
            records.extend(gpus.map(|entry| {
                (format!("gpu/{}", entry.gpu.id), records::GPU.encode::<pool_api::Gpu>(&entry.gpu))
            }));
        }
        for (id, entry) in &self.ledger.leases {
            records.push((format!("lease/{id}"), records::LEASE.encode::<Lease>(&entry.lease)));
        }
        let began = (self.clock_ns)();
        let loaded =
            Ledger::load(records, Settings::default(), self.now_ms).expect("it was written just now");
        let took = (self.clock_ns)() - began;
        drop(loaded);
        took as f64 / 1e6
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_pool_is_filled_and_measured() {
        let mut now_ns = 0;
        let measured = measure_ledger(64, 50, &mut || {
            now_ns += 1_000;
            now_ns
        });
        assert!(measured.leases > 10, "{measured:?}");
        assert_eq!((measured.place_us_p50, measured.grant_us_p99), (1.0, 1.0));
        assert!(measured.failover_us_p99 > 0.0 && measured.grant_bytes > 500.0, "{measured:?}");
    }
}
