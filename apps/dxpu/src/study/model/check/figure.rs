//! The formula beside the paper's points: over the distance, and over the number of GPUs.

use model::closed_form::{Graph, Inputs, Parameters, Setting, loss};
use model::equation::V100;
use model::paper::{Family, Row, family_of, inputs_of};
use sim::plot::{Axis, Chart, Series, Stroke};

/// The kernel duration of the paper's default configuration, ResNet-50 training at batch size 64.
const DEFAULT_KERNEL_US: f64 = 102.3;
const RTT_US_MAX: f64 = 50.0;

pub(super) fn draw(parameters: &Parameters, rows: &[Row]) -> String {
    let title = "ResNet-50 training: the formula (solid) and the paper (dashed)";
    sim::plot::figure(title, &[over_distance(parameters, rows), over_gpus(parameters, rows)])
}

fn kept_pct(parameters: &Parameters, setting: Setting, rtt_us: f64, kernel_us: f64, gpus: f64) -> f64 {
    let inputs = Inputs {
        setting,
        graph: Graph::WithShortKernels,
        rtt_us,
        kernel_us,
        gpus,
        input_share: 0.0,
        parameter_copies: None,
    };
    loss(parameters, &V100, &inputs).kept_pct()
}

/// Fig. 4 and Table 4.
fn over_distance(parameters: &Parameters, rows: &[Row]) -> Chart {
    let line = |name: &str, setting| Series {
        name: name.to_owned(),
        points: (0..=100)
            .map(|point| V100.native_rtt_us + f64::from(point) / 100.0 * (RTT_US_MAX - V100.native_rtt_us))
            .map(|rtt_us| (rtt_us, kept_pct(parameters, setting, rtt_us, DEFAULT_KERNEL_US, 1.0)))
            .collect(),
        stroke: Stroke::Solid,
    };
    let points = |name: &str, setting: Setting| {
        let is_one = |row: &&Row| {
            family_of(row) == Family::Table4AndFig4
                && inputs_of(row).is_ok_and(|explained| explained.inputs.setting == setting)
        };
        let mut points: Vec<(f64, f64)> =
            rows.iter().filter(is_one).map(|row| (row.rtt_us, row.performance_pct)).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Series { name: name.to_owned(), points, stroke: Stroke::Dashed }
    };
    Chart {
        title: "Fig. 4 and Table 4, batch size 64".to_owned(),
        x: Axis { label: "round trip of a PCIe read, us".to_owned(), from: 0.0, to: RTT_US_MAX },
        y: Axis { label: "% of a GPU in the server".to_owned(), from: 50.0, to: 100.0 },
        series: vec![
            line("injected latency", Setting::Hook),
            line("the builds", Setting::FirstBuilds),
            points("injected, paper", Setting::Hook),
            points("builds, paper", Setting::FirstBuilds),
        ],
    }
}

/// Table 12.
fn over_gpus(parameters: &Parameters, rows: &[Row]) -> Chart {
    let mut series = Vec::new();
    for batch in ["64", "128"] {
        let known: Vec<(f64, f64, f64)> = rows
            .iter()
            .filter(|row| family_of(row) == Family::Table12 && row.batch == batch)
            .filter_map(|row| {
                let inputs = inputs_of(row).ok()?.inputs;
                Some((inputs.gpus, inputs.kernel_us, row.performance_pct))
            })
            .collect();
        let Some(&(_, kernel_us, _)) = known.first() else { continue };
        series.push(Series {
            name: format!("batch size {batch}"),
            points: (1..=8)
                .map(f64::from)
                .map(|gpus| (gpus, kept_pct(parameters, Setting::Evaluation, 6.8, kernel_us, gpus)))
                .collect(),
            stroke: Stroke::Solid,
        });
        series.push(Series {
            name: format!("batch size {batch}, paper"),
            points: known.iter().map(|&(gpus, _, measured)| (gpus, measured)).collect(),
            stroke: Stroke::Dashed,
        });
    }
    Chart {
        title: "Table 12, 6.8 us".to_owned(),
        x: Axis { label: "GPUs".to_owned(), from: 0.0, to: 8.0 },
        y: Axis { label: "% of GPUs in the server".to_owned(), from: 75.0, to: 100.0 },
        series,
    }
}
