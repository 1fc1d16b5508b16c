//! Simulated figures for people, for programs and as plots.

use serde_json::{Value, json};
use sim::fabric::{Claim, Constants, Layout, Rate, Report, Traffic, core_knee, core_pipeline, core_rates};
use sim::plot::{Axis, Chart, Series, Stroke};

pub(super) fn object(report: &Report, is_paper: bool) -> Value {
    let claim = |claim: &Claim| {
        json!({
            "name": claim.name,
            "source": claim.source,
            "unit": claim.unit,
            "paper": claim.paper,
            "simulated": claim.simulated,
            "modelled": claim.modelled,
            "error_pct": claim.error_pct(),
            "within_pct": claim.within_pct,
            "met": claim.within_pct.map(|_| claim.is_met()),
            "note": claim.note,
            "rests_on": claim.rests_on.iter().map(|reliance| json!({
                "constant": reliance.constant,
                "published": reliance.is_published,
                "elasticity": reliance.elasticity,
            })).collect::<Vec<_>>(),
        })
    };
    let value =
        |name: &str| report.claims.iter().find(|claim| claim.name == name).map(|claim| claim.simulated);
    let outlook = |(name, gbps): &(&str, f64)| json!({ "name": name, "gbps": gbps });
    json!({
        "constants_are_the_papers": is_paper,
        "targets_met": is_paper.then_some(report.missed.is_empty()),
        "missed": report.missed,
        "h2d_gbps": value("h2d_gbps"),
        "d2h_gbps": value("d2h_gbps"),
        "knee_8_over_4": value("knee_8_over_4"),
        "claims": report.claims.iter().map(claim).collect::<Vec<_>>(),
        "outlook": report.outlook.iter().map(outlook).collect::<Vec<_>>(),
        "constants": constants(&report.constants),
    })
}

fn constants(constants: &Constants) -> Value {
    json!({
        "tags": constants.tags,
        "read_request_bytes": constants.read_request_bytes,
        "write_payload_bytes": constants.write_payload_bytes,
        "completion_bytes": constants.completion_bytes,
        "wire_gbps": constants.wire_gbps,
        "wire_efficiency": constants.wire_efficiency,
        "request_overhead_bytes": constants.request_overhead_bytes,
        "completion_overhead_bytes": constants.completion_overhead_bytes,
        "native_rtt_us": constants.native_rtt_us,
        "network_rtt_us": constants.network_rtt_us,
        "conversion_rtt_us": constants.conversion_rtt_us,
        "network_gbps": constants.network_gbps,
        "network_overhead_bytes": constants.network_overhead_bytes,
        "proxy_slots": constants.proxy_slots,
        "gpu_credit_us": constants.gpu_credit_us,
        "port_credits": constants.port_credits,
    })
}

pub(super) fn print(report: &Report, is_paper: bool) {
    if !is_paper {
        outln!(
            "These are not the paper's constants: its figures stand beside for comparison, nothing is judged.\n"
        );
    }
    outln!(
        "{:<28}{:<18}{:>9}{:>11}{:>9}{:>10}  allowed",
        "figure",
        "source",
        "paper",
        "simulated",
        "error",
        "model"
    );
    for claim in &report.claims {
        let allowed = claim.within_pct.map_or("shown only".to_owned(), |within| format!("{within} %"));
        let verdict = if is_paper && !claim.is_met() { "  MISSED" } else { "" };
        outln!(
            "{:<28}{:<18}{:>9.3}{:>11.3}{:>+8.1}%{:>10.3}  {allowed}{verdict}",
            claim.name,
            claim.source,
            claim.paper,
            claim.simulated,
            claim.error_pct(),
            claim.modelled,
        );
    }
    outln!("\nWhat each rests on (percent it moves for a percent of the constant; ° not published):");
    for claim in &report.claims {
        let reliance = |reliance: &sim::fabric::Reliance| {
            let mark = if reliance.is_published { "" } else { "°" };
            format!("{}{mark} {:+.2}", reliance.constant, reliance.elasticity)
        };
        let rests_on: Vec<String> = claim.rests_on.iter().map(reliance).collect();
        outln!("  {}: {}.", claim.name, claim.note);
        if !rests_on.is_empty() {
            outln!("      {}", rests_on.join(", "));
        }
    }
    outln!("\nBeyond the paper:");
    for (name, gbps) in &report.outlook {
        outln!("  {name}: {gbps:.2} GB/s");
    }
}

pub(super) fn print_load(gpus: u32, proxies: u32, rate: &Rate, as_json: bool) -> anyhow::Result<()> {
    if as_json {
        let object = json!({
            "gpus": gpus,
            "proxies": proxies,
            "h2d_gbps": rate.down_gbps,
            "d2h_gbps": rate.up_gbps,
        });
        outln!("{}", serde_json::to_string_pretty(&object)?);
    } else {
        outln!(
            "{gpus} training GPUs behind {proxies} pairs of proxies: {:.2} GB/s down, {:.2} GB/s up",
            rate.down_gbps,
            rate.up_gbps
        );
    }
    Ok(())
}

/// Table 12, batch size 64: GPUs and what they read.
const TABLE_12: [(f64, f64); 4] = [(1.0, 1.5), (2.0, 2.6), (4.0, 4.9), (8.0, 8.4)];

pub(super) fn figure(constants: &Constants) -> String {
    sim::plot::figure(
        "PCIe over a network, simulated",
        &[figure_3(constants), reads_over_distance(constants), knee_chart(constants)],
    )
}

/// Fig. 3 as a curve: reads issued so far. A step is a reader that waits for a tag.
fn figure_3(constants: &Constants) -> Chart {
    const SHOWN_US: f64 = 20.0;
    let stairs = |name: &str, is_remote: bool| {
        let issued = core_pipeline(constants, is_remote).issued_us;
        let mut points = Vec::new();
        for (count, at) in issued.iter().enumerate().take_while(|(_, at)| **at <= SHOWN_US) {
            points.push((*at, count as f64));
            points.push((*at, count as f64 + 1.0));
        }
        Series { name: name.to_owned(), points, stroke: Stroke::Solid }
    };
    Chart {
        title: "Fig. 3: five tags of 4 KiB".to_owned(),
        x: Axis { label: "time, us".to_owned(), from: 0.0, to: SHOWN_US },
        y: Axis { label: "reads issued".to_owned(), from: 0.0, to: 60.0 },
        series: vec![stairs("in the server", false), stairs("behind proxies", true)],
    }
}

/// Host-to-device rate over the round trip, simulated and by Eq. 1.
fn reads_over_distance(constants: &Constants) -> Chart {
    const RTT_US_MAX: u32 = 30;
    let added = constants.network_rtt_us + constants.conversion_rtt_us;
    let at = |rtt_us: f64| {
        let factor = ((rtt_us - constants.native_rtt_us) / added).max(0.0);
        Constants {
            network_rtt_us: constants.network_rtt_us * factor,
            conversion_rtt_us: constants.conversion_rtt_us * factor,
            ..*constants
        }
    };
    let layout = || Layout::Remote { proxy_of: vec![0] };
    let rtts = || (2..=RTT_US_MAX).map(f64::from);
    let simulated =
        rtts().map(|rtt| (rtt, core_rates(&at(rtt), layout(), &[Traffic::Read], 1).down_gbps)).collect();
    let by_formula =
        rtts().map(|rtt| (rtt, constants.tags * constants.read_request_bytes / rtt / 1e3)).collect();
    Chart {
        title: "Host to device: tags run out".to_owned(),
        x: Axis { label: "round trip of a read, us".to_owned(), from: 0.0, to: f64::from(RTT_US_MAX) },
        y: Axis { label: "GB/s".to_owned(), from: 0.0, to: 12.0 },
        series: vec![
            Series { name: "simulated".to_owned(), points: simulated, stroke: Stroke::Solid },
            Series { name: "Eq. 1".to_owned(), points: by_formula, stroke: Stroke::Dashed },
        ],
    }
}

/// Table 12: where one pair of proxies is full, and what a second does.
fn knee_chart(constants: &Constants) -> Chart {
    const GPUS_MAX: usize = 16;
    let line = |pairs: usize| Series {
        name: format!("{pairs} pair{} of proxies", if pairs == 1 { "" } else { "s" }),
        points: (1..=GPUS_MAX)
            .filter(|gpus| *gpus >= pairs)
            .map(|gpus| (gpus as f64, core_knee(constants, gpus, pairs, 1).down_gbps))
            .collect(),
        stroke: Stroke::Solid,
    };
    let paper = Series { name: "Table 12".to_owned(), points: TABLE_12.to_vec(), stroke: Stroke::Dashed };
    Chart {
        title: "Training GPUs behind proxies, host to device".to_owned(),
        x: Axis { label: "GPUs".to_owned(), from: 0.0, to: GPUS_MAX as f64 },
        y: Axis { label: "GB/s".to_owned(), from: 0.0, to: 20.0 },
        series: vec![line(1), line(2), paper],
    }
}
