//! A prediction for people, for programs and as a figure.

use crate::support::table;
use model::predict::{PlaneKind, Prediction, Question};
use model::profile::Profile;
use serde_json::{Value, json};
use sim::plot::{Axis, Chart, Series, Stroke};

pub(super) fn object(profile: &Profile, question: &Question, prediction: &Prediction) -> Value {
    let summary = &prediction.summary;
    json!({
        "program": profile.program,
        "device": profile.device,
        "plane": question.plane.name(),
        "rtt_us": question.rtt_us,
        "bandwidth_gbps": question.bandwidth_gbps,
        "kept_pct": prediction.kept_pct,
        "native_us": prediction.native.wall_us,
        "remote_us": prediction.remote.wall_us,
        "recorded_us": prediction.recorded_us,
        "native_replay_error_pct": prediction.replay_error_pct(),
        "gap_us": prediction.gap_us,
        "profile": {
            "launches": summary.launches,
            "graph_launches": summary.graph_launches,
            "short_launches": summary.short_launches,
            "mean_kernel_us": summary.mean_kernel_us(),
            "mean_period_us": summary.mean_period_us(),
            "memsets": summary.memsets,
            "waits": summary.waits,
            "queries": summary.queries,
            "awaited_calls": summary.awaited_calls,
            "local_calls": summary.local_calls,
            "copies": summary.copies.iter().map(|copies| json!({
                "direction": copies.direction.name(),
                "pinned": copies.pinned,
                "waits": copies.waits,
                "bytes_from": copies.bytes_from,
                "count": copies.count,
                "bytes": copies.bytes,
            })).collect::<Vec<_>>(),
        },
        "terms": prediction.terms.iter().map(|cost| json!({
            "term": cost.term.name(),
            "us": cost.us,
            "points": cost.points,
        })).collect::<Vec<_>>(),
        "curve": prediction.curve.iter().map(|point| json!({
            "rtt_us": point.rtt_us,
            "pcie_pct": point.pcie_pct,
            "api_pct": point.api_pct,
        })).collect::<Vec<_>>(),
        "advice": prediction.advice.iter().map(|advice| json!({
            "text": advice.text,
            "kept_pct": advice.kept_pct,
            "gained_points": advice.gained_points,
        })).collect::<Vec<_>>(),
    })
}

pub(super) fn print(profile: &Profile, question: &Question, prediction: &Prediction) {
    let summary = &prediction.summary;
    outln!("{} on {}", profile.program, profile.device);
    outln!(
        "{} launches, a kernel of {:.1} us every {:.1} us, {} waits, {} copies",
        summary.launches,
        summary.mean_kernel_us(),
        summary.mean_period_us(),
        summary.waits,
        summary.copies.iter().map(|copies| copies.count).sum::<u64>(),
    );
    outln!(
        "native replay: {:.3} ms, recorded {:.3} ms ({:+.1} %)\n",
        prediction.native.wall_us / 1e3,
        prediction.recorded_us / 1e3,
        prediction.replay_error_pct(),
    );
    outln!(
        "{} plane at {} us and {:.1} GB/s keeps {:.1} %\n",
        question.plane.name(),
        question.rtt_us,
        question.bandwidth_gbps,
        prediction.kept_pct,
    );
    if prediction.terms.is_empty() {
        outln!("nothing costs more than a twentieth of a point");
    } else {
        let rows: Vec<Vec<String>> = prediction
            .terms
            .iter()
            .map(|cost| {
                vec![
                    cost.term.name().to_owned(),
                    format!("{:.1}", cost.points),
                    format!("{:.3}", cost.us / 1e3),
                ]
            })
            .collect();
        table::print_figures(&["what costs (terms overlap)", "points", "ms"], &rows);
    }
    outln!("\nAdvice:");
    for advice in &prediction.advice {
        outln!("  - {}", advice.text);
    }
}

/// Performance kept over the distance, both planes.
pub(super) fn figure(profile: &Profile, question: &Question, prediction: &Prediction) -> String {
    let line = |kind: PlaneKind, value: fn(&model::predict::CurvePoint) -> f64| Series {
        name: format!("{} plane", kind.name()),
        points: prediction.curve.iter().map(|point| (point.rtt_us, value(point))).collect(),
        stroke: if kind == question.plane { Stroke::Solid } else { Stroke::Dashed },
    };
    let series =
        vec![line(PlaneKind::Api, |point| point.api_pct), line(PlaneKind::Pcie, |point| point.pcie_pct)];
    let highest = series.iter().flat_map(|series| &series.points).map(|point| point.1).fold(100.0, f64::max);
    let last = prediction.curve.last().map_or(1.0, |point| point.rtt_us);
    let chart = Chart {
        title: format!("Performance kept, {:.1} GB/s", question.bandwidth_gbps),
        x: Axis { label: "round trip, us".to_owned(), from: 0.0, to: last },
        y: Axis { label: "% of a GPU in the server".to_owned(), from: 0.0, to: highest },
        series,
    };
    sim::plot::figure(&profile.program, &[chart])
}
