//! `dxpu worker`: lends GPUs.

pub(crate) mod devices;
mod guard;
mod identity;
mod merged;
mod slices;

use crate::roles::gpu_box::SOFT_MEMORY_BYTES;
use crate::support::exit::{Exit, Failure, Outcome};
use crate::support::notify::ServiceManager;
use crate::support::{log, quantity};
use anyhow::Context;
use cuda_worker::{
    Admission, FrontConfig, FrontError, SessionConfig, SessionEvent, SessionSpawn, serve_listener,
};
use devices::{Devices, nvidia, soft};
use identity::{Identity, Token};
use machine::{files, host_name};
use pool_agent::worker_word::{self, Teller, UseOfSoft};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use transport::{Address, Scheme};

const EXAMPLES: &str = "\
Examples:
  dxpu worker --listen 0.0.0.0:7400                        TLS, with an identity and a token made on the first start
  dxpu worker --listen unix:/tmp/dxpu.sock                 for programs of this user on this machine
  dxpu worker --listen shm:/tmp/dxpu.sock                  the same, through shared memory: the fastest
  dxpu worker --listen tcp:10.0.0.7:7400 --plain           no encryption: only where nobody else is on the network
  dxpu worker --listen 0.0.0.0:7400 --driver soft --devices 2 --memory 8GiB
  dxpu worker --listen 0.0.0.0:7400 --guard-memory 64GiB   programs with survival outlive their sessions
  dxpu worker --listen 0.0.0.0:7400 --merged --guard-memory 64GiB    online and offline programs of one tenant, closer together
  CUDA_VISIBLE_DEVICES=1 dxpu worker --listen 0.0.0.0:7400 --driver nvidia     one GPU of this machine";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Worker {
    /// Where to listen: HOST:PORT (TLS), tcp:HOST:PORT, unix:/path or shm:/path; may be given several times
    #[arg(long, value_name = "ADDR", required = true)]
    listen: Vec<Address>,
    /// What executes the programs' GPU work: `nvidia` are the GPUs of this machine (those in CUDA_VISIBLE_DEVICES),
    /// `soft` is a GPU in software that needs no hardware [default: nvidia if this machine has NVIDIA's driver, as `dxpu box`
    /// does; else soft]
    #[arg(long, value_enum)]
    driver: Option<DriverKind>,
    /// How many soft GPUs each program sees
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=64))]
    devices: u32,
    /// Lend N GPUs in software, as `dxpu box --soft N` does; the same as --driver soft --devices N
    #[arg(long, value_name = "N", conflicts_with_all = ["driver", "devices"], value_parser = clap::value_parser!(u32).range(1..=64))]
    soft: Option<u32>,
    /// Memory of each soft GPU, shared by all programs [default: 4GiB]; of an NVIDIA GPU, the most that all programs
    /// together may use of it [default: all]
    #[arg(long, value_name = "SIZE", value_parser = quantity::bytes)]
    memory: Option<u64>,
    /// The most memory of this machine that one program's graphs, modules, streams and events may take [default: 2GiB]
    #[arg(long, value_name = "SIZE", value_parser = quantity::bytes)]
    host_memory: Option<u64>,
    /// Compute capability of the soft GPUs; they execute PTX for it and for older ones [default: 12.0, as new as the PTX
    /// that common packages carry]
    #[arg(long, value_name = "X.Y", value_parser = quantity::compute_capability)]
    compute_capability: Option<(u32, u32)>,
    /// File with the token that programs must show; by default one is made and kept (or taken from DXPU_TOKEN)
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Let programs in by lease: the directory of a slot that `dxpu box` keeps
    #[arg(long, value_name = "DIR", conflicts_with = "token_file", hide = true)]
    by_lease: Option<PathBuf>,
    /// Soft GPUs with different ones have different UUIDs
    #[arg(long, value_name = "TEXT", default_value = "", hide = true)]
    soft_identity: String,
    /// The page that the workers of one GPU share, made by `dxpu box`
    #[arg(long, value_name = "FILE", hide = true)]
    page: Option<PathBuf>,
    /// Certificate chain (PEM) to show instead of the one that is made and kept
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key (PEM) of --tls-cert
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Allow tcp: addresses, on which everything, the token included, travels in the clear
    #[arg(long)]
    plain: bool,
    /// Where the identity and the token are kept
    #[arg(long, value_name = "DIR")]
    identity_dir: Option<PathBuf>,
    /// The most programs at a time
    #[arg(long, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u16).range(1..=4000))]
    sessions: u16,
    /// A program that is silent for this long is given up
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = quantity::duration)]
    stall_timeout: Duration,
    /// Memory of this machine for images of protected programs. A program that runs with survival goes on from its image
    /// when its session or its GPU is lost [default: none]
    #[arg(long, value_name = "SIZE", value_parser = quantity::bytes)]
    guard_memory: Option<u64>,
    /// A private directory for images of suspended programs; they are encrypted there [default: none]
    #[arg(long, value_name = "DIR", requires = "guard_memory")]
    guard_disk: Option<PathBuf>,
    /// The socket of the guardian that keeps the images, in place of one of this worker's own
    #[arg(long, value_name = "PATH", conflicts_with = "guard_memory", hide = true)]
    guardian: Option<PathBuf>,
    /// Memory of this machine for what programs copy to their GPUs, so that the next program of a tenant need not send it
    /// again: for programs that wish for it, as functions and `dxpu run --content` do. 0: nothing is kept. A given size is taken
    /// at once, the default as it is needed [default: a 16th of the memory, at most 16GiB]
    #[arg(long, value_name = "SIZE", env = "DXPU_CONTENT_MEMORY", value_parser = quantity::bytes)]
    content_memory: Option<u64>,
    /// Load the modules that the last program like it has loaded before a program asks for them, if it wishes for that, as
    /// functions and `dxpu run --content` do
    #[arg(long, value_name = "YES", env = "DXPU_MODULES_AHEAD", default_value = "true", action = clap::ArgAction::Set)]
    modules_ahead: bool,
    /// What offline programs may cost an online one (`dxpu run --class`), in percent of the time that its requests take. Beyond it
    /// they get less of the GPU
    #[arg(long, value_name = "PERCENT", default_value = "25", value_parser = clap::value_parser!(u32).range(1..=1000))]
    slack: u32,
    /// How long a kernel of an offline program that is longer than 0.3 ms may have the GPU at a stretch while an online program waits for
    /// it (`dxpu run --class`), such as 100us: the device then interrupts it. Only GPUs and drivers that heed time slices do; the worker
    /// measures that on its first start, which takes two seconds. 0s: no slice. Not with --merged [default: what the driver gives, about
    /// 2ms]
    #[arg(long, value_name = "TIME", env = "DXPU_OFFLINE_SLICE", value_parser = quantity::duration)]
    offline_slice: Option<Duration>,
    /// Put the contexts of all programs into one MPS server, which this worker starts: an online program (`dxpu run --class`) gets the GPU
    /// sooner, because no switch of contexts lies between it and offline work. A fault of one program then ends the contexts of all:
    /// use it for programs that trust each other, and run online ones with `dxpu run --survive`, which restores them. Needs
    /// nvidia-cuda-mps-control
    #[arg(long)]
    merged: bool,
    /// With --merged: how long offline programs wait at most before they begin to work beside an online one, after faults that ended the
    /// contexts of all. The first wait is a second, each fault doubles it, ten minutes without one end it. 0s: they do not wait
    #[arg(long, value_name = "TIME", env = "DXPU_FAULT_WAIT_MAX", default_value = "60s", value_parser = quantity::duration)]
    fault_wait_max: Duration,
    /// The folder of the MPS daemon of the GPU, which `dxpu box` keeps, in place of one of this worker's own
    #[arg(long, value_name = "DIR", requires = "merged", hide = true)]
    mps_folder: Option<PathBuf>,
    /// How long to look for work before sleeping: longer answers sooner and takes more of a core [default: 500us on
    /// machines with more than 4 cores, otherwise as little as each transport thinks best]
    #[arg(long, value_name = "TIME", env = "DXPU_SPIN", value_parser = quantity::duration)]
    spin: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum DriverKind {
    /// A GPU in software
    Soft,
    /// The GPUs of this machine
    Nvidia,
}

/// Session processes kept ready: a program and the helper it starts find theirs at once.
const SPARES: usize = 2;

/// Connections of each address that have not shown a token yet. Each costs a descriptor and a few kilobytes. A newcomer has
/// as long to show its token as so many others take to arrive.
const STRANGERS_MAX: usize = 256;

impl Worker {
    pub(crate) fn run(self) -> Outcome {
        log::start("info");
        self.check()?;
        raise_descriptor_limit();
        let directory = match &self.identity_dir {
            Some(directory) => directory.clone(),
            None => files::state_directory()?,
        };
        let token = match &self.by_lease {
            Some(_) => None,
            None => Some(Token::find(self.token_file.as_deref(), &directory)?),
        };
        let needs_identity = self.listen.iter().any(|address| address.scheme() == Scheme::Tls);
        let identity = match needs_identity {
            true => Some(Identity::find(self.tls_cert.as_deref().zip(self.tls_key.as_deref()), &directory)?),
            false => None,
        };
        let admission = match (&self.by_lease, &token) {
            (Some(directory), _) => Admission::Lease(worker_word::admission(directory)?),
            (None, token) => {
                Admission::Secret(token.as_ref().map_or_else(String::new, |token| token.secret.clone()))
            }
        };
        let mut session = SessionConfig::admitting(admission);
        session.tls = identity.as_ref().map(|identity| (identity.certificate.clone(), identity.key.clone()));
        session.tls_files = self.tls_cert.clone().zip(self.tls_key.clone());
        session.image_cache = Some(match &self.by_lease {
            Some(slot) => worker_word::new_image_directory(slot)?,
            None => files::cache_directory()?.join("images"),
        });
        if let Some(bytes) = self.host_memory {
            session.host_bytes_max = bytes;
        }
        let guard =
            self.guard_memory.map(|bytes| guard::start(bytes, self.guard_disk.as_deref(), &directory));
        let guard = guard.transpose()?;
        session.guardian = guard.as_ref().map(|guard| guard.socket.clone()).or_else(|| self.guardian.clone());
        session.stall_timeout = self.stall_timeout;
        session.wait_spin = self.spin;
        session.modules_ahead = self.modules_ahead;
        session.slack_percent = self.slack;
        session.takes_turns = self.page.is_some();
        session.content_bytes_max = self.content_memory.unwrap_or_else(content_memory);
        // An operator that says how much has programs for it; the default is taken as it is needed.
        session.content_is_made_ready = self.content_memory.is_some();
        session.is_merged = self.merged;
        session.fault_wait_max = self.fault_wait_max;
        session.offline_slice_us = self.offline_slice().map(|slice| (slice.as_micros() as u64).max(1));
        let merged = self.starts_daemon().then(|| merged::start(&directory)).transpose()?;
        let mps = merged.as_ref().map(|merged| merged.folder.clone()).or_else(|| self.mps_folder.clone());
        let devices = self.devices(mps);
        let config = front_config(self.listen.clone(), session, devices, usize::from(self.sessions))?;

        // Before anything is listening, so that no signal finds us unprepared.
        let mut signals =
            signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]).context("signals")?;
        let teller = self.by_lease.as_deref().map(Teller::new).transpose()?.map(Arc::new);
        if let (Some(teller), DriverKind::Soft) = (&teller, self.driver()) {
            // One more place in the ledger, for the meter, which only looks. It is kept as long as this process lives.
            let grant = (config.grant)()?;
            let source = devices::make_status(&grant.driver, grant.fds).map_err(anyhow::Error::msg)?;
            teller.watch(move || {
                let status = source.device_status(0).ok()?;
                Some(UseOfSoft {
                    percent: status.utilization_gpu_percent,
                    used_bytes: status.memory_used_bytes,
                })
            });
        }
        let hears = teller.clone();
        let on_event = move |event| {
            if let Some(teller) = &hears {
                tell(teller, &event);
            }
            log_event(event);
        };
        let front = serve_listener(config, on_event).map_err(listen_failure)?;
        if let Some(teller) = &teller {
            teller.listens_at(front.addresses());
        }
        for address in front.addresses() {
            let text = match &token {
                Some(token) => how_to_connect(address, identity.as_ref(), token),
                None => format!("listening at {address}\n"),
            };
            // A worker whose output has no reader any more serves on.
            let _ = std::io::stdout().write_all(text.as_bytes());
        }
        let mut service = ServiceManager::of_environment();
        service.ready();
        let signal = signals.forever().next();
        service.stopping();
        tracing::info!(signal, "stopping");
        front.stop();
        // When no session is there any more.
        if let Some(merged) = merged {
            merged.supervisor.stop();
        }
        if let Some(guard) = guard {
            guard.supervisor.stop();
        }
        Ok(Exit::Success)
    }

    /// What is lent: what was asked for, or as `dxpu box` does the GPUs of this machine; software where there are none.
    fn driver(&self) -> DriverKind {
        match (self.soft, self.driver) {
            (Some(_), _) => DriverKind::Soft,
            (None, Some(driver)) => driver,
            (None, None) if nvidia::is_here() => DriverKind::Nvidia,
            (None, None) => DriverKind::Soft,
        }
    }

    /// Whether sessions have their contexts in an MPS daemon of this worker's own. A GPU in software needs none.
    fn starts_daemon(&self) -> bool {
        self.merged && self.mps_folder.is_none() && self.driver() == DriverKind::Nvidia
    }

    /// Where this worker keeps what it has found out of the GPUs of this machine: beside its slot in the state of its box, or in the cache.
    fn kept_findings(&self) -> Option<PathBuf> {
        match &self.by_lease {
            Some(slot) => slot.parent().map(Path::to_owned),
            None => files::cache_directory().ok(),
        }
    }

    fn offline_slice(&self) -> Option<Duration> {
        self.offline_slice.filter(|slice| !slice.is_zero())
    }

    /// `mps`: the folder of the MPS daemon, if contexts are merged.
    fn devices(&self, mps: Option<PathBuf>) -> Devices {
        match self.driver() {
            DriverKind::Nvidia => Devices::Nvidia(nvidia::NvidiaDevices {
                memory_limit_bytes: self.memory,
                page: self.page.clone(),
                // With merged contexts it is the server's channels that have slices, for all sessions together.
                heeds_slices: self.offline_slice().is_some()
                    && mps.is_none()
                    && slices::are_heeded(self.kept_findings().as_deref()),
                merged: mps,
            }),
            DriverKind::Soft => Devices::Soft(soft::SoftDevices {
                devices: self.soft.unwrap_or(self.devices),
                memory_bytes: self.memory.unwrap_or(SOFT_MEMORY_BYTES),
                compute_capability: self.compute_capability.unwrap_or(driver_soft::COMPUTE_CAPABILITY),
                identity: self.soft_identity.clone(),
                page: self.page.clone(),
                is_merged: self.merged,
            }),
        }
    }

    fn check(&self) -> Result<(), Failure> {
        if self.driver() == DriverKind::Nvidia && !nvidia::is_here() {
            return Err(Failure::new(
                Exit::Unsupported,
                "this machine shows no NVIDIA GPU (there is no /dev/nvidiactl)",
                "install NVIDIA's driver, or hand the devices to this container; or use --driver soft, a GPU in software",
            ));
        }
        let plain = self.listen.iter().find(|address| address.scheme() == Scheme::Tcp);
        match plain {
            Some(address) if !self.plain => Err(Failure::new(
                Exit::Usage,
                format!("{address} would send everything, the token included, in the clear"),
                "listen at a tls: address, or add --plain if nobody else is on that network",
            )),
            _ => Ok(()),
        }
    }
}

/// Memory for what programs copy, unless an option says otherwise.
fn content_memory() -> u64 {
    const PART: u64 = 16;
    const MOST: u64 = 16 << 30;
    (memory_bytes().unwrap_or(0) / PART).min(MOST)
}

/// The memory of this machine. `None` where the kernel does not say.
fn memory_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// Takes as many descriptors as it may have: each client at the door has one, and each session two. A limit that is too
/// low shows when a client is turned away.
fn raise_descriptor_limit() {
    /// More are never needed.
    const WANTED: u64 = 1 << 16;
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let most = limit.maximum.unwrap_or(u64::MAX).min(WANTED);
    if limit.current.is_some_and(|now| now < most) {
        limit.current = Some(most);
        let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit);
    }
}

/// A worker whose sessions are processes of this executable.
pub(crate) fn front_config(
    addresses: Vec<Address>,
    session: SessionConfig,
    devices: Devices,
    sessions_max: usize,
) -> anyhow::Result<FrontConfig> {
    // Sessions are of this version, also when an upgrade has replaced the file.
    let program = PathBuf::from(machine::THIS_PROGRAM);
    // Ended processes keep their place until they are reaped, which takes a moment.
    let places = sessions_max + SPARES + 16;
    let executes_ptx_only = devices.are_soft();
    Ok(FrontConfig {
        addresses,
        spawn: SessionSpawn { program, arguments: devices.session_arguments() },
        session,
        grant: devices.grants(places)?,
        sessions_max,
        unauthenticated_max: STRANGERS_MAX,
        preamble_timeout: Duration::from_secs(5),
        hold: Duration::from_secs(5),
        spares: SPARES,
        executes_ptx_only,
    })
}

pub(crate) fn listen_failure(error: FrontError) -> Failure {
    let hint = match &error {
        FrontError::Listen { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse => {
            "another process listens there; stop it, or choose another address"
        }
        FrontError::Listen { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
            "choose a port above 1023, or a directory that you may write to"
        }
        FrontError::Listen { .. } => {
            "choose an address of this machine, such as 0.0.0.0:7400 or unix:/tmp/dxpu.sock"
        }
        FrontError::Identity(_) => "check the files of --tls-cert and --tls-key",
        FrontError::Thread(_) => "raise the limit on processes (ulimit -u)",
    };
    Failure::new(Exit::Failure, "the worker cannot start", hint).because(error)
}

/// Tells the box what it should know of a session.
fn tell(teller: &Teller, event: &SessionEvent) {
    match event {
        SessionEvent::Ready { .. } => teller.session_is_ready(),
        SessionEvent::Broken { reason } => teller.session_is_broken(reason),
        SessionEvent::Began { .. }
        | SessionEvent::Ended { .. }
        | SessionEvent::Reaped { .. }
        | SessionEvent::TurnedAway { .. } => {}
    }
}

fn log_event(event: SessionEvent) {
    match event {
        SessionEvent::Began { pid, client, peer } => tracing::info!(pid, client, peer, "session began"),
        SessionEvent::Ended { pid, peer, end, .. } => {
            tracing::info!(pid, peer, end = ?end.kind, reason = end.reason, "session ended");
        }
        SessionEvent::Ready { .. } | SessionEvent::Reaped { .. } => {}
        SessionEvent::TurnedAway { reason, count } => {
            tracing::warn!(count, reason = %reason, "clients were turned away");
        }
        SessionEvent::Broken { reason } => tracing::error!(reason, "a session process is not usable"),
    }
}

fn how_to_connect(address: &Address, identity: Option<&Identity>, token: &Token) -> String {
    let mut line = format!("dxpu run --worker {}", reachable(address));
    match identity {
        Some(identity) if address.scheme() == Scheme::Tls => match identity.is_ours {
            true => line += &format!(" --fingerprint {}", identity.fingerprint),
            false => line += " --ca CA.pem",
        },
        _ => {}
    }
    let mut text = format!("listening at {address}\n");
    match &token.file {
        Some(file) => line += &format!(" --token-file {}", file.display()),
        None => text += "  the token is the one in DXPU_TOKEN\n",
    }
    text += &format!("  run a program with it:  {line} -- PROGRAM\n");
    if let (Some(file), Scheme::Tls | Scheme::Tcp) = (&token.file, address.scheme()) {
        text += &format!("  on another machine, copy the token file there first (scp {})\n", file.display());
    }
    text
}

/// The address as another machine would write it.
fn reachable(address: &Address) -> Address {
    let everywhere = |host: &str| host == "0.0.0.0" || host == "::";
    match address {
        Address::Tls(at) if everywhere(&at.host) => {
            Address::Tls(transport::HostPort { host: host_name(), port: at.port })
        }
        Address::Tcp(at) if everywhere(&at.host) => {
            Address::Tcp(transport::HostPort { host: host_name(), port: at.port })
        }
        other => other.clone(),
    }
}
