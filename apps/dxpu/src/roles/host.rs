//! `dxpu host`: shows GPUs of the pool to the virtual machines of this machine. The agent itself is in `pool-agent`.

use crate::operate;
use crate::roles::join_token::join_token;
use crate::support::exit::{Exit, Outcome};
use crate::support::notify::ServiceManager;
use crate::support::{log, quantity};
use anyhow::Context;
use machine::files;
use pool_agent::Joining;
use pool_agent::host::{self, HostOptions, HostStarted};
use pool_api::Name;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

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
    verb: Option<operate::host::Verb>,
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
        let mut signals =
            signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]).context("signals")?;
        let service = RefCell::new(ServiceManager::of_environment());
        let mut started = |HostStarted { name, slots, sockets }: HostStarted| {
            log::announce(format_args!("host {name} has {slots} slots; sockets in {}", sockets.display()));
            service.borrow_mut().ready();
        };
        let mut stop = || {
            service.borrow_mut().alive();
            let signal = signals.pending().next();
            if let Some(signal) = signal {
                service.borrow_mut().stopping();
                tracing::info!(signal, "stopping: slots are emptied");
            }
            signal.is_some()
        };
        host::serve(&self.options()?, &mut started, &mut stop)?;
        Ok(Exit::Success)
    }

    fn options(self) -> anyhow::Result<HostOptions> {
        let state = match self.state_dir {
            Some(directory) => directory,
            None => files::state_directory()?.join("host"),
        };
        let state = std::path::absolute(state).context("cannot find the current directory")?;
        Ok(HostOptions {
            joining: Joining {
                token: join_token(self.join_token_file.as_deref(), &state)?,
                managers: self.manager,
                authority: self.authority,
                name: self.name,
            },
            slots: self.slots,
            fabric: self.fabric,
            qmp: self.qmp,
            ports: self.ports,
            sockets: self.sockets,
            guest_waits: self.guest_waits,
            msix: self.msix,
            spin: self.spin,
            state,
        })
    }
}
