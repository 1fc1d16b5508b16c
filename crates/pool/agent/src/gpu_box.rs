//! The agent of a box: lends the GPUs of this machine to a pool.
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
mod gpm;
mod gpu;
mod guard;
mod minute;
mod mps;
mod nvml;
mod pages;
mod pcie;
mod process;
mod simulated;
mod slot;
mod watch;

pub use check::Carried;
pub use device::{DeviceKind, UnknownDevice};
pub use guard::GuardOptions;
pub use simulated::ReadBytes;

use crate::error::{AgentError, Role};
use crate::membership::{Joining, Membership};
use crate::reporting::Retired;
use agent::{BoxAgent, BoxFacts, Hands};
use anyhow::Context;
use device::DeviceSlot;
use gpu::{Gpu, SeatPlan};
use guard::Guard;
use machine::files;
use mps::Daemons;
use pcie::PciePlane;
use pool_api::{BoxKind, Model, Name};
use process::Process;
use slot::{SeatPage, Slot, Surroundings};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// How often the agent looks whether it should stop.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What a box is told by its operator.
pub struct BoxOptions {
    /// Which pool it belongs to, and under which name.
    pub joining: Joining,
    /// How its GPUs are joined; `None`: by NVLink if NVML shows NVLinks.
    pub kind: Option<BoxKind>,
    /// Where it stands; may be empty.
    pub rack: String,
    /// What it lends.
    pub gpus: Gpus,
    /// Where it keeps its identity and what its slots remember: an absolute path.
    pub state: PathBuf,
    /// The address that workers listen at.
    pub listen: String,
    /// The address by which hosts reach it; `None`: this machine's name, or `listen` if that is one address.
    pub advertise: Option<String>,
    /// The port of slot 0, and the Nth after it for slot N; 0: any that are free.
    pub port: u16,
    /// Its addresses on the PCIe plane; none: it has no part in it.
    pub fabric: Vec<SocketAddr>,
    /// How long threads look for PCIe packets before they sleep.
    pub spin: Duration,
    /// Devices other than GPUs, each in a slot of its own behind the GPUs. Only the PCIe plane reaches them.
    pub devices: Vec<DeviceKind>,
    /// What the agent uses to test GPUs.
    pub carried: Carried,
    /// Memory for images of protected sessions; `None`: no session is protected.
    pub guard: Option<GuardOptions>,
    /// A seat for guests on each GPU; `None`: offline leases get nothing here.
    pub guests: Option<GuestOptions>,
    /// In how many parts each GPU is lent, to leases with shares; `None`: as a whole. Not with guests or the PCIe plane.
    pub shares: Option<u8>,
}

/// Seats for guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestOptions {
    /// What of a GPU's memory its guest may use.
    pub memory_bytes: u64,
    /// Guests may be of other tenants than the lease that has the GPU.
    pub any_tenant: bool,
    /// What guests may cost online leases, in percent of the time of their requests.
    pub slack_percent: u32,
    /// How long a long kernel of a guest may have the device at a stretch while an online lease waits for it, in microseconds. `None`: as
    /// long as the driver gives.
    pub offline_slice_us: Option<u64>,
    /// The contexts of a GPU's lease and its guest are merged (MPS). Not with guests of any tenant: a fault of one ends both.
    pub is_merged: bool,
    /// Online leases have all memory of a GPU, and its guest leaves when they need what it has. Not with merged contexts.
    pub overcommit: bool,
}

/// What a box lends.
pub enum Gpus {
    /// The GPUs of this machine.
    Nvidia,
    /// GPUs in software.
    Soft {
        /// How many.
        count: u8,
        /// Memory of each.
        memory_bytes: u64,
        /// What they are called.
        model: Model,
    },
    /// None: the process pretends to be several boxes, without workers.
    Simulated {
        /// A file that says which (JSON).
        plan: PathBuf,
        /// Reads amounts of memory in it.
        read_bytes: ReadBytes,
    },
}

/// A box that has begun to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoxStarted {
    /// Its name in the pool.
    pub name: Name,
    /// How many slots it has.
    pub slots: usize,
}

/// How an agent ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoxStop {
    /// Its workers serve on; the next agent takes them over.
    LeaveWorkers,
    /// Its workers end too.
    EndWorkers,
}

/// Makes the GPU of a slot fail on purpose, as far as the pool can tell.
pub fn break_slot(state: &Path, slot: u8, reason: &str) -> anyhow::Result<()> {
    let directory = slot_directory(state, slot)?;
    Ok(files::replace(&slot::broken_file(&directory), 0o600, reason.as_bytes())?)
}

/// Undoes [`break_slot`].
pub fn heal_slot(state: &Path, slot: u8) -> anyhow::Result<()> {
    let file = slot::broken_file(&slot_directory(state, slot)?);
    match std::fs::remove_file(&file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", file.display()))
        }
        _ => Ok(()),
    }
}

fn slot_directory(state: &Path, slot: u8) -> Result<PathBuf, AgentError> {
    let directory = state.join(format!("slot-{slot}"));
    if directory.is_dir() { Ok(directory) } else { Err(AgentError::NoSlot { slot, state: state.to_owned() }) }
}

/// Serves until `stop` says so, or the pool does not want this box any more.
///
/// `started` is called for each box when it serves; `stop` is asked again and again. Errors with a next step for the
/// operator are [`AgentError`]s, [`files::FileError`]s or [`pool_client::ClientError`]s.
pub fn serve(
    options: &BoxOptions,
    started: &mut dyn FnMut(BoxStarted),
    stop: &mut dyn FnMut() -> Option<BoxStop>,
) -> anyhow::Result<()> {
    files::make_private(&options.state)?;
    let _only_one = files::only_one(&options.state)?;
    let (mut running, beside) = match &options.gpus {
        Gpus::Simulated { plan, read_bytes } => {
            (options.simulated(plan, *read_bytes, started)?, Beside::default())
        }
        Gpus::Nvidia | Gpus::Soft { .. } => {
            let (agent, beside) = options.real(started)?;
            (vec![agent], beside)
        }
    };
    let ended = loop {
        if let Some(how) = stop() {
            break Ok(how);
        }
        let mut retired = running.iter().enumerate();
        let retired = retired.find_map(|(at, agent)| agent.retired().map(|reason| (at, reason)));
        match retired {
            Some((_, Retired::Replaced(reason))) => {
                break Err(AgentError::Replaced { role: Role::Box, reason });
            }
            Some((at, Retired::Revoked(reason))) => {
                tracing::error!(reason, "this box was revoked: its workers are ended");
                // The pool has moved the leases of this box, or ended them.
                running.swap_remove(at).stop().into_iter().flatten().for_each(|mut slot| slot.stop());
                if running.is_empty() {
                    break Err(AgentError::Revoked { role: Role::Box, reason });
                }
            }
            None => {}
        }
        std::thread::sleep(LOOK_EVERY);
    };
    let slots = running.into_iter().flat_map(BoxAgent::stop).flatten();
    let ends_workers = matches!(ended, Ok(BoxStop::EndWorkers));
    if ends_workers {
        slots.for_each(|mut slot| slot.stop());
    } else {
        slots.for_each(drop);
    }
    // A box that was revoked has no workers any more, so no images either.
    beside.stop(ends_workers || matches!(ended, Err(AgentError::Revoked { .. })));
    Ok(ended.map(drop)?)
}

impl BoxOptions {
    fn real(&self, started: &mut dyn FnMut(BoxStarted)) -> anyhow::Result<(BoxAgent, Beside)> {
        let invitation = self.joining.invitation()?;
        let kept = Membership::kept(&self.state)?;
        let name = self.joining.name(Role::Box, kept.as_ref(), invitation.as_ref())?;
        let gpus = match &self.gpus {
            Gpus::Soft { count, memory_bytes, model } => {
                gpu::soft(name.as_str(), *count, *memory_bytes, model)
            }
            // A box may have other devices alone.
            _ if !self.devices.is_empty() => gpu::nvidia().unwrap_or_default(),
            _ => gpu::nvidia()?,
        };
        let gpus = match self.guests {
            Some(GuestOptions { memory_bytes: bytes, any_tenant, overcommit, .. }) => {
                gpu::with_seats(gpus, SeatPlan { bytes, any_tenant, overcommit })?
            }
            None => gpus,
        };
        let gpus = match self.shares {
            Some(count) => gpu::in_parts(gpus, count)?,
            None => gpus,
        };
        let pcie = self.pcie_plane()?;
        let around = self.surroundings(&name, &self.state, pcie);
        let membership = self.joining.membership(&around.home(), Role::Box, kept, invitation)?;
        membership.keep(&around.home())?;
        let authority = &membership.credential.authority;
        let guard = self.guard.as_ref().map(|guard| Guard::start(guard, &around, authority)).transpose()?;
        let daemons = around.is_merged.then(|| Daemons::start(&gpus, &around.state)).transpose()?;
        if daemons.is_none() {
            mps::end_left(&around.state);
        }
        let slots = adopt(gpus, &around)?;
        let is_nvlinked = slots.iter().any(|(gpu, _)| gpu.nvlink_group.is_some());
        let kind = self.kind.unwrap_or(if is_nvlinked { BoxKind::Nvlink } else { BoxKind::Pcie });
        let first = slots.iter().filter(|(gpu, _)| gpu.guest.is_none()).count() as u8;
        let beyond = self.guests.map_or(pool_api::SLOTS_PER_BOX_MAX, |_| pool_api::FIRST_GUEST_SLOT);
        let mut groups: Vec<Vec<Box<dyn Hands>>> =
            slots.into_iter().map(|(_, slot)| vec![Box::new(slot) as Box<dyn Hands>]).collect();
        if let Some(plane) = &around.pcie {
            for (slot, device) in (first..beyond).zip(&self.devices) {
                groups.push(vec![Box::new(DeviceSlot::new(slot, device.clone(), &around, plane)?)]);
            }
        }
        let paths = match &around.pcie {
            Some(plane) => plane.paths(),
            None => vec![around.advertised_host.clone()],
        };
        let facts = BoxFacts { name, kind, rack: self.rack.clone(), paths };
        Ok((start(facts, around, membership, groups, started)?, Beside { guard, daemons }))
    }

    fn simulated(
        &self,
        plan: &Path,
        read_bytes: ReadBytes,
        started: &mut dyn FnMut(BoxStarted),
    ) -> anyhow::Result<Vec<BoxAgent>> {
        let text =
            std::fs::read_to_string(plan).with_context(|| format!("cannot read {}", plan.display()))?;
        let beside = plan.parent().unwrap_or(Path::new("."));
        let plan: simulated::Plan = serde_json::from_str(&text)
            .with_context(|| format!("{} is not a plan of boxes", plan.display()))?;
        let mut running = Vec::new();
        for planned in plan.boxes {
            let state = self.state.join(planned.name.as_str());
            files::make_private(&state)?;
            let invitation = match &planned.join {
                Some(file) => Some(self.joining.read(&files::read_secret(&beside.join(file))?)?),
                None => self.joining.invitation()?,
            };
            let around = self.surroundings(&planned.name, &state, None);
            let kept = Membership::kept(&state)?;
            let membership = self.joining.membership(&around.home(), Role::Box, kept, invitation)?;
            membership.keep(&around.home())?;
            let slots = planned.slots(read_bytes)?;
            let facts =
                BoxFacts { name: planned.name, kind: planned.kind, rack: planned.rack, paths: Vec::new() };
            running.push(start(facts, around, membership, vec![slots], started)?);
        }
        Ok(running)
    }

    fn pcie_plane(&self) -> anyhow::Result<Option<PciePlane>> {
        if let Some(address) = self.fabric.iter().find(|address| address.ip().is_unspecified()) {
            return Err(AgentError::NoAddress { role: Role::Box, address: *address }.into());
        }
        let is_wanted = !self.fabric.is_empty();
        is_wanted.then(|| PciePlane::start(&self.fabric, self.spin)).transpose()
    }

    fn surroundings(&self, name: &Name, state: &Path, pcie: Option<PciePlane>) -> Surroundings {
        let is_everywhere = matches!(self.listen.as_str(), "0.0.0.0" | "::");
        let advertised = self.advertise.clone().unwrap_or_else(|| match is_everywhere {
            true => machine::host_name(),
            false => self.listen.clone(),
        });
        Surroundings {
            box_name: name.as_str().to_owned(),
            state: state.to_owned(),
            listen_host: self.listen.clone(),
            advertised_host: advertised,
            port: self.port,
            pcie,
            carried: self.carried,
            guardian: self.guard.as_ref().map(|_| guard::socket(state)),
            guarded: Default::default(),
            slack_percent: self.guests.map(|guests| guests.slack_percent),
            offline_slice_us: self.guests.and_then(|guests| guests.offline_slice_us),
            is_merged: self.guests.is_some_and(|guests| guests.is_merged),
        }
    }
}

/// Processes that work for the workers of a box.
#[derive(Default)]
struct Beside {
    guard: Option<Guard>,
    daemons: Option<Daemons>,
}

impl Beside {
    /// Looks after them no more. With `ends` they end; else the next agent finds them.
    fn stop(self, ends: bool) {
        if let Some(guard) = self.guard {
            guard.stop(ends);
        }
        if let Some(daemons) = self.daemons {
            daemons.stop(ends);
        }
    }
}

fn start(
    facts: BoxFacts,
    around: Surroundings,
    membership: Membership,
    groups: Vec<Vec<Box<dyn Hands>>>,
    started: &mut dyn FnMut(BoxStarted),
) -> anyhow::Result<BoxAgent> {
    let (name, slots) = (facts.name.clone(), groups.iter().map(Vec::len).sum());
    let running = agent::start(facts, around, membership, groups)?;
    started(BoxStarted { name, slots });
    Ok(running)
}

/// The slots, with the workers that an agent before this one left. Workers that no slot wants are ended.
fn adopt(gpus: Vec<Gpu>, around: &Surroundings) -> anyhow::Result<Vec<(Gpu, Slot)>> {
    const ENDED_WITHIN: Duration = Duration::from_secs(20);
    let mut left = HashMap::new();
    for (directory, worker) in process::workers_below(&around.state) {
        let is_wanted = gpus.iter().any(|gpu| {
            let page = pages::path(&around.state, gpu.host_slot());
            around.slot_directory(gpu.slot) == directory
                && pages::was_started_for(&worker, gpu, &page, around.is_merged)
        });
        if is_wanted && !left.contains_key(&directory) {
            tracing::info!(directory = %directory.display(), pid = worker.pid, "a worker is taken over");
            left.insert(directory, worker);
        } else {
            tracing::warn!(directory = %directory.display(), pid = worker.pid, "a worker that nobody wants is ended");
            let ended = process::end(&worker, ENDED_WITHIN);
            anyhow::ensure!(ended.is_ok(), "worker {} cannot be ended", worker.pid);
        }
    }
    let mut apart = HashMap::new();
    for gpu in gpus.iter().filter(|gpu| gpu.has_page() && gpu.slot == gpu.host_slot()) {
        let path = pages::path(&around.state, gpu.slot);
        let on_it = gpus.iter().filter(|other| other.host_slot() == gpu.slot);
        let workers = on_it.map(|other| around.slot_directory(other.slot));
        let workers: Vec<&Process> = workers.filter_map(|directory| left.get(&directory)).collect();
        pages::provide(&path, workers.iter().any(|worker| pages::is_used_by(worker, &path)), gpu.capacity)?;
        // A worker from before there were seats serves its lease to the end, and no guest comes meanwhile.
        let is_apart = workers.iter().any(|worker| !pages::is_used_by(worker, &path));
        apart.insert(gpu.slot, Arc::new(AtomicBool::new(is_apart)));
    }
    let slot = |gpu: Gpu| {
        let worker = left.remove(&around.slot_directory(gpu.slot));
        let page = apart.get(&gpu.host_slot()).map(|is_apart| SeatPage {
            path: pages::path(&around.state, gpu.host_slot()),
            is_apart: is_apart.clone(),
        });
        Slot::new(gpu.clone(), around, worker, page).map(|slot| (gpu, slot))
    };
    gpus.into_iter().map(slot).collect()
}
