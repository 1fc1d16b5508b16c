//! `dxpu host`: the machines whose proxies show GPUs to their guests, and what is plugged into them.

use super::ask;
use super::list::{Format, Look, changed};
use super::revoke::Terms;
use super::words::{age, name_of, or_dash, time};
use crate::support::exit::Outcome;
use crate::support::paint::{Paper, Tone};
use crate::support::pool_access::{PoolAccess, failure};
use crate::support::table::{self, Cell, Column};
use pool_api::{HostDetail, HostRecord, HostSlot, HostState, Name, Phase};
use pool_auth::Identity;
use serde::Serialize;

#[derive(clap::Subcommand)]
pub(crate) enum Verb {
    /// List the hosts of the pool
    Ls {
        #[command(flatten)]
        look: Look,
    },
    /// Show one host with its slots
    Show {
        /// Its name
        name: Name,
        #[command(flatten)]
        look: Look,
    },
    /// Let leases of these tenants be plugged into a host
    Allow(Act),
    /// Let leases of these tenants no longer be plugged into a host; those that are stay
    Forbid(Act),
    /// Expel a host: it is no member any more, its slots are unplugged and its leases end
    ///
    /// Its agent empties its slots and ends. It joins again with a new token: `dxpu token create host/NAME`.
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
    /// The tenants
    #[arg(required = true)]
    tenant: Vec<Name>,
    #[command(flatten)]
    access: PoolAccess,
    /// How to show the host afterwards
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value = "table")]
    output: Format,
}

/// A host, and when it was looked at.
#[derive(Serialize)]
struct Seen {
    #[serde(flatten)]
    record: HostRecord,
    #[serde(skip)]
    now_ms: u64,
}

impl Verb {
    pub(crate) fn run(self) -> Outcome {
        match self {
            Verb::Ls { look } => list(&look),
            Verb::Show { name, look } => look.show(|client| client.host(&name), detail),
            Verb::Allow(act) => act.run(|tenants, asked| {
                tenants.extend(asked.iter().cloned());
            }),
            Verb::Revoke { name, terms } => {
                terms.revoke(Identity::Host(name.to_string()).to_string(), false, &format!("host {name}"))
            }
            Verb::Forbid(act) => act.run(|tenants, asked| tenants.retain(|tenant| !asked.contains(tenant))),
        }
    }
}

impl Act {
    fn run(self, change: impl Fn(&mut Vec<Name>, &[Name])) -> Outcome {
        let client = self.access.client()?;
        let mut wanted = client.host(&self.name).map_err(failure)?.record.tenants;
        change(&mut wanted, &self.tenant);
        let record = client.set_host_tenants(&self.name, &wanted).map_err(failure)?;
        let said = match record.tenants.is_empty() {
            true => format!("host {} serves nobody", record.name),
            false => format!("host {} serves {}", record.name, names(&record.tenants)),
        };
        changed(self.output, &record, &said)
    }
}

fn names(tenants: &[Name]) -> String {
    tenants.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

fn list(look: &Look) -> Outcome {
    let mut columns = vec![
        Column::Whole("HOST"),
        Column::Number("NODE"),
        Column::Whole("STATE"),
        Column::Number("SLOTS"),
        Column::Number("SEEN"),
        Column::Cut("TENANTS"),
    ];
    if look.is_wide() {
        columns.push(Column::Whole("PATHS"));
    }
    look.table(
        &columns,
        |client| {
            let now_ms = ask::now_ms(client)?;
            Ok(client.hosts()?.into_iter().map(|record| Seen { record, now_ms }).collect())
        },
        |Seen { record, now_ms }| {
            let mut row = vec![
                record.name.to_string().into(),
                record.node.to_string().into(),
                state_cell(record),
                record.slots.to_string().into(),
                age(record.last_seen_ms, *now_ms).into(),
                or_dash(names(&record.tenants)).into(),
            ];
            if look.is_wide() {
                row.push(or_dash(record.paths.join(" ")).into());
            }
            row
        },
        "no hosts of the PCIe plane. `dxpu token create host/NAME` lets one in; who borrows: `dxpu borrower ls`",
    )
}

/// A host that reports is of little use when the virtual machine it plugs into does not answer.
fn state_cell(record: &HostRecord) -> Cell {
    if record.state == HostState::Ready && record.monitors_silent > 0 {
        return Cell::toned("monitor silent", Tone::Wrong);
    }
    Cell::toned(name_of(&record.state), tone(record.state))
}

fn tone(state: HostState) -> Tone {
    match state {
        HostState::Ready => Tone::Good,
        HostState::Suspect => Tone::Passing,
        HostState::Dead => Tone::Wrong,
    }
}

fn phase_tone(phase: Phase) -> Tone {
    match phase {
        Phase::Plugged => Tone::Good,
        Phase::Binding | Phase::Plugging | Phase::Unplugging => Tone::Passing,
    }
}

fn detail(detail: &HostDetail, paper: Paper) -> Vec<String> {
    let record = &detail.record;
    let mut lines = table::pairs(
        &[
            ("host", record.name.to_string()),
            ("node", record.node.to_string()),
            ("state", name_of(&record.state)),
            ("last seen", time(record.last_seen_ms)),
            ("paths", or_dash(record.paths.join(" "))),
            ("tenants", or_dash(names(&record.tenants))),
            ("note", or_dash(record.revoked.as_ref().map(super::gpu_box::revoked_note).unwrap_or_default())),
        ],
        paper,
    );
    lines.push(String::new());
    let columns = [
        Column::Number("SLOT"),
        Column::Whole("PHASE"),
        Column::Whole("GPU"),
        Column::Whole("LEASE"),
        Column::Number("EPOCH"),
        Column::Cut("NOTE"),
    ];
    let rows: Vec<Vec<Cell>> = detail.slots.iter().map(slot_row).collect();
    lines.extend(table::lines(&columns, &rows, paper));
    if record.monitors_silent > 0 {
        lines.push(String::new());
        lines.push(
            "The virtual machine's monitor does not answer: nothing can be plugged or unplugged there. If it does not come \
             back by itself, its QEMU hangs; end that QEMU and start it again."
                .to_owned(),
        );
    }
    lines
}

fn slot_row(slot: &HostSlot) -> Vec<Cell> {
    let leaving = slot.leaving.as_ref();
    let gpu = slot.gpu.as_ref().or(leaving.map(|leaving| &leaving.gpu));
    let lease = slot.lease.or(leaving.map(|leaving| leaving.lease));
    let note = match (leaving, &slot.gpu) {
        (Some(leaving), Some(_)) => format!("{} is unplugged first", leaving.gpu),
        _ => slot.detail.clone(),
    };
    vec![
        slot.slot.to_string().into(),
        slot.phase.map_or_else(|| "free".into(), |phase| Cell::toned(name_of(&phase), phase_tone(phase))),
        or_dash(gpu.map(ToString::to_string).unwrap_or_default()).into(),
        or_dash(lease.map(|lease| lease.to_string()).unwrap_or_default()).into(),
        slot.epoch.to_string().into(),
        or_dash(note).into(),
    ]
}
