//! One run of the daemon.

use crate::{CONTROL, READY, environment, is_ready, processes};
use std::fs::DirBuilder;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use thiserror::Error;

/// How long the daemon may take until it takes clients.
const READY_WITHIN: Duration = Duration::from_secs(10);
/// How long clients have to leave before the daemon ends its servers. A session drains for 5 s.
const CLIENTS_LEAVE_WITHIN: Duration = Duration::from_secs(8);
/// How long the daemon may take to end after that, before it is killed.
const ENDS_WITHIN: Duration = Duration::from_secs(4);

/// Why there is no daemon.
#[derive(Debug, Error)]
pub enum MpsError {
    /// Its folder cannot be made, or is not this user's alone.
    #[error("cannot make the folder {folder} for the MPS daemon")]
    Folder {
        /// Which.
        folder: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It cannot be started.
    #[error("cannot start {CONTROL}")]
    Start(#[source] io::Error),
    /// It ended at once.
    #[error("{CONTROL} ended at once with {status}; {log}")]
    Ended {
        /// How.
        status: ExitStatus,
        /// The last line of its log.
        log: String,
    },
    /// It takes no clients.
    #[error("{CONTROL} took no clients within {READY_WITHIN:?}; {log}")]
    NotReady {
        /// The last line of its log.
        log: String,
    },
}

/// Makes the command that becomes NVIDIA's program, with the arguments that are given to it.
pub type MakeControl = Box<dyn Fn(&[&str]) -> Command + Send>;

/// A daemon that runs. Dropping it ends the daemon.
pub struct Daemon {
    folder: PathBuf,
    make: MakeControl,
    child: Option<Child>,
}

impl Daemon {
    /// Starts a daemon with this folder, and returns when it takes clients. What an earlier daemon left in the folder is removed, but
    /// a server that it left serves its clients to their end.
    pub fn start(folder: &Path, make: MakeControl) -> Result<Self, MpsError> {
        make_folder(folder).map_err(|source| MpsError::Folder { folder: folder.to_owned(), source })?;
        let mut command = make(&["-f"]);
        command.envs(environment(folder)).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(MpsError::Start)?;
        let mut daemon = Self { folder: folder.to_owned(), make, child: Some(child) };
        let until = Instant::now() + READY_WITHIN;
        while !is_ready(folder) {
            if let Some(status) = daemon.ended() {
                return Err(MpsError::Ended { status, log: daemon.last_words() });
            }
            if Instant::now() >= until {
                return Err(MpsError::NotReady { log: daemon.last_words() });
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(daemon)
    }

    /// How it ended, if it did.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.as_mut().and_then(|child| child.try_wait().ok()).flatten()
    }

    /// Ends the daemon and its servers when the clients have left, or after a while, and removes the folder.
    pub fn stop(mut self) {
        self.halt();
    }

    fn last_words(&self) -> String {
        let log = std::fs::read_to_string(self.folder.join("control.log")).unwrap_or_default();
        log.lines()
            .next_back()
            .map_or_else(|| "its log is empty".to_owned(), |line| format!("its log: {line}"))
    }

    fn halt(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let until = Instant::now() + CLIENTS_LEAVE_WITHIN + ENDS_WITHIN;
        if matches!(child.try_wait(), Ok(None)) {
            self.say_quit(until);
            wait(&mut child, until);
        }
        // Of a daemon that has not heard, or died: nothing of it has a reason to live.
        let _ = child.kill();
        let _ = child.wait();
        processes::end(&self.folder, until.saturating_duration_since(Instant::now()));
        if let Err(error) = std::fs::remove_dir_all(&self.folder) {
            tracing::warn!(%error, folder = %self.folder.display(), "cannot remove the folder of the MPS daemon");
        }
    }

    /// Tells the daemon to end, by the program that it is itself.
    fn say_quit(&self, until: Instant) {
        let mut command = (self.make)(&[]);
        command.envs(environment(&self.folder)).stdin(Stdio::piped());
        let mut teller = match command.stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
            Ok(teller) => teller,
            Err(error) => return tracing::warn!(%error, "cannot tell the MPS daemon to end"),
        };
        if let Some(mut stdin) = teller.stdin.take() {
            let _ = writeln!(stdin, "quit -t {}", CLIENTS_LEAVE_WITHIN.as_secs());
        }
        wait(&mut teller, until);
        let _ = teller.kill();
        let _ = teller.wait();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.halt();
    }
}

/// Waits for a process, but not longer than until then.
fn wait(child: &mut Child, until: Instant) {
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Has the folder there, for this user alone, without the sign of an earlier daemon.
fn make_folder(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => other?,
    }
    let status = rustix::fs::lstat(folder)?;
    let is_folder = rustix::fs::FileType::from_raw_mode(status.st_mode) == rustix::fs::FileType::Directory;
    if !is_folder || status.st_uid != rustix::process::geteuid().as_raw() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is not a folder of this user"));
    }
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700))?;
    match std::fs::remove_file(folder.join(READY)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
