//! `dxpu run --gpus N`: borrows GPUs from a pool for as long as a program runs.
//!
//! ```text
//!   ask ──▶ wait, saying why ──▶ tokens ──▶ attach ──▶ program runs, lease is renewed ──▶ give back, however it ends
//! ```
//!
//! A process that is killed gives nothing back: then the lease ends by itself, a little later. Secrets are in a file
//! that only this user can read; neither arguments nor the environment hold any.

pub(crate) mod attach;
mod outlive;
mod place;
mod program;
mod wait;

use crate::operate::lease::{LeaseName, long_duration};
use crate::support::exit::{Exit, Failure, Outcome};
use crate::support::pool_access::{PoolAccess, failure};
use crate::support::quantity;
use pool_api::{BoxKind, Class, Lease, LeaseRequest, Model, Share, Survive, Topology};
use pool_client::Client;
use std::ffi::OsString;
use std::time::{Duration, Instant};

/// What to borrow.
#[derive(clap::Args, Debug)]
pub(crate) struct Borrow {
    /// Borrow this many GPUs from the pool
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    gpus: Option<u32>,
    /// Use the GPUs of a lease that is there already, and leave it there afterwards (`dxpu lease create` makes one)
    #[arg(long, value_name = "ID", conflicts_with = "gpus")]
    lease: Option<LeaseName>,
    /// Start the program again, up to N times, when it failed because its GPU was lost and the lease has another
    #[arg(long, value_name = "N", default_value = "0")]
    retry: u32,
    /// End the program (SIGTERM, then SIGKILL) and give the GPUs back after this time, such as 2h
    #[arg(long, value_name = "TIME", value_parser = long_duration)]
    time_limit: Option<Duration>,
    /// Of this model, such as H200
    #[arg(long, requires = "gpus")]
    model: Option<Model>,
    /// With at least this much memory each
    #[arg(long, value_name = "SIZE", requires = "gpus", value_parser = quantity::bytes)]
    memory: Option<u64>,
    /// From boxes of this kind only
    #[arg(long, value_enum, requires = "gpus")]
    kind: Option<Kind>,
    /// How close together the GPUs must be
    #[arg(long, value_enum, requires = "gpus")]
    topology: Option<Close>,
    /// A part of one GPU: thousandths of it and its memory, such as 250,20GiB
    #[arg(long, value_name = "MILLI,SIZE", requires = "gpus", value_parser = share)]
    share: Option<Share>,
    /// With --class online: what offline programs beside it may add to the time of its requests, in percent
    /// [default: as the box has it]
    #[arg(long, value_name = "PERCENT", requires = "gpus")]
    slack: Option<u16>,
    /// Higher is served first
    #[arg(long, value_name = "N", requires = "gpus", value_parser = clap::value_parser!(u32).range(0..=1000))]
    priority: Option<u32>,
    /// Give up when there is no GPU after so long [default: wait]
    #[arg(long, value_name = "TIME", requires = "gpus", value_parser = quantity::duration)]
    wait: Option<Duration>,
    /// For whom, if you may borrow for several
    #[arg(long, requires = "gpus")]
    tenant: Option<pool_api::Name>,
    /// How long the GPUs stay yours should this machine fall silent
    #[arg(long, value_name = "TIME", requires = "gpus", default_value = "30s", value_parser = quantity::duration)]
    ttl: Duration,
    /// Give the GPUs back when the program has sent nothing to them for so long, such as 10m, and ask for them again when it
    /// calls CUDA
    #[arg(long, value_name = "TIME", requires = "survive", value_parser = quantity::duration)]
    suspend_when_idle: Option<Duration>,
    #[command(flatten)]
    access: PoolAccess,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Kind {
    /// Joined by NVLink
    Nvlink,
    /// Joined by PCIe alone
    Pcie,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Close {
    /// Anywhere
    Any,
    /// In one box
    #[value(alias = "same_box")]
    SameBox,
    /// Joined by NVLink
    Nvlink,
}

fn share(text: &str) -> Result<Share, String> {
    let wrong = || "write thousandths and memory, like 250,20GiB".to_owned();
    let (milli, memory) = text.split_once(',').ok_or_else(wrong)?;
    let milli = milli.trim().parse().map_err(|_| wrong())?;
    Ok(Share { milli, memory_bytes: quantity::bytes(memory.trim())? })
}

impl Borrow {
    /// Whether GPUs are to be borrowed.
    pub(crate) fn is_wanted(&self) -> bool {
        self.gpus.is_some() || self.lease.is_some()
    }

    /// Whether GPUs are to be given back while the program is idle.
    pub(crate) fn suspends_when_idle(&self) -> bool {
        self.suspend_when_idle.is_some()
    }

    fn request(&self, program: &OsString, class: Class, survives: bool) -> LeaseRequest {
        let note: String = program.to_string_lossy().chars().filter(|c| !c.is_control()).take(60).collect();
        LeaseRequest {
            tenant: self.tenant.clone(),
            gpus: self.gpus.unwrap_or(1),
            model: self.model.clone(),
            memory_bytes: self.memory,
            kind: self.kind.map(|kind| match kind {
                Kind::Nvlink => BoxKind::Nvlink,
                Kind::Pcie => BoxKind::Pcie,
            }),
            topology: match self.topology {
                None | Some(Close::Any) => Topology::Any,
                Some(Close::SameBox) => Topology::SameBox,
                Some(Close::Nvlink) => Topology::Nvlink,
            },
            share: self.share,
            priority: self.priority.unwrap_or(pool_api::PRIORITY_DEFAULT),
            ttl_ms: u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX),
            survive: if survives { Survive::Gpu } else { Survive::None },
            class,
            slack_percent: self.slack,
            time_limit_ms: self.time_limit.map(|limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)),
            note,
            ..LeaseRequest::default()
        }
    }

    /// Borrows, runs the program, gives back. `settings` are further variables for the program's library.
    ///
    /// With `patience` the program outlives losses: it waits so long for another GPU.
    pub(crate) fn run(
        &self,
        program: &[OsString],
        class: Class,
        settings: Vec<(&'static str, OsString)>,
        patience: Option<Duration>,
    ) -> Outcome {
        // Before anything is borrowed, so that no signal makes us forget to give it back.
        let signals = program::Signals::take()?;
        let client = self.access.waiting_client()?;
        if let Some(name) = &self.lease {
            let id = name.resolve(&client).map_err(failure)?;
            let lease = client.get(&format!("/v1/leases/{id}"), Duration::ZERO).map_err(failure)?;
            return self.run_again_while_gpus_fail(&client, lease, program, &settings, patience, &signals);
        }
        let request = self.request(&program[0], class, patience.is_some());
        // What cannot be asked for is told before a manager is.
        request
            .check()
            .map_err(|error| Failure::new(Exit::Usage, error.to_string(), "see `dxpu run --help`"))?;
        let key = machine::random_hex(16)?;
        let lease = client.create_lease(&request, &key).map_err(failure)?;
        let held = wait::Held::new(&client, lease.id);
        let outcome = self.run_again_while_gpus_fail(&client, lease, program, &settings, patience, &signals);
        held.give_back();
        outcome
    }

    /// Runs the program, and again as often as `--retry` allows when it failed and had lost a GPU meanwhile.
    fn run_again_while_gpus_fail(
        &self,
        client: &Client,
        mut lease: Lease,
        program: &[OsString],
        settings: &[(&'static str, OsString)],
        patience: Option<Duration>,
        signals: &program::Signals,
    ) -> Outcome {
        let mut until = self.time_limit.map(|limit| Instant::now() + limit);
        let mut limit = None;
        let mut left = self.retry;
        loop {
            lease = wait::until_granted(client, lease, self.wait, signals)?;
            // The manager counts from the first grant, and may have set a limit of the tenant's own. Its clock is not ours, so
            // the limit is counted from here; it waits some seconds longer than this.
            if self.lease.is_none() && limit.is_none() {
                limit = lease.request.time_limit_ms.map(|ms| Instant::now() + Duration::from_millis(ms));
                until = until.into_iter().chain(limit).min();
            }
            // The files that name the tokens live as long as the program.
            let keeper = attach::Keeper::attach(client, &lease, signals)?;
            let mut settings = settings.to_vec();
            let outlives = self.outlive(&lease, &keeper, patience, &mut settings)?;
            let run = program::Run { client, lease: &lease, keeper: &keeper, signals, until };
            let (exit, after) = run.to_the_end(program, &settings)?;
            drop(outlives);
            let has_lost = after.as_ref().is_some_and(|after| after.moves.len() > lease.moves.len());
            let is_over = until.is_some_and(|until| Instant::now() >= until);
            match after {
                Some(after) if exit != Exit::Program(0) && has_lost && after.state.is_live() && !is_over => {
                    if left == 0 || signals.stop_wanted().is_some() {
                        return Ok(exit);
                    }
                    left -= 1;
                    errln!("dxpu: starting the program again ({left} more tries after this one)");
                    lease = after;
                }
                _ => return Ok(exit),
            }
        }
    }
}
