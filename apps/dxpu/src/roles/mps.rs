//! `dxpu mps`: keeps an MPS daemon for a worker or a box, and ends it in order. Started by `dxpu worker --merged` and `dxpu box --merged`.
//!
//! It is a process of its own, so that the daemon is told to end, and its folder removed, also when the worker was killed.

use crate::support::exit::{Exit, Failure, Outcome};
use crate::support::log;
use anyhow::Context;
use mps_daemon::{CONTROL, Daemon, MpsError};
use rustix::process::{Signal, set_parent_process_death_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Mps {
    /// The folder by which clients reach the daemon; it is made, and removed at the end
    #[arg(long, value_name = "DIR", required_unless_present = "becomes_control")]
    folder: Option<PathBuf>,
    /// End when standard input ends
    #[arg(long)]
    ends_with_stdin: bool,
    /// Become NVIDIA's program, and end with the parent
    #[arg(long, conflicts_with_all = ["folder", "ends_with_stdin"])]
    becomes_control: bool,
    /// What NVIDIA's program is given
    #[arg(last = true, requires = "becomes_control")]
    arguments: Vec<String>,
}

/// How often it looks whether the daemon lives.
const LOOK_EVERY: Duration = Duration::from_millis(50);

impl Mps {
    pub(crate) fn run(self) -> Outcome {
        let Some(folder) = self.folder else { return become_control(&self.arguments) };
        log::start("info");
        let is_over = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, is_over.clone()).context("signals")?;
        }
        if self.ends_with_stdin {
            let is_over = is_over.clone();
            std::thread::Builder::new().name("mps-stdin".to_owned()).spawn(move || {
                let _ = std::io::stdin().read_to_end(&mut Vec::new());
                is_over.store(true, Ordering::SeqCst);
            })?;
        }
        let mut daemon = Daemon::start(&folder, Box::new(control)).map_err(failure)?;
        tracing::info!(folder = %folder.display(), "an MPS daemon takes the sessions of this GPU");
        while !is_over.load(Ordering::SeqCst) {
            if let Some(status) = daemon.ended() {
                let what = format!("{CONTROL} ended with {status}");
                let hint = "its worker starts it again; the log of the kernel (dmesg) may say why it ended";
                // The folder stays: sessions that are served know it.
                std::mem::forget(daemon);
                return Err(Failure::new(Exit::Failure, what, hint).into());
            }
            std::thread::sleep(LOOK_EVERY);
        }
        daemon.stop();
        Ok(Exit::Success)
    }
}

/// This program, which becomes NVIDIA's.
fn control(arguments: &[&str]) -> Command {
    let mut command = machine::this_program();
    command.args(["mps", "--becomes-control", "--"]).args(arguments).env_remove("MALLOC_ARENA_MAX");
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    if mps_daemon::visible_to_daemon(visible.as_deref()).is_none() {
        command.env_remove("CUDA_VISIBLE_DEVICES");
    }
    command
}

fn become_control(arguments: &[String]) -> Outcome {
    // Kept by what this process becomes: the daemon ends with its keeper, should that be killed.
    let _ = set_parent_process_death_signal(Some(Signal::TERM));
    // Returns only when it failed.
    let error = Command::new(CONTROL).args(arguments).exec();
    Err(missing().because(error).into())
}

/// There is no program to start the daemon with.
pub(crate) fn missing() -> Failure {
    let hint = format!(
        "install {CONTROL}, which belongs to NVIDIA's driver (on Debian and Ubuntu the package nvidia-compute-utils-VERSION), or hand \
         it to this container; or start without --merged"
    );
    Failure::new(Exit::Unsupported, format!("--merged needs {CONTROL}, which is not in PATH"), hint)
}

fn failure(error: MpsError) -> Failure {
    let hint = match &error {
        MpsError::Folder { .. } => {
            "choose another --identity-dir or --state-dir, one that this user may write to"
        }
        MpsError::Start(_) => "check that the program can be executed",
        MpsError::Ended { .. } | MpsError::NotReady { .. } => {
            "try `nvidia-cuda-mps-control -f` by hand; MPS needs a GPU whose compute mode is not PROHIBITED, and no MIG"
        }
    };
    Failure::new(Exit::Failure, "the MPS daemon cannot start", hint).because(error)
}
