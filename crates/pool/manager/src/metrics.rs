//! Metrics, as Prometheus reads them.
//!
//! GPUs are told under the names and labels of NVIDIA's DCGM exporter, so that dashboards made for it work here; what
//! only a pool has begins with `dxpu_`. Everything is collected when it is asked for, a thousand GPUs at a time, so
//! that no lease waits behind it.

mod text;

use pool::Counts;
use pool_api::{Gpu, GpuId};

use crate::desk::Asked;
use crate::http::Api;
use crate::problem::Problem;
use crate::status::BOUNDS_S;
use text::{Kind, Text};

/// GPUs collected at once: half a millisecond of the thread that owns the books.
const CHUNK: usize = 1000;

/// A metric of a GPU: its name, its kind, what it is, and where it comes from.
type GpuMetric = (&'static str, Kind, &'static str, fn(&Gpu) -> Option<f64>);

/// Bytes in the unit of DCGM's memory metrics.
const MIB: f64 = 1_048_576.0;

const GPU_METRICS: [GpuMetric; 9] = [
    ("DCGM_FI_DEV_GPU_UTIL", Kind::Gauge, "GPU utilization (in %).", |gpu| {
        gpu.counters.as_ref()?.utilization_pct.map(f64::from)
    }),
    ("DCGM_FI_DEV_FB_USED", Kind::Gauge, "Framebuffer memory used (in MiB).", |gpu| {
        gpu.counters.as_ref()?.memory_used_bytes.map(|bytes| bytes as f64 / MIB)
    }),
    ("DCGM_FI_DEV_FB_FREE", Kind::Gauge, "Framebuffer memory free (in MiB).", |gpu| {
        let used = gpu.counters.as_ref()?.memory_used_bytes?;
        Some(gpu.memory_bytes.saturating_sub(used) as f64 / MIB)
    }),
    ("DCGM_FI_DEV_GPU_TEMP", Kind::Gauge, "GPU temperature (in C).", |gpu| {
        gpu.counters.as_ref()?.temperature_c.map(f64::from)
    }),
    ("DCGM_FI_DEV_POWER_USAGE", Kind::Gauge, "Power draw (in W).", |gpu| {
        gpu.counters.as_ref()?.power_mw.map(|milliwatts| milliwatts as f64 / 1000.0)
    }),
    // A count that begins anew with the driver. DCGM calls it a counter; by Prometheus's rules for names it is a gauge.
    ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", Kind::Gauge, "Double-bit volatile ECC errors.", |gpu| {
        gpu.counters.as_ref()?.ecc_uncorrected.map(|count| count as f64)
    }),
    // DCGM tells these as ratios.
    (
        "DCGM_FI_PROF_SM_ACTIVE",
        Kind::Gauge,
        "Multiprocessors that had a warp to run, on average (0 to 1).",
        |gpu| ratio(gpu.counters.as_ref()?.sm_activity_pct),
    ),
    (
        "DCGM_FI_PROF_SM_OCCUPANCY",
        Kind::Gauge,
        "Warps on the multiprocessors, of as many as fit (0 to 1).",
        |gpu| ratio(gpu.counters.as_ref()?.sm_occupancy_pct),
    ),
    ("DCGM_FI_PROF_DRAM_ACTIVE", Kind::Gauge, "Bandwidth of the GPU's memory in use (0 to 1).", |gpu| {
        ratio(gpu.counters.as_ref()?.dram_activity_pct)
    }),
];

fn ratio(percent: Option<u32>) -> Option<f64> {
    percent.map(|percent| f64::from(percent) / 100.0)
}

/// Everything, as text.
pub(crate) async fn gather(api: &Api, asked: Asked) -> Result<String, Problem> {
    let mut text = Text::default();
    let read = |books: &mut crate::books::Books, _: &crate::claim::Caller| {
        Ok((books.ledger.counts(), books.waiters.len()))
    };
    let (counts, waiting) = api.desk.read(asked.clone(), read).await?;
    of_pool(&counts, &mut text);
    text.begin("dxpu_requests_waiting", Kind::Gauge, "Requests that wait for a change, and cost no thread.");
    text.sample(&[], waiting as f64);
    of_gpus(&all_gpus(api, asked).await?, &mut text);
    of_manager(api, &mut text);
    Ok(text.finish())
}

async fn all_gpus(api: &Api, asked: Asked) -> Result<Vec<Gpu>, Problem> {
    let mut all: Vec<Gpu> = Vec::new();
    loop {
        let after: Option<GpuId> = all.last().map(|gpu| gpu.id.clone());
        let read = move |books: &mut crate::books::Books, _: &crate::claim::Caller| {
            Ok(books.ledger.gpus(after.as_ref()).take(CHUNK).collect::<Vec<_>>())
        };
        let chunk = api.desk.read(asked.clone(), read).await?;
        let is_last = chunk.len() < CHUNK;
        all.extend(chunk);
        if is_last {
            return Ok(all);
        }
    }
}

fn of_pool(counts: &Counts, text: &mut Text) {
    text.begin("dxpu_gpus", Kind::Gauge, "GPUs of the pool, by model and state.");
    for ((model, state), count) in &counts.gpus {
        text.sample(&[("model", model.as_str()), ("state", &word(state))], *count as f64);
    }
    text.begin("dxpu_boxes", Kind::Gauge, "Boxes of the pool, by state.");
    for (state, count) in &counts.boxes {
        text.sample(&[("state", &word(state))], *count as f64);
    }
    text.begin("dxpu_hosts", Kind::Gauge, "Hosts of the PCIe plane, by state.");
    for (state, count) in &counts.hosts {
        text.sample(&[("state", &word(state))], *count as f64);
    }
    text.begin(
        "dxpu_leases",
        Kind::Gauge,
        "Leases, by state; those that are over for as long as they are shown.",
    );
    for (state, count) in &counts.leases {
        text.sample(&[("state", &word(state))], *count as f64);
    }
}

fn of_gpus(gpus: &[Gpu], text: &mut Text) {
    for (name, kind, help, value) in GPU_METRICS {
        if gpus.iter().all(|gpu| value(gpu).is_none()) {
            continue;
        }
        text.begin(name, kind, help);
        // What sensors tell of a GPU in parts is told once, or sums over GPUs would have it as often as it has parts.
        for gpu in gpus.iter().filter(|gpu| gpu.part.is_none() || gpu.is_counted()) {
            if let Some(value) = value(gpu) {
                text.sample(&labels(gpu, &gpu.slot.to_string()), value);
            }
        }
    }
    text.begin("dxpu_gpu_epoch", Kind::Gauge, "Grants a GPU has had.");
    for gpu in gpus {
        text.sample(&labels(gpu, &gpu.slot.to_string()), gpu.epoch as f64);
    }
    text.begin("dxpu_gpu_healthy", Kind::Gauge, "Whether the box says that the GPU works.");
    for gpu in gpus {
        text.sample(&labels(gpu, &gpu.slot.to_string()), f64::from(u8::from(gpu.health.ok)));
    }
}

/// DCGM's labels; its host is our box.
fn labels<'a>(gpu: &'a Gpu, slot: &'a str) -> [(&'static str, &'a str); 4] {
    [
        ("gpu", slot),
        ("UUID", &gpu.uuid),
        ("modelName", gpu.model.as_str()),
        ("Hostname", gpu.box_name.as_str()),
    ]
}

fn of_manager(api: &Api, text: &mut Text) {
    let status = &api.status;
    text.begin("dxpu_manager_leading", Kind::Gauge, "Whether this manager leads.");
    text.sample(&[], f64::from(u8::from(status.is_leading())));
    text.begin("dxpu_store_commits_total", Kind::Counter, "Transactions written to the store.");
    text.sample(&[], status.commits() as f64);
    text.begin("dxpu_store_writes_total", Kind::Counter, "Records written to the store.");
    text.sample(&[], status.writes() as f64);
    let (counts, sum) = status.commit_times().read();
    text.histogram("dxpu_store_commit_seconds", "How long a commit takes.", &BOUNDS_S, &counts, sum);
    text.begin("dxpu_http_requests_total", Kind::Counter, "Requests answered, by route, method and status.");
    for ((route, method, code), count) in status.requests() {
        text.sample(&[("route", &route), ("method", method), ("code", &code.to_string())], count as f64);
    }
    let counted = api.door.counted();
    text.begin(
        "dxpu_connections",
        Kind::Gauge,
        "Connections, by whether their caller is authenticated (known) or not yet (stranger).",
    );
    for (kind, count) in [("known", counted.known), ("stranger", counted.strangers)] {
        text.sample(&[("kind", kind)], count as f64);
    }
    let help = "Connections that this manager closed: displaced by a newer one, late to authenticate, idle, or one too many (full).";
    text.begin("dxpu_connections_ended_total", Kind::Counter, help);
    for (reason, count) in [
        ("displaced", counted.displaced),
        ("late", counted.late),
        ("idle", counted.idle),
        ("full", counted.full),
    ] {
        text.sample(&[("reason", reason)], count as f64);
    }
    text.begin("dxpu_tls_refused_total", Kind::Counter, "Connections refused for their certificate.");
    text.sample(&[], status.handshakes_refused() as f64);
}

/// A state as the API spells it.
fn word(state: &impl serde::Serialize) -> String {
    match serde_json::to_value(state) {
        Ok(serde_json::Value::String(word)) => word,
        _ => "unknown".to_owned(),
    }
}
