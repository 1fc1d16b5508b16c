//! `dxpu box`: lends the GPUs of this machine to a pool. The agent itself is in `pool-agent`.

use crate::operate;
use crate::roles::join_token::join_token;
use crate::support::exit::{Exit, Outcome};
use crate::support::{library, log, quantity};
use anyhow::Context;
use machine::files;
use pool_agent::Joining;
use pool_agent::gpu_box::{self, BoxOptions, BoxStarted, BoxStop, Carried, DeviceKind, Gpus};
use pool_api::{BoxKind, Model, Name};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Scrubs and tests GPUs by ordinary CUDA calls.
static CHECK_PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/gpucheck"));

const EXAMPLES: &str = "\
Examples:
  dxpu box --join-token-file rack1-a.json                  the GPUs of this machine; joins the pool, then serves
  dxpu box                                                 the same after a restart: who it is has been kept
  dxpu box --join-token-file b.json --soft 4 --memory 8GiB --kind pcie --rack r2
  dxpu box --soft 2 --fabric 10.0.0.8:7601 --device nvme:disk.img    for virtual machines, too: see `dxpu host`
  dxpu box break 3 --reason 'pulled for a demonstration'   the GPU of slot 3 fails, as far as anybody can tell
  dxpu box heal 3                                          and can be repaired again
  dxpu box ls                                              all boxes of the pool; so do show, drain and undrain

SIGTERM ends the agent and leaves its workers to serve on; the next agent takes them over. SIGINT (Ctrl-C) ends the
workers too.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct GpuBox {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    serve: Serve,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// What operators do with the boxes of a pool.
    #[command(flatten)]
    Look(operate::gpu_box::Verb),
    /// Break a GPU of this machine's box on purpose
    Break {
        /// Its slot
        slot: u8,
        /// What to say is wrong with it
        #[arg(long, default_value = "broken on purpose")]
        reason: String,
        /// Where the box keeps its files
        #[arg(long, value_name = "DIR")]
        state_dir: Option<PathBuf>,
    },
    /// Undo `break`; the GPU comes back when somebody says it is repaired and it passes its burn-in
    Heal {
        /// Its slot
        slot: u8,
        /// Where the box keeps its files
        #[arg(long, value_name = "DIR")]
        state_dir: Option<PathBuf>,
    },
}

#[derive(clap::Args)]
struct Serve {
    /// Managers of the pool, as https://HOST:PORT; any of them will do
    #[arg(long, value_name = "ADDR", env = "DXPU_MANAGER", value_delimiter = ',')]
    manager: Vec<String>,
    /// What an admin made for this box to join with, once (or the environment variable DXPU_JOIN_TOKEN)
    #[arg(long, value_name = "FILE")]
    join_token_file: Option<PathBuf>,
    /// The pool's authority (PEM), beside a join token that does not bring it along
    #[arg(long, value_name = "FILE")]
    authority: Option<PathBuf>,
    /// The name of this box in the pool [default: what the join token says, or the host's name]
    #[arg(long)]
    name: Option<Name>,
    /// How its GPUs are joined [default: nvlink if NVML shows NVLinks, else pcie]
    #[arg(long, value_enum)]
    kind: Option<Kind>,
    /// Where it stands
    #[arg(long, default_value = "")]
    rack: String,
    /// Lend GPUs in software instead of those of this machine
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    soft: Option<u8>,
    /// Memory of each GPU in software
    #[arg(long, value_name = "SIZE", default_value = "4GiB", value_parser = quantity::bytes)]
    memory: u64,
    /// What the GPUs in software are called
    #[arg(long, default_value = "soft")]
    model: Model,
    /// Pretend to be boxes of GPUs, without any and without workers: a plan in JSON
    #[arg(long, value_name = "FILE", conflicts_with = "soft")]
    simulate: Option<PathBuf>,
    /// Where this box keeps who it is and what its slots remember
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// The address that workers listen at
    #[arg(long, value_name = "HOST", default_value = "0.0.0.0")]
    listen: String,
    /// The address by which hosts reach this box [default: the host's name, or what --listen says]
    #[arg(long, value_name = "HOST")]
    advertise: Option<String>,
    /// The port of slot 0; slot N has the Nth after it [default: any that are free]
    #[arg(long, default_value = "0")]
    port: u16,
    /// Lend to hosts over the PCIe plane too: an address of this machine that hosts reach; one for each network
    #[arg(long, value_name = "IP:PORT")]
    fabric: Vec<SocketAddr>,
    /// Look for PCIe packets this long before sleeping: quicker answers, for a core
    #[arg(long, value_name = "TIME", default_value = "0us", value_parser = quantity::duration, requires = "fabric")]
    spin: Duration,
    /// Put something else than a GPU into a slot of its own: nvme:FILE, vfio-user:SOCKET (a device that another program
    /// serves) or dma; only the PCIe plane reaches these
    #[arg(long, value_name = "WHAT", requires = "fabric")]
    device: Vec<DeviceKind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    Nvlink,
    Pcie,
}

impl GpuBox {
    pub(crate) fn run(self) -> Outcome {
        match self.verb {
            None => self.serve.run(),
            Some(Verb::Look(verb)) => verb.run(),
            Some(Verb::Break { slot, reason, state_dir }) => {
                gpu_box::break_slot(&state_directory(state_dir)?, slot, &reason)?;
                println!("slot {slot} is broken: {reason}");
                Ok(Exit::Success)
            }
            Some(Verb::Heal { slot, state_dir }) => {
                gpu_box::heal_slot(&state_directory(state_dir)?, slot)?;
                println!("slot {slot} is not broken on purpose any more");
                Ok(Exit::Success)
            }
        }
    }
}

fn state_directory(given: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    let directory = match given {
        Some(directory) => directory,
        None => files::state_directory()?.join("box"),
    };
    std::path::absolute(directory).context("cannot find the current directory")
}

impl Serve {
    fn run(self) -> Outcome {
        log::start("info");
        // Before anything is started, so that no signal finds us unprepared.
        let mut signals =
            signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]).context("signals")?;
        let mut started = |BoxStarted { name, slots }: BoxStarted| {
            log::announce(format_args!("box {name} serves {slots} slots"));
        };
        let mut stop = || {
            let signal = signals.pending().next()?;
            tracing::info!(signal, "stopping");
            Some(if signal == SIGINT { BoxStop::EndWorkers } else { BoxStop::LeaveWorkers })
        };
        gpu_box::serve(&self.options()?, &mut started, &mut stop)?;
        Ok(Exit::Success)
    }

    fn options(self) -> anyhow::Result<BoxOptions> {
        let gpus = match (self.simulate, self.soft) {
            (Some(plan), _) => {
                Gpus::Simulated { plan, read_bytes: |text| quantity::bytes(text).map_err(anyhow::Error::msg) }
            }
            (None, Some(count)) => Gpus::Soft { count, memory_bytes: self.memory, model: self.model },
            (None, None) => Gpus::Nvidia,
        };
        Ok(BoxOptions {
            joining: Joining {
                token: join_token(self.join_token_file.as_deref())?,
                managers: self.manager,
                authority: self.authority,
                name: self.name,
            },
            kind: self.kind.map(|kind| match kind {
                Kind::Nvlink => BoxKind::Nvlink,
                Kind::Pcie => BoxKind::Pcie,
            }),
            rack: self.rack,
            gpus,
            state: state_directory(self.state_dir)?,
            listen: self.listen,
            advertise: self.advertise,
            port: self.port,
            fabric: self.fabric,
            spin: self.spin,
            devices: self.device,
            carried: Carried {
                program: CHECK_PROGRAM,
                client_environment: |workers| Ok(library::extract()?.environment(workers)),
            },
        })
    }
}
