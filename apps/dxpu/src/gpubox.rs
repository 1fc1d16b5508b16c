//! `dxpu box`: lends the GPUs of this machine to a pool.
//!
//! ```text
//!   agent (this process) ──▶ manager: what is, what should be
//!     └ slot 0…n: one warm worker each, in a process group of its own, which outlives the agent
//! ```

mod agent;
mod brain;
mod check;
mod device;
mod disk;
mod gpu;
mod nvml;
mod pcie;
mod process;
mod simulated;
mod slot;

use crate::exit::{Exit, Failure, Outcome};
use crate::membership::{Invitation, Membership};
use crate::reporting::Retired;
use crate::{files, log, pool, quantity};
use agent::{BoxAgent, BoxFacts, Hands};
use anyhow::Context;
use device::DeviceSlot;
use gpu::Gpu;
use pcie::PciePlane;
use pool_api::{BoxKind, Model, Name};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use slot::{Slot, Surroundings};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

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
    Look(pool::gpu_box::Verb),
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
    device: Vec<device::Kind>,
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
                let directory = slot_directory(state_dir, slot)?;
                files::replace(&slot::broken_file(&directory), 0o600, reason.as_bytes())?;
                println!("slot {slot} is broken: {reason}");
                Ok(Exit::Success)
            }
            Some(Verb::Heal { slot, state_dir }) => {
                let file = slot::broken_file(&slot_directory(state_dir, slot)?);
                match std::fs::remove_file(&file) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        Err(error).with_context(|| format!("cannot remove {}", file.display()))
                    }
                    _ => {
                        println!("slot {slot} is not broken on purpose any more");
                        Ok(Exit::Success)
                    }
                }
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

fn slot_directory(state_dir: Option<PathBuf>, slot: u8) -> anyhow::Result<PathBuf> {
    let directory = state_directory(state_dir)?.join(format!("slot-{slot}"));
    if !directory.is_dir() {
        let what = format!(
            "there is no slot {slot} below {}",
            directory.parent().unwrap_or(Path::new("/")).display()
        );
        return Err(Failure::new(Exit::Usage, what, "give the --state-dir of the box").into());
    }
    Ok(directory)
}

impl Serve {
    fn run(self) -> Outcome {
        log::start("info");
        let state = state_directory(self.state_dir.clone())?;
        files::make_private(&state)?;
        let _only_one = files::only_one(&state)?;
        // Before anything is started, so that no signal finds us unprepared.
        let mut signals =
            signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]).context("signals")?;
        let mut running = match &self.simulate {
            Some(plan) => self.simulated(plan, &state)?,
            None => vec![self.real(&state)?],
        };
        let signal = loop {
            if let Some(signal) = signals.pending().next() {
                break Ok(signal);
            }
            let mut retired = running.iter().enumerate();
            let retired = retired.find_map(|(at, agent)| agent.retired().map(|reason| (at, reason)));
            match retired {
                Some((_, Retired::Replaced(reason))) => break Err(replaced(&reason)),
                Some((at, Retired::Revoked(reason))) => {
                    tracing::error!(reason, "this box was revoked: its workers are ended");
                    // The pool has moved the leases of this box, or ended them.
                    running.swap_remove(at).stop().into_iter().flatten().for_each(|mut slot| slot.stop());
                    if running.is_empty() {
                        break Err(revoked(&reason));
                    }
                }
                None => {}
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        match signal {
            Ok(signal) => {
                tracing::info!(signal, "stopping");
                for mut slot in running.into_iter().flat_map(BoxAgent::stop).flatten() {
                    // Otherwise its worker serves on.
                    if signal == SIGINT {
                        slot.stop();
                    }
                }
                Ok(Exit::Success)
            }
            Err(failure) => {
                running.into_iter().for_each(|running| drop(running.stop()));
                Err(failure.into())
            }
        }
    }

    fn real(&self, state: &Path) -> anyhow::Result<BoxAgent> {
        let invitation = self.invitation()?;
        let kept = Membership::kept(state)?;
        let name = self.box_name(kept.as_ref(), invitation.as_ref())?;
        let gpus = match self.soft {
            Some(count) => gpu::soft(name.as_str(), count, self.memory, &self.model),
            // A box may have other devices alone.
            None if !self.device.is_empty() => gpu::nvidia().unwrap_or_default(),
            None => gpu::nvidia()?,
        };
        let mut around = self.surroundings(&name, state);
        around.pcie = self.pcie_plane()?;
        let membership = self.membership(kept, invitation, &around)?;
        let slots = adopt(gpus, &around)?;
        let kind = match (self.kind, &slots) {
            (Some(Kind::Nvlink), _) => BoxKind::Nvlink,
            (Some(Kind::Pcie), _) => BoxKind::Pcie,
            (None, slots) if slots.iter().any(|(gpu, _)| gpu.nvlink_group.is_some()) => BoxKind::Nvlink,
            (None, _) => BoxKind::Pcie,
        };
        let first = slots.len() as u8;
        let mut groups: Vec<Vec<Box<dyn Hands>>> =
            slots.into_iter().map(|(_, slot)| vec![Box::new(slot) as Box<dyn Hands>]).collect();
        if let Some(plane) = &around.pcie {
            for (slot, device) in (first..pool_api::SLOTS_PER_BOX_MAX).zip(&self.device) {
                groups.push(vec![Box::new(DeviceSlot::new(slot, device.clone(), &around, plane)?)]);
            }
        }
        let paths = match &around.pcie {
            Some(plane) => plane.paths(),
            None => vec![around.advertised_host.clone()],
        };
        let facts = BoxFacts { name, kind, rack: self.rack.clone(), paths };
        start(facts, around, membership, groups)
    }

    fn simulated(&self, plan: &Path, state: &Path) -> anyhow::Result<Vec<BoxAgent>> {
        let text =
            std::fs::read_to_string(plan).with_context(|| format!("cannot read {}", plan.display()))?;
        let beside = plan.parent().unwrap_or(Path::new("."));
        let plan: simulated::Plan = serde_json::from_str(&text)
            .with_context(|| format!("{} is not a plan of boxes", plan.display()))?;
        let mut running = Vec::new();
        for planned in plan.boxes {
            let state = state.join(planned.name.as_str());
            files::make_private(&state)?;
            let invitation = match &planned.join {
                Some(file) => {
                    let text = files::read_secret(&beside.join(file))?;
                    Some(Invitation::read(&text, self.authority.as_deref(), &self.manager)?)
                }
                None => self.invitation()?,
            };
            let around = self.surroundings(&planned.name, &state);
            let membership = self.membership(Membership::kept(&state)?, invitation, &around)?;
            let slots = planned.slots()?;
            let facts =
                BoxFacts { name: planned.name, kind: planned.kind, rack: planned.rack, paths: Vec::new() };
            running.push(start(facts, around, membership, vec![slots])?);
        }
        Ok(running)
    }

    fn pcie_plane(&self) -> anyhow::Result<Option<PciePlane>> {
        if let Some(address) = self.fabric.iter().find(|address| address.ip().is_unspecified()) {
            let what = format!("hosts cannot be told to send to {address}");
            return Err(Failure::new(Exit::Usage, what, "give the address they reach this machine by").into());
        }
        let is_wanted = !self.fabric.is_empty();
        is_wanted.then(|| PciePlane::start(&self.fabric, self.spin)).transpose()
    }

    fn invitation(&self) -> anyhow::Result<Option<Invitation>> {
        let text = match &self.join_token_file {
            Some(file) => Some(files::read_secret(file)?),
            None => std::env::var("DXPU_JOIN_TOKEN").ok(),
        };
        text.map(|text| Invitation::read(&text, self.authority.as_deref(), &self.manager)).transpose()
    }

    fn box_name(&self, kept: Option<&Membership>, invited: Option<&Invitation>) -> anyhow::Result<Name> {
        if let Some(name) = &self.name {
            return Ok(name.clone());
        }
        let kept = kept.map(|kept| kept.credential.identity.short_name().to_owned());
        let name = kept.or_else(|| invited.and_then(|invited| invited.name.clone()));
        let name = name.unwrap_or_else(|| crate::worker::host_name().to_lowercase());
        Name::new(&name)
            .with_context(|| format!("`{name}` cannot be the name of a box; give one with --name"))
    }

    fn surroundings(&self, name: &Name, state: &Path) -> Surroundings {
        let is_everywhere = matches!(self.listen.as_str(), "0.0.0.0" | "::");
        let advertised = self.advertise.clone().unwrap_or_else(|| match is_everywhere {
            true => crate::worker::host_name(),
            false => self.listen.clone(),
        });
        Surroundings {
            box_name: name.as_str().to_owned(),
            state: state.to_owned(),
            listen_host: self.listen.clone(),
            advertised_host: advertised,
            port: self.port,
            pcie: None,
        }
    }

    fn membership(
        &self,
        kept: Option<Membership>,
        invitation: Option<Invitation>,
        around: &Surroundings,
    ) -> anyhow::Result<Membership> {
        let kept = kept.filter(|kept| kept.credential.identity.short_name() == around.box_name);
        match (kept, invitation) {
            (Some(mut kept), _) => {
                if !self.manager.is_empty() {
                    kept.credential.managers = self.manager.clone();
                }
                kept.keep(&around.home())?;
                Ok(kept)
            }
            (None, Some(invitation)) => Membership::join(&around.home(), &invitation),
            (None, None) => Err(Failure::new(
                Exit::Usage,
                format!("{} is not a member of any pool", around.box_name),
                "have an admin make a join token (`dxpu token create --box NAME`) and give it with --join-token-file",
            )
            .into()),
        }
    }
}

fn replaced(reason: &str) -> Failure {
    let hint = "another agent speaks for this box; stop that one, or give this one another name";
    Failure::new(Exit::Refused, format!("the pool does not listen to this agent: {reason}"), hint)
}

fn revoked(reason: &str) -> Failure {
    let hint = "have an admin make a new join token (`dxpu token create box/NAME`) and start again with --join-token-file";
    Failure::new(Exit::Refused, format!("this box is no member of the pool any more: {reason}"), hint)
}

fn start(
    facts: BoxFacts,
    around: Surroundings,
    membership: Membership,
    groups: Vec<Vec<Box<dyn Hands>>>,
) -> anyhow::Result<BoxAgent> {
    let (name, slots) = (facts.name.clone(), groups.iter().map(Vec::len).sum::<usize>());
    let running = agent::start(facts, around, membership, groups)?;
    log::announce(format_args!("box {name} serves {slots} slots"));
    Ok(running)
}

/// The slots, with the workers that an agent before this one left. Workers that no slot wants are ended.
fn adopt(gpus: Vec<Gpu>, around: &Surroundings) -> anyhow::Result<Vec<(Gpu, Slot)>> {
    const ENDED_WITHIN: Duration = Duration::from_secs(20);
    let mut left = HashMap::new();
    for (directory, worker) in process::workers_below(&around.state) {
        let is_wanted = gpus.iter().any(|gpu| around.slot_directory(gpu.slot) == directory);
        if is_wanted && !left.contains_key(&directory) {
            tracing::info!(directory = %directory.display(), pid = worker.pid, "a worker is taken over");
            left.insert(directory, worker);
        } else {
            tracing::warn!(directory = %directory.display(), pid = worker.pid, "a worker that nobody wants is ended");
            let ended = process::end(&worker, ENDED_WITHIN);
            anyhow::ensure!(ended.is_ok(), "worker {} cannot be ended", worker.pid);
        }
    }
    let slot = |gpu: Gpu| {
        let worker = left.remove(&around.slot_directory(gpu.slot));
        Slot::new(gpu.clone(), around, worker).map(|slot| (gpu, slot))
    };
    gpus.into_iter().map(slot).collect()
}
