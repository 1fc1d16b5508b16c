//! The MPS daemon of a worker: a child process keeps it, and ends it also when the worker was killed.

use crate::roles::mps;
use crate::support::exit::{Exit, Failure};
use anyhow::Context;
use guardian::Supervisor;
use machine::files;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// A daemon that runs.
pub(super) struct Merged {
    pub(super) folder: PathBuf,
    pub(super) supervisor: Supervisor,
}

/// Starts a daemon with its folder in a directory of this user.
pub(super) fn start(directory: &Path) -> anyhow::Result<Merged> {
    if !mps_daemon::is_installed(&std::env::var_os("PATH").unwrap_or_default()) {
        return Err(mps::missing().into());
    }
    files::make_private(directory)?;
    let directory = std::path::absolute(directory).context("cannot find the current directory")?;
    // Several workers of one user may share the directory.
    let folder = directory.join(format!("mps-{}", std::process::id()));
    let of_keeper = folder.clone();
    let make = move || {
        let mut command = machine::this_program();
        command.args(["mps", "--ends-with-stdin"]).arg("--folder").arg(&of_keeper);
        // A token of the worker is none of its business.
        command.env_remove("DXPU_TOKEN").stdout(Stdio::null());
        // Ctrl-C is for the worker. It ends the daemon last, when no session is there any more.
        command.process_group(0);
        command
    };
    let is_ready = || mps_daemon::is_ready(&folder);
    let supervisor = Supervisor::of("MPS daemon", Box::new(make), is_ready).map_err(|error| {
        let hint = "see the message above; or start the worker without --merged";
        Failure::new(Exit::Failure, "the worker cannot merge the contexts of its sessions", hint)
            .because(error)
    })?;
    Ok(Merged { folder, supervisor })
}
