//! `dxpu lease`: GPUs bound to a borrower, or a borrower waiting for them.

mod create;
pub(crate) use create::long_duration;
mod explain;
mod prefix;
mod survival;
pub(crate) use prefix::LeaseName;

use super::ask;
use super::list::{Format, Look, changed};
use super::revoke::Terms;
use super::words::{age, counted, left, name_of, or_dash, spelled, time, who};
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
  dxpu lease ls --idle 10m                      who has GPUs and has not used them for 10 minutes
  dxpu lease explain l-00c0ffee00c0ffee         why it waits, and what would let it run
  dxpu lease create --gpus 8 --model H200 --topology nvlink --ttl 1h --wait
  dxpu lease create --plane pcie --host hv-7 --ttl 8h --wait    into a free slot of a guest on that host
  dxpu lease release l-00c0ffee00c0ffee         give it back
  dxpu lease move l-00c0ffee00c0ffee --to rack1-b      of `dxpu run --survive`: its program goes on there
  dxpu lease suspend l-00c0ffee00c0ffee         keep its program as an image, give its GPUs back until `resume`
  dxpu lease drill l-00c0ffee00c0ffee           try a recovery of its program on another GPU, and throw it away

A lease ends when it is not renewed for its time to live. `dxpu run` renews; what `create` makes lives for an hour unless
--ttl says otherwise, and is renewed by `dxpu lease renew`, or by whoever waits for it.";

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
        /// l- and 16 digits, or the first few of them
        lease: LeaseName,
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
        /// l- and 16 digits, or the first few of them
        #[arg(required = true)]
        lease: Vec<LeaseName>,
        #[command(flatten)]
        terms: Terms,
    },
    /// Have the program of a lease go on at another GPU, without a loss (`dxpu run --survive`)
    Move(survival::Move),
    /// Keep the program of a lease as an image and give its GPUs back for a while (`dxpu run --survive`)
    Suspend(survival::One),
    /// Ask for GPUs for a suspended lease again
    Resume(survival::One),
    /// Try a recovery of a lease's program on another GPU, compare, and give that GPU back (`dxpu run --survive`)
    Drill(survival::One),
    /// Say why a lease waits, and what would let it run
    Explain {
        /// l- and 16 digits, or the first few of them
        lease: LeaseName,
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
    /// Only in this state: pending, granted, parked, releasing or ended
    #[arg(long)]
    state: Option<String>,
    /// Only those whose GPUs have computed nothing for so long, such as 10m
    #[arg(long, value_name = "TIME", value_parser = long_duration)]
    idle: Option<Duration>,
    #[command(flatten)]
    look: Look,
}

#[derive(clap::Args)]
struct Act {
    /// l- and 16 digits, or the first few of them
    #[arg(required = true)]
    lease: Vec<LeaseName>,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    idle_ms: Option<u64>,
}

/// When its time limit is over, if it has one and was granted.
fn limit_at_ms(lease: &Record) -> Option<u64> {
    if !lease.state.is_live() {
        return None;
    }
    Some(lease.granted_ms?.saturating_add(lease.request.time_limit_ms?))
}

impl Lease {
    pub(crate) fn run(self) -> Outcome {
        match self.verb {
            Verb::Ls(ls) => ls.run(),
            Verb::Show { lease, look } => {
                look.show(|client| shown(client, lease.resolve(client)?), whole_detail)
            }
            Verb::Move(one) => one.run(),
            Verb::Suspend(one) => one.suspend(),
            Verb::Resume(one) => one.resume(),
            Verb::Drill(one) => one.drill(),
            Verb::Create(create) => create.run(),
            Verb::Renew(act) => act.run(|client, id| client.renew_lease(id), "lives on"),
            Verb::Release(act) => act.run(|client, id| client.release_lease(id), "was given back"),
            Verb::Revoke { lease, terms } => {
                let client = terms.client()?;
                for name in lease {
                    let id = name.resolve(&client).map_err(failure)?;
                    terms.revoke(format!("lease/{id}"), false, &format!("lease {id}"))?;
                }
                Ok(Exit::Success)
            }
            Verb::Explain { lease, look } => explain::run(&lease, &look),
        }
    }
}

/// A lease, how well its program is protected if it is to outlive losses, and how a guest fares.
#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    lease: Record,
    #[serde(skip_serializing_if = "Option::is_none")]
    protection: Option<pool_api::Protection>,
    /// What the box says about the seat of a guest, while online programs leave it little time.
    #[serde(skip_serializing_if = "Option::is_none")]
    seat: Option<String>,
}

fn shown(client: &pool_client::Client, id: LeaseId) -> Result<Shown, pool_client::ClientError> {
    let lease: Record = client.get(&format!("/v1/leases/{id}"), Duration::ZERO)?;
    let protection = (!lease.request.survive.is_none()).then(|| client.protection(id)).transpose()?;
    let is_guest = lease.request.class == work_class::Class::Offline && lease.state == LeaseState::Granted;
    let seat = is_guest.then(|| explain::seat(client, id)).transpose()?.flatten();
    Ok(Shown { lease, protection, seat })
}

fn whole_detail(shown: &Shown, paper: Paper) -> Vec<String> {
    let mut lines = detail(&shown.lease, paper);
    lines.extend(shown.seat.iter().cloned());
    lines.extend(survival::lines(&shown.lease, shown.protection.as_ref()));
    lines
}

impl Act {
    fn run(
        self,
        act: impl Fn(&pool_client::Client, LeaseId) -> Result<Record, pool_client::ClientError>,
        said: &str,
    ) -> Outcome {
        let client = self.access.client()?;
        for name in self.lease {
            let id = name.resolve(&client).map_err(failure)?;
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
            columns.extend([Column::Number("MOVES"), Column::Number("LIMIT IN"), Column::Whole("OWNER")]);
        }
        if self.idle.is_some() {
            columns.push(Column::Number("IDLE"));
        }
        self.look.table(
            &columns,
            |client| {
                let now_ms = ask::now_ms(client)?;
                let (mut leases, _) = ask::all::<Record>(client, &path)?;
                leases.retain(|lease| self.all || self.state.is_some() || lease.state != LeaseState::Ended);
                // Names are random; people look for what is old or new.
                leases.sort_by_key(|lease| (lease.created_ms, lease.id));
                let mut seen: Vec<Seen> =
                    leases.into_iter().map(|lease| Seen { lease, now_ms, idle_ms: None }).collect();
                if let Some(at_least) = self.idle {
                    let path = format!("/v1/idle?at_least_ms={}", at_least.as_millis());
                    let idle: Vec<pool_api::IdleLease> = client.get(&path, Duration::ZERO)?;
                    let of = |id: LeaseId| idle.iter().find(|idle| idle.lease == id).map(|idle| idle.idle_ms);
                    seen.iter_mut().for_each(|seen| seen.idle_ms = of(seen.lease.id));
                    seen.retain(|seen| seen.idle_ms.is_some());
                }
                Ok(seen)
            },
            |Seen { lease, now_ms, idle_ms }| {
                let mut row = row(lease, *now_ms);
                if self.look.is_wide() {
                    let limit = limit_at_ms(lease).map_or("-".to_owned(), |at_ms| left(at_ms, *now_ms));
                    row.extend([
                        lease.moves.len().to_string().into(),
                        limit.into(),
                        who(&lease.owner).into(),
                    ]);
                }
                row.extend(idle_ms.map(|ms| super::words::duration(ms).into()));
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
    if !lease.request.class.is_dedicated() {
        notes.push(lease.request.class.to_string());
    }
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
        LeaseState::Pending | LeaseState::Parked => Tone::Passing,
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

/// What it asked for, in words.
fn asked_for(request: &pool_api::LeaseRequest) -> String {
    let of = request.model.as_ref().map_or_else(|| "of any model".to_owned(), |m| format!("of model {m}"));
    let mut asked = vec![format!("{} {of}", counted(u64::from(request.gpus), "GPU"))];
    if let Some(memory) = request.memory_bytes {
        asked.push(format!("at least {}", super::words::bytes(memory)));
    }
    if let Some(kind) = request.kind {
        asked.push(format!("in {} boxes", name_of(&kind)));
    }
    if request.topology != pool_api::Topology::Any {
        asked.push(spelled(&request.topology));
    }
    if let Some(share) = request.share {
        asked.push(format!("{}/1000 and {}", share.milli, super::words::bytes(share.memory_bytes)));
    }
    if !request.class.is_dedicated() {
        asked.push(match request.class {
            pool_api::Class::Offline => "offline: as a guest beside online leases".to_owned(),
            class => match request.slack_percent {
                Some(percent) => format!("{class}, with a slack of {percent} %"),
                None => class.to_string(),
            },
        });
    }
    if !request.survive.is_none() {
        asked.push("to outlive the loss of a GPU".to_owned());
    }
    if let Some(host) = &request.host {
        asked.push(format!("plugged into host {host}"));
    }
    asked.join(", ")
}

fn detail(lease: &Record, paper: Paper) -> Vec<String> {
    let request = &lease.request;
    let mut pairs = vec![
        ("lease", lease.id.to_string()),
        ("tenant", lease.tenant.to_string()),
        ("owner", lease.owner.clone()),
        ("state", name_of(&lease.state)),
        ("asked for", asked_for(request)),
        ("priority", request.priority.to_string()),
        ("created", time(lease.created_ms)),
        ("granted", lease.granted_ms.map_or("-".to_owned(), time)),
        ("expires", if lease.state.is_live() { time(lease.expires_ms) } else { "-".to_owned() }),
        ("note", or_dash(request.note.clone())),
    ];
    if let Some(limit_ms) = request.time_limit_ms {
        let end = limit_at_ms(lease)
            .map_or_else(String::new, |at_ms| format!(", which is over at {}", time(at_ms)));
        pairs.push(("time limit", format!("{}{end}", pool_api::time_in_words(limit_ms))));
    }
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
