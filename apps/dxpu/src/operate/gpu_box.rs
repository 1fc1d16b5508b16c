//! `dxpu box ls` and its like: the machines that hold GPUs, as operators see them.
//!
//! `dxpu box` alone is the agent that runs on such a machine; it hands these words over to this file.

use super::ask;
use super::list::{Format, Look, changed};
use super::revoke::Terms;
use super::words::{age, bytes, name_of, or_dash, time, who};
use crate::support::exit::{Exit, Failure, Outcome};
use crate::support::paint::{Paper, Tone};
use crate::support::pool_access::{PoolAccess, failure};
use crate::support::table::{self, Cell, Column};
use pool_api::{BoxDetail, BoxRecord, BoxState, GuardReport, Name, Taint, TaintRequest};
use pool_auth::Identity;
use pool_client::Client;
use serde::Serialize;
use std::time::Duration;

#[derive(clap::Subcommand)]
pub(crate) enum Verb {
    /// List the boxes of the pool
    Ls {
        #[command(flatten)]
        look: Look,
    },
    /// Show one box with its GPUs
    Show {
        /// Its name
        name: Name,
        #[command(flatten)]
        look: Look,
    },
    /// Empty a box: nothing new goes there, and its leases move away
    Drain {
        #[command(flatten)]
        act: Act,
        /// Let leases end by themselves for so long before they are moved, such as 30m; shows how many are left
        #[arg(long, value_name = "TIME", value_parser = super::lease::long_duration)]
        grace: Option<Duration>,
        /// Wait until the box is empty, and show how many leases are left
        #[arg(long)]
        wait: bool,
    },
    /// Keep new leases from a box; those it has stay
    Cordon(Act),
    /// Let leases have a cordoned or drained box again
    Uncordon(Act),
    /// Take a box off the list that is dead and has nothing of any lease
    ///
    /// It stays a member and is listed again when it reports; `dxpu box revoke` expels it for good.
    Rm {
        /// Its name
        name: Name,
        #[command(flatten)]
        access: PoolAccess,
    },
    /// Let leases have a box again
    Undrain(Act),
    /// Expel a box: it is no member any more, and its leases move as if it had died
    ///
    /// What it shows to managers is refused from now on, also the join tokens that were made for it before. Its agent
    /// ends its workers and itself. It joins again with a new token: `dxpu token create box/NAME`.
    Revoke {
        /// Its name
        name: Name,
        #[command(flatten)]
        terms: Terms,
    },
}

#[derive(clap::Args)]
pub(crate) struct Act {
    /// Its name
    name: Name,
    /// Why; shown to everybody who asks
    #[arg(long, default_value = "")]
    reason: String,
    #[command(flatten)]
    access: PoolAccess,
    /// How to show the box afterwards
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value = "table")]
    output: Format,
}

/// A box, and when it was looked at.
#[derive(Serialize)]
struct Seen {
    #[serde(flatten)]
    record: BoxRecord,
    #[serde(skip)]
    now_ms: u64,
}

impl Verb {
    pub(crate) fn run(self) -> Outcome {
        match self {
            Verb::Ls { look } => list(&look),
            Verb::Show { name, look } => look
                .show(|client| client.get::<BoxDetail>(&format!("/v1/boxes/{name}"), Duration::ZERO), detail),
            Verb::Drain { act, grace, wait } => super::drain::run(act, grace, wait),
            Verb::Cordon(act) => act.run("cordon", "gets no new leases; those it has stay"),
            Verb::Uncordon(act) => act.run("undrain", "takes leases again"),
            Verb::Rm { name, access } => {
                let removed: BoxRecord =
                    access.client()?.delete(&format!("/v1/boxes/{name}")).map_err(failure)?;
                outln!("box {} is off the list", removed.name);
                Ok(Exit::Success)
            }
            Verb::Undrain(act) => act.run("undrain", "takes leases again"),
            Verb::Revoke { name, terms } => {
                terms.revoke(Identity::Box(name.to_string()).to_string(), false, &format!("box {name}"))
            }
        }
    }
}

impl Act {
    pub(super) fn run(self, verb: &str, said: &str) -> Outcome {
        let record = self.ask(&self.access.client()?, verb)?;
        changed(self.output, &record, &format!("box {} {said} (now {})", record.name, state(&record)))
    }

    pub(super) fn ask(&self, client: &Client, verb: &str) -> Result<BoxRecord, Failure> {
        let path = format!("/v1/boxes/{}/{verb}", self.name);
        ask::post(client, &path, &TaintRequest { reason: self.reason.clone() })
    }

    pub(super) fn client(&self) -> anyhow::Result<Client> {
        self.access.client()
    }

    pub(super) fn name(&self) -> &Name {
        &self.name
    }
}

fn list(look: &Look) -> Outcome {
    let mut columns = vec![
        Column::Whole("BOX"),
        Column::Whole("KIND"),
        Column::Whole("RACK"),
        Column::Whole("STATE"),
        Column::Number("SLOTS"),
        Column::Number("SEEN"),
        Column::Cut("NOTE"),
    ];
    if look.is_wide() {
        columns.push(Column::Whole("PATHS"));
    }
    look.table(
        &columns,
        |client| {
            let now_ms = ask::now_ms(client)?;
            let (boxes, _) = ask::all::<BoxRecord>(client, "/v1/boxes")?;
            Ok(boxes.into_iter().map(|record| Seen { record, now_ms }).collect())
        },
        |Seen { record, now_ms }| {
            let mut row = vec![
                record.name.to_string().into(),
                name_of(&record.kind).into(),
                or_dash(record.rack.clone()).into(),
                Cell::toned(state(record), tone(record.state)),
                record.gpus.len().to_string().into(),
                age(record.last_seen_ms, *now_ms).into(),
                or_dash(drain_note(record)).into(),
            ];
            if look.is_wide() {
                row.push(or_dash(record.paths.join(" ")).into());
            }
            row
        },
        "no boxes. On a machine with GPUs: `dxpu box --help`; for a pool on this machine: `dxpu up`",
    )
}

/// Its state; a cordon has a word of its own.
fn state(record: &BoxRecord) -> String {
    let is_cordoned = record.drain.as_ref().is_some_and(|drain| !drain.drain);
    match record.state {
        BoxState::Draining if is_cordoned => "cordoned".to_owned(),
        other => name_of(&other),
    }
}

fn drain_note(record: &BoxRecord) -> String {
    if let Some(revoked) = &record.revoked {
        return revoked_note(revoked);
    }
    record.drain.as_ref().map_or_else(String::new, |drain| {
        let what = if drain.drain { "drained" } else { "cordoned" };
        format!("{what} by {}: {}", who(&drain.by), or_dash(drain.reason.clone()))
    })
}

/// Of a box or a host.
pub(super) fn revoked_note(revoked: &Taint) -> String {
    format!("revoked by {}: {}", who(&revoked.by), or_dash(revoked.reason.clone()))
}

fn tone(state: BoxState) -> Tone {
    match state {
        BoxState::Ready => Tone::Good,
        BoxState::Suspect | BoxState::Draining => Tone::Passing,
        BoxState::Dead => Tone::Wrong,
    }
}

fn guard_memory(guard: &GuardReport) -> String {
    let leases = guard.leases.len();
    let plural = if leases == 1 { "" } else { "s" };
    format!("{} of {} taken by images of {leases} lease{plural}", bytes(guard.used_bytes), bytes(guard.bytes))
}

fn detail(detail: &BoxDetail, paper: Paper) -> Vec<String> {
    let record = &detail.record;
    let mut lines = table::pairs(
        &[
            ("box", record.name.to_string()),
            ("kind", name_of(&record.kind)),
            ("rack", or_dash(record.rack.clone())),
            ("state", state(record)),
            ("last seen", time(record.last_seen_ms)),
            ("paths", or_dash(record.paths.join(" "))),
            ("guard memory", or_dash(detail.guard.as_ref().map(guard_memory).unwrap_or_default())),
            ("note", or_dash(drain_note(record))),
        ],
        paper,
    );
    lines.push(String::new());
    let columns = [
        Column::Number("SLOT"),
        Column::Cut("MODEL"),
        Column::Number("MEMORY"),
        Column::Whole("STATE"),
        Column::Whole("LEASE"),
        Column::Cut("NOTE"),
    ];
    let rows: Vec<Vec<Cell>> = detail
        .gpus
        .iter()
        .map(|gpu| {
            vec![
                gpu.slot.to_string().into(),
                gpu.model.to_string().into(),
                bytes(gpu.memory_bytes).into(),
                Cell::toned(name_of(&gpu.state), super::gpu::tone(gpu.state)),
                or_dash(super::gpu::holders(gpu)).into(),
                or_dash(super::gpu::note(gpu)).into(),
            ]
        })
        .collect();
    lines.extend(table::lines(&columns, &rows, paper));
    lines
}
