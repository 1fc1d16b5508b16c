//! `dxpu box`: lends the GPUs of this machine to a pool. The agent itself is in `pool-agent`.

mod kept;

use crate::operate;
use crate::roles::join_token::join_token;
use crate::roles::mps;
use crate::support::exit::{Exit, Failure, Outcome};
use crate::support::notify::ServiceManager;
use crate::support::{library, log, quantity};
use anyhow::Context;
use kept::{Kept, KeptGpus};
use machine::files;
use pool_agent::Joining;
use pool_agent::gpu_box::{
    self, BoxOptions, BoxStarted, BoxStop, Carried, DeviceKind, Gpus, GuardOptions, GuestOptions,
};
use pool_api::{BoxKind, Model, Name};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Scrubs and tests GPUs by ordinary CUDA calls.
static CHECK_PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/gpucheck"));

const EXAMPLES: &str = "\
Examples:
  dxpu box --join-token-file rack1-a.json                  the GPUs of this machine; joins the pool, then serves
  dxpu box                                                 the same after a restart: who it is and how it was started
                                                           (--soft, --rack, --kind, ...) have been kept
  dxpu box --join-token-file b.json --soft 4 --memory 8GiB --kind pcie --rack r2
  dxpu box --soft 2 --fabric 10.0.0.8:7601 --device nvme:disk.img    for virtual machines, too: see `dxpu host`
  dxpu box --guard-memory 256GiB                           programs with survival outlive their GPUs
  dxpu box --guests 1 --guest-memory 48GiB                 offline leases work beside online ones
  dxpu box --guests 1 --guest-memory 48GiB --merged --guard-memory 256GiB    the same, closer together: for guests of one tenant
  dxpu box --guests 1 --guest-memory 48GiB --overcommit    online leases have all memory; a guest leaves when they need its part
  dxpu box --shares 4                                      each GPU in four parts, for leases with --share
  dxpu box break 3 --reason 'pulled for a demonstration'   the GPU of slot 3 fails, as far as anybody can tell
  dxpu box heal 3                                          and can be repaired again
  dxpu box ls                                              all boxes of the pool; so do show, drain and undrain

SIGTERM ends the agent and leaves its workers to serve on; the next agent takes them over. SIGINT (Ctrl-C) and SIGHUP (a
terminal that is closed) end the workers too.";

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
    #[arg(long)]
    rack: Option<String>,
    /// Lend GPUs in software instead of those of this machine
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    soft: Option<u8>,
    /// Lend the GPUs of this machine again, after a start with --soft
    #[arg(long, conflicts_with_all = ["soft", "simulate"])]
    nvidia: bool,
    /// Memory of each GPU in software [default: 4GiB]
    #[arg(long, value_name = "SIZE", value_parser = quantity::bytes)]
    memory: Option<u64>,
    /// What the GPUs in software are called [default: soft]
    #[arg(long)]
    model: Option<Model>,
    /// Pretend to be boxes of GPUs, without any and without workers: a plan in JSON
    #[arg(long, value_name = "FILE", conflicts_with = "soft")]
    simulate: Option<PathBuf>,
    /// Where this box keeps who it is and what its slots remember
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// The address that workers listen at [default: 0.0.0.0]
    #[arg(long, value_name = "HOST")]
    listen: Option<String>,
    /// The address by which hosts reach this box [default: the host's name, or what --listen says]
    #[arg(long, value_name = "HOST")]
    advertise: Option<String>,
    /// The port of slot 0; slot N has the Nth after it [default: any that are free]
    #[arg(long)]
    port: Option<u16>,
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
    /// Memory of this machine for images of protected programs, which go on from them when a session, a worker or a GPU is
    /// lost [default: none]
    #[arg(long, value_name = "SIZE", value_parser = quantity::bytes, conflicts_with = "simulate")]
    guard_memory: Option<u64>,
    /// A private directory for images of suspended programs; they are encrypted there [default: none]
    #[arg(long, value_name = "DIR", requires = "guard_memory")]
    guard_disk: Option<PathBuf>,
    /// How long a program is suspended before its image goes to --guard-disk; it goes sooner when guard memory is short
    /// [default: 2m]
    #[arg(long, value_name = "TIME", value_parser = quantity::duration, requires = "guard_disk")]
    guard_disk_after: Option<Duration>,
    /// Seats for guests on each GPU, 0 or 1: an offline lease has one beside an online lease, or on a GPU without a lease
    /// [default: 0]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=1), conflicts_with = "simulate")]
    guests: Option<u8>,
    /// What of a GPU's memory its guest may use; online leases get the rest, dedicated ones all
    #[arg(long, value_name = "SIZE", value_parser = quantity::bytes)]
    guest_memory: Option<u64>,
    /// Whose guests an online lease meets: of the same tenant, or of any [default: same-tenant]
    #[arg(long, value_enum)]
    guests_of: Option<GuestsOf>,
    /// What guests may cost an online lease, in percent of the time that its requests take. Beyond it they get less of the GPU,
    /// and leave it where that does not help [default: 25]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    slack: Option<u32>,
    /// How long a kernel of a guest that is longer than 0.3 ms may have an NVIDIA GPU at a stretch while the online lease waits for it: the
    /// device then interrupts it. Only GPUs and drivers that heed time slices do, which the first worker measures in two seconds. 0s: as
    /// long as the driver gives, about 2 ms. Not with --merged [default: 100us]
    #[arg(long, value_name = "TIME", env = "DXPU_OFFLINE_SLICE", value_parser = quantity::duration)]
    offline_slice: Option<Duration>,
    /// Put the contexts of a GPU's online lease and of its guest into one MPS server: the online lease gets the GPU sooner, and a fault of one
    /// ends the contexts of both. So they are of one tenant; give the online lease --survive, and the box --guard-memory. Needs
    /// --guests and nvidia-cuda-mps-control; --merged=false: as contexts of their own [default: false]
    #[arg(long, value_name = "YES", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    merged: Option<bool>,
    /// Promise the guest's memory twice: an online lease gets all of its GPU's memory, and when it needs what the guest has, the guest leaves:
    /// it is suspended with --survive, and evicted without. Needs --guests; not with --merged; --overcommit=false: each has memory of
    /// its own [default: false]
    #[arg(long, value_name = "YES", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    overcommit: Option<bool>,
    /// Lend each GPU in so many parts, 2 to 8, to leases with a share (`dxpu run --share`), and none as a whole; 1: as a whole
    /// [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=8), conflicts_with = "simulate")]
    shares: Option<u8>,
    /// The port at which other boxes reach this box's images [default: any that is free]
    #[arg(long, value_name = "PORT", default_value = "0", requires = "guard_memory")]
    guard_port: u16,
    /// The box that keeps a second copy of each image, so that programs outlive this one: tls:HOST:PORT/NAME.box.dxpu, with
    /// its --guard-port and its name in the pool [default: none]
    #[arg(long, value_name = "ADDR", requires = "guard_memory")]
    guard_copy_to: Option<guardian::PeerAddress>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Nvlink,
    Pcie,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum GuestsOf {
    /// Of the tenant of the lease that has the GPU
    SameTenant,
    /// Of any tenant
    Any,
}

impl GpuBox {
    pub(crate) fn run(self) -> Outcome {
        match self.verb {
            None => self.serve.run(),
            Some(Verb::Look(verb)) => verb.run(),
            Some(Verb::Break { slot, reason, state_dir }) => {
                gpu_box::break_slot(&state_directory(state_dir)?, slot, &reason)?;
                outln!("slot {slot} is broken: {reason}");
                Ok(Exit::Success)
            }
            Some(Verb::Heal { slot, state_dir }) => {
                gpu_box::heal_slot(&state_directory(state_dir)?, slot)?;
                outln!("slot {slot} is not broken on purpose any more");
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
        let service = RefCell::new(ServiceManager::of_environment());
        let mut started = |BoxStarted { name, slots }: BoxStarted| {
            log::announce(format_args!("box {name} serves {slots} slots"));
            service.borrow_mut().ready();
        };
        let mut stop = || {
            service.borrow_mut().alive();
            let signal = signals.pending().next()?;
            service.borrow_mut().stopping();
            tracing::info!(signal, "stopping");
            Some(how_to_stop(signal))
        };
        gpu_box::serve(&self.options()?, &mut started, &mut stop)?;
        Ok(Exit::Success)
    }

    fn options(self) -> anyhow::Result<BoxOptions> {
        let state = state_directory(self.state_dir)?;
        let given = Kept {
            kind: self.kind,
            rack: self.rack,
            gpus: match (&self.simulate, self.soft, self.nvidia) {
                (None, Some(count), _) => Some(KeptGpus::Soft(count)),
                (None, None, true) => Some(KeptGpus::Nvidia),
                _ => None,
            },
            memory: self.memory,
            model: self.model,
            listen: self.listen,
            advertise: self.advertise,
            port: self.port,
            guests: self.guests,
            guest_memory: self.guest_memory,
            guests_of: self.guests_of,
            slack: self.slack,
            offline_slice_us: self.offline_slice.map(|slice| slice.as_micros() as u64),
            merged: self.merged,
            overcommit: self.overcommit,
            shares: self.shares,
        };
        let settings = given.or_as_before(&state)?;
        let guests = guests(&settings).map_err(anyhow::Error::from)?;
        let shares = shares(&settings, !self.fabric.is_empty()).map_err(anyhow::Error::from)?;
        let shares = shares.filter(|_| self.simulate.is_none());
        let gpus = gpus(self.simulate, &settings);
        check_daemon(guests, &gpus)?;
        let disk = self.guard_disk.map(std::path::absolute).transpose().context("--guard-disk")?;
        let copy_to = self.guard_copy_to.map(|address| address.to_string());
        let (port, disk_after) = (self.guard_port, self.guard_disk_after);
        let guard = self.guard_memory.map(|bytes| GuardOptions { bytes, disk, disk_after, port, copy_to });
        Ok(BoxOptions {
            joining: Joining {
                token: join_token(self.join_token_file.as_deref(), &state)?,
                managers: self.manager,
                authority: self.authority,
                name: self.name,
            },
            kind: settings.kind.map(|kind| match kind {
                Kind::Nvlink => BoxKind::Nvlink,
                Kind::Pcie => BoxKind::Pcie,
            }),
            rack: settings.rack.unwrap_or_default(),
            gpus,
            state,
            listen: settings.listen.unwrap_or_else(|| "0.0.0.0".to_owned()),
            advertise: settings.advertise,
            port: settings.port.unwrap_or(0),
            fabric: self.fabric,
            spin: self.spin,
            devices: self.device,
            carried: Carried {
                program: CHECK_PROGRAM,
                client_environment: |workers| Ok(library::extract()?.environment(workers)),
            },
            guard,
            guests,
            shares,
        })
    }
}

/// What the options ask the box to lend.
fn gpus(simulate: Option<PathBuf>, settings: &Kept) -> Gpus {
    match (simulate, settings.gpus) {
        (Some(plan), _) => {
            Gpus::Simulated { plan, read_bytes: |text| quantity::bytes(text).map_err(anyhow::Error::msg) }
        }
        (None, Some(KeptGpus::Soft(count))) => Gpus::Soft {
            count,
            memory_bytes: settings.memory.unwrap_or(SOFT_MEMORY_BYTES),
            model: settings.model.clone().unwrap_or_else(|| Model::new("soft").expect("it is a model")),
        },
        (None, Some(KeptGpus::Nvidia) | None) => Gpus::Nvidia,
    }
}

/// Merged contexts of real GPUs need NVIDIA's daemon.
fn check_daemon(guests: Option<GuestOptions>, gpus: &Gpus) -> Result<(), Failure> {
    let is_needed = guests.is_some_and(|guests| guests.is_merged) && matches!(gpus, Gpus::Nvidia);
    match is_needed && !mps_daemon::is_installed(&std::env::var_os("PATH").unwrap_or_default()) {
        true => Err(mps::missing()),
        false => Ok(()),
    }
}

/// As `dxpu worker --slack` has it.
const SLACK_PERCENT: u32 = 25;
/// Shorter ones cost guests more, because each switch takes longer than that.
const OFFLINE_SLICE_US: u64 = 100;

/// The seats that the options ask for.
fn guests(settings: &Kept) -> Result<Option<GuestOptions>, Failure> {
    let (is_merged, overcommit) = (settings.merged.unwrap_or(false), settings.overcommit.unwrap_or(false));
    if settings.guests.unwrap_or(0) == 0 {
        let (option, is_for) = match (is_merged, overcommit) {
            (true, _) => ("--merged", "a GPU's lease and its guest"),
            (false, true) => ("--overcommit", "memory of a GPU's online lease and of its guest"),
            (false, false) => return Ok(None),
        };
        let what = format!("{option} is for {is_for}, and this box has no seats for guests");
        let hint = format!("give --guests 1 and --guest-memory SIZE, or {option}=false");
        return Err(Failure::new(Exit::Usage, what, hint));
    }
    let Some(memory_bytes) = settings.guest_memory else {
        let what = "--guests needs to know what of a GPU's memory a guest may use";
        return Err(Failure::new(Exit::Usage, what, "say it with --guest-memory SIZE, such as 16GiB"));
    };
    let any_tenant = settings.guests_of == Some(GuestsOf::Any);
    let slack_percent = settings.slack.unwrap_or(SLACK_PERCENT);
    // With merged contexts it is the server's channels that have slices, for all sessions together.
    let offline_slice_us = settings.offline_slice_us.unwrap_or(OFFLINE_SLICE_US);
    let offline_slice_us = (!is_merged && offline_slice_us > 0).then_some(offline_slice_us);
    if is_merged && overcommit {
        let what = "a guest that leaves for memory (--overcommit) may be killed amid its work, which with merged contexts (--merged) ends \
                    those of the online program";
        return Err(Failure::new(Exit::Usage, what, "give --merged=false or --overcommit=false"));
    }
    if is_merged && any_tenant {
        let what = "with merged contexts (--merged) a fault of a guest ends the lease beside it, so both must be of one tenant";
        return Err(Failure::new(Exit::Usage, what, "give --guests-of same-tenant, or --merged=false"));
    }
    Ok(Some(GuestOptions {
        memory_bytes,
        any_tenant,
        slack_percent,
        offline_slice_us,
        is_merged,
        overcommit,
    }))
}

/// In how many parts the options ask for each GPU.
fn shares(settings: &Kept, is_on_pcie_plane: bool) -> Result<Option<u8>, Failure> {
    let Some(count) = settings.shares.filter(|count| *count > 1) else { return Ok(None) };
    if settings.guests.unwrap_or(0) > 0 {
        let what = "a box has seats for guests (--guests) or parts (--shares), not both";
        return Err(Failure::new(Exit::Usage, what, "give --guests 0 or --shares 1"));
    }
    if is_on_pcie_plane {
        let what = "a GPU that is lent in parts (--shares) cannot be plugged into a host (--fabric)";
        return Err(Failure::new(Exit::Usage, what, "leave --fabric out, or give --shares 1"));
    }
    Ok(Some(count))
}

/// What becomes of the workers. A service manager sends SIGTERM, and the next agent takes the workers over. A terminal that is
/// closed sends SIGHUP, and no agent would come.
fn how_to_stop(signal: i32) -> BoxStop {
    if matches!(signal, SIGINT | SIGHUP) { BoxStop::EndWorkers } else { BoxStop::LeaveWorkers }
}

/// Memory of a GPU in software unless an option says otherwise, here and for `dxpu worker`.
pub(crate) const SOFT_MEMORY_BYTES: u64 = 4 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_go_with_neither_guests_nor_the_pcie_plane() {
        let kept = |shares, guests| Kept { shares, guests, ..Kept::default() };
        let asked =
            |settings: Kept, fabric| shares(&settings, fabric).map_err(|failure| format!("{failure:?}"));
        assert_eq!(asked(kept(None, None), true), Ok(None));
        assert_eq!(asked(kept(Some(1), Some(1)), true), Ok(None));
        assert_eq!(asked(kept(Some(4), Some(0)), false), Ok(Some(4)));
        assert!(asked(kept(Some(4), Some(1)), false).unwrap_err().contains("not both"));
        assert!(asked(kept(Some(4), None), true).unwrap_err().contains("plugged"));
    }

    #[test]
    fn merged_contexts_are_for_guests_of_the_same_tenant() {
        let kept = |guests, guests_of, merged| Kept {
            guests: Some(guests),
            guest_memory: Some(1 << 30),
            guests_of,
            merged,
            ..Kept::default()
        };
        let asked = |settings: Kept| guests(&settings).map_err(|failure| format!("{failure:?}"));
        let is_merged = |settings| asked(settings).map(|guests| guests.map(|guests| guests.is_merged));
        assert_eq!(is_merged(kept(1, None, None)), Ok(Some(false)), "not unless it is asked for");
        assert_eq!(is_merged(kept(1, Some(GuestsOf::SameTenant), Some(true))), Ok(Some(true)));
        assert_eq!(is_merged(kept(1, Some(GuestsOf::Any), Some(false))), Ok(Some(false)));
        assert!(asked(kept(1, Some(GuestsOf::Any), Some(true))).unwrap_err().contains("one tenant"));
        assert!(asked(kept(0, None, Some(true))).unwrap_err().contains("no seats"));
        assert_eq!(asked(kept(0, None, None)), Ok(None));
    }

    #[test]
    fn memory_is_promised_twice_only_beside_guests_with_contexts_of_their_own() {
        let kept = |guests, merged, overcommit| Kept {
            guests: Some(guests),
            guest_memory: Some(1 << 30),
            merged,
            overcommit,
            ..Kept::default()
        };
        let asked = |settings: Kept| {
            let guests = guests(&settings).map_err(|failure| format!("{failure:?}"));
            guests.map(|guests| guests.map(|guests| guests.overcommit))
        };
        assert_eq!(asked(kept(1, None, None)), Ok(Some(false)), "not unless it is asked for");
        assert_eq!(asked(kept(1, Some(false), Some(true))), Ok(Some(true)));
        assert!(asked(kept(1, Some(true), Some(true))).unwrap_err().contains("merged contexts"));
        assert!(asked(kept(0, None, Some(true))).unwrap_err().contains("no seats"));
        assert_eq!(asked(kept(0, None, Some(false))), Ok(None));
        let parts = Kept { shares: Some(4), guests: None, ..kept(0, None, Some(true)) };
        assert!(asked(parts).unwrap_err().contains("no seats"), "parts have no seats");
    }

    #[test]
    fn a_closed_terminal_leaves_no_workers_behind() {
        let ends = |signal| matches!(how_to_stop(signal), BoxStop::EndWorkers);
        assert_eq!([SIGINT, SIGHUP, SIGTERM].map(ends), [true, true, false]);
    }
}
