//! `dxpu gpu`: every GPU of the pool, and what an operator does to one.

use super::ask;
use super::list::{Format, Look, changed};
use super::words::{bytes, name_of, or_dash, time, who};
use crate::support::exit::Outcome;
use crate::support::paint::{Paper, Tone};
use crate::support::pool_access::PoolAccess;
use crate::support::table::{self, Cell, Column};
use pool_api::{Gpu as Record, GpuId, GpuState, TaintRequest};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  dxpu gpu ls                                   all of them
  dxpu gpu ls --state bad -o json               those that failed, for a program
  dxpu gpu ls --watch                           until Ctrl-C, again at every change
  dxpu gpu show rack1-a/3                       one: box rack1-a, slot 3
  dxpu gpu drain rack1-a/3 --reason 'new fan'   move its leases away and keep new ones off
  dxpu gpu untaint rack1-a/3                    let leases have it again
  dxpu gpu repair rack1-a/3                     it was bad and is mended: it comes back after a burn-in test";

/// Look at GPUs, and take them out of use
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Gpu {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// List GPUs
    Ls(Ls),
    /// Show one GPU
    Show {
        /// BOX/SLOT, such as rack1-a/3
        gpu: GpuId,
        #[command(flatten)]
        look: Look,
    },
    /// Keep a GPU from new leases; those it has stay
    Taint(Act),
    /// Let new leases have a tainted or drained GPU again
    Untaint(Act),
    /// Keep a GPU from new leases, and move those it has away
    Drain(Act),
    /// Say that a bad GPU is repaired; it comes back after a burn-in test
    Repair(Act),
    /// Declare a GPU bad, to see what happens (admins only)
    Break(Act),
}

#[derive(clap::Args)]
struct Ls {
    /// Only of this box
    #[arg(long = "box", value_name = "NAME")]
    box_name: Option<String>,
    /// Only of this model
    #[arg(long)]
    model: Option<String>,
    /// Only in this state: free, leased, cleaning, bad, burn_in or absent
    #[arg(long)]
    state: Option<String>,
    #[command(flatten)]
    look: Look,
}

#[derive(clap::Args)]
struct Act {
    /// BOX/SLOT, such as rack1-a/3
    gpu: GpuId,
    /// Why; shown to everybody who asks
    #[arg(long, default_value = "")]
    reason: String,
    #[command(flatten)]
    access: PoolAccess,
    /// How to show the GPU afterwards
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value = "table")]
    output: Format,
}

impl Gpu {
    pub(crate) fn run(self) -> Outcome {
        match self.verb {
            Verb::Ls(ls) => ls.run(),
            Verb::Show { gpu, look } => {
                look.show(|client| client.get::<Record>(&format!("/v1/gpus/{gpu}"), Duration::ZERO), detail)
            }
            Verb::Taint(act) => act.run("taint", "takes no new leases"),
            Verb::Untaint(act) => act.run("untaint", "takes leases again"),
            Verb::Drain(act) => act.run("drain", "is being emptied"),
            Verb::Repair(act) => act.run("repair", "is tested, and free if it passes"),
            Verb::Break(act) => act.run("break", "counts as bad; its leases move"),
        }
    }
}

impl Act {
    fn run(self, verb: &str, said: &str) -> Outcome {
        let client = self.access.client()?;
        let path = format!("/v1/gpus/{}/{verb}", self.gpu);
        let record: Record = ask::post(&client, &path, &TaintRequest { reason: self.reason })?;
        let said = format!("GPU {} {said} (now {})", record.id, name_of(&record.state));
        changed(self.output, &record, &said)
    }
}

impl Ls {
    fn run(self) -> Outcome {
        let columns = columns_of(self.look.is_wide());
        let is_asked = |gpu: &Record| {
            self.box_name.as_ref().is_none_or(|name| gpu.box_name.as_str() == name)
                && self.model.as_ref().is_none_or(|model| gpu.model.as_str() == model)
                && self.state.as_ref().is_none_or(|state| name_of(&gpu.state) == *state)
        };
        self.look.table(
            &columns,
            |client| {
                let (mut gpus, _) = ask::all::<Record>(client, "/v1/gpus")?;
                gpus.retain(is_asked);
                Ok(gpus)
            },
            |gpu| row(gpu, self.look.is_wide()),
            "no GPUs. A box brings them: `dxpu box --help`, or `dxpu up` for a pool on this machine",
        )
    }
}

fn columns_of(is_wide: bool) -> Vec<Column> {
    let mut columns = vec![
        Column::Whole("GPU"),
        Column::Cut("MODEL"),
        Column::Number("MEMORY"),
        Column::Whole("STATE"),
        Column::Number("UTIL"),
        Column::Whole("LEASE"),
        Column::Cut("NOTE"),
    ];
    if is_wide {
        columns.extend([
            Column::Number("SM"),
            Column::Number("OCC"),
            Column::Number("DRAM"),
            Column::Number("USED"),
            Column::Number("TEMP"),
            Column::Number("POWER"),
            Column::Number("EPOCH"),
            Column::Whole("NVLINK"),
            Column::Whole("UUID"),
            Column::Whole("ENDPOINTS"),
        ]);
    }
    columns
}

fn row(gpu: &Record, is_wide: bool) -> Vec<Cell> {
    let counters = gpu.counters.clone().unwrap_or_default();
    let mut row = vec![
        gpu.id.to_string().into(),
        gpu.model.to_string().into(),
        bytes(gpu.memory_bytes).into(),
        Cell::toned(name_of(&gpu.state), tone(gpu.state)),
        percent(counters.utilization_pct).into(),
        or_dash(holders(gpu)).into(),
        or_dash(note(gpu)).into(),
    ];
    if is_wide {
        row.extend([
            percent(counters.sm_activity_pct).into(),
            percent(counters.sm_occupancy_pct).into(),
            percent(counters.dram_activity_pct).into(),
            counters.memory_used_bytes.map_or("-".to_owned(), bytes).into(),
            counters.temperature_c.map_or("-".to_owned(), |c| format!("{c} C")).into(),
            counters.power_mw.map_or("-".to_owned(), |mw| format!("{} W", mw / 1000)).into(),
            gpu.epoch.to_string().into(),
            gpu.nvlink_group.map_or("-".to_owned(), |group| group.to_string()).into(),
            gpu.uuid.clone().into(),
            or_dash(gpu.endpoints.join(" ")).into(),
        ]);
    }
    row
}

/// A counter in percent, as every table shows it.
pub(super) fn percent(of: Option<u32>) -> String {
    of.map_or("-".to_owned(), |pct| format!("{pct}%"))
}

/// The leases that have it.
pub(super) fn holders(gpu: &Record) -> String {
    let show = |holder: &pool_api::Holder| match holder.share_milli {
        1000 => holder.lease.to_string(),
        // A guest has what others leave.
        0 => format!("{} (guest)", holder.lease),
        milli => format!("{} ({milli}/1000)", holder.lease),
    };
    gpu.holders.iter().map(show).collect::<Vec<_>>().join(" ")
}

/// What is to be known of it beside its state.
pub(super) fn note(gpu: &Record) -> String {
    let mut notes = Vec::new();
    if let Some(part) = gpu.part {
        notes.push(format!("{}/1000 of GPU {}", part.milli, part.of));
    }
    if gpu.guest.is_some_and(|guest| guest.overcommit) {
        notes.push("its memory is promised twice".to_owned());
    }
    if gpu.spare {
        notes.push("spare".to_owned());
    }
    if let Some(taint) = &gpu.taint {
        let what = if taint.drain { "drained" } else { "tainted" };
        notes.push(if taint.reason.is_empty() {
            what.to_owned()
        } else {
            format!("{what}: {}", taint.reason)
        });
    }
    if !gpu.health.ok {
        notes.push(gpu.health.reason.clone().unwrap_or_else(|| "not healthy".to_owned()));
    }
    let could_be_used = gpu.health.ok && matches!(gpu.state, GpuState::Free | GpuState::Leased);
    if let Some(why) = gpu.unready.as_ref().filter(|_| could_be_used) {
        notes.push(format!("not ready: {why}"));
    }
    notes.join(", ")
}

pub(super) fn tone(state: GpuState) -> Tone {
    match state {
        GpuState::Free => Tone::Good,
        GpuState::Leased => Tone::Busy,
        GpuState::Cleaning | GpuState::BurnIn => Tone::Passing,
        GpuState::Bad => Tone::Wrong,
        GpuState::Absent => Tone::Faint,
    }
}

fn detail(gpu: &Record, paper: Paper) -> Vec<String> {
    let counters = gpu.counters.clone().unwrap_or_default();
    let mut pairs = vec![
        ("gpu", gpu.id.to_string()),
        ("model", gpu.model.to_string()),
        ("memory", bytes(gpu.memory_bytes)),
        ("uuid", gpu.uuid.clone()),
        ("part", gpu.part.map_or("-".to_owned(), |part| format!("{}/1000 of GPU {}", part.milli, part.of))),
        ("state", name_of(&gpu.state)),
        ("note", or_dash(note(gpu))),
        ("leases", or_dash(holders(gpu))),
        ("epoch", format!("{} (clean up to {})", gpu.epoch, gpu.cleaned_epoch)),
        ("nvlink group", gpu.nvlink_group.map_or("-".to_owned(), |group| group.to_string())),
        ("endpoints", or_dash(gpu.endpoints.join(" "))),
        ("utilization", percent(counters.utilization_pct)),
        ("sm activity", percent(counters.sm_activity_pct)),
        ("sm occupancy", percent(counters.sm_occupancy_pct)),
        ("dram activity", percent(counters.dram_activity_pct)),
        ("memory used", counters.memory_used_bytes.map_or("-".to_owned(), bytes)),
        ("temperature", counters.temperature_c.map_or("-".to_owned(), |c| format!("{c} C"))),
        ("power", counters.power_mw.map_or("-".to_owned(), |mw| format!("{:.1} W", mw as f64 / 1000.0))),
        ("uncorrected errors", counters.ecc_uncorrected.map_or("-".to_owned(), |count| count.to_string())),
    ];
    if let Some(taint) = &gpu.taint {
        pairs.push(("tainted by", format!("{} at {}", who(&taint.by), time(taint.since_ms))));
    }
    table::pairs(&pairs, paper)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(counters: serde_json::Value) -> Record {
        serde_json::from_value(serde_json::json!({
            "id": "a/0", "box_name": "a", "slot": 0, "model": "H200", "memory_bytes": 141u64 << 30, "uuid": "u",
            "state": "leased", "epoch": 1, "cleaned_epoch": 1, "health": {"ok": true}, "counters": counters,
        }))
        .unwrap()
    }

    /// What a wide row says under this head.
    fn under(head: &'static str, gpu: &Record) -> String {
        let (columns, row) = (columns_of(true), row(gpu, true));
        assert_eq!(columns.len(), row.len());
        row[columns.iter().position(|column| *column == Column::Number(head)).unwrap()].text.clone()
    }

    #[test]
    fn a_wide_row_tells_the_activity_of_a_gpu_or_that_it_is_not_known() {
        let hopper = gpu(serde_json::json!({
            "utilization_pct": 100, "sm_activity_pct": 12, "sm_occupancy_pct": 3, "dram_activity_pct": 0,
        }));
        let heads = ["UTIL", "SM", "OCC", "DRAM"];
        assert_eq!(heads.map(|head| under(head, &hopper)), ["100%", "12%", "3%", "0%"]);
        let older = gpu(serde_json::json!({"utilization_pct": 100}));
        assert_eq!(heads.map(|head| under(head, &older)), ["100%", "-", "-", "-"]);
        let shown = detail(&hopper, Paper { width: None, height: None, is_colourful: false }).join("\n");
        assert!(shown.contains("sm activity") && shown.contains("12%"), "{shown}");
    }
}
