//! The guardian of a box: one process that keeps the images of all its workers' sessions.
//!
//! It is in a process group of its own and outlives this agent, as workers do; the next agent finds it by its command
//! line. When it dies it is started again: its images are gone then, and sessions begin with a whole image.

use super::process::{self, Process};
use super::slot::Surroundings;
use crate::complaint::Complaint;
use anyhow::Context;
use guardian::GuardianStore;
use locks::{lock, wait_for};
use machine::files;
use pool_api::{GuardReport, GuardedLease};
use pool_auth::Identity;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What an operator says about guard memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardOptions {
    /// Memory for all images together.
    pub bytes: u64,
    /// A directory for suspended images.
    pub disk: Option<PathBuf>,
    /// How long a program is suspended before its image goes there; `None`: as the guardian thinks fit.
    pub disk_after: Option<Duration>,
    /// The port at which guardians of other boxes reach this one; 0: any that is free. The guardian that is started after
    /// one that died has the same: programs know where their images are.
    pub port: u16,
    /// The guardian of another box that keeps second copies.
    pub copy_to: Option<String>,
}

/// How often the agent looks after its guardian.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// A guardian that ends so soon could not begin: another process may have its port.
const BEGUN_AFTER: Duration = Duration::from_secs(2);
/// How long a guardian may take to zero its images.
const ENDED_WITHIN: Duration = Duration::from_secs(60);

/// The thread that looks after the guardian.
pub(crate) struct Guard {
    stopping: Arc<(Mutex<bool>, Condvar)>,
    thread: JoinHandle<Watch>,
}

struct Watch {
    /// With the port that was chosen.
    options: GuardOptions,
    /// The operator named none.
    chooses_port: bool,
    started: Option<Instant>,
    around: Surroundings,
    socket: PathBuf,
    process: Option<Process>,
    /// None if an earlier agent started it.
    child: Option<Child>,
    complaint: Complaint,
}

/// The socket of a box's guardian.
pub(crate) fn socket(state: &Path) -> PathBuf {
    state.join("guardian")
}

impl Guard {
    /// Takes over the guardian that an agent before this one left, or starts one.
    pub(crate) fn start(
        options: &GuardOptions,
        around: &Surroundings,
        authority: &str,
    ) -> anyhow::Result<Self> {
        let socket = socket(&around.state);
        let address = format!("unix:{}", socket.display());
        address.parse::<transport::Address>().context("the guardian needs a shorter --state-dir")?;
        files::replace(&authority_file(&around.state), 0o600, authority.as_bytes())?;
        let mut options = options.clone();
        let chooses_port = options.port == 0;
        if chooses_port {
            options.port = port(around)?;
        }
        let mut watch = Watch {
            options,
            chooses_port,
            started: None,
            around: around.clone(),
            process: process::guardian_at(&socket),
            socket,
            child: None,
            complaint: Complaint::default(),
        };
        watch.end_if_different()?;
        watch.look();
        let stopping = Arc::new((Mutex::new(false), Condvar::new()));
        let told = stopping.clone();
        let thread = std::thread::Builder::new().name("guardian-watch".to_owned()).spawn(move || {
            let mut is_stopping = lock(&told.0);
            while !*is_stopping {
                is_stopping = wait_for(&told.1, is_stopping, LOOK_EVERY);
                if !*is_stopping {
                    watch.look();
                }
            }
            watch
        })?;
        Ok(Self { stopping, thread })
    }

    /// Looks after it no more. With `ends` it ends, and zeroes its images; else the next agent finds it.
    pub(crate) fn stop(self, ends: bool) {
        *lock(&self.stopping.0) = true;
        self.stopping.1.notify_all();
        let Ok(mut watch) = self.thread.join() else { return };
        if ends && let Err(error) = watch.end() {
            tracing::error!(%error, "the guardian does not end");
        }
    }
}

impl Watch {
    fn look(&mut self) {
        if let Some(child) = &mut self.child {
            // Reaps it if it has ended.
            let _ = child.try_wait();
        }
        let is_alive = self.process.as_ref().is_some_and(Process::is_alive);
        *lock(&self.around.guarded) = is_alive.then(|| census(&self.socket)).flatten();
        if is_alive {
            return;
        }
        if let Some(gone) = self.process.take() {
            tracing::error!(pid = gone.pid, "the guardian died, and its images with it; it is started again");
            if self.chooses_port && self.started.is_some_and(|at| at.elapsed() < BEGUN_AFTER) {
                let _ = std::fs::remove_file(port_file(&self.around.state));
                self.options.port = port(&self.around).unwrap_or(0);
            }
        }
        match self.spawn() {
            Ok(()) => _ = self.complaint.right(),
            Err(error) => {
                let text = format!("{error:#}");
                if self.complaint.wrong(&text, Instant::now()).is_some() {
                    tracing::error!(error = text, "the guardian cannot be started: no program is protected");
                }
            }
        }
    }

    fn spawn(&mut self) -> anyhow::Result<()> {
        let log =
            std::fs::File::options().create(true).append(true).open(self.around.state.join("guardian.log"));
        let mut command = Command::new(std::env::current_exe()?);
        command.args(arguments(&self.options, &self.around, &self.socket));
        for variable in ["DXPU_TOKEN", "DXPU_TOKEN_FILE", "DXPU_JOIN_TOKEN"] {
            command.env_remove(variable);
        }
        guardian::tune_memory(&mut command);
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.context("its log")?);
        let child = command.spawn().context("cannot start the guardian")?;
        let process = Process::find(child.id()).context("the guardian ended at once; see guardian.log")?;
        tracing::info!(pid = process.pid, bytes = self.options.bytes, "guardian started");
        (self.process, self.child, self.started) = (Some(process), Some(child), Some(Instant::now()));
        Ok(())
    }

    /// A guardian of an earlier agent that was told something else is of no use.
    fn end_if_different(&mut self) -> anyhow::Result<()> {
        let Some(process) = &self.process else { return Ok(()) };
        let words = process::words_of(process);
        if words.get(1..) == Some(&arguments(&self.options, &self.around, &self.socket)[..]) {
            tracing::info!(pid = process.pid, "the guardian is taken over");
            return Ok(());
        }
        tracing::warn!(
            pid = process.pid,
            "the guardian was told something else before: it is ended, and its images with it"
        );
        self.end()
    }

    fn end(&mut self) -> anyhow::Result<()> {
        let Some(process) = self.process.take() else { return Ok(()) };
        let is_over = process.end_in_order(ENDED_WITHIN);
        if let Some(child) = &mut self.child.take() {
            let _ = child.wait();
        }
        anyhow::ensure!(is_over, "process {} cannot be ended", process.pid);
        Ok(())
    }
}

fn port_file(state: &Path) -> PathBuf {
    state.join("guardian-port")
}

/// The port that the guardians of this box have; one that is free now, if there was none before.
fn port(around: &Surroundings) -> anyhow::Result<u16> {
    let file = port_file(&around.state);
    let kept = std::fs::read_to_string(&file).ok().and_then(|text| text.trim().parse().ok());
    if let Some(port) = kept.filter(|port| *port != 0) {
        return Ok(port);
    }
    let listener = TcpListener::bind((around.listen_host.as_str(), 0))
        .with_context(|| format!("no port is free at {}", around.listen_host))?;
    let port = listener.local_addr()?.port();
    files::replace(&file, 0o600, port.to_string().as_bytes())?;
    Ok(port)
}

fn authority_file(state: &Path) -> PathBuf {
    state.join("authority.pem")
}

fn arguments(options: &GuardOptions, around: &Surroundings, socket: &Path) -> Vec<String> {
    let path = |path: &Path| path.display().to_string();
    let host = &around.listen_host;
    let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
    let mut words = vec!["guardian".to_owned(), "--socket".to_owned(), path(socket)];
    let mut add = |name: &str, value: String| words.extend([name.to_owned(), value]);
    add("--memory", options.bytes.to_string());
    add("--peer-listen", format!("{host}:{}", options.port));
    add("--peer-host", around.advertised_host.clone());
    add("--peer-name", Identity::box_server_name(&around.box_name));
    add("--peer-authority", path(&authority_file(&around.state)));
    add("--peer-cert", path(&around.home().certificate_file()));
    add("--peer-key", path(&around.home().key_file()));
    if let Some(disk) = &options.disk {
        add("--disk", path(disk));
    }
    if let Some(after) = options.disk_after {
        add("--disk-after", format!("{}ms", after.as_millis()));
    }
    if let Some(copy_to) = &options.copy_to {
        add("--copy-to", copy_to.clone());
    }
    words
}

/// What the guardian keeps; `None` if it does not say so in time.
fn census(socket: &Path) -> Option<GuardReport> {
    /// A guardian answers at once, or it is stopped; the agent asks again with its next look.
    const PATIENCE: Duration = Duration::from_secs(1);
    let census = GuardianStore::connect(socket).ok()?.with_patience(PATIENCE).census().ok()?;
    let guarded = |(lease, bytes): (String, u64)| Some(GuardedLease { lease: lease.parse().ok()?, bytes });
    let leases = census.leases.into_iter().filter_map(guarded).take(GuardReport::LEASES_MAX).collect();
    Some(GuardReport { bytes: census.bytes_max, used_bytes: census.used, leases })
}

/// The images of leases that have ended or were revoked end. On a thread of its own: a guardian may be silent.
pub(crate) fn end_leases(socket: PathBuf, leases: Vec<String>) {
    let end = move || {
        for lease in leases {
            let ended = GuardianStore::connect(&socket).and_then(|store| store.end_lease(&lease));
            if let Err(error) = ended {
                tracing::warn!(%error, lease, "the guardian was not told that a lease has ended");
            }
        }
    };
    if let Err(error) = std::thread::Builder::new().name("guardian-leases".to_owned()).spawn(end) {
        tracing::warn!(%error, "the guardian was not told that a lease has ended");
    }
}
