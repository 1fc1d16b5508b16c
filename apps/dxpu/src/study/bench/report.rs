//! The figures, as JSON and as a table.

use super::{missing, raw::Bare};
use serde::Serialize;
use std::collections::HashMap;

/// What one transport keeps.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Transport {
    sync_rtt_us_p50: f64,
    raw_rtt_us_p50: f64,
    h2d_gbps: f64,
    d2h_gbps: f64,
    raw_gbps: f64,
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

fn take(values: &HashMap<String, f64>, name: &str) -> anyhow::Result<f64> {
    Ok(rounded(*values.get(name).ok_or_else(|| missing(name))?))
}

impl Transport {
    pub(super) fn new(bare: &Bare, served: &HashMap<String, f64>) -> anyhow::Result<Self> {
        Ok(Self {
            sync_rtt_us_p50: take(served, "sync_rtt_us_p50")?,
            raw_rtt_us_p50: rounded(bare.rtt_us_p50),
            h2d_gbps: take(served, "h2d_gbps")?,
            d2h_gbps: take(served, "d2h_gbps")?,
            raw_gbps: rounded(bare.gbps),
        })
    }

    /// The median of each figure.
    pub(super) fn median(runs: &[Self]) -> Self {
        let middle = |figure: fn(&Self) -> f64| {
            let mut values: Vec<f64> = runs.iter().map(figure).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        Self {
            sync_rtt_us_p50: middle(|run| run.sync_rtt_us_p50),
            raw_rtt_us_p50: middle(|run| run.raw_rtt_us_p50),
            h2d_gbps: middle(|run| run.h2d_gbps),
            d2h_gbps: middle(|run| run.d2h_gbps),
            raw_gbps: middle(|run| run.raw_gbps),
        }
    }
}

/// Everything.
#[derive(Serialize)]
pub(super) struct Report {
    query_instructions: f64,
    launch_instructions: f64,
    allocation_instructions: f64,
    query_ns_p50: f64,
    launch_ns_p50: f64,
    allocation_ns_p50: f64,
    transports: serde_json::Map<String, serde_json::Value>,
}

impl Report {
    pub(super) fn new(
        calls: &HashMap<String, f64>,
        transports: Vec<(&'static str, Transport)>,
    ) -> anyhow::Result<Self> {
        let mut shown = serde_json::Map::new();
        for (name, transport) in transports {
            shown.insert(name.to_owned(), serde_json::to_value(transport)?);
        }
        Ok(Self {
            query_instructions: take(calls, "query_instructions")?,
            launch_instructions: take(calls, "launch_instructions")?,
            allocation_instructions: take(calls, "allocation_instructions")?,
            query_ns_p50: take(calls, "query_ns_p50")?,
            launch_ns_p50: take(calls, "launch_ns_p50")?,
            allocation_ns_p50: take(calls, "allocation_ns_p50")?,
            transports: shown,
        })
    }

    pub(super) fn print(&self) {
        outln!("on the calling thread        instructions      ns (median)");
        outln!("  a state query            {:>15.0}  {:>15.1}", self.query_instructions, self.query_ns_p50);
        outln!("  a launch, 8 parameters   {:>15.0}  {:>15.1}", self.launch_instructions, self.launch_ns_p50);
        outln!(
            "  a pool's block and back  {:>15.0}  {:>15.1}",
            self.allocation_instructions,
            self.allocation_ns_p50
        );
        outln!(
            "\ntransport   synchronise us  (x bare)   to device GB/s  (of bare)   to host GB/s  (of bare)"
        );
        for (name, value) in &self.transports {
            let of = |key: &str| value[key].as_f64().unwrap_or(f64::NAN);
            outln!(
                "  {name:<9} {:>13.1}  ({:>5.2})   {:>14.2}  ({:>5.2})     {:>12.2}  ({:>5.2})",
                of("sync_rtt_us_p50"),
                of("sync_rtt_us_p50") / of("raw_rtt_us_p50"),
                of("h2d_gbps"),
                of("h2d_gbps") / of("raw_gbps"),
                of("d2h_gbps"),
                of("d2h_gbps") / of("raw_gbps"),
            );
        }
    }
}
