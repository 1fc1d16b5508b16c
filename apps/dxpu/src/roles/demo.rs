//! `dxpu demo`: a pool on this machine alone, a program that knows nothing of it, and a GPU that breaks.
//!
//! ```text
//! two boxes, four GPUs, one held as a spare ──▶ lease ──▶ program ──▶ its GPU breaks ──▶ spare ──▶ program again
//! ```

use crate::roles::up::{Gpus, Plan, Pool};
use crate::support::exit::{Exit, Failure, Outcome};
use crate::support::pool_access::failure;
use crate::support::{log, quantity};
use anyhow::Context;
use pool_api::{Gpu, GpuId, Lease, LeaseRequest, LeaseState, Name, SpareRecord, SpareRequest, TaintRequest};
use pool_client::idempotency_key;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::{IsTerminal, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

static PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/demo"));

#[derive(clap::Args)]
pub(crate) struct Demo {
    /// Pretend that the boxes are this far away
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    delay: Option<Duration>,
    /// Leave the pool up afterwards, to look at its dashboard, until Ctrl-C
    #[arg(long)]
    stay: bool,
}

/// What the boxes' GPUs in software are called.
const MODEL: &str = "soft";
/// The program takes a second; a demonstration that the user stops halfway is forgotten soon.
const LEASE_TTL_MS: u64 = 60_000;
const MOVED_WITHIN: Duration = Duration::from_secs(30);

impl Demo {
    pub(crate) fn run(self) -> Outcome {
        log::start("warn");
        let is_over = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, is_over.clone()).context("signals")?;
        }
        let began = Instant::now();
        let directory =
            tempfile::Builder::new().prefix("dxpu-demo-").tempdir().context("cannot make a directory")?;
        let program = directory.path().join("mandelbrot");
        put_program(&program)?;
        let plan = Plan {
            state: directory.path().join("pool"),
            listen: free_address()?,
            advertise: None,
            boxes: 2,
            gpus: Gpus::Soft { count: 2, memory_bytes: 1 << 30 },
        };
        println!("A pool starts on this machine: a manager, and two boxes with two GPUs in software each.");
        let Some(pool) = Pool::start(&plan, &mut || is_over.load(Ordering::Relaxed))? else {
            return Err(stopped().into());
        };
        println!("  dashboard   {}", pool.dashboard());
        println!("  credential  {}", pool.admin_file().display());
        let stage = Stage { pool: &pool, program, delay: self.delay, is_over: &is_over };
        let story = stage.play();
        if let Ok(story) = &story {
            print_picture(story, self.delay, began.elapsed());
            if self.stay {
                stage.stay();
            }
        }
        pool.stop();
        story.map(|_| Exit::Success)
    }
}

/// What there is to play with.
struct Stage<'a> {
    pool: &'a Pool,
    program: PathBuf,
    delay: Option<Duration>,
    is_over: &'a AtomicBool,
}

/// What happened.
struct Story {
    lost: GpuId,
    got: GpuId,
    moved_in: Duration,
    was_spare: bool,
}

impl Stage<'_> {
    fn play(&self) -> anyhow::Result<Story> {
        let client = self.pool.client();
        let request = SpareRequest { count: 1 };
        let _: SpareRecord = client.put(&format!("/v1/spares/{MODEL}"), &request).map_err(failure)?;
        println!("  One of the four GPUs is held back as a spare.\n");

        let request = LeaseRequest {
            tenant: Some(Name::new("demo")?),
            ttl_ms: LEASE_TTL_MS,
            note: "dxpu demo".to_owned(),
            ..LeaseRequest::default()
        };
        let lease = self.granted(client.create_lease(&request, &idempotency_key()).map_err(failure)?)?;
        let lost = lease.grants[0].gpu.clone();
        println!("Lease {} has GPU {lost}. Now an ordinary CUDA program starts on it.", lease.id);
        println!("It loads libcuda.so.1 and knows nothing of dxpu.\n");
        self.run_program(&lease)?;

        println!("\nGPU {lost} breaks, on purpose.");
        let spares: Vec<GpuId> = self.gpus()?.into_iter().filter(|gpu| gpu.spare).map(|gpu| gpu.id).collect();
        let broke = Instant::now();
        let reason = TaintRequest { reason: "broken on purpose by dxpu demo".to_owned() };
        let _: Gpu =
            client.post(&format!("/v1/gpus/{lost}/break"), &reason, None, Duration::ZERO).map_err(failure)?;
        let lease = self.moved(&lease, &lost)?;
        let (got, moved_in) = (lease.grants[0].gpu.clone(), broke.elapsed());
        let was_spare = spares.contains(&got);
        let what = if was_spare { "the spare" } else { "another GPU" };
        println!(
            "{:.0} ms later the lease has {got}, {what}. The same program again:\n",
            moved_in.as_secs_f64() * 1e3
        );
        self.run_program(&lease)?;
        let _: Lease = client.release_lease(lease.id).map_err(failure)?;
        Ok(Story { lost, got, moved_in, was_spare })
    }

    fn gpus(&self) -> anyhow::Result<Vec<Gpu>> {
        let page: pool_api::Page<Gpu> =
            self.pool.client().get("/v1/gpus?limit=1000", Duration::ZERO).map_err(failure)?;
        Ok(page.items)
    }

    fn granted(&self, mut lease: Lease) -> anyhow::Result<Lease> {
        let until = Instant::now() + MOVED_WITHIN;
        while lease.state != LeaseState::Granted {
            self.check(until)?;
            let wait = Duration::from_secs(1);
            lease = self.pool.client().wait_for_lease(lease.id, lease.version, wait).map_err(failure)?;
        }
        Ok(lease)
    }

    /// Until the lease has something else instead.
    fn moved(&self, before: &Lease, lost: &GpuId) -> anyhow::Result<Lease> {
        let until = Instant::now() + MOVED_WITHIN;
        let mut version = before.version;
        loop {
            let wait = Duration::from_secs(1);
            let now = self.pool.client().wait_for_lease(before.id, version, wait).map_err(failure)?;
            if now.state == LeaseState::Granted && now.grants.iter().all(|grant| grant.gpu != *lost) {
                return Ok(now);
            }
            version = now.version;
            self.check(until)?;
        }
    }

    fn check(&self, until: Instant) -> Result<(), Failure> {
        if self.is_over.load(Ordering::Relaxed) {
            return Err(stopped());
        }
        if Instant::now() >= until {
            return Err(Failure::new(
                Exit::Failure,
                "the lease got no GPU",
                "report this, with what was printed",
            ));
        }
        Ok(())
    }

    /// As any user would: `dxpu run`.
    fn run_program(&self, lease: &Lease) -> anyhow::Result<()> {
        let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
        command.args(["run", "--lease", &lease.id.to_string()]);
        if let Some(delay) = self.delay {
            command.args(["--delay", &format!("{}us", delay.as_micros())]);
        }
        command.arg("--").arg(&self.program).stdin(Stdio::null());
        for unset in [
            "DXPU_WORKER",
            "DXPU_MANAGER",
            "DXPU_FINGERPRINT",
            "DXPU_CA",
            "DXPU_TOKEN_FILE",
            "DXPU_DELAY",
            "DXPU_TOKEN",
        ] {
            command.env_remove(unset);
        }
        let status = command.env("DXPU_CREDENTIAL", self.pool.admin_file()).status();
        let status = status.context("cannot start the demo program")?;
        if self.is_over.load(Ordering::Relaxed) {
            return Err(stopped().into());
        }
        if !status.success() {
            let hint = "run `DXPU_LOG=debug dxpu demo` and report what it prints";
            return Err(
                Failure::new(Exit::Failure, format!("the demo program failed ({status})"), hint).into()
            );
        }
        Ok(())
    }

    fn stay(&self) {
        println!("\nThe pool stays up until Ctrl-C. Look at it:");
        println!("  DXPU_CREDENTIAL={} dxpu top", self.pool.admin_file().display());
        while !self.is_over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn stopped() -> Failure {
    Failure::new(Exit::Failure, "stopped before the end", "")
}

/// A port that is free now. Another process may take it before the manager does; then the demo says so and can be run
/// again.
fn free_address() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("there is no free port")?;
    listener.local_addr().context("there is no free port")
}

fn put_program(path: &Path) -> anyhow::Result<()> {
    let mut file = std::fs::File::create_new(path).context("cannot write the demo program")?;
    file.write_all(PROGRAM).context("cannot write the demo program")?;
    file.set_permissions(std::fs::Permissions::from_mode(0o700)).context("cannot write the demo program")
}

fn print_picture(story: &Story, delay: Option<Duration>, took: Duration) {
    let path = match delay {
        None => String::new(),
        Some(delay) => format!(" {delay:?} away"),
    };
    let (lost, got) = (story.lost.to_string(), story.got.to_string());
    let spare = if story.was_spare { "spare, in use" } else { "takes over" };
    let in_ms = format!("in {:.0} ms", story.moved_in.as_secs_f64() * 1e3);
    println!("\nWhat happened, in {:.1} s{path}:\n", took.as_secs_f64());
    println!("  ┌──────────────────────┐   lease              ┌──────────────────────────┐");
    println!("  │ mandelbrot           │ ◀──────▶ manager ──▶ │ {lost:<8} broken ✗        │");
    println!("  │   libcuda.so.1 ──────┼───── ✗ ──────────────┼─▶                        │");
    println!("  │   (from dxpu)        │                      ├──────────────────────────┤");
    println!("  │              └───────┼──────────────────────┼─▶ {got:<8} {spare:<13} │");
    println!("  └──────────────────────┘ CUDA calls and data  └──────────────────────────┘");
    println!("                                                  {in_ms}");
    if std::io::stdout().is_terminal() {
        println!("\nA pool to play with:  dxpu up      The demo's pool to look at:  dxpu demo --stay");
    }
}
