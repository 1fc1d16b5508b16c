//! The findings as a figure: allocation and fragments over the load that has arrived.

use super::Findings;
use sim::plot::{Axis, Chart, Series, Stroke, figure};
use sim::replay::{Curve, LOAD_PCT_MAX, PolicyResult};

const LOAD: &str = "arrived load, % of all GPUs";
const ALLOCATED: &str = "allocated, % of all GPUs";
const FRAGMENT: &str = "fragment, % of idle GPUs";

/// Where lines begin to part.
const CLOSE_UP_FROM: f64 = 80.0;

/// One way to replay: what it is called, and its curve where it was done.
struct Way {
    name: &'static str,
    curve: fn(&PolicyResult) -> Option<&Curve>,
}

const WAYS: [Way; 4] = [
    Way { name: "GPUs in their servers", curve: |result| Some(&result.coupled.curve) },
    Way { name: "pooled", curve: |result| result.pooled.as_ref().map(|means| &means.curve) },
    Way { name: "pooled, any box", curve: |result| result.pooled_any_box.as_ref().map(|means| &means.curve) },
    Way { name: "published", curve: |result| result.published.as_ref().map(|published| &published.curve) },
];

pub(super) fn draw(findings: &Findings) -> String {
    let title = format!("{} list, mean of {} seeds", findings.trace.list, findings.seeds.len());
    let charts = match findings.results.as_slice() {
        [one] => charts_of_one(one),
        all => charts_of_all(all),
    };
    figure(&title, &charts)
}

/// One policy: a line for each way to replay.
fn charts_of_one(result: &PolicyResult) -> Vec<Chart> {
    let lines = |columns: fn(&Curve) -> &[f64]| -> Vec<Series> {
        let line = |way: &Way| {
            let stroke = if way.name == "published" { Stroke::Dashed } else { Stroke::Solid };
            (way.curve)(result).map(|curve| series(way.name, columns(curve), stroke))
        };
        WAYS.iter().filter_map(line).collect()
    };
    let name = result.policy.name();
    let (allocated, fragment) = (lines(|curve| &curve.allocation_pct), lines(|curve| &curve.fragment_pct));
    vec![
        chart(format!("Allocated, {name}"), ALLOCATED, 0.0, allocated.clone()),
        close_up(format!("Allocated, {name}, close up"), allocated),
        chart(format!("Fragment, {name}"), FRAGMENT, 0.0, fragment),
    ]
}

/// Several policies: charts for GPUs in servers and in a pool, a line for each policy.
fn charts_of_all(results: &[PolicyResult]) -> Vec<Chart> {
    let mut charts = Vec::new();
    for way in &WAYS[..2] {
        let lines = |columns: fn(&Curve) -> &[f64]| -> Vec<Series> {
            let line = |result: &PolicyResult| {
                (way.curve)(result).map(|curve| series(result.policy.name(), columns(curve), Stroke::Solid))
            };
            results.iter().filter_map(line).collect()
        };
        let allocated = lines(|curve| &curve.allocation_pct);
        if allocated.is_empty() {
            continue;
        }
        let name = way.name;
        if charts.is_empty() {
            charts.push(chart(format!("Allocated, {name}"), ALLOCATED, 0.0, allocated.clone()));
        }
        charts.push(close_up(format!("Allocated, {name}, close up"), allocated));
        charts.push(chart(format!("Fragment, {name}"), FRAGMENT, 0.0, lines(|curve| &curve.fragment_pct)));
    }
    charts
}

fn series(name: &str, column: &[f64], stroke: Stroke) -> Series {
    let points = column.iter().enumerate().map(|(load, &value)| (load as f64, value)).collect();
    Series { name: name.to_owned(), points, stroke }
}

fn chart(title: String, measured: &str, load_from: f64, series: Vec<Series>) -> Chart {
    Chart {
        title,
        x: Axis { label: LOAD.to_owned(), from: load_from, to: LOAD_PCT_MAX as f64 },
        y: Axis { label: measured.to_owned(), from: 0.0, to: 100.0 },
        series,
    }
}

fn close_up(title: String, series: Vec<Series>) -> Chart {
    let mut chart = chart(title, ALLOCATED, CLOSE_UP_FROM, series);
    chart.y.from = 75.0;
    chart
}
