//! One session process, seen from the front.

use super::turned_away::Reason;
use crate::{
    config::{FrontConfig, Grant, Role, Startup},
    end::{EndKind, SessionEnd},
};
use locks::lock;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use transport::RawConnection;

/// What the front reports of its session processes.
#[derive(Clone, Debug)]
pub enum SessionEvent {
    /// A session process has made its driver and waits for a client.
    Ready {
        /// The process.
        pid: u32,
    },
    /// A client has shown its token.
    Began {
        /// The session's process.
        pid: u32,
        /// What the client calls itself.
        client: String,
        /// Where it comes from.
        peer: String,
    },
    /// A session process is gone. Spares that were never used are not reported.
    Ended {
        /// The session's process.
        pid: u32,
        /// Where the client came from.
        peer: String,
        /// Whether the client had shown its token.
        authenticated: bool,
        /// How it ended.
        end: SessionEnd,
    },
    /// A session process is gone, whether it had a client or not: what it held can be released.
    Reaped {
        /// The process.
        pid: u32,
    },
    /// Clients were turned away at the door. Told for the first of them and then every few seconds.
    TurnedAway {
        /// Why.
        reason: Reason,
        /// How many since it was last told.
        count: u64,
    },
    /// A session process could not be started or was not able to prepare itself.
    Broken {
        /// Why.
        reason: String,
    },
}

/// A running session process.
pub(crate) struct SessionChild {
    pub(crate) pid: u32,
    control: Mutex<UnixStream>,
}

/// How the C library's allocator of a process is set.
const TUNABLES: &str = "GLIBC_TUNABLES";
/// A session handles blocks of 64 KiB by the thousand while it saves or loads an image. The allocator would give the memory of almost
/// every one back to the kernel, and the kernel would make its pages again for the next.
const KEEP_FREED: &str = "glibc.malloc.trim_threshold=268435456";

/// A line from a session process.
pub(crate) enum Line {
    Ready,
    Authenticated(String),
    Ended(String),
}

impl SessionChild {
    /// Starts a process and tells it its configuration. Returns what is needed to hear from it and to reap it.
    pub(crate) fn start(
        config: &FrontConfig,
        grant: &Grant,
        role: Role,
        content: Option<&OwnedFd>,
    ) -> io::Result<(Arc<Self>, Child, UnixStream)> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new(&config.spawn.program);
        if std::env::var_os(TUNABLES).is_none() {
            command.env(TUNABLES, KEEP_FREED);
        }
        if role == Role::Session {
            command.envs(grant.environment.iter().map(|(name, value)| (name, value)));
        }
        let mut child = command
            .arg0(std::env::args_os().next().unwrap_or_else(|| "dxpu".into()))
            .args(&config.spawn.arguments)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()?;
        let pid = child.id();
        match tell(&ours, config, grant, role, content) {
            Ok(lines) => Ok((Arc::new(Self { pid, control: Mutex::new(ours) }), child, lines)),
            Err(error) => {
                drop(ours);
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    pub(crate) fn give(&self, raw: RawConnection) -> io::Result<()> {
        raw.hand_over(lock(&self.control).as_fd())
    }

    /// Has the process end: it sees its control socket close.
    pub(crate) fn stop(&self) {
        let _ = lock(&self.control).shutdown(std::net::Shutdown::Both);
    }
}

/// Tells a new process everything it needs.
fn tell(
    mut control: &UnixStream,
    config: &FrontConfig,
    grant: &Grant,
    role: Role,
    content: Option<&OwnedFd>,
) -> io::Result<UnixStream> {
    let driver = grant.driver.clone();
    let fds: Vec<_> = grant.fds.iter().chain(content).map(AsFd::as_fd).collect();
    let content = content.is_some();
    let startup = Startup { role, session: config.session.clone(), driver, fds: fds.len(), content };
    let text = serde_json::to_vec(&startup)?;
    let mut message = (text.len() as u32).to_le_bytes().to_vec();
    message.extend(text);
    control.write_all(&message)?;
    if !fds.is_empty() {
        transport::fd::send_fds(control.as_fd(), &fds, b"")?;
    }
    control.try_clone()
}

/// Reads what a process says until it ends.
pub(crate) fn read_lines(lines: UnixStream, mut on_line: impl FnMut(Line)) {
    for line in BufReader::new(lines).lines() {
        let Ok(line) = line else { return };
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("ready", _) => on_line(Line::Ready),
            ("authenticated", who) => on_line(Line::Authenticated(who.to_owned())),
            ("ended", reason) => on_line(Line::Ended(reason.to_owned())),
            _ => tracing::warn!(line, "a session process sent a line that the front does not know"),
        }
    }
}

/// How a session ended, from what its process said and how it exited.
pub(crate) fn end_of(said: Option<String>, status: io::Result<ExitStatus>) -> SessionEnd {
    let status = match status {
        Ok(status) => status,
        Err(error) => {
            return SessionEnd::new(
                EndKind::Internal,
                format!("cannot wait for the session process: {error}"),
            );
        }
    };
    match (status.code().and_then(EndKind::from_exit_code), said) {
        (Some(kind), Some(reason)) => SessionEnd::new(kind, reason),
        (Some(kind), None) => SessionEnd::new(kind, "the session process gave no reason"),
        (None, _) => {
            let how = match status.signal() {
                Some(signal) => format!("the session process was ended by signal {signal}"),
                None => format!("the session process ended with {status}"),
            };
            SessionEnd::new(EndKind::Internal, how)
        }
    }
}
