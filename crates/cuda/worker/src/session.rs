//! One session, in a process of its own.
//!
//! ```text
//!   configuration ─▶ driver made ─▶ command connection ─▶ Hello, Welcome ─▶ events and lanes join ─▶ command loop
//!   └────────── mod ───────────┘   └──────────────────────── attach ───────────────────────────┘   └── serve ──┘
//! ```
//!
//! The process may wait a long time between the second and the third step: then it is a spare.

mod ahead;
mod attach;
mod command_loop;
mod content;
mod cuts;
mod events;
mod exchange;
mod fault_note;
mod faults;
mod gate;
pub(crate) mod handshake;
mod holdings;
mod input;
mod joins;
mod link;
mod outgoing;
mod pending;
mod place;
mod presence;
mod pulse;
mod regions;
mod replies;
mod serve;
mod timeline;
mod turns;
mod waiters;

use crate::{
    config::{Role, Startup},
    content::Memory,
    end::{EndKind, NoDevices, SessionEnd, Unserved},
    status::{self, StatusFactory},
};
use cuda_driver::{Driver, ImageStore, StoreError};
use guardian::GuardianStore;
use pulse::Pulse;
use serve::Surroundings;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use transport::RawConnection;

pub use cuts::OpenStore;

/// Makes the driver of a session from what its [`crate::Grant`] holds.
pub type DriverFactory<'a> =
    dyn Fn(&serde_json::Value, Vec<OwnedFd>) -> Result<Box<dyn Driver>, NoDevices> + 'a;

/// The main function of a session process: `control` is its end of the socket pair to the front. The front may also
/// make it the status process, which answers clients that only look; then `make_status` makes what answers.
pub fn run_session_process(
    control: OwnedFd,
    make_driver: &DriverFactory<'_>,
    make_status: &StatusFactory<'_>,
) -> SessionEnd {
    run_session_process_with_store(control, make_driver, make_status, open_guardian)
}

/// The same with another keeper of images than the guardian of [`SessionConfig::guardian`].
///
/// [`SessionConfig::guardian`]: crate::SessionConfig::guardian
pub fn run_session_process_with_store(
    control: OwnedFd,
    make_driver: &DriverFactory<'_>,
    make_status: &StatusFactory<'_>,
    open_store: OpenStore,
) -> SessionEnd {
    // The kernel ends us with the front, should we ever hang too hard to see its socket close.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let mut control = UnixStream::from(control);
    let (startup, mut fds) = match read_startup(&mut control) {
        Ok(startup) => startup,
        Err(error) => return report(&mut control, Unserved::Configuration(error).into()),
    };
    let config = startup.session;
    if config.is_merged {
        // It sees the front's socket close, and leaves in order: see `serve::wind_up`.
        let _ = rustix::process::set_parent_process_death_signal(None);
    }
    let memory = if startup.content { fds.pop().map(Memory::new) } else { None };
    if startup.role == Role::Status {
        let end = match make_status(&startup.driver, fds) {
            Ok(source) => status::run(&control, source, config),
            Err(error) => Unserved::Devices(error).into(),
        };
        return report(&mut control, end);
    }
    let driver = match make_driver(&startup.driver, fds) {
        Ok(driver) => driver,
        Err(error) => return report(&mut control, Unserved::Devices(error).into()),
    };
    let driver: Arc<dyn Driver> = driver.into();
    let pulse = match config.is_merged.then(|| control.try_clone()).transpose() {
        Ok(control) => control.map(|control| Pulse::start(&driver, control)),
        Err(error) => return report(&mut control, Unserved::Control(error).into()),
    };
    say(&mut control, "ready");
    let raw = match RawConnection::take_over(control.as_fd()) {
        Ok(raw) => raw,
        Err(_) => return SessionEnd::new(EndKind::Finished, "the front closed it before a client came"),
    };
    if let Some(pulse) = &pulse {
        pulse.attach();
    }
    let end = match attach::attach(raw, &mut control, &driver, &config) {
        Ok(attached) => {
            let surroundings = Surroundings { open_store, memory: memory.as_ref(), pulse: pulse.as_deref() };
            serve::serve(attached, &driver, &config, &surroundings)
        }
        Err(end) => end,
    };
    report(&mut control, end)
}

fn open_guardian(path: &Path, lease: Option<&str>) -> Result<Arc<dyn ImageStore>, StoreError> {
    let store = GuardianStore::connect(path)?;
    Ok(Arc::new(match lease {
        Some(lease) => store.for_lease(lease),
        None => store,
    }))
}

/// Tells the front something, as a line. If the front is gone, the line is lost.
pub(crate) fn say(control: &mut UnixStream, line: &str) {
    let _ = control.write_all(format!("{}\n", line.replace('\n', " ")).as_bytes());
}

fn report(control: &mut UnixStream, end: SessionEnd) -> SessionEnd {
    say(control, &format!("ended {}", end.reason));
    end
}

fn read_startup(control: &mut UnixStream) -> io::Result<(Startup, Vec<OwnedFd>)> {
    let mut length = [0; 4];
    control.read_exact(&mut length)?;
    let mut text = vec![0; u32::from_le_bytes(length) as usize];
    control.read_exact(&mut text)?;
    let startup: Startup = serde_json::from_slice(&text)?;
    let fds = if startup.fds == 0 { Vec::new() } else { transport::fd::recv_fds(control.as_fd())?.0 };
    Ok((startup, fds))
}

/// An error with all its causes.
pub(crate) fn full_text(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(body);
    // A process that cannot have three threads cannot serve; the front and the client notice its end.
    thread.expect("a session process can start its threads");
}
