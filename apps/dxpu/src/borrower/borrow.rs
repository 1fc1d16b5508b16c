//! `dxpu run --gpus N`: borrows GPUs from a pool for as long as a program runs.
//!
//! ```text
//!   ask ──▶ wait, saying why ──▶ tokens ──▶ attach ──▶ program runs, lease is renewed ──▶ give back, however it ends
//! ```
//!
//! A process that is killed gives nothing back: then the lease ends by itself, a little later. Secrets are in a file
//! that only this user can read; neither arguments nor the environment hold any.

mod attach;
mod place;
mod program;
mod wait;

use crate::support::exit::Outcome;
use crate::support::pool_access::{PoolAccess, failure};
use crate::support::quantity;
use pool_api::{BoxKind, LeaseId, LeaseRequest, Model, Share, Topology};
use std::ffi::OsString;
use std::time::Duration;

/// What to borrow.
#[derive(clap::Args, Debug)]
pub(crate) struct Borrow {
    /// Borrow this many GPUs from the pool
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    gpus: Option<u32>,
    /// Use the GPUs of a lease that is there already, and leave it there afterwards (`dxpu lease create` makes one)
    #[arg(long, value_name = "ID", conflicts_with = "gpus")]
    lease: Option<LeaseId>,
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

    fn request(&self, program: &OsString) -> LeaseRequest {
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
            note,
            ..LeaseRequest::default()
        }
    }

    /// Borrows, runs the program, gives back. `settings` are further variables for the program's library.
    pub(crate) fn run(&self, program: &[OsString], settings: Vec<(&'static str, OsString)>) -> Outcome {
        // Before anything is borrowed, so that no signal makes us forget to give it back.
        let signals = program::Signals::take()?;
        let client = self.access.client()?;
        if let Some(id) = self.lease {
            let lease = client.get(&format!("/v1/leases/{id}"), Duration::ZERO).map_err(failure)?;
            let lease = wait::until_granted(&client, lease, self.wait, &signals)?;
            let keeper = attach::Keeper::attach(&client, &lease, &signals)?;
            return program::run(program, settings, &keeper, &client, &lease, &signals);
        }
        let request = self.request(&program[0]);
        let key = machine::random_hex(16)?;
        let lease = client.create_lease(&request, &key).map_err(failure)?;
        let held = wait::Held::new(&client, lease.id);
        let lease = wait::until_granted(&client, lease, self.wait, &signals)?;
        let keeper = attach::Keeper::attach(&client, &lease, &signals)?;
        let outcome = program::run(program, settings, &keeper, &client, &lease, &signals);
        // The files that name the tokens outlive the program, not us.
        drop(keeper);
        held.give_back();
        outcome
    }
}
