//! One size of pool, measured.

use super::boxes::Boxes;
use anyhow::{Context, anyhow, bail};
use pool::{Answer, Command, Ledger, SplitMix};
use pool_api::{Health, Lease, LeaseId, LeaseRequest, LeaseState, Model, Name, SpareRequest};
use pool_manager::{AUDIT_KEEP, CERTIFICATE_LIFE, Clock, Local, Settings};
use pool_store::{Sqlite, Store, Want};
use serde::Serialize;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What one size of pool costs.
#[derive(Serialize)]
pub(super) struct Row {
    gpus: u32,
    /// Choosing a GPU and writing the lease into memory, without the disk.
    place_us_p99: f64,
    /// From the request to the answer, which comes after the commit, with all borrowers asking at once.
    grant_ms_p50: f64,
    grant_ms_p99: f64,
    /// While as many leases are released and as many GPUs cleaned, and every box reports.
    grants_per_s: f64,
    rss_mb: f64,
    /// From a box's report that a GPU is bad to the commit that gives its lease another.
    failover_ms_p99: f64,
    grants: u64,
    commits: u64,
}

/// Boxes report every ten seconds here: twelve thousand of them every second would measure the reports.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// Enough for a 99th percentile.
const PLACEMENTS: usize = 2000;
const FAILOVERS: usize = 200;

/// Spares of each model that failures can use up.
const SPARES: u32 = 8;

impl Row {
    pub(super) fn measure(gpus: u32, borrowers: usize, seconds: u64, folder: &Path) -> anyhow::Result<Self> {
        let place = tempfile::Builder::new()
            .prefix("dxpu-bench-pool-")
            .tempdir_in(folder)
            .context("cannot make a folder")?;
        let store: Arc<dyn Store> = Arc::new(Sqlite::open(place.path().join("pool.db"))?);
        let settings = Settings {
            name: "bench".into(),
            listen: "127.0.0.1:0".parse()?,
            advertise: None,
            store: store.clone(),
            admin_file: place.path().join("admin.json"),
            clock: Clock::start(),
            leader_ttl: Duration::from_secs(10),
            ledger: ledger_settings(),
            audit_keep: AUDIT_KEEP,
            certificate_life: CERTIFICATE_LIFE,
            connections_max: 1,
        };
        let local = Arc::new(Local::start(settings)?);
        while !local.is_leading() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let boxes = Arc::new(Boxes::make(gpus)?);
        fill(&local, &boxes)?;
        let reporting = Reporting::start(&local, &boxes);
        let commits_before = local.commits();
        let grants = measure_grants(&local, &boxes, borrowers, Duration::from_secs(seconds))?;
        let commits = local.commits() - commits_before;
        let failovers = measure_failovers(&local, &boxes)?;
        let rss_mb = resident_mb()?;
        reporting.stop()?;
        drop(Arc::into_inner(local));
        let placements = measure_placement(&*store)?;
        Ok(Self {
            gpus,
            place_us_p99: quantile(placements, 0.99, 1e6),
            grant_ms_p50: quantile(grants.times.clone(), 0.5, 1e3),
            grants_per_s: (grants.times.len() as f64 / grants.took.as_secs_f64()).round(),
            grants: grants.times.len() as u64,
            grant_ms_p99: quantile(grants.times, 0.99, 1e3),
            rss_mb,
            failover_ms_p99: quantile(failovers, 0.99, 1e3),
            commits,
        })
    }
}

fn ledger_settings() -> pool::Settings {
    let ms = REPORT_EVERY.as_millis() as u64;
    pool::Settings {
        report_after_ms: ms,
        suspect_after_ms: 3 * ms,
        dead_after_ms: 6 * ms,
        ..pool::Settings::default()
    }
}

/// Every box reports for the first time.
fn fill(local: &Local, boxes: &Boxes) -> anyhow::Result<()> {
    const FILLERS: usize = 32;
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let fill = || -> anyhow::Result<()> {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed) as usize;
                if index >= boxes.len() {
                    return Ok(());
                }
                boxes.report(local, index, |_| {})?;
            }
        };
        let fillers: Vec<_> = (0..FILLERS).map(|_| scope.spawn(fill)).collect();
        fillers.into_iter().try_for_each(|filler| filler.join().map_err(|_| anyhow!("a thread panicked"))?)
    })?;
    for model in ["H200", "H100", "L40S"] {
        let command =
            Command::SetSpares { model: Model::new(model)?, request: SpareRequest { count: SPARES } };
        local.apply(command).map_err(|detail| anyhow!(detail.message))?;
    }
    Ok(())
}

/// Boxes that report all the time, in the background.
struct Reporting {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<anyhow::Result<()>>,
}

impl Reporting {
    fn start(local: &Arc<Local>, boxes: &Arc<Boxes>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (local, boxes, stopped) = (local.clone(), boxes.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let began = Instant::now();
            for turn in 0u32.. {
                let index = turn as usize % boxes.len();
                let due = REPORT_EVERY.mul_f64(f64::from(turn) / boxes.len() as f64);
                if let Some(wait) = due.checked_sub(began.elapsed()) {
                    std::thread::sleep(wait);
                }
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                boxes.report(&local, index, |_| {})?;
            }
            Ok(())
        });
        Self { stop, thread }
    }

    fn stop(self) -> anyhow::Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("a thread panicked"))?
    }
}

struct Grants {
    /// Seconds from request to answer.
    times: Vec<f64>,
    took: Duration,
}

/// Threads that stand for the agents of all boxes. A box does one thing at a time, and what waits for it at once.
const AGENTS: usize = 32;

/// Borrowers that ask, get, and give back, as fast as they are answered, while agents clean up behind them.
fn measure_grants(local: &Local, boxes: &Boxes, borrowers: usize, time: Duration) -> anyhow::Result<Grants> {
    let (stir, stirred) = std::sync::mpsc::channel();
    let stirred = Mutex::new(stirred);
    let began = Instant::now();
    let borrow = |borrower: usize, stir: Sender<usize>| -> anyhow::Result<Vec<f64>> {
        let mut times = Vec::new();
        while began.elapsed() < time {
            let asked = Instant::now();
            let mut lease = create(local, borrower)?;
            // A small pool may be busy cleaning: then the wait counts.
            while lease.state == LeaseState::Pending {
                std::thread::sleep(Duration::from_millis(1));
                lease = look(local, lease.id)?;
            }
            times.push(asked.elapsed().as_secs_f64());
            let command = Command::Release { lease: lease.id, reason: "released".into() };
            local.apply(command).map_err(|detail| anyhow!(detail.message))?;
            for grant in &lease.grants {
                boxes.stir(boxes.index_of(&grant.gpu)?, &stir);
            }
        }
        Ok(times)
    };
    let mut times = Vec::new();
    let mut took = Duration::ZERO;
    std::thread::scope(|scope| -> anyhow::Result<()> {
        let (borrow, stirred) = (&borrow, &stirred);
        let agents: Vec<_> = (0..AGENTS).map(|_| scope.spawn(move || boxes.attend(local, stirred))).collect();
        let threads: Vec<_> = (0..borrowers)
            .map(|borrower| {
                let stir = stir.clone();
                scope.spawn(move || borrow(borrower, stir))
            })
            .collect();
        drop(stir);
        for thread in threads {
            times.extend(thread.join().map_err(|_| anyhow!("a thread panicked"))??);
        }
        took = began.elapsed();
        agents.into_iter().try_for_each(|agent| agent.join().map_err(|_| anyhow!("a thread panicked"))?)
    })?;
    Ok(Grants { times, took })
}

fn create(local: &Local, borrower: usize) -> anyhow::Result<Lease> {
    let command = Command::CreateLease {
        owner: format!("spiffe://dxpu/tenant/t{}/bench", borrower % 8),
        token: None,
        tenant: Name::new(&format!("t{}", borrower % 8))?,
        request: LeaseRequest { ttl_ms: 600_000, ..LeaseRequest::default() },
        idempotency_key: Some(pool_client::idempotency_key()),
    };
    lease_of(local.apply(command).map_err(|detail| anyhow!(detail.message))?)
}

fn give_back(local: &Local, boxes: &Boxes, lease: &Lease) -> anyhow::Result<()> {
    let command = Command::Release { lease: lease.id, reason: "released".into() };
    local.apply(command).map_err(|detail| anyhow!(detail.message))?;
    for grant in &lease.grants {
        // The box reads its orders and cleans.
        boxes.report(local, boxes.index_of(&grant.gpu)?, |_| {})?;
    }
    Ok(())
}

fn lease_of(answer: Answer) -> anyhow::Result<Lease> {
    match answer {
        Answer::Lease(lease) => Ok(*lease),
        other => bail!("the ledger answered {other:?}"),
    }
}

/// GPUs go bad under their leases, one after the other.
fn measure_failovers(local: &Local, boxes: &Boxes) -> anyhow::Result<Vec<f64>> {
    let mut times = Vec::new();
    for turn in 0..FAILOVERS {
        let lease = create(local, turn)?;
        let Some(grant) = lease.grants.first() else { bail!("lease {} was not granted", lease.id) };
        let (index, slot) = (boxes.index_of(&grant.gpu)?, grant.gpu.slot);
        let set_health = |health: Health| {
            move |report: &mut pool_api::BoxReport| {
                if let Some(gpu) = report.gpus.iter_mut().find(|gpu| gpu.slot == slot) {
                    gpu.health = health;
                }
            }
        };
        let failed = Instant::now();
        boxes.report(local, index, set_health(Health::bad("bench")))?;
        let moved = loop {
            let lease = look(local, lease.id)?;
            if lease.state == LeaseState::Granted && lease.grants[0].gpu != grant.gpu {
                break lease;
            }
            if failed.elapsed() > Duration::from_secs(10) {
                bail!("lease {} did not move", lease.id);
            }
        };
        times.push(failed.elapsed().as_secs_f64());
        give_back(local, boxes, &moved)?;
        repair(local, boxes, &grant.gpu, index, set_health(Health::OK))?;
    }
    Ok(times)
}

/// Brings a GPU back, so that a small pool does not run out of them.
fn repair(
    local: &Local,
    boxes: &Boxes,
    gpu: &pool_api::GpuId,
    index: usize,
    heal: impl FnOnce(&mut pool_api::BoxReport),
) -> anyhow::Result<()> {
    boxes.report(local, index, heal)?;
    let answer =
        local.apply(Command::Repair { gpu: gpu.clone() }).map_err(|detail| anyhow!(detail.message))?;
    let Answer::Gpu(repaired) = answer else { bail!("the ledger answered {answer:?}") };
    let passed = pool_api::BurnIn { epoch: repaired.epoch, passed: true, detail: String::new() };
    let slot = gpu.slot;
    let set = |burn_in: Option<pool_api::BurnIn>| {
        boxes.report(local, index, |report| {
            if let Some(gpu) = report.gpus.iter_mut().find(|gpu| gpu.slot == slot) {
                gpu.burn_in = burn_in;
            }
        })
    };
    set(Some(passed))?;
    set(None)
}

fn look(local: &Local, lease: LeaseId) -> anyhow::Result<Lease> {
    lease_of(local.apply(Command::Look { lease }).map_err(|detail| anyhow!(detail.message))?)
}

/// The ledger alone, as the store has it: what placement costs without the disk.
fn measure_placement(store: &dyn Store) -> anyhow::Result<Vec<f64>> {
    let mut records = Vec::new();
    for prefix in ["box/", "gpu/"] {
        records.extend(
            store
                .list(prefix, Want::Records)?
                .records()?
                .into_iter()
                .map(|record| (record.key, record.value)),
        );
    }
    let now_ms = Clock::start().now_ms();
    let mut ledger = Ledger::load(records, ledger_settings(), now_ms)?;
    let mut dice = SplitMix::new(1);
    // A new leader has not heard of any box yet: each reports once.
    let names: Vec<Name> = ledger.boxes(None).map(|record| record.name).collect();
    for name in names {
        let report = report_again(&ledger, &name)?;
        let _ = ledger.apply(&Command::Report { box_name: name, report }, now_ms, &mut dice)?;
    }
    while ledger.tick(now_ms).is_some() {}
    ledger.catch_up();
    let mut times = Vec::with_capacity(PLACEMENTS);
    let mut held = std::collections::VecDeque::new();
    for turn in 0..PLACEMENTS {
        let command = Command::CreateLease {
            owner: "bench".into(),
            token: None,
            tenant: Name::new("bench")?,
            request: LeaseRequest { ttl_ms: 600_000, ..LeaseRequest::default() },
            idempotency_key: Some(turn.to_string()),
        };
        let began = Instant::now();
        let outcome = ledger.apply(&command, now_ms, &mut dice)?;
        times.push(began.elapsed().as_secs_f64());
        let lease = lease_of(outcome.answer)?;
        if lease.state != LeaseState::Granted {
            bail!("a lease was not granted, though GPUs are free");
        }
        held.push_back(lease);
        // Half of the smallest pool is busy at any time.
        if held.len() > 128 {
            free(&mut ledger, held.pop_front().context("one is held")?, now_ms, &mut dice)?;
        }
    }
    Ok(times)
}

fn free(ledger: &mut Ledger, lease: Lease, now_ms: u64, dice: &mut SplitMix) -> anyhow::Result<()> {
    let _ = ledger.apply(&Command::Release { lease: lease.id, reason: "released".into() }, now_ms, dice)?;
    for grant in &lease.grants {
        let mut report = report_again(ledger, &grant.gpu.box_name)?;
        for gpu in &mut report.gpus {
            let known = ledger.gpu(&pool_api::GpuId { box_name: grant.gpu.box_name.clone(), slot: gpu.slot });
            let known = known.context("it is reported")?;
            if known.state == pool_api::GpuState::Cleaning {
                gpu.cleaned_epoch = known.epoch;
            }
        }
        let _ =
            ledger.apply(&Command::Report { box_name: grant.gpu.box_name.clone(), report }, now_ms, dice)?;
    }
    while ledger.tick(now_ms).is_some() {}
    Ok(())
}

/// What a box would say that is just as the ledger knows it.
fn report_again(ledger: &Ledger, name: &Name) -> anyhow::Result<pool_api::BoxReport> {
    static SEQUENCE: AtomicU64 = AtomicU64::new(1);
    let detail = ledger.box_detail(name).context("the box is known")?;
    let gpu = |gpu: &pool_api::Gpu| pool_api::GpuReport {
        slot: gpu.slot,
        model: gpu.model.clone(),
        memory_bytes: gpu.memory_bytes,
        uuid: gpu.uuid.clone(),
        nvlink_group: gpu.nvlink_group,
        only_pcie: false,
        guest: None,
        part: None,
        health: gpu.health.clone(),
        bound_epoch: 0,
        cleaned_epoch: gpu.cleaned_epoch,
        ready: true,
        unready: None,
        endpoints: gpu.endpoints.clone(),
        counters: None,
        burn_in: None,
        must_leave: false,
        sharing: None,
    };
    Ok(pool_api::BoxReport {
        agent: "again".into(),
        sequence: SEQUENCE.fetch_add(1, Ordering::Relaxed),
        kind: detail.record.kind,
        rack: detail.record.rack.clone(),
        paths: detail.record.paths.clone(),
        gpus: detail.gpus.iter().map(gpu).collect(),
        guard: None,
    })
}

/// In parts of a second, such as 1e3 for milliseconds.
fn quantile(mut seconds: Vec<f64>, share: f64, parts: f64) -> f64 {
    seconds.sort_by(f64::total_cmp);
    let place = ((seconds.len() as f64 * share).ceil() as usize).clamp(1, seconds.len().max(1)) - 1;
    let value = seconds.get(place).copied().unwrap_or(f64::NAN);
    // Three digits are more than a busy machine gives.
    (value * parts * 1e3).round() / 1e3
}

/// Megabytes of this process that are in memory now.
fn resident_mb() -> anyhow::Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status").context("cannot read /proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS is missing")?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse().context("VmRSS is no number")?;
    Ok((kib * 1024.0 / 1e6).round())
}
