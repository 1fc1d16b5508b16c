//! `dxpu demo`: a pool on this machine alone, a program that knows nothing of it, and a GPU that breaks.
//!
//! ```text
//! two boxes, four GPUs, one held as a spare ──▶ lease ──▶ program, undisturbed
//!                                                     └──▶ program, its GPU breaks while it runs ──▶ spare ──▶ it goes on
//! ```

use crate::roles::up::{Gpus, Plan, Pool};
use crate::support::exit::{Exit, Failure, Outcome};
use crate::support::pool_access::failure;
use crate::support::{log, quantity};
use anyhow::Context;
use pool_api::{
    Gpu, GpuId, Lease, LeaseRequest, LeaseState, Name, SpareRecord, SpareRequest, Survive, TaintRequest,
};
use pool_client::idempotency_key;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::{BufRead, BufReader, IsTerminal, Lines, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
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
/// Makes the program paint row by row.
const SLOWLY: &str = "slowly";
/// The program says what it found before its first row.
const LINES_BEFORE_ROWS: usize = 1;
/// Half of its rows.
const BREAK_AFTER_ROWS: usize = 12;

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
        outln!("A pool starts on this machine: a manager, and two boxes with two GPUs in software each.");
        let Some(pool) = Pool::start(&plan, &mut || is_over.load(Ordering::Relaxed))? else {
            return Err(stopped().into());
        };
        outln!("  dashboard   {}", pool.dashboard());
        outln!("  credential  {}", pool.admin_file().display());
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
    /// From the break to the program's next row.
    gap: Duration,
    was_spare: bool,
}

impl Stage<'_> {
    fn play(&self) -> anyhow::Result<Story> {
        let client = self.pool.client();
        let request = SpareRequest { count: 1 };
        let _: SpareRecord = client.put(&format!("/v1/spares/{MODEL}"), &request).map_err(failure)?;
        outln!("  One of the four GPUs is held back as a spare.\n");

        let request = LeaseRequest {
            tenant: Some(Name::new("demo")?),
            ttl_ms: LEASE_TTL_MS,
            note: "dxpu demo".to_owned(),
            survive: Survive::Gpu,
            ..LeaseRequest::default()
        };
        let lease = self.granted(client.create_lease(&request, &idempotency_key()).map_err(failure)?)?;
        let lost = lease.grants[0].gpu.clone();
        outln!("Lease {} has GPU {lost}. Now an ordinary CUDA program starts on it.", lease.id);
        outln!("It loads libcuda.so.1 and knows nothing of dxpu.\n");
        self.start_program(&lease, &[])?.finish(self)?;

        outln!("\nIt paints again, row by row, and the GPU keeps a sum in its memory. First undisturbed:\n");
        let undisturbed = self.start_program(&lease, &[SLOWLY])?.finish(self)?;
        outln!("\nOnce more, and now the GPU breaks, on purpose, after {BREAK_AFTER_ROWS} rows:\n");
        let mut program = self.start_program(&lease, &[SLOWLY])?;
        program.pass_on(BREAK_AFTER_ROWS + LINES_BEFORE_ROWS);
        let spares: Vec<GpuId> = self.gpus()?.into_iter().filter(|gpu| gpu.spare).map(|gpu| gpu.id).collect();
        let broke = Instant::now();
        let reason = TaintRequest { reason: "broken on purpose by dxpu demo".to_owned() };
        let _: Gpu =
            client.post(&format!("/v1/gpus/{lost}/break"), &reason, None, Duration::ZERO).map_err(failure)?;
        outln!("----- GPU {lost} is broken -----");
        program.pass_on(1);
        let gap = broke.elapsed();
        let survived = program.finish(self)?;
        let lease = self.moved(&lease, &lost)?;
        let got = lease.grants[0].gpu.clone();
        outln!("\nundisturbed:  {undisturbed}\nGPU broken:   {survived}");
        if undisturbed != survived {
            let hint = "run `DXPU_LOG=debug dxpu demo` and report what it prints";
            return Err(Failure::new(Exit::Failure, "the two runs ended differently", hint).into());
        }
        let _: Lease = client.release_lease(lease.id).map_err(failure)?;
        Ok(Story { was_spare: spares.contains(&got), lost, got, gap })
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

    /// As any user would: `dxpu run --survive`.
    fn start_program(&self, lease: &Lease, words: &[&str]) -> anyhow::Result<Running> {
        let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
        command.args(["run", "--survive", "--lease", &lease.id.to_string()]);
        if let Some(delay) = self.delay {
            command.args(["--delay", &format!("{}us", delay.as_micros())]);
        }
        command.arg("--").arg(&self.program).args(words).stdin(Stdio::null()).stdout(Stdio::piped());
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
        let mut process = command
            .env("DXPU_CREDENTIAL", self.pool.admin_file())
            .spawn()
            .context("cannot start the demo program")?;
        let output = process.stdout.take().context("cannot read from the demo program")?;
        Ok(Running { process, lines: BufReader::new(output).lines(), last: String::new() })
    }

    fn stay(&self) {
        outln!("\nThe pool stays up until Ctrl-C. Look at it:");
        outln!("  DXPU_CREDENTIAL={} dxpu top", self.pool.admin_file().display());
        while !self.is_over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// The demo program while it runs.
struct Running {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
    /// What it said last.
    last: String,
}

impl Running {
    /// Prints the program's next lines as they come.
    fn pass_on(&mut self, count: usize) {
        for line in self.lines.by_ref().map_while(Result::ok).take(count) {
            outln!("{line}");
            self.last = line;
        }
    }

    /// Prints the rest. Gives back its last line.
    fn finish(mut self, stage: &Stage<'_>) -> anyhow::Result<String> {
        self.pass_on(usize::MAX);
        let status = self.process.wait().context("cannot wait for the demo program")?;
        if stage.is_over.load(Ordering::Relaxed) {
            return Err(stopped().into());
        }
        if !status.success() {
            let hint = "run `DXPU_LOG=debug dxpu demo` and report what it prints";
            let what = format!("the demo program failed ({status})");
            return Err(Failure::new(Exit::Failure, what, hint).into());
        }
        Ok(self.last)
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
    let in_ms = format!("goes on after {:.0} ms", story.gap.as_secs_f64() * 1e3);
    outln!("\nWhat happened, in {:.1} s{path}:\n", took.as_secs_f64());
    outln!("  ┌──────────────────────┐   lease              ┌──────────────────────────┐");
    outln!("  │ mandelbrot           │ ◀──────▶ manager ──▶ │ {lost:<8} broken ✗        │");
    outln!("  │   libcuda.so.1 ──────┼───── ✗ ──────────────┼─▶                        │");
    outln!("  │   (from dxpu)        │                      ├──────────────────────────┤");
    outln!("  │              └───────┼──────────────────────┼─▶ {got:<8} {spare:<13} │");
    outln!("  └──────────────────────┘ CUDA calls and data  └──────────────────────────┘");
    outln!("                                                  {in_ms}");
    if std::io::stdout().is_terminal() {
        outln!("\nA pool to play with:  dxpu up      The demo's pool to look at:  dxpu demo --stay");
    }
}
