//! `dxpu model fit`: the constants.

use super::Rows;
use crate::support::exit::{Exit, Outcome};
use crate::support::table;
use model::check::{ParameterReport, check};
use model::equation::V100;
use serde_json::{Value, json};

#[derive(clap::Args)]
pub(crate) struct Fit {
    #[command(flatten)]
    rows: Rows,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Fit {
    pub(crate) fn run(self) -> Outcome {
        let report = check(&V100, &self.rows.read()?);
        if self.json {
            let object = json!({
                "rows": report.rows_predicted,
                "rmse_pct": report.rmse_pct,
                "parameters": report.parameters.iter().map(parameter_json).collect::<Vec<_>>(),
            });
            outln!("{}", serde_json::to_string_pretty(&object)?);
            return Ok(Exit::Success);
        }
        let count = report.parameters.len();
        outln!("{count} constants, {} rows, RMSE {:.2} points\n", report.rows_predicted, report.rmse_pct);
        let rows: Vec<Vec<String>> = report.parameters.iter().map(parameter_row).collect();
        table::print_figures(&["constant", "value", "with any row left out", "rows it moves"], &rows);
        outln!();
        for parameter in &report.parameters {
            outln!("{}: {}", parameter.name, parameter.meaning);
        }
        Ok(Exit::Success)
    }
}

pub(super) fn parameter_json(parameter: &ParameterReport) -> Value {
    json!({
        "name": parameter.name,
        "meaning": parameter.meaning,
        "value": parameter.value,
        "left_out_min": parameter.left_out_range.0,
        "left_out_max": parameter.left_out_range.1,
        "rows_moved": parameter.rows_moved,
    })
}

pub(super) fn parameter_row(parameter: &ParameterReport) -> Vec<String> {
    let (least, most) = parameter.left_out_range;
    vec![
        parameter.name.to_owned(),
        format!("{:.3}", parameter.value),
        format!("{least:.3} to {most:.3}"),
        parameter.rows_moved.to_string(),
    ]
}
