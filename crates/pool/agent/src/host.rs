//! The agent of a host: shows GPUs of the pool to the virtual machines of this machine, as PCI devices in slots.
//!
//! ```text
//!   agent (this process) ──▶ manager: which slots are plugged, which should be
//!     ├ slot 0…n: a thread each; plugs and unplugs ──▶ QEMU's monitor
//!     └ proxy: sockets of slots ◀─▶ the fabric ◀─▶ boxes
//! ```

mod agent;
mod slot;

use crate::error::{AgentError, Role};
use crate::membership::{Home, Joining, Membership};
use crate::reporting::Retired;
use agent::Host;
use anyhow::Context;
use fabric::Protection;
use machine::files;
use pcie_proxy::{CarrierOptions, HostProxy, HostProxyOptions};
use pool_api::Name;
use pool_auth::Identity;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How long QEMU waits for an answer of a vfio-user device, unless it is told otherwise (x-msg-timeout).
const QEMU_WAITS: Duration = Duration::from_secs(5);
/// How much earlier the answer must be on its way.
const REPLY_MARGIN: Duration = Duration::from_secs(1);
/// How often the agent looks whether it should stop.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What a host is told by its operator.
pub struct HostOptions {
    /// Which pool it belongs to, and under which name.
    pub joining: Joining,
    /// How many devices it has room for.
    pub slots: u8,
    /// Its addresses on the PCIe plane, one for each network.
    pub fabric: Vec<SocketAddr>,
    /// The monitor of the virtual machine that devices are plugged into; `None`: something else connects the sockets.
    pub qmp: Option<PathBuf>,
    /// What the virtual machine calls its slots: this word and a number from 1.
    pub ports: String,
    /// Where the sockets of slots are; `None`: below `state`.
    pub sockets: Option<PathBuf>,
    /// How long virtual machines wait for an answer of a device. With `qmp` they are told.
    pub guest_waits: Option<Duration>,
    /// Show MSI-X.
    pub msix: bool,
    /// How long threads look for packets before they sleep.
    pub spin: Duration,
    /// Where it keeps its identity: an absolute path.
    pub state: PathBuf,
}

/// A host that has begun to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostStarted {
    /// Its name in the pool.
    pub name: Name,
    /// How many slots it has.
    pub slots: u8,
    /// Where their sockets are.
    pub sockets: PathBuf,
}

/// Serves until `stop` says so, or the pool does not want this host any more. Slots are empty when it returns.
///
/// `started` is called once, when it serves; `stop` is asked again and again. Errors with a next step for the operator are
/// [`AgentError`]s, [`files::FileError`]s or [`pool_client::ClientError`]s.
pub fn serve(
    options: &HostOptions,
    started: &mut dyn FnMut(HostStarted),
    stop: &mut dyn FnMut() -> bool,
) -> anyhow::Result<()> {
    files::make_private(&options.state)?;
    let _only_one = files::only_one(&options.state)?;
    let (name, home, membership) = options.membership()?;
    let proxy = Arc::new(options.proxy()?);
    let paths = proxy.paths().iter().map(|path| format!("udp:{path}")).collect();
    let monitor = options.qmp.clone().map(|path| Arc::new(slot::Monitor::new(path)));
    let slots = (0..options.slots).map(|slot| {
        slot::Slot::new(slot, proxy.clone(), monitor.clone(), format!("{}{}", options.ports, slot + 1))
    });
    let host = Host { name: name.clone(), home, paths };
    let running = agent::start(host, membership, slots.collect())?;
    started(HostStarted { name, slots: options.slots, sockets: proxy.directory().to_owned() });
    let ended = loop {
        if stop() {
            break Ok(());
        }
        match running.retired() {
            Some(Retired::Replaced(reason)) => {
                break Err(AgentError::Replaced { role: Role::Host, reason });
            }
            // Slots are emptied as ever.
            Some(Retired::Revoked(reason)) => break Err(AgentError::Revoked { role: Role::Host, reason }),
            None => {}
        }
        std::thread::sleep(LOOK_EVERY);
    };
    running.stop();
    Ok(ended?)
}

impl HostOptions {
    fn membership(&self) -> anyhow::Result<(Name, Home, Membership)> {
        let invitation = self.joining.invitation()?;
        let kept = Membership::kept(&self.state)?;
        let name = self.joining.name(Role::Host, kept.as_ref(), invitation.as_ref())?;
        let identity = Identity::Host(name.as_str().to_owned());
        let home = Home { identity, state: self.state.clone() };
        let membership = self.joining.membership(&home, Role::Host, kept, invitation)?;
        Ok((name, home, membership))
    }

    fn proxy(&self) -> anyhow::Result<HostProxy> {
        if let Some(address) = self.fabric.iter().find(|address| address.ip().is_unspecified()) {
            return Err(AgentError::NoAddress { role: Role::Host, address: *address }.into());
        }
        let directory = self.sockets.clone().unwrap_or_else(|| self.state.join("slots"));
        let directory = std::path::absolute(directory).context("cannot find the current directory")?;
        files::make_private(&directory)?;
        let carrier = CarrierOptions {
            listen: self.fabric.clone(),
            spin: self.spin,
            protection: Protection::Encrypted,
        };
        // A reply must be there before the virtual machine stops waiting for it.
        let guest_waits = match (&self.qmp, self.guest_waits) {
            (Some(_), _) => None,
            (None, waits) => Some(waits.unwrap_or(QEMU_WAITS).saturating_sub(REPLY_MARGIN).max(REPLY_MARGIN)),
        };
        let options =
            HostProxyOptions { slots: self.slots, directory, msix: self.msix, guest_waits, carrier };
        HostProxy::start(&options).context("cannot start the proxy")
    }
}
