//! `dxpu model check`: every row against the formula.

mod figure;

use super::Rows;
use super::fit::{parameter_json, parameter_row};
use crate::support::exit::{Exit, Outcome};
use crate::support::table;
use anyhow::Context;
use model::check::{Report, RowReport, SINGLE_MODEL_RMSE_PCT_MAX, Verdict, WHY, check};
use model::closed_form::Parameters;
use model::equation::V100;
use model::paper::Source;
use serde_json::{Value, json};
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Check {
    #[command(flatten)]
    rows: Rows,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Plot the formula beside the paper's points, over the distance and over GPUs, into this file
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

impl Check {
    pub(crate) fn run(self) -> Outcome {
        let rows = self.rows.read()?;
        let report = check(&V100, &rows);
        if let Some(path) = &self.plot {
            let mut values = Parameters::GUESS.to_array();
            for (value, parameter) in values.iter_mut().zip(&report.parameters) {
                *value = parameter.value;
            }
            std::fs::write(path, figure::draw(&Parameters::from_array(values), &rows))
                .with_context(|| format!("cannot write the plot to {}", path.display()))?;
        }
        if self.json {
            outln!("{}", serde_json::to_string_pretty(&object(&report))?);
        } else {
            print(&report);
        }
        for missed in &report.missed {
            errln!("missed: {missed}");
        }
        Ok(if report.missed.is_empty() { Exit::Success } else { Exit::Failure })
    }
}

fn object(report: &Report) -> Value {
    let family = |family: &model::check::FamilyReport| {
        json!({
            "family": family.family.name(),
            "rows": family.rows,
            "rmse_pct": family.rmse_pct,
            "max_pct": family.max_pct,
            "left_out_rmse_pct": family.left_out_rmse_pct,
            "target_pct": family.target.map(|target| target.rmse_pct_max),
            "met": family.target.map(|_| family.is_met()),
            "own_parameters": family.own_parameters,
            "fitted_alone": family.own_fit.as_ref().map(|fit| json!({
                "parameters": fit.fitted.iter().map(|(name, value)| json!({ "name": name, "value": value }))
                    .collect::<Vec<_>>(),
                "starts_from_measured_rows": fit.starts_from_measured_rows,
                "rmse_pct": fit.rmse_pct,
                "max_pct": fit.max_pct,
                "left_out_rmse_pct": fit.left_out_rmse_pct,
                "max_target_pct": family.target.and_then(|target| target.own_fit_max_pct),
            })),
        })
    };
    let without = |without: &model::check::WithoutReport| {
        json!({
            "without": without.without,
            "rmse_pct": without.rmse_pct,
            "worst_family": without.worst_family.name(),
            "worst_family_rmse_pct": without.worst_family_rmse_pct,
        })
    };
    json!({
        "targets_met": report.missed.is_empty(),
        "missed": report.missed,
        "single_model": {
            "rows": report.rows_predicted,
            "parameters": report.parameters.len(),
            "rmse_pct": report.rmse_pct,
            "target_below_pct": SINGLE_MODEL_RMSE_PCT_MAX,
            "max_pct": report.max_pct,
            "left_out_rmse_pct": report.left_out_rmse_pct,
            "published_inputs_rmse_pct": report.published_rmse_pct,
            "stated_mechanism_rmse_pct": report.stated_mechanism_rmse_pct,
            "why": WHY,
        },
        "families": report.families.iter().map(family).collect::<Vec<_>>(),
        "parameters": report.parameters.iter().map(parameter_json).collect::<Vec<_>>(),
        "without": report.without.iter().map(without).collect::<Vec<_>>(),
        "rows": report.rows.iter().map(row).collect::<Vec<_>>(),
    })
}

fn row(row: &RowReport) -> Value {
    let mut object = json!({
        "row": row.name,
        "family": row.family.name(),
        "measured_pct": row.measured_pct,
    });
    let more = match &row.verdict {
        Verdict::Predicted { predicted_pct, error_pct, left_out_error_pct, source, loss } => json!({
            "predicted_pct": predicted_pct,
            "error_pct": error_pct,
            "left_out_error_pct": left_out_error_pct,
            "inputs": inputs(source),
            "loss": {
                "launches": loss.launches,
                "parameter_rate": loss.parameter_rate,
                "parameter_latency": loss.parameter_latency,
                "inputs": loss.inputs,
            },
        }),
        Verdict::Unknown { reason, implied_period_us } => json!({
            "predicted_pct": null,
            "error_pct": null,
            "reason": reason,
            "implied_period_us": implied_period_us,
        }),
    };
    if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
        object.extend(more);
    }
    object
}

fn inputs(source: &Source) -> String {
    match source {
        Source::Published => "published".to_owned(),
        Source::Inferred(how) => format!("inferred: {how}"),
    }
}

fn print(report: &Report) {
    let rows: Vec<Vec<String>> = report
        .rows
        .iter()
        .map(|row| {
            let (predicted, error, left_out) = match &row.verdict {
                Verdict::Predicted { predicted_pct, error_pct, left_out_error_pct, source, .. } => {
                    let mark = if *source == Source::Published { "" } else { " *" };
                    (
                        format!("{predicted_pct:.1}{mark}"),
                        format!("{error_pct:+.2}"),
                        format!("{left_out_error_pct:+.2}"),
                    )
                }
                Verdict::Unknown { .. } => ("-".to_owned(), "-".to_owned(), "-".to_owned()),
            };
            vec![row.name.clone(), format!("{:.1}", row.measured_pct), predicted, error, left_out]
        })
        .collect();
    table::print_figures(&["row", "measured %", "model %", "error", "left out"], &rows);
    outln!("\n* inputs inferred from the paper's text. -: the paper publishes nothing to predict it from.\n");

    let families: Vec<Vec<String>> = report
        .families
        .iter()
        .map(|family| {
            let target = family.target.map_or("-".to_owned(), |target| format!("{:.1}", target.rmse_pct_max));
            let own = |value: fn(&model::family_fit::FamilyFit) -> f64| {
                family.own_fit.as_ref().map_or("-".to_owned(), |fit| format!("{:.2}", value(fit)))
            };
            let met = match family.target {
                None => "",
                Some(_) if family.is_met() => "met",
                Some(_) => "MISSED",
            };
            vec![
                family.family.name().to_owned(),
                family.rows.to_string(),
                format!("{:.2}", family.rmse_pct),
                format!("{:.2}", family.max_pct),
                format!("{:.2}", family.left_out_rmse_pct),
                own(|fit| fit.rmse_pct),
                own(|fit| fit.max_pct),
                target,
                met.to_owned(),
            ]
        })
        .collect();
    let header =
        ["family (points of error)", "rows", "RMSE", "max", "left out", "alone: RMSE", "max", "target", ""];
    table::print_figures(&header, &families);

    outln!(
        "\nOne model, {} constants, {} rows: RMSE {:.2} (target below {SINGLE_MODEL_RMSE_PCT_MAX}), max {:.2}, left out {:.2}; \
         on the rows whose inputs are published {:.2}.\nThe mechanism as the paper states it, T/(T + D): {:.2}.\n",
        report.parameters.len(),
        report.rows_predicted,
        report.rmse_pct,
        report.max_pct,
        report.left_out_rmse_pct,
        report.published_rmse_pct,
        report.stated_mechanism_rmse_pct,
    );
    let parameters: Vec<Vec<String>> = report.parameters.iter().map(parameter_row).collect();
    table::print_figures(&["constant", "value", "with any row left out", "rows it moves"], &parameters);
    outln!("\nWhy it works:");
    for why in WHY {
        outln!("  - {why}");
    }
    outln!();
    let without: Vec<Vec<String>> = report
        .without
        .iter()
        .map(|without| {
            vec![
                without.without.to_owned(),
                format!("{:.2}", without.rmse_pct),
                format!("{} {:.2}", without.worst_family.name(), without.worst_family_rmse_pct),
            ]
        })
        .collect();
    table::print_figures(&["the formula without a part, fitted again", "RMSE", "worst family"], &without);
}
