//! The shell around [`Session`]: a listening socket, one peer at a time, one thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::access::{AccessId, Completions};
use crate::device::Device;
use crate::session::Session;
use crate::socket::{Connection, ReceiveError};

/// QEMU loses the thread of the conversation when a reply takes longer than it waits: 5 s, unless its device was given
/// another `x-msg-timeout`. For devices that are nearby; a server of one that is far away sets its own in [`Options`].
const COMPLETION_TIMEOUT: Duration = Duration::from_millis(250);
/// How often to look whether a device that is behind takes more.
const CONGESTED_LOOK: Duration = Duration::from_millis(1);

/// How a server behaves.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long an access may take before it is answered as if no device were there.
    pub completion_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { completion_timeout: COMPLETION_TIMEOUT }
    }
}

/// Why a server stopped.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The socket cannot be waited on or accepted from.
    #[error("cannot serve {path}")]
    Socket {
        /// Where it listens.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

/// Stops a server, from any thread.
#[derive(Clone)]
pub struct Stop {
    asked: Arc<AtomicBool>,
    completions: Completions,
}

impl Stop {
    /// The server ends its connection and returns.
    pub fn stop(&self) {
        self.asked.store(true, Ordering::SeqCst);
        self.completions.wake();
    }
}

/// A slot: a socket that shows one device to one virtual machine at a time.
pub struct Server {
    listener: UnixListener,
    path: PathBuf,
    completions: Completions,
    options: Options,
    asked_to_stop: Arc<AtomicBool>,
}

impl Server {
    /// Listens at `path`. A socket at which no process listens any longer is replaced; a live one is not.
    pub fn bind(path: &Path, options: Options) -> io::Result<Self> {
        use std::os::unix::net::UnixStream;
        let stale = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        if UnixStream::connect(path).err().is_some_and(stale) {
            std::fs::remove_file(path)?;
        }
        let listener = UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        let asked_to_stop = Arc::new(AtomicBool::new(false));
        Ok(Self { listener, path: path.into(), completions: Completions::new()?, options, asked_to_stop })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A way to stop it.
    pub fn stop_handle(&self) -> Stop {
        Stop { asked: self.asked_to_stop.clone(), completions: self.completions.clone() }
    }

    /// Shows `device` to one peer after the other, until stopped.
    pub fn serve(&self, device: &mut dyn Device) -> Result<(), ServeError> {
        let failed = |source: io::Error| ServeError::Socket { path: self.path.clone(), source };
        let mut next_access = AccessId(0);
        while !self.asked_to_stop.load(Ordering::SeqCst) {
            wait(&[self.listener.as_fd(), self.completions.as_fd()], None).map_err(failed)?;
            // No peer waits for these answers any more.
            self.completions.take();
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(failed(error)),
            };
            tracing::info!(socket = %self.path.display(), "a virtual machine has connected");
            let mut connection = Connection::new(stream).map_err(failed)?;
            let mut session =
                Session::new(device, self.completions.clone(), self.options.completion_timeout, next_access);
            let why = self.talk(&mut connection, &mut session, device);
            next_access = session.close(device);
            connection.shutdown();
            tracing::info!(socket = %self.path.display(), why, "the virtual machine is gone");
        }
        Ok(())
    }

    /// One peer, until it leaves or is cut off. Says why it ended.
    fn talk(&self, connection: &mut Connection, session: &mut Session, device: &mut dyn Device) -> String {
        loop {
            let now = Instant::now();
            let timeout = session.wake_at().map(|at| at.saturating_duration_since(now));
            // While the device takes nothing more, what the peer sends stays in its socket, which fills up: it has to wait.
            let ready = if device.has_room() {
                wait(&[connection.as_fd(), self.completions.as_fd()], timeout)
            } else {
                let timeout = timeout.map_or(CONGESTED_LOOK, |timeout| timeout.min(CONGESTED_LOOK));
                wait(&[self.completions.as_fd()], Some(timeout)).map(|[is_ready]| [false, is_ready])
            };
            let ready = match ready {
                Ok(ready) => ready,
                Err(error) => return error.to_string(),
            };
            if self.asked_to_stop.load(Ordering::SeqCst) {
                return "the server stops".into();
            }
            if ready[1] {
                for completion in self.completions.take() {
                    session.on_completion(completion, device);
                }
            }
            if ready[0] {
                let incoming = match connection.receive() {
                    Ok(incoming) => incoming,
                    Err(ReceiveError::Closed) => return "it left".into(),
                    Err(error) => return error.to_string(),
                };
                let now = Instant::now();
                let done = session.on_message(incoming.header, &incoming.body, incoming.fds, device, now);
                if let Err(violation) = done {
                    return violation.to_string();
                }
            }
            session.on_tick(device, Instant::now());
            for reply in session.take_replies() {
                if let Err(error) = connection.send(&reply, &[]) {
                    return error.to_string();
                }
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Waits until one of `fds` can be read, hung up, or the time is over. Says which.
pub(crate) fn wait<const N: usize>(
    fds: &[BorrowedFd<'_>; N],
    timeout: Option<Duration>,
) -> io::Result<[bool; N]> {
    let mut polled = fds.each_ref().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN));
    let timeout = timeout
        .map(|timeout| Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() });
    match poll(&mut polled, timeout.as_ref()) {
        Ok(_) => Ok(polled.map(|fd| !fd.revents().is_empty())),
        Err(rustix::io::Errno::INTR) => Ok([false; N]),
        Err(error) => Err(error.into()),
    }
}
