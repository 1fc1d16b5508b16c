//! `dxpu lease`: GPUs bound to a borrower, or a borrower waiting for them.

mod create;
pub(crate) use create::long_duration;
mod explain;

use super::ask;
use super::list::{Format, Look, changed};
use super::revoke::Terms;
use super::words::{age, left, name_of, or_dash, time, who};
use crate::support::exit::{Exit, Outcome};
use crate::support::paint::{Paper, Tone};
use crate::support::pool_access::{PoolAccess, failure};
use crate::support::table::{self, Cell, Column};
use pool_api::{Lease as Record, LeaseId, LeaseState};
use serde::Serialize;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  dxpu run --gpus 2 -- python train.py          borrows, runs and gives back: mostly all one needs
  dxpu lease ls                                 who has and who waits
  dxpu lease explain l-00c0ffee00c0ffee         why it waits, and what would let it run
  dxpu lease create --gpus 8 --model H200 --topology nvlink --ttl 1h --wait
  dxpu lease create --plane pcie --host hv-7 --ttl 8h --wait    into a free slot of a guest on that host
  dxpu lease release l-00c0ffee00c0ffee         give it back

A lease ends when it is not renewed for its time to live. `dxpu run` renews; what `create` makes is renewed by
`dxpu lease renew`, or by whoever waits for it.";

/// Look at leases, make them and end them
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Lease {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// List leases; those that are over only with --all
    Ls(Ls),
    /// Show one lease
    Show {
        /// l- and 16 digits
        lease: LeaseId,
        #[command(flatten)]
        look: Look,
    },
    /// Ask for GPUs
    Create(create::Create),
    /// Say that the borrower lives
    Renew(Act),
    /// Give leases back, or stop waiting for them
    Release(Act),
    /// End leases and have their boxes refuse every token of theirs at once (admins only)
    Revoke {
        /// l- and 16 digits
        #[arg(required = true)]
        lease: Vec<LeaseId>,
        #[command(flatten)]
        terms: Terms,
    },
    /// Say why a lease waits, and what would let it run
    Explain {
        /// l- and 16 digits
        lease: LeaseId,
        #[command(flatten)]
        look: Look,
    },
}

#[derive(clap::Args)]
struct Ls {
    /// Also those that are over
    #[arg(long)]
    all: bool,
    /// Only of this tenant
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Only in this state: pending, granted, releasing or ended
    #[arg(long)]
    state: Option<String>,
    #[command(flatten)]
    look: Look,
}

#[derive(clap::Args)]
struct Act {
    /// l- and 16 digits
    #[arg(required = true)]
    lease: Vec<LeaseId>,
    #[command(flatten)]
    access: PoolAccess,
    /// How to show the leases afterwards
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value = "table")]
    output: Format,
}

/// A lease, and when it was looked at.
#[derive(Serialize)]
struct Seen {
    #[serde(flatten)]
    lease: Record,
    #[serde(skip)]
    now_ms: u64,
}

impl Lease {
    pub(crate) fn run(self) -> Outcome {
        match self.verb {
            Verb::Ls(ls) => ls.run(),
            Verb::Show { lease, look } => look
                .show(|client| client.get::<Record>(&format!("/v1/leases/{lease}"), Duration::ZERO), detail),
            Verb::Create(create) => create.run(),
            Verb::Renew(act) => act.run(|client, id| client.renew_lease(id), "lives on"),
            Verb::Release(act) => act.run(|client, id| client.release_lease(id), "was given back"),
            Verb::Revoke { lease, terms } => {
                for id in lease {
                    terms.revoke(format!("lease/{id}"), false, &format!("lease {id}"))?;
                }
                Ok(Exit::Success)
            }
            Verb::Explain { lease, look } => explain::run(lease, &look),
        }
    }
}

impl Act {
    fn run(
        self,
        act: impl Fn(&pool_client::Client, LeaseId) -> Result<Record, pool_client::ClientError>,
        said: &str,
    ) -> Outcome {
        let client = self.access.client()?;
        for id in self.lease {
            let lease = act(&client, id).map_err(failure)?;
            changed(self.output, &lease, &format!("lease {id} {said} (now {})", name_of(&lease.state)))?;
        }
        Ok(Exit::Success)
    }
}

impl Ls {
    fn run(self) -> Outcome {
        let mut path = "/v1/leases".to_owned();
        let asked = [("tenant", &self.tenant), ("state", &self.state)];
        for (index, (name, value)) in
            asked.into_iter().filter_map(|(n, v)| v.as_ref().map(|v| (n, v))).enumerate()
        {
            let join = if index == 0 { '?' } else { '&' };
            path.push_str(&format!("{join}{name}={}", ask::encoded(value)));
        }
        let mut columns = vec![
            Column::Whole("LEASE"),
            Column::Cut("TENANT"),
            Column::Whole("STATE"),
            Column::Cut("GPUS"),
            Column::Cut("MODEL"),
            Column::Number("PRIORITY"),
            Column::Number("AGE"),
            Column::Number("LEFT"),
            Column::Cut("NOTE"),
        ];
        if self.look.is_wide() {
            columns.extend([Column::Number("MOVES"), Column::Whole("OWNER")]);
        }
        self.look.table(
            &columns,
            |client| {
                let now_ms = ask::now_ms(client)?;
                let (mut leases, _) = ask::all::<Record>(client, &path)?;
                leases.retain(|lease| self.all || self.state.is_some() || lease.state != LeaseState::Ended);
                // Names are random; people look for what is old or new.
                leases.sort_by_key(|lease| (lease.created_ms, lease.id));
                Ok(leases.into_iter().map(|lease| Seen { lease, now_ms }).collect())
            },
            |Seen { lease, now_ms }| {
                let mut row = row(lease, *now_ms);
                if self.look.is_wide() {
                    row.extend([lease.moves.len().to_string().into(), who(&lease.owner).into()]);
                }
                row
            },
            "no leases. `dxpu run --gpus 1 -- PROGRAM` makes one",
        )
    }
}

fn row(lease: &Record, now_ms: u64) -> Vec<Cell> {
    vec![
        lease.id.to_string().into(),
        lease.tenant.to_string().into(),
        Cell::toned(name_of(&lease.state), tone(lease.state)),
        gpus(lease).into(),
        model(lease).into(),
        lease.request.priority.to_string().into(),
        age(lease.created_ms, now_ms).into(),
        if lease.state.is_live() { left(lease.expires_ms, now_ms) } else { "-".to_owned() }.into(),
        or_dash(note(lease)).into(),
    ]
}

/// What it has, or how many it wants.
fn gpus(lease: &Record) -> String {
    if lease.grants.is_empty() {
        let share = lease.request.share.map(|share| format!(" ({}/1000)", share.milli)).unwrap_or_default();
        return format!("{}{share} wanted", lease.request.gpus);
    }
    lease.grants.iter().map(place).collect::<Vec<_>>().join(" ")
}

/// A GPU, and where it is plugged.
fn place(grant: &pool_api::Grant) -> String {
    match &grant.attachment {
        None => grant.gpu.to_string(),
        Some(to) => format!("{}->{}/{}({})", grant.gpu, to.host, to.slot, name_of(&to.phase)),
    }
}

fn model(lease: &Record) -> String {
    let known = lease.model.as_ref().or(lease.request.model.as_ref());
    known.map_or_else(|| "any".to_owned(), ToString::to_string)
}

/// What it is for, and the last thing that happened to it.
fn note(lease: &Record) -> String {
    let mut notes = Vec::new();
    if let Some(ended) = &lease.ended {
        notes.push(ended.reason.clone());
    } else if let Some(last) = lease.moves.last() {
        let to = last.to.as_ref().map_or_else(|| "nothing yet".to_owned(), ToString::to_string);
        notes.push(format!("moved {} to {to}", last.from));
    }
    if !lease.request.note.is_empty() {
        notes.push(lease.request.note.clone());
    }
    notes.join("; ")
}

fn tone(state: LeaseState) -> Tone {
    match state {
        LeaseState::Pending => Tone::Passing,
        LeaseState::Granted => Tone::Busy,
        LeaseState::Releasing | LeaseState::Ended => Tone::Faint,
    }
}

/// For commands that show leases beside something else.
pub(super) fn short_table(leases: &[Record], paper: Paper) -> Vec<String> {
    let columns = [Column::Whole("LEASE"), Column::Whole("STATE"), Column::Cut("GPUS"), Column::Cut("NOTE")];
    let row = |lease: &Record| {
        vec![
            lease.id.to_string().into(),
            Cell::toned(name_of(&lease.state), tone(lease.state)),
            gpus(lease).into(),
            or_dash(note(lease)).into(),
        ]
    };
    table::lines(&columns, &leases.iter().map(row).collect::<Vec<_>>(), paper)
}

fn detail(lease: &Record, paper: Paper) -> Vec<String> {
    let request = &lease.request;
    let mut asked = vec![format!(
        "{} GPU(s) of model {}",
        request.gpus,
        request.model.as_ref().map_or("any", |m| m.as_str())
    )];
    if let Some(memory) = request.memory_bytes {
        asked.push(format!("at least {}", super::words::bytes(memory)));
    }
    if let Some(kind) = request.kind {
        asked.push(format!("in {} boxes", name_of(&kind)));
    }
    if request.topology != pool_api::Topology::Any {
        asked.push(name_of(&request.topology));
    }
    if let Some(share) = request.share {
        asked.push(format!("{}/1000 and {}", share.milli, super::words::bytes(share.memory_bytes)));
    }
    if let Some(host) = &request.host {
        asked.push(format!("plugged into host {host}"));
    }
    let mut pairs = vec![
        ("lease", lease.id.to_string()),
        ("tenant", lease.tenant.to_string()),
        ("owner", lease.owner.clone()),
        ("state", name_of(&lease.state)),
        ("asked for", asked.join(", ")),
        ("priority", request.priority.to_string()),
        ("created", time(lease.created_ms)),
        ("granted", lease.granted_ms.map_or("-".to_owned(), time)),
        ("expires", if lease.state.is_live() { time(lease.expires_ms) } else { "-".to_owned() }),
        ("note", or_dash(request.note.clone())),
    ];
    if let Some(ended) = &lease.ended {
        pairs.push(("ended", format!("{} ({})", time(ended.at_ms), ended.reason)));
    }
    let mut lines = table::pairs(&pairs, paper);
    if !lease.grants.is_empty() {
        lines.push(String::new());
        let columns =
            [Column::Whole("GPU"), Column::Cut("MODEL"), Column::Number("EPOCH"), Column::Cut("REACHED AT")];
        let row = |grant: &pool_api::Grant| {
            vec![
                grant.gpu.to_string().into(),
                grant.model.to_string().into(),
                grant.epoch.to_string().into(),
                or_dash(match &grant.attachment {
                    Some(to) => format!("host {} slot {} ({})", to.host, to.slot, name_of(&to.phase)),
                    None => grant.endpoints.join(" "),
                })
                .into(),
            ]
        };
        lines.extend(table::lines(&columns, &lease.grants.iter().map(row).collect::<Vec<_>>(), paper));
    }
    for moved in &lease.moves {
        let to = moved.to.as_ref().map_or_else(|| "nothing yet".to_owned(), ToString::to_string);
        let line = format!("moved {} from {} to {to}: {}", time(moved.at_ms), moved.from, moved.reason);
        lines.push(table::cut(&line, usize::MAX));
    }
    lines
}
