//! `dxpu bench api`: what a call costs the program that makes it, and what each transport keeps of its bare speed.
//!
//! The bare transport is measured in the same run, against a process of its own as the worker is one: absolute times
//! say little on a busy machine, ratios do.

mod pcie;
mod pool;
mod promises;
mod raw;
mod report;

use crate::roles::worker::devices::{Devices, soft};
use crate::roles::worker::{front_config, listen_failure};
use crate::support::exit::{Exit, Failure, Outcome};
use crate::support::{library, log, quick_build};
use anyhow::{Context, bail};
use cuda_worker::{FrontHandle, SessionConfig, serve_listener};
use machine::files;
use report::{Report, Transport};
use std::collections::HashMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use transport::{Address, ClientSecurity, ServerIdentity};

static PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/bench"));

/// Lanes of the client; the bare measurement uses as many connections.
const LANES: usize = 4;

#[derive(clap::Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// The api plane: instructions and time of calls, latency and bandwidth of each transport
    Api(Api),
    /// The pool: placement, durable grants and failover, for growing numbers of GPUs
    Pool(pool::Pool),
    /// The PCIe plane: conversion, round trips and throughput beside the bare network, reads over a distance, fairness
    Pcie(pcie::Pcie),
    /// The other end of the bare measurement
    #[command(hide = true)]
    RawServer(raw::RawServer),
}

#[derive(clap::Args)]
struct Api {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Round trips to measure on each transport
    #[arg(long, default_value_t = 2000)]
    rounds: usize,
    /// Megabytes of each bulk copy
    #[arg(long, default_value_t = 256)]
    megabytes: u64,
    /// How often everything is measured; the median counts
    #[arg(long, default_value_t = 3)]
    repeat: usize,
    /// Only count instructions; fail if a call has more than SPECIFICATION.md promises. Takes seconds, on any machine
    #[arg(long, conflicts_with_all = ["json", "rounds", "megabytes", "repeat"])]
    check: bool,
}

impl Bench {
    pub(crate) fn run(self) -> Outcome {
        quick_build::refuse_to_measure()?;
        match self.what {
            What::Api(api) => api.run(),
            What::Pool(pool) => pool.run(),
            What::Pcie(pcie) => pcie.run(),
            What::RawServer(server) => server.run(),
        }
    }
}

impl Api {
    fn run(self) -> Outcome {
        log::start("warn");
        let bed = Bed::make()?;
        let mut calls = bed.measure(&bed.ways[2], &["calls"], &[])?;
        if self.check {
            let surviving = bed.measure(&bed.ways[2], &["calls"], &[("DXPU_SURVIVE", "1")])?;
            calls.extend(
                surviving.get("launch_instructions").map(|count| (promises::JOURNALED.to_owned(), *count)),
            );
            for (way, figure) in [(&bed.ways[0], promises::OVER_TCP), (&bed.ways[3], promises::OVER_SHM)] {
                // On few cores threads do not poll, and the caller writes shared memory itself.
                let polling = bed.measure(way, &["calls"], &[("DXPU_SPIN", "100us")])?;
                calls.extend(polling.get("launch_instructions").map(|count| (figure.to_owned(), *count)));
            }
            promises::check(&calls)?;
            return Ok(Exit::Success);
        }
        let mut transports = Vec::new();
        for way in &bed.ways {
            errln!("measuring {} …", way.name);
            transports.push((way.name, self.measure(&bed, way)?));
        }
        let report = Report::new(&calls, transports)?;
        if self.json {
            outln!("{}", serde_json::to_string_pretty(&report)?);
        } else {
            report.print();
        }
        Ok(Exit::Success)
    }

    /// Measures bare and served in turn, so that both meet the same moods of the machine.
    fn measure(&self, bed: &Bed, way: &Way) -> anyhow::Result<Transport> {
        let (rounds, megabytes) = (self.rounds.to_string(), self.megabytes.to_string());
        let mut runs = Vec::new();
        for _ in 0..self.repeat.max(1) {
            let bare = raw::measure(&way.raw, &way.client, self.rounds, self.megabytes << 20, LANES)?;
            let served = bed.measure(way, &["transport", &rounds, &megabytes, "3"], &[])?;
            runs.push(Transport::new(&bare, &served)?);
        }
        Ok(Transport::median(&runs))
    }
}

/// One transport: where the worker and the bare server listen.
struct Way {
    name: &'static str,
    worker: Address,
    raw: Address,
    client: ClientSecurity,
    fingerprint: Option<String>,
}

/// Workers and bare servers on every transport, for as long as it lives.
struct Bed {
    ways: Vec<Way>,
    program: PathBuf,
    token: PathBuf,
    library: library::Library,
    raw_server: std::process::Child,
    front: Option<FrontHandle>,
    _directory: tempfile::TempDir,
}

impl Bed {
    fn make() -> anyhow::Result<Self> {
        let directory =
            tempfile::Builder::new().prefix("dxpu-bench-").tempdir().context("cannot make a directory")?;
        let program = directory.path().join("bench");
        files::write_new(&program, 0o700, PROGRAM)?;
        let token = directory.path().join("token");
        files::write_new(&token, 0o600, machine::random_hex(32)?.as_bytes())?;
        let (certificate, key) = ServerIdentity::generate_pem(&["localhost".to_owned()])?;
        let identity = ServerIdentity::from_pem(&certificate, &key)?;
        let ways = ways(directory.path(), identity.fingerprint())?;

        let identity_file = directory.path().join("identity.pem");
        files::write_new(&identity_file, 0o600, format!("{certificate}{key}").as_bytes())?;
        let raw_server = raw::spawn(ways.iter().map(|way| &way.raw), &identity_file)?;

        let mut session = SessionConfig::new(files::read_secret(&token)?);
        session.image_cache = Some(directory.path().join("images"));
        session.tls = Some((certificate, key));
        let devices = Devices::Soft(soft::SoftDevices {
            devices: 1,
            memory_bytes: 4 << 30,
            compute_capability: driver_soft::COMPUTE_CAPABILITY,
            identity: String::new(),
            page: None,
            is_merged: false,
        });
        let addresses = ways.iter().map(|way| way.worker.clone()).collect();
        let front =
            serve_listener(front_config(addresses, session, devices, 8)?, |_| {}).map_err(listen_failure)?;
        let library = library::extract()?;
        Ok(Self { ways, program, token, library, raw_server, front: Some(front), _directory: directory })
    }

    /// Runs the benchmark program over one transport and reads its `name value` lines.
    fn measure(
        &self,
        way: &Way,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> anyhow::Result<HashMap<String, f64>> {
        let mut command = Command::new(&self.program);
        command.args(arguments).envs(self.library.environment(std::slice::from_ref(&way.worker)));
        command.env("DXPU_TOKEN_FILE", &self.token).env("DXPU_LANES", LANES.to_string());
        for unset in [
            "DXPU_FINGERPRINT",
            "DXPU_CA",
            "DXPU_DELAY",
            "DXPU_TOKEN",
            "DXPU_SYNC",
            "DXPU_SURVIVE",
            "DXPU_SPIN",
        ] {
            command.env_remove(unset);
        }
        command.envs(environment.iter().copied());
        if let Some(fingerprint) = &way.fingerprint {
            command.env("DXPU_FINGERPRINT", fingerprint);
        }
        let output =
            command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("cannot run it")?;
        if !output.status.success() {
            bail!("the benchmark program failed over {} ({})", way.name, output.status);
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let line = |line: &str| {
            let (name, value) = line.split_once(' ')?;
            Some((name.to_owned(), value.trim().parse().ok()?))
        };
        Ok(text.lines().filter_map(line).collect())
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Some(front) = self.front.take() {
            front.stop();
        }
        let _ = self.raw_server.kill();
        let _ = self.raw_server.wait();
    }
}

fn ways(directory: &Path, fingerprint: transport::Fingerprint) -> anyhow::Result<Vec<Way>> {
    let at = |text: String| text.parse::<Address>().map_err(anyhow::Error::from);
    let tcp =
        |scheme: &str| -> anyhow::Result<Address> { at(format!("{scheme}:127.0.0.1:{}", free_port()?)) };
    let file = |scheme: &str, name: &str| at(format!("{scheme}:{}/{scheme}-{name}", directory.display()));
    let plain = ClientSecurity::Plain;
    Ok(vec![
        Way { name: "tcp", worker: tcp("tcp")?, raw: tcp("tcp")?, client: plain.clone(), fingerprint: None },
        Way {
            name: "tcp_tls",
            worker: tcp("tls")?,
            raw: tcp("tls")?,
            client: ClientSecurity::Fingerprint(fingerprint.0),
            fingerprint: Some(fingerprint.to_string()),
        },
        Way {
            name: "unix",
            worker: file("unix", "worker")?,
            raw: file("unix", "raw")?,
            client: plain.clone(),
            fingerprint: None,
        },
        Way {
            name: "shm",
            worker: file("shm", "worker")?,
            raw: file("shm", "raw")?,
            client: plain,
            fingerprint: None,
        },
    ])
}

/// A port that is free now. Another process may take it before we do; then the bind fails and says so.
fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot find a free port")?;
    Ok(listener.local_addr().context("cannot find a free port")?.port())
}

fn missing(name: &str) -> Failure {
    Failure::new(Exit::Failure, format!("the benchmark program did not report {name}"), "report this")
}
