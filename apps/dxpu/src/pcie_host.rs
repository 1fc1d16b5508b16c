//! `dxpu host`: shows GPUs of the pool to the virtual machines of this machine, as PCI devices in slots.
//!
//! ```text
//!   agent (this process) ──▶ manager: which slots are plugged, which should be
//!     ├ slot 0…n: a thread each; plugs and unplugs ──▶ QEMU's monitor
//!     └ proxy: sockets of slots ◀─▶ the fabric ◀─▶ boxes
//! ```

mod agent;
mod slot;

use crate::exit::{Exit, Failure, Outcome};
use crate::membership::{Home, Invitation, Membership};
use crate::reporting::Retired;
use crate::{files, log, pool, quantity};
use agent::Host;
use anyhow::Context;
use fabric::Protection;
use pcie_proxy::{CarrierOptions, HostProxy, HostProxyOptions};
use pool_api::Name;
use pool_auth::Identity;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long QEMU waits for an answer of a vfio-user device, unless it is told otherwise (x-msg-timeout).
const QEMU_WAITS: Duration = Duration::from_secs(5);
/// How much earlier the answer must be on its way.
const REPLY_MARGIN: Duration = Duration::from_secs(1);

const EXAMPLES: &str = "\
Examples:
  dxpu host --join-token-file hv-7.json --fabric 10.0.0.7:7600 --qmp /run/vm.qmp    joins, then serves one guest
  dxpu host --fabric 10.0.0.7:7600 --fabric 10.1.0.7:7600 --slots 8                 after a restart; two networks
  dxpu vm --qmp /run/vm.qmp --kernel vmlinuz --initrd initrd.img                    a guest to try it with
  dxpu lease create --plane pcie --host hv-7                                        a GPU appears in it
  dxpu host ls                                                                      all hosts of the pool
  dxpu host show hv-7                                                               what is plugged into its slots
  dxpu host allow hv-7 vision                                                       tenant vision may lease for it

Without --qmp, slots are vfio-user sockets (slot-0, slot-1, …) below --sockets, which appear and disappear with leases;
whatever runs the guest connects them.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct PcieHost {
    #[command(subcommand)]
    verb: Option<pool::host::Verb>,
    #[command(flatten)]
    serve: Serve,
}

#[derive(clap::Args)]
struct Serve {
    /// Managers of the pool, as https://HOST:PORT; any of them will do
    #[arg(long, value_name = "ADDR", env = "DXPU_MANAGER", value_delimiter = ',')]
    manager: Vec<String>,
    /// What an admin made for this host to join with, once (or the environment variable DXPU_JOIN_TOKEN)
    #[arg(long, value_name = "FILE")]
    join_token_file: Option<PathBuf>,
    /// The pool's authority (PEM), beside a join token that does not bring it along
    #[arg(long, value_name = "FILE")]
    authority: Option<PathBuf>,
    /// The name of this host in the pool [default: what the join token says, or the machine's name]
    #[arg(long)]
    name: Option<Name>,
    /// How many devices it has room for
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u8).range(1..=64))]
    slots: u8,
    /// An address of this machine that boxes reach, for PCIe packets; one for each network, in the same order as on the
    /// boxes
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0")]
    fabric: Vec<SocketAddr>,
    /// The monitor of the virtual machine that devices are plugged into
    #[arg(long, value_name = "PATH")]
    qmp: Option<PathBuf>,
    /// What the virtual machine calls its slots: this word and a number from 1
    #[arg(long, value_name = "WORD", default_value = "rp")]
    ports: String,
    /// Where the sockets of slots are [default: below the state directory]
    #[arg(long, value_name = "DIR")]
    sockets: Option<PathBuf>,
    /// How long your virtual machines wait for an answer of a device, if you plug slots in yourself (QEMU's x-msg-timeout; it
    /// waits for 5 s by default). A box that is paused for longer loses its guest. With --qmp it is set to what the pool needs
    #[arg(long, value_name = "TIME", conflicts_with = "qmp", value_parser = quantity::duration)]
    guest_waits: Option<Duration>,
    /// Show MSI-X; QEMU 11.1 cannot unplug a device that has it
    #[arg(long)]
    msix: bool,
    /// Look for packets this long before sleeping: quicker answers, for a core
    #[arg(long, value_name = "TIME", default_value = "0us", value_parser = quantity::duration)]
    spin: Duration,
    /// Where this host keeps who it is
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

impl PcieHost {
    pub(crate) fn run(self) -> Outcome {
        match self.verb {
            Some(verb) => verb.run(),
            None => self.serve.run(),
        }
    }
}

impl Serve {
    fn run(self) -> Outcome {
        log::start("info");
        let state = match &self.state_dir {
            Some(directory) => directory.clone(),
            None => files::state_directory()?.join("host"),
        };
        let state = std::path::absolute(state).context("cannot find the current directory")?;
        files::make_private(&state)?;
        let _only_one = files::only_one(&state)?;
        let mut signals =
            signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]).context("signals")?;
        let membership = self.membership(&state)?;
        let name = membership.credential.identity.short_name().to_owned();
        let proxy = Arc::new(self.proxy(&state)?);
        let paths = proxy.paths().iter().map(|path| format!("udp:{path}")).collect();
        let monitor = self.qmp.clone().map(|path| Arc::new(slot::Monitor::new(path)));
        let slots = (0..self.slots).map(|slot| {
            slot::Slot::new(slot, proxy.clone(), monitor.clone(), format!("{}{}", self.ports, slot + 1))
        });
        let home = Home { identity: membership.credential.identity.clone(), state };
        let host = Host { name: Name::new(&name)?, home, paths };
        let running = agent::start(host, membership, slots.collect())?;
        println!("host {name} has {} slots; sockets in {}", self.slots, proxy.directory().display());
        let stopped = loop {
            if let Some(signal) = signals.pending().next() {
                tracing::info!(signal, "stopping: slots are emptied");
                break Ok(Exit::Success);
            }
            match running.retired() {
                Some(Retired::Replaced(reason)) => {
                    let what = format!("the pool does not listen to this agent: {reason}");
                    let hint =
                        "another agent speaks for this host; stop that one, or give this one another name";
                    break Err(Failure::new(Exit::Refused, what, hint).into());
                }
                // Slots are emptied as ever.
                Some(Retired::Revoked(reason)) => {
                    let what = format!("this host is no member of the pool any more: {reason}");
                    let hint = "have an admin make a new join token (`dxpu token create host/NAME`) and start again with --join-token-file";
                    break Err(Failure::new(Exit::Refused, what, hint).into());
                }
                None => {}
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        running.stop();
        stopped
    }

    fn membership(&self, state: &Path) -> anyhow::Result<Membership> {
        let text = match &self.join_token_file {
            Some(file) => Some(files::read_secret(file)?),
            None => std::env::var("DXPU_JOIN_TOKEN").ok(),
        };
        let read = |text: String| Invitation::read(&text, self.authority.as_deref(), &self.manager);
        let invitation = text.map(read).transpose()?;
        let kept = Membership::kept(state)?;
        let known = kept.as_ref().map(|kept| kept.credential.identity.short_name().to_owned());
        let name = self.name.as_ref().map(|name| name.as_str().to_owned()).or_else(|| known.clone());
        let name = name.or_else(|| invitation.as_ref().and_then(|invited| invited.name.clone()));
        let name = name.unwrap_or_else(|| crate::worker::host_name().to_lowercase());
        Name::new(&name)
            .with_context(|| format!("`{name}` cannot be the name of a host; give one with --name"))?;
        match (kept.filter(|_| known.as_deref() == Some(&name)), invitation) {
            (Some(mut kept), _) => {
                if !self.manager.is_empty() {
                    kept.credential.managers = self.manager.clone();
                }
                Ok(kept)
            }
            (None, Some(invitation)) => {
                let home = Home { identity: Identity::Host(name), state: state.to_owned() };
                Membership::join(&home, &invitation)
            }
            (None, None) => Err(Failure::new(
                Exit::Usage,
                format!("{name} is not a member of any pool"),
                "have an admin make a join token (`dxpu token create --host NAME`) and give it with --join-token-file",
            )
            .into()),
        }
    }

    fn proxy(&self, state: &Path) -> anyhow::Result<HostProxy> {
        if let Some(address) = self.fabric.iter().find(|address| address.ip().is_unspecified()) {
            let what = format!("boxes cannot be told to send to {address}");
            return Err(Failure::new(Exit::Usage, what, "give the address they reach this machine by").into());
        }
        let directory = self.sockets.clone().unwrap_or_else(|| state.join("slots"));
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
