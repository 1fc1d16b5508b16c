//! `dxpu up`: a whole pool on this machine.
//!
//! ```text
//! dxpu up ──┬── dxpu manager    STATE/manager      its store, and the first admin's credential
//!           ├── dxpu box        STATE/box-1        its identity, and what its slots remember
//!           └── dxpu box        STATE/box-2
//! ```
//!
//! These are the ordinary commands, as processes of their own with logs of their own. They end when this process ends,
//! however it ends. A second start finds everything where the first left it.

mod child;

use crate::operate::words::counted;
use crate::support::exit::{Exit, Failure, Outcome};
use crate::support::pool_access::{self, failure};
use crate::support::{log, places, quantity};
use anyhow::Context;
use child::Child;
use machine::files;
use pool_api::{AccessKind, BoxRecord, Gpu, GpuState, NewToken, Page, TokenRequest, WhoAmI};
use pool_auth::{Credential, Identity, Secret};
use pool_client::{Client, Patience};
use rustix::fs::FlockOperation;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(crate) use child::end_with_parent;

const EXAMPLES: &str = "\
Examples:
  dxpu up                                 two boxes with two GPUs in software each: no GPU needed
  dxpu up --boxes 4 --gpus 8 --memory 1GiB
  dxpu up --nvidia                        the GPUs of this machine
  dxpu up --listen 0.0.0.0:7500 --advertise https://pool.example:7500
  dxpu up --reset                         forget the pool that was here

Then, in another terminal of the same user:
  dxpu top
  dxpu run --gpus 1 -- ./program";

/// Start a whole pool on this machine: manager, boxes, dashboard
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Up {
    /// How many boxes
    #[arg(long, value_name = "N", default_value = "2", value_parser = clap::value_parser!(u8).range(1..=64))]
    boxes: u8,
    /// How many GPUs in each box
    #[arg(long, value_name = "N", default_value = "2", value_parser = clap::value_parser!(u8).range(1..=64))]
    gpus: u8,
    /// GPUs in software (this is the default)
    #[arg(long, conflicts_with = "nvidia")]
    soft: bool,
    /// The GPUs of this machine, in one box
    #[arg(long, conflicts_with_all = ["boxes", "gpus", "memory"])]
    nvidia: bool,
    /// Memory of each GPU in software
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = quantity::bytes)]
    memory: u64,
    /// Where the manager listens
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7500")]
    listen: SocketAddr,
    /// How others reach the manager [default: the address it listens at]
    #[arg(long, value_name = "URL")]
    advertise: Option<String>,
    /// Where everything is kept [default: ~/.local/state/dxpu/up]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Forget the pool that was here before
    #[arg(long)]
    reset: bool,
}

/// A pool may take so long to be there; a machine that builds something beside it is slow.
const READY_WITHIN: Duration = Duration::from_secs(60);

impl Up {
    pub(crate) fn run(self) -> Outcome {
        log::start("warn");
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("signals")?;
        let pool = Pool::start(&self.plan()?, &mut || signals.pending().next().is_some())?;
        let Some(mut pool) = pool else { return Ok(Exit::Success) };
        out!("{}", pool.welcome());
        let ended = loop {
            if signals.pending().next().is_some() {
                break None;
            }
            if let Some(child) = pool.ended()? {
                break Some(child);
            }
            std::thread::sleep(Duration::from_millis(100));
        };
        errln!("stopping the pool");
        pool.stop();
        match ended {
            None => Ok(Exit::Success),
            Some(failed) => Err(failed.into()),
        }
    }

    fn plan(&self) -> anyhow::Result<Plan> {
        let state = match &self.state_dir {
            Some(directory) => std::path::absolute(directory).context("cannot find the current directory")?,
            None => places::up_directory()?,
        };
        if self.reset && state.exists() {
            // Only what is ours: a wrong --state-dir must not delete other files.
            let is_pool = state.join(LOCK).exists();
            if !is_pool {
                let what = format!("{} holds no pool of `dxpu up`", state.display());
                return Err(Failure::new(Exit::Usage, what, "check --state-dir").into());
            }
            let held = lock(&state)?;
            std::fs::remove_dir_all(&state).with_context(|| format!("cannot remove {}", state.display()))?;
            drop(held);
        }
        let gpus = if self.nvidia {
            Gpus::Nvidia
        } else {
            Gpus::Soft { count: self.gpus, memory_bytes: self.memory }
        };
        Ok(Plan {
            state,
            listen: self.listen,
            advertise: self.advertise.clone(),
            boxes: if self.nvidia { 1 } else { self.boxes },
            gpus,
        })
    }
}

/// What is to be started.
pub(crate) struct Plan {
    pub(crate) state: PathBuf,
    pub(crate) listen: SocketAddr,
    pub(crate) advertise: Option<String>,
    pub(crate) boxes: u8,
    pub(crate) gpus: Gpus,
}

#[derive(Clone, Copy)]
pub(crate) enum Gpus {
    Soft { count: u8, memory_bytes: u64 },
    Nvidia,
}

/// A pool that runs.
pub(crate) struct Pool {
    state: PathBuf,
    client: Client,
    /// By the manager's clock.
    started_ms: u64,
    gpus: usize,
    manager: Child,
    boxes: Vec<Child>,
    /// One pool in one directory.
    _lock: std::fs::File,
}

const LOCK: &str = "lock";

fn lock(state: &Path) -> anyhow::Result<std::fs::File> {
    files::make_private(state)?;
    let path = state.join(LOCK);
    let file = std::fs::File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
        let what = format!("the pool in {} is up already", state.display());
        Failure::new(
            Exit::Failure,
            what,
            "use it, stop it, or start another one with --state-dir and --listen",
        )
    })?;
    Ok(file)
}

impl Pool {
    /// Starts it and waits until it is there; none if `is_over` says that it is not wanted any more.
    pub(crate) fn start(plan: &Plan, is_over: &mut dyn FnMut() -> bool) -> anyhow::Result<Option<Self>> {
        let lock = lock(&plan.state)?;
        let mut manager = start_manager(plan)?;
        let until = Instant::now() + READY_WITHIN;
        let Some(client) = wait(until, &mut manager, is_over, || lead(plan))? else { return Ok(None) };
        // For users that import it into their browser.
        files::replace(&plan.state.join("authority.pem"), 0o644, client.credential().authority.as_bytes())?;
        let me: WhoAmI = client.get("/v1/whoami", Duration::ZERO).map_err(failure)?;
        let mut boxes = Vec::new();
        for number in 1..=plan.boxes {
            boxes.push(start_box(plan, &client, number)?);
        }
        let mut pool = Self {
            state: plan.state.clone(),
            client,
            started_ms: me.now_ms,
            gpus: 0,
            manager,
            boxes,
            _lock: lock,
        };
        let mut last = String::from("the boxes have not reported");
        loop {
            if is_over() {
                pool.stop();
                return Ok(None);
            }
            if let Some(failed) = pool.ended()? {
                return Err(failed.into());
            }
            match pool.ready(plan) {
                Ok(Some(gpus)) => {
                    pool.gpus = gpus;
                    return Ok(Some(pool));
                }
                Ok(None) => {}
                Err(error) => last = error.to_string(),
            }
            if Instant::now() >= until {
                let hint = format!("see the logs in {}", plan.state.display());
                return Err(
                    Failure::new(Exit::Failure, format!("the pool is not ready: {last}"), hint).into()
                );
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn admin_file(&self) -> PathBuf {
        places::admin_file(&places::up_manager_directory(&self.state))
    }

    pub(crate) fn dashboard(&self) -> String {
        let address = self.client.credential().managers.first().cloned().unwrap_or_default();
        format!("{}/", address.trim_end_matches('/'))
    }

    /// How many GPUs there are, once every box has brought its own and each is free, in use or out of order.
    fn ready(&self, plan: &Plan) -> anyhow::Result<Option<usize>> {
        let boxes: Page<BoxRecord> =
            self.client.get("/v1/boxes?limit=1000", Duration::ZERO).map_err(failure)?;
        let gpus: Page<Gpu> = self.client.get("/v1/gpus?limit=1000", Duration::ZERO).map_err(failure)?;
        let of_box = |number: u8| {
            let name = box_name(number);
            // What is stored of the last time says nothing about now.
            let is_heard =
                |owner: &&BoxRecord| owner.name.as_str() == name && owner.last_seen_ms > self.started_ms;
            boxes.items.iter().find(is_heard)?;
            let own: Vec<&Gpu> = gpus.items.iter().filter(|gpu| gpu.box_name.as_str() == name).collect();
            let is_settled = own.iter().all(|gpu| match gpu.state {
                GpuState::Free => gpu.unready.is_none(),
                GpuState::Cleaning | GpuState::BurnIn => false,
                GpuState::Leased | GpuState::Bad | GpuState::Absent => true,
            });
            let enough = match plan.gpus {
                Gpus::Soft { count, .. } => own.len() >= usize::from(count),
                Gpus::Nvidia => !own.is_empty(),
            };
            (is_settled && enough).then_some(own.len())
        };
        let counts: Option<Vec<usize>> = (1..=plan.boxes).map(of_box).collect();
        Ok(counts.map(|counts| counts.iter().sum()))
    }

    /// A part that ended by itself.
    fn ended(&mut self) -> anyhow::Result<Option<Failure>> {
        for child in std::iter::once(&mut self.manager).chain(&mut self.boxes) {
            if let Some(failure) = child.ended()? {
                return Ok(Some(failure));
            }
        }
        Ok(None)
    }

    /// Boxes first: they end their workers and may still say so.
    pub(crate) fn stop(mut self) {
        self.boxes.iter().for_each(Child::ask_to_end);
        self.boxes.drain(..).for_each(Child::wait);
        self.manager.ask_to_end();
    }

    fn welcome(&self) -> String {
        let is_default = places::up_directory().is_ok_and(|directory| directory == self.state);
        let prefix = if is_default {
            String::new()
        } else {
            format!("DXPU_CREDENTIAL={} ", self.admin_file().display())
        };
        format!(
            "The pool is up: {}, {}.\n\n  \
             dashboard   {}\n              log in with the credential file; your browser will warn once, unless it knows {}\n  \
             credential  {}\n  files, logs {}\n\n\
             In another terminal:\n  {prefix}dxpu top\n  {prefix}dxpu run --gpus 1 -- ./program\n  {prefix}dxpu gpu ls\n\n\
             Ctrl-C stops all of it; the next `dxpu up` finds the same pool again.\n",
            counted(self.boxes.len() as u64, "box"),
            counted(self.gpus as u64, "GPU"),
            self.dashboard(),
            self.state.join("authority.pem").display(),
            self.admin_file().display(),
            self.state.display(),
        )
    }
}

fn start_manager(plan: &Plan) -> anyhow::Result<Child> {
    let mut arguments = vec!["manager".to_owned(), "--listen".to_owned(), plan.listen.to_string()];
    arguments.extend(["--name".to_owned(), "up".to_owned(), "--state-dir".to_owned()]);
    arguments.push(plan.state.join("manager").display().to_string());
    if let Some(advertise) = &plan.advertise {
        arguments.extend(["--advertise".to_owned(), advertise.clone()]);
    }
    Child::start("manager", &arguments, &plan.state)
}

fn box_name(number: u8) -> String {
    format!("box-{number}")
}

fn start_box(plan: &Plan, client: &Client, number: u8) -> anyhow::Result<Child> {
    let name = box_name(number);
    let state = plan.state.join(&name);
    files::make_private(&state)?;
    let mut arguments = vec!["box".to_owned(), "--name".to_owned(), name.clone()];
    arguments.extend(["--state-dir".to_owned(), state.display().to_string()]);
    let invitation = state.join("invitation.json");
    if !state.join("membership.json").exists() {
        invite(client, &name, &invitation)?;
        arguments.extend(["--join-token-file".to_owned(), invitation.display().to_string()]);
    }
    let managers = client.credential().managers.join(",");
    arguments.extend(["--manager".to_owned(), managers, "--rack".to_owned(), "this machine".to_owned()]);
    arguments.extend(["--listen".to_owned(), plan.listen.ip().to_string()]);
    // Said each time: a box keeps how it was last started.
    match plan.gpus {
        Gpus::Soft { count, memory_bytes } => {
            // Room for an image of every GPU; memory that no image needs costs nothing.
            let guarded = (u64::from(count) * memory_bytes).to_string();
            let (count, memory) = (count.to_string(), memory_bytes.to_string());
            arguments.extend(["--soft".to_owned(), count, "--memory".to_owned(), memory]);
            arguments.extend(["--guard-memory".to_owned(), guarded]);
        }
        Gpus::Nvidia => arguments.push("--nvidia".to_owned()),
    }
    Child::start(&name, &arguments, &plan.state)
}

/// A token that lets a box in, once.
fn invite(client: &Client, name: &str, file: &Path) -> anyhow::Result<()> {
    let identity = Identity::Box(name.to_owned());
    let request = TokenRequest {
        kind: AccessKind::Join,
        identity: identity.to_string(),
        ttl_ms: 3_600_000,
        note: "dxpu up".to_owned(),
    };
    let made: NewToken = client.post("/v1/tokens", &request, None, Duration::ZERO).map_err(failure)?;
    let credential = Credential {
        managers: client.credential().managers.clone(),
        authority: made.ca_certificate,
        identity,
        token: Some(Secret::new(made.token)),
        certificate: None,
        key: None,
    };
    let text = Secret::new(serde_json::to_string_pretty(&credential)?);
    Ok(files::replace(file, 0o600, text.reveal().as_bytes())?)
}

/// A client of the manager, once it leads.
fn lead(plan: &Plan) -> anyhow::Result<Option<Client>> {
    let path = places::admin_file(&places::up_manager_directory(&plan.state));
    if !path.exists() {
        return Ok(None);
    }
    let mut credential = pool_access::read(&path)?;
    let here = plan.advertise.clone().unwrap_or_else(|| format!("https://{}", plan.listen));
    if credential.managers != [here.clone()] {
        // The pool is found at another address than at its first start; its admin has to know.
        credential.managers = vec![here];
        let text = Secret::new(serde_json::to_string_pretty(&credential)? + "\n");
        files::replace(&path, 0o600, text.reveal().as_bytes())?;
    }
    let client = Client::new(credential.clone(), Patience::ONCE).map_err(failure)?;
    match client.get::<WhoAmI>("/v1/whoami", Duration::ZERO) {
        Ok(_) => Ok(Some(Client::new(credential, Patience::default()).map_err(failure)?)),
        Err(pool_client::ClientError::Unreachable { .. }) => Ok(None),
        Err(error) if error.code().is_some_and(pool_api::ErrorCode::is_retryable) => Ok(None),
        Err(error) => Err(failure(error).into()),
    }
}

fn wait<T>(
    until: Instant,
    child: &mut Child,
    is_over: &mut dyn FnMut() -> bool,
    mut look: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<Option<T>> {
    loop {
        if let Some(found) = look()? {
            return Ok(Some(found));
        }
        if is_over() {
            return Ok(None);
        }
        if let Some(failed) = child.ended()? {
            return Err(failed.into());
        }
        if Instant::now() >= until {
            let hint = format!("see {}", child.log().display());
            return Err(Failure::new(Exit::Failure, "the manager does not answer", hint).into());
        }
        std::thread::sleep(Duration::from_millis(30));
    }
}
