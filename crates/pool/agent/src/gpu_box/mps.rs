//! The MPS daemons of a box whose contexts are merged: one for each GPU with a seat for guests, for the sessions of both its workers.
//!
//! A process of ours keeps each daemon (`dxpu mps`). As workers do, it outlives this agent, and the next one finds it by its command
//! line. When it dies it is started again; sessions that are served then lose their contexts, and the next ones find the new daemon.

use super::check;
use super::gpu::Gpu;
use super::process::{self, Process};
use crate::complaint::Complaint;
use anyhow::Context;
use locks::{lock, wait_for};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the agent looks after them.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// A daemon waits for its clients for 8 s, and is killed after 12.
const ENDED_WITHIN: Duration = Duration::from_secs(20);
/// How long workers wait for their first daemon.
const READY_WITHIN: Duration = Duration::from_secs(15);

/// The folder of the daemon of a slot's GPU.
pub(crate) fn folder(state: &Path, slot: u8) -> PathBuf {
    state.join(format!("mps-{slot}"))
}

/// Ends daemons of an earlier agent whose contexts were merged, when those of this one are not. Their workers are ended beside it.
pub(crate) fn end_left(state: &Path) {
    for keeper in process::mps_keepers_below(state) {
        tracing::info!(
            pid = keeper.pid,
            "contexts are not merged any more: an MPS daemon of before is ended"
        );
        // It ends by itself when its clients have left. No slot waits for that.
        keeper.ask_to_end();
    }
}

/// The thread that looks after all daemons.
pub(crate) struct Daemons {
    stopping: Arc<(Mutex<bool>, Condvar)>,
    thread: JoinHandle<Vec<Watch>>,
}

struct Watch {
    folder: PathBuf,
    log: PathBuf,
    environment: Vec<(&'static str, String)>,
    process: Option<Process>,
    /// None if an earlier agent started it.
    child: Option<Child>,
    complaint: Complaint,
}

impl Daemons {
    /// Takes over the daemons that an agent before this one left, or starts them. Returns when they take clients: a worker makes
    /// contexts as soon as it starts.
    pub(crate) fn start(gpus: &[Gpu], state: &Path) -> anyhow::Result<Self> {
        let wants = |gpu: &&Gpu| gpu.has_page() && gpu.needs_daemon() && gpu.slot == gpu.host_slot();
        let watch = |gpu: &Gpu| {
            let folder = folder(state, gpu.slot);
            let process = process::mps_keepers_below(&folder).pop();
            let (log, environment) = (state.join("mps.log"), check::driver_environment(gpu));
            Watch { folder, log, environment, process, child: None, complaint: Complaint::default() }
        };
        let mut watches: Vec<Watch> = gpus.iter().filter(wants).map(watch).collect();
        watches.iter_mut().for_each(Watch::look);
        let until = Instant::now() + READY_WITHIN;
        for watch in &watches {
            while !mps_daemon::is_ready(&watch.folder) {
                anyhow::ensure!(
                    Instant::now() < until,
                    "the MPS daemon for merged contexts does not start; {} says why; or start the box without --merged",
                    watch.log.display()
                );
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        let stopping = Arc::new((Mutex::new(false), Condvar::new()));
        let told = stopping.clone();
        let thread = std::thread::Builder::new().name("mps-watch".to_owned()).spawn(move || {
            let mut is_stopping = lock(&told.0);
            while !*is_stopping {
                is_stopping = wait_for(&told.1, is_stopping, LOOK_EVERY);
                if !*is_stopping {
                    watches.iter_mut().for_each(Watch::look);
                }
            }
            watches
        })?;
        Ok(Self { stopping, thread })
    }

    /// Looks after them no more. With `ends` they end; else the next agent finds them.
    pub(crate) fn stop(self, ends: bool) {
        *lock(&self.stopping.0) = true;
        self.stopping.1.notify_all();
        let Ok(watches) = self.thread.join() else { return };
        if ends {
            watches.into_iter().for_each(Watch::end);
        }
    }
}

impl Watch {
    fn look(&mut self) {
        if let Some(child) = &mut self.child {
            // Reaps it if it has ended.
            let _ = child.try_wait();
        }
        if self.process.as_ref().is_some_and(Process::is_alive) {
            return;
        }
        if let Some(gone) = self.process.take() {
            tracing::error!(pid = gone.pid, folder = %self.folder.display(), "an MPS daemon died; it is started again");
        }
        match self.spawn() {
            Ok(()) => _ = self.complaint.right(),
            Err(error) => {
                let text = format!("{error:#}");
                if self.complaint.wrong(&text, Instant::now()).is_some() {
                    tracing::error!(error = text, "an MPS daemon cannot be started: no session can");
                }
            }
        }
    }

    fn spawn(&mut self) -> anyhow::Result<()> {
        let log = std::fs::File::options().create(true).append(true).open(&self.log).context("its log")?;
        let mut command = machine::this_program();
        command.arg("mps").arg("--folder").arg(&self.folder).envs(self.environment.iter().cloned());
        for variable in ["DXPU_TOKEN", "DXPU_TOKEN_FILE", "DXPU_JOIN_TOKEN"] {
            command.env_remove(variable);
        }
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command.spawn().context("cannot start the keeper of an MPS daemon")?;
        let process =
            Process::find(child.id()).context("the keeper of an MPS daemon ended at once; see mps.log")?;
        tracing::info!(pid = process.pid, folder = %self.folder.display(), "an MPS daemon is started");
        (self.process, self.child) = (Some(process), Some(child));
        Ok(())
    }

    fn end(mut self) {
        let Some(process) = self.process.take() else { return };
        if !process.end_in_order(ENDED_WITHIN) {
            tracing::error!(pid = process.pid, "the keeper of an MPS daemon does not end");
        }
        if let Some(mut child) = self.child {
            let _ = child.wait();
        }
    }
}
