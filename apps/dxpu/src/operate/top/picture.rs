//! What `dxpu top` shows. Pure.

use crate::operate::gpu;
use crate::operate::words::{age, bytes, name_of, or_dash, time};
use crate::support::paint::{Paper, Tone};
use crate::support::table::{self, Cell, Column, cut};
use pool_api::{BoxRecord, BoxState, Counters, Gpu, GpuState, Lease, LeaseId};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The pool at one moment.
#[derive(Debug, Serialize)]
pub(super) struct Picture {
    pub(super) now_ms: u64,
    pub(super) gpus: Vec<Gpu>,
    pub(super) boxes: Vec<BoxRecord>,
    pub(super) granted: Vec<Lease>,
    pub(super) pending: Vec<Lease>,
}

/// Which come first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Order {
    /// Box and slot
    #[default]
    Gpu,
    /// Utilisation, the highest first
    Util,
    /// Memory in use, the most first
    Memory,
    /// Temperature, the hottest first
    Temperature,
    /// Tenant and lease
    Lease,
    /// State
    State,
}

/// What the user wants to see of it.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    pub(super) order: Order,
    pub(super) is_reversed: bool,
    pub(super) scroll: usize,
    /// Why the picture is old.
    pub(super) trouble: Option<String>,
}

impl View {
    /// A key that orders; the same one again turns it round.
    pub(super) fn choose(&mut self, letter: char) {
        let order = match letter {
            'g' => Order::Gpu,
            'u' => Order::Util,
            'm' => Order::Memory,
            't' => Order::Temperature,
            'l' => Order::Lease,
            's' => Order::State,
            _ => return,
        };
        self.is_reversed = order == self.order && !self.is_reversed;
        self.order = order;
    }
}

/// Pending leases that are shown below the GPUs.
const QUEUE_LINES_MAX: usize = 5;

/// The columns of GPM among those of a GPU.
const ACTIVITY: std::ops::Range<usize> = 5..7;

impl Picture {
    pub(super) fn lines(&self, view: &View, paper: Paper) -> Vec<String> {
        let mut lines = self.head(view, paper);
        lines.push(String::new());
        let queue = self.queue(paper);
        let body = self.body(view, paper);
        let (head, rows) = body.split_first().map_or((None, &body[..]), |(head, rows)| (Some(head), rows));
        lines.extend(head.cloned());
        let room = paper
            .height
            .map_or(usize::MAX, |height| height.saturating_sub(lines.len() + queue.len() + 1).max(1));
        let scroll = view.scroll.min(rows.len().saturating_sub(1));
        lines.extend(rows.iter().skip(scroll).take(room).cloned());
        let hidden = rows.len().saturating_sub(scroll.saturating_add(room));
        if hidden > 0 {
            let text = format!("… {hidden} more; arrows and page down move");
            lines.push(Tone::Faint.paint(&text, paper.is_colourful));
        }
        lines.extend(queue);
        lines
    }

    fn head(&self, view: &View, paper: Paper) -> Vec<String> {
        let ready = self.boxes.iter().filter(|owner| owner.state == BoxState::Ready).count();
        let mut first =
            format!("dxpu pool at {}   boxes {ready}/{} ready", time(self.now_ms), self.boxes.len());
        if let Some(trouble) = &view.trouble {
            first.push_str("   OLD: ");
            first.push_str(trouble);
        }
        let gpus = pool_api::counted(&self.gpus);
        let count = |wanted: GpuState| gpus.iter().filter(|(_, state)| *state == wanted).count();
        let mut second = vec![format!("GPUs {}", gpus.len())];
        for state in [
            GpuState::Leased,
            GpuState::Free,
            GpuState::Cleaning,
            GpuState::BurnIn,
            GpuState::Bad,
            GpuState::Absent,
        ] {
            let number = count(state);
            if number > 0 || matches!(state, GpuState::Leased | GpuState::Free) {
                second.push(format!("{number} {}", name_of(&state)));
            }
        }
        let spares = self.gpus.iter().filter(|gpu| gpu.spare).count();
        if spares > 0 {
            second.push(format!("{spares} held as spares"));
        }
        let measured: Vec<u32> =
            self.gpus.iter().filter_map(|gpu| gpu.counters.as_ref()?.utilization_pct).collect();
        let used: u64 = self.gpus.iter().filter_map(|gpu| gpu.counters.as_ref()?.memory_used_bytes).sum();
        let all: u64 = self.gpus.iter().map(|gpu| gpu.memory_bytes).sum();
        let mut third = format!("memory {} of {}", bytes(used), bytes(all));
        if !measured.is_empty() {
            let mean = measured.iter().map(|pct| u64::from(*pct)).sum::<u64>() / measured.len() as u64;
            third = format!("utilisation {mean} %   {third}");
        }
        let leases = format!("leases {} granted, {} waiting", self.granted.len(), self.pending.len());
        let width = paper.width.unwrap_or(usize::MAX);
        vec![cut(&first, width), cut(&second.join("  "), width), cut(&format!("{third}   {leases}"), width)]
    }

    fn body(&self, view: &View, paper: Paper) -> Vec<String> {
        if self.gpus.is_empty() {
            return vec!["no GPUs yet: a box brings them (`dxpu box --help`)".to_owned()];
        }
        let leases: Leases<'_> = self.granted.iter().map(|lease| (lease.id, lease)).collect();
        let gpus = self.in_order(view, &leases);
        let mut columns = vec![
            Column::Whole("GPU"),
            Column::Cut("MODEL"),
            Column::Whole("STATE"),
            Column::Number("UTIL"),
            Column::Spare(""),
            Column::Number("SM"),
            Column::Spare("DRAM"),
            Column::Number("MEMORY"),
            Column::Number("TEMP"),
            Column::Number("POWER"),
            Column::Cut("TENANT"),
            Column::Cut("LEASE"),
            Column::Cut("NOTE"),
        ];
        let mut rows: Vec<Vec<Cell>> = gpus.iter().map(|gpu| row(gpu, &leases)).collect();
        if gpus.iter().all(|gpu| counter(gpu, |known| known.sm_activity_pct).is_none()) {
            // GPUs before Hopper, and those in software, do not tell it. The room is for notes then.
            columns.drain(ACTIVITY);
            rows.iter_mut().for_each(|row| drop(row.drain(ACTIVITY)));
        }
        table::lines(&columns, &rows, paper)
    }

    fn in_order(&self, view: &View, leases: &Leases<'_>) -> Vec<&Gpu> {
        let mut gpus: Vec<&Gpu> = self.gpus.iter().collect();
        match view.order {
            Order::Gpu => {}
            Order::Util => gpus.sort_by_key(|gpu| Reverse(counter(gpu, |known| known.utilization_pct))),
            Order::Memory => gpus.sort_by_key(|gpu| Reverse(counter(gpu, |known| known.memory_used_bytes))),
            Order::Temperature => gpus.sort_by_key(|gpu| Reverse(counter(gpu, |known| known.temperature_c))),
            // Those without a holder come last.
            Order::Lease => {
                gpus.sort_by_key(|gpu| (gpu.holders.is_empty(), tenants(gpu, leases), gpu::holders(gpu)));
            }
            Order::State => gpus.sort_by_key(|gpu| gpu.state),
        }
        if view.is_reversed {
            gpus.reverse();
        }
        gpus
    }

    fn queue(&self, paper: Paper) -> Vec<String> {
        if self.pending.is_empty() {
            return Vec::new();
        }
        let mut waiting: Vec<&Lease> = self.pending.iter().collect();
        waiting.sort_by_key(|lease| (std::cmp::Reverse(lease.request.priority), lease.created_ms));
        let columns = [
            Column::Whole("WAITING"),
            Column::Cut("TENANT"),
            Column::Number("GPUS"),
            Column::Cut("MODEL"),
            Column::Number("PRIORITY"),
            Column::Number("SINCE"),
            Column::Cut("NOTE"),
        ];
        let row = |lease: &&&Lease| -> Vec<Cell> {
            vec![
                lease.id.to_string().into(),
                lease.tenant.to_string().into(),
                lease.request.gpus.to_string().into(),
                lease.request.model.as_ref().map_or("any", |model| model.as_str()).into(),
                lease.request.priority.to_string().into(),
                age(lease.created_ms, self.now_ms).into(),
                lease.request.note.clone().into(),
            ]
        };
        let rows: Vec<Vec<Cell>> = waiting.iter().take(QUEUE_LINES_MAX).map(|lease| row(&lease)).collect();
        let mut lines = vec![String::new()];
        lines.extend(table::lines(&columns, &rows, paper));
        let hidden = waiting.len().saturating_sub(QUEUE_LINES_MAX);
        if hidden > 0 {
            lines.push(Tone::Faint.paint(&format!("… {hidden} more wait"), paper.is_colourful));
        }
        lines
    }
}

/// The leases that hold GPUs, by their ids.
type Leases<'a> = BTreeMap<LeaseId, &'a Lease>;

/// The cells of one GPU, in the order of the columns of [`Picture::body`].
fn row(gpu: &Gpu, leases: &Leases<'_>) -> Vec<Cell> {
    let util = counter(gpu, |known| known.utilization_pct);
    let used = counter(gpu, |known| known.memory_used_bytes);
    let heat = counter(gpu, |known| known.temperature_c);
    let power = counter(gpu, |known| known.power_mw);
    let active = counter(gpu, |known| known.sm_activity_pct);
    let memory_busy = counter(gpu, |known| known.dram_activity_pct);
    let all = bytes(gpu.memory_bytes);
    vec![
        gpu.id.to_string().into(),
        gpu.model.to_string().into(),
        Cell::toned(name_of(&gpu.state), gpu::tone(gpu.state)),
        gpu::percent(util).into(),
        Cell::toned(bar(util), Tone::Busy),
        gpu::percent(active).into(),
        // To the right, as numbers are.
        format!("{:>4}", gpu::percent(memory_busy)).into(),
        used.map_or(all.clone(), |used| format!("{} / {all}", bytes(used))).into(),
        heat.map_or("-".to_owned(), |c| format!("{c} C")).into(),
        power.map_or("-".to_owned(), |mw| format!("{} W", mw / 1000)).into(),
        or_dash(tenants(gpu, leases)).into(),
        or_dash(gpu::holders(gpu)).into(),
        gpu::note(gpu).into(),
    ]
}

/// The tenants of a GPU's leases, in the order of its holders.
fn tenants(gpu: &Gpu, leases: &Leases<'_>) -> String {
    let held = gpu.holders.iter().filter_map(|holder| leases.get(&holder.lease));
    held.map(|lease| lease.tenant.to_string()).collect::<Vec<_>>().join(" ")
}

/// One of a GPU's counters, where the GPU tells it.
fn counter<T>(gpu: &Gpu, of: impl Fn(&Counters) -> Option<T>) -> Option<T> {
    gpu.counters.as_ref().and_then(of)
}

/// Ten places, filled as far as the GPU is busy.
fn bar(pct: Option<u32>) -> String {
    let Some(pct) = pct else { return String::new() };
    let full = (pct.min(100) as usize + 5) / 10;
    "█".repeat(full) + &"░".repeat(10 - full)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(slot: u8, util: u32, state: &str) -> Gpu {
        serde_json::from_value(serde_json::json!({
            "id": format!("a/{slot}"), "box_name": "a", "slot": slot, "model": "H200", "memory_bytes": 141u64 << 30,
            "uuid": "u", "state": state, "epoch": 1, "cleaned_epoch": 1, "health": {"ok": true},
            "counters": {"utilization_pct": util, "memory_used_bytes": u64::from(slot) << 30, "temperature_c": 40},
        }))
        .unwrap()
    }

    fn picture() -> Picture {
        let gpus = vec![gpu(0, 10, "leased"), gpu(1, 90, "free"), gpu(2, 50, "bad")];
        Picture { now_ms: 0, gpus, boxes: vec![], granted: vec![], pending: vec![] }
    }

    fn order(view: &View) -> Vec<String> {
        let paper = Paper { width: None, height: None, is_colourful: false };
        let lines = picture().lines(view, paper);
        lines.iter().skip(5).map(|line| line.split_whitespace().next().unwrap().to_owned()).collect()
    }

    #[test]
    fn keys_order_and_turn_round() {
        let mut view = View::default();
        assert_eq!(order(&view), ["a/0", "a/1", "a/2"]);
        view.choose('u');
        assert_eq!(order(&view), ["a/1", "a/2", "a/0"]);
        view.choose('u');
        assert_eq!(order(&view), ["a/0", "a/2", "a/1"]);
        view.choose('m');
        assert_eq!(order(&view), ["a/2", "a/1", "a/0"]);
        view.choose('x');
        assert_eq!(view.order, Order::Memory);
    }

    #[test]
    fn the_head_counts_and_the_screen_is_never_overfull() {
        let paper = Paper { width: Some(60), height: Some(7), is_colourful: false };
        let lines = picture().lines(&View::default(), paper);
        assert_eq!(lines[1], "GPUs 3  1 leased  1 free  1 bad");
        assert!(lines[2].starts_with("utilisation 50 %   memory 3.0 GiB of 423 GiB"), "{}", lines[2]);
        assert!(lines.len() <= 7, "{lines:#?}");
        assert!(lines.last().unwrap().contains("more"), "{lines:#?}");
    }

    #[test]
    fn activity_is_shown_where_it_is_known_and_memory_gives_way_first() {
        let mut picture = picture();
        let counters = picture.gpus[1].counters.as_mut().unwrap();
        (counters.sm_activity_pct, counters.dram_activity_pct) = (Some(37), Some(8));
        let shown = |width| {
            let paper = Paper { width, height: None, is_colourful: false };
            let lines = picture.lines(&View::default(), paper);
            lines[4..7]
                .iter()
                .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
                .collect::<Vec<_>>()
        };
        let whole = shown(None);
        assert!(whole[0].starts_with("GPU MODEL STATE UTIL SM DRAM MEMORY"), "{whole:#?}");
        assert!(whole[1].starts_with("a/0 H200 leased 10% █░░░░░░░░░ - - 0 B"), "{whole:#?}");
        assert!(whole[2].starts_with("a/1 H200 free 90% █████████░ 37% 8% 1.0 GiB"), "{whole:#?}");
        let widest =
            picture.lines(&View::default(), Paper { width: None, height: None, is_colourful: false });
        let width = widest[4..].iter().map(|line| line.chars().count()).max().unwrap();
        let narrow = shown(Some(width - 1));
        assert!(narrow[0].starts_with("GPU MODEL STATE UTIL SM MEMORY"), "{narrow:#?}");
        assert!(narrow[2].starts_with("a/1 H200 free 90% █████████░ 37% 1.0 GiB"), "{narrow:#?}");
    }

    #[test]
    fn bars_are_as_long_as_what_they_show() {
        assert_eq!((bar(Some(0)).as_str(), bar(Some(100)).as_str()), ("░░░░░░░░░░", "██████████"));
        assert_eq!((bar(Some(250)).chars().count(), bar(None).as_str()), (10, ""));
    }
}
