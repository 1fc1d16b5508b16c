//! The guardian of a worker: a child process that keeps the images of its sessions.

use crate::support::exit::{Exit, Failure};
use anyhow::Context;
use guardian::Supervisor;
use machine::files;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A guardian that runs.
pub(super) struct Guard {
    pub(super) socket: PathBuf,
    pub(super) supervisor: Supervisor,
}

/// Starts a guardian that may take so many bytes, with its socket in a directory of this user.
pub(super) fn start(bytes: u64, disk: Option<&Path>, directory: &Path) -> anyhow::Result<Guard> {
    let program = std::env::current_exe().context("cannot find this executable")?;
    files::make_private(directory)?;
    let directory = std::path::absolute(directory).context("cannot find the current directory")?;
    // Several workers of one user may share the directory.
    let socket = directory.join(format!("guardian-{}", std::process::id()));
    let (at, disk) = (socket.clone(), disk.map(Path::to_owned));
    let make = move || {
        let mut command = Command::new(&program);
        command.args(["guardian", "--ends-with-stdin"]).arg("--socket").arg(&at);
        command.arg("--memory").arg(bytes.to_string());
        if let Some(disk) = &disk {
            command.arg("--disk").arg(disk);
        }
        guardian::tune_memory(&mut command);
        // A token of the worker is none of its business.
        command.env_remove("DXPU_TOKEN").stdout(Stdio::null());
        // Ctrl-C is for the worker. It ends its guardian last, when no session writes any more.
        command.process_group(0);
        command
    };
    let supervisor = Supervisor::start(Box::new(make), &socket).map_err(|error| {
        let hint = "see the message above; or start the worker without --guard-memory";
        Failure::new(Exit::Failure, "the worker cannot protect programs", hint).because(error)
    })?;
    Ok(Guard { socket, supervisor })
}
