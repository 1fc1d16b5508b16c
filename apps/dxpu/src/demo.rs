//! `dxpu demo`: a program that knows nothing of dxpu, using a GPU that is somewhere else.

use crate::exit::{Exit, Failure, Outcome};
use crate::worker::{front_config, listen_failure};
use crate::{devices::Devices, files, library, log, quantity, run, soft};
use anyhow::Context;
use cuda_worker::{SessionConfig, SessionEvent, serve_listener};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use transport::Address;

static PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/demo"));

#[derive(clap::Args)]
pub(crate) struct Demo {
    /// Pretend that the worker is this far away
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    delay: Option<Duration>,
}

impl Demo {
    pub(crate) fn run(self) -> Outcome {
        log::start("warn");
        let directory =
            tempfile::Builder::new().prefix("dxpu-demo-").tempdir().context("cannot make a directory")?;
        let program = directory.path().join("mandelbrot");
        put_program(&program)?;
        let address: Address = format!("unix:{}/worker.sock", directory.path().display()).parse()?;
        let token = directory.path().join("token");
        files::write_new(&token, 0o600, files::random_hex(32)?.as_bytes())?;

        let mut session = SessionConfig::new(files::read_secret(&token)?);
        session.image_cache = Some(directory.path().join("images"));
        let devices = Devices::Soft(soft::SoftDevices {
            devices: 1,
            memory_bytes: 1 << 30,
            compute_capability: (9, 0),
            identity: String::new(),
        });
        let (sender, events) = mpsc::channel();
        let sender = std::sync::Mutex::new(sender);
        let on_event = move |event| {
            if let Ok(sender) = sender.lock() {
                // Nobody listens any more when the demo is over.
                let _ = sender.send(event);
            }
        };
        let front = serve_listener(front_config(vec![address.clone()], session, devices, 4)?, on_event)
            .map_err(listen_failure)?;
        println!("A worker with a soft GPU (a GPU in software) listens at {address}.");
        println!("Now an ordinary CUDA program starts. It loads libcuda.so.1 and knows nothing of dxpu.\n");

        let library = library::extract()?;
        let start = Instant::now();
        let mut command = Command::new(&program);
        command.envs(run::client_environment(&library, &[address])).env("DXPU_TOKEN_FILE", &token);
        for unset in ["DXPU_FINGERPRINT", "DXPU_CA", "DXPU_DELAY", "DXPU_TOKEN"] {
            command.env_remove(unset);
        }
        if let Some(delay) = self.delay {
            command.env("DXPU_DELAY", format!("{}us", delay.as_micros()));
        }
        let mut child = command.stdin(Stdio::null()).spawn().context("cannot start the demo program")?;
        let client = child.id();
        let status = child.wait().context("cannot wait for the demo program")?;
        let took = start.elapsed();
        let served = find_session(&events);
        front.stop();
        if !status.success() {
            return Err(Failure::new(
                Exit::Failure,
                format!("the demo program failed ({status})"),
                "run `DXPU_LOG=debug dxpu demo` and report what it prints",
            )
            .into());
        }
        print_picture(client, served, self.delay, took);
        Ok(Exit::Success)
    }
}

fn put_program(path: &Path) -> anyhow::Result<()> {
    let mut file = std::fs::File::create_new(path).context("cannot write the demo program")?;
    file.write_all(PROGRAM).context("cannot write the demo program")?;
    file.set_permissions(std::fs::Permissions::from_mode(0o700)).context("cannot write the demo program")
}

/// The process that served the program.
fn find_session(events: &mpsc::Receiver<SessionEvent>) -> Option<u32> {
    let mut begun = events.try_iter().filter_map(|event| match event {
        SessionEvent::Began { pid, .. } => Some(pid),
        _ => None,
    });
    begun.next()
}

fn print_picture(client: u32, worker: Option<u32>, delay: Option<Duration>, took: Duration) {
    let worker = worker.map_or_else(|| "?".to_owned(), |pid| pid.to_string());
    let path = match delay {
        None => "Unix socket".to_owned(),
        Some(delay) => format!("as if {delay:?} away"),
    };
    println!("\nWhat happened, in {:.0} ms:\n", took.as_secs_f64() * 1e3);
    println!("  process {client:<10}                            process {worker:<10}");
    println!("  ┌──────────────────────┐                     ┌──────────────────────────┐");
    println!("  │ mandelbrot           │  CUDA calls, data   │ worker session           │");
    println!("  │   libcuda.so.1 ──────┼────────────────────▶│   soft GPU ran the       │");
    println!("  │   (from dxpu)        │◀────────────────────┼── kernels of the program │");
    println!("  └──────────────────────┘{path:^21}└──────────────────────────┘");
    println!("\nThe same across machines:  dxpu worker --listen 0.0.0.0:7400   and then what it prints.");
}
