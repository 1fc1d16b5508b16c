//! Each family by itself: how close the formula comes when only the constants that the family can tell are fitted to it.
//!
//! The one model shares its constants among all families, so a family pays for the contradictions between the paper's tables (the
//! same ResNet-50 keeps 92.7 % in one and 89.6 % in another). Fitted alone it does not, but may then have few constants of its own:
//! fewer than a third of its rows. What a family cannot tell is taken from the one model.

use crate::closed_form::{Parameters, loss};
use crate::equation::PciePath;
use crate::fitting::{Sample, error_pct, fit_some, root_mean_square};
use crate::paper::{Family, Row};

/// A family's own fit.
#[derive(Clone, Debug, PartialEq)]
pub struct FamilyFit {
    /// The constants that were fitted to it, with what came out.
    pub fitted: Vec<(&'static str, f64)>,
    /// Whether what its rows lose besides their copies is taken from a measured row instead of the formula.
    pub starts_from_measured_rows: bool,
    /// Root mean square error, in percentage points.
    pub rmse_pct: f64,
    /// Largest error.
    pub max_pct: f64,
    /// Root mean square error of fits that never saw the row.
    pub left_out_rmse_pct: f64,
}

/// Constants that a family can tell, by index.
fn free_constants(family: Family) -> &'static [usize] {
    match family {
        Family::TrainingAndGlmark => &[0],
        Family::Table4AndFig4 => &[2],
        Family::Table12 => &[0, 5],
        Family::CpuParameters => &[6, 7],
        Family::ForwardAndFused => &[4],
        Family::ImageNet => &[8],
        Family::ShortKernels => &[3],
        Family::NoPredictor => &[],
    }
}

/// Fits a family alone; `None` where it has no rows.
pub fn fit_family(
    path: &PciePath,
    rows: &[Row],
    known: &[Sample],
    shared: &Parameters,
    family: Family,
) -> Option<FamilyFit> {
    let own: Vec<Sample> = known.iter().filter(|sample| sample.family == family).cloned().collect();
    if own.is_empty() {
        return None;
    }
    // What moving the parameters to the CPU costs is told by the difference to the same program with parameters on the GPU.
    let bases: Vec<Option<f64>> = own.iter().map(|sample| measured_base(rows, sample)).collect();
    let starts_from_measured_rows = family == Family::CpuParameters && bases.iter().all(Option::is_some);
    let error = |parameters: &Parameters, sample: &Sample| {
        let base = measured_base(rows, sample).filter(|_| starts_from_measured_rows);
        let Some(base) = base else { return error_pct(parameters, path, sample) };
        let loss = loss(parameters, path, &sample.explained.inputs);
        100.0 / (1.0 + base + loss.parameter_rate + loss.parameter_latency) - sample.measured_pct
    };
    let free = free_constants(family);
    let parameters = fit_some(shared, free, &own, error);
    let errors: Vec<f64> = own.iter().map(|sample| error(&parameters, sample)).collect();
    let left_out: Vec<f64> = (0..own.len())
        .map(|index| {
            let mut others = own.clone();
            let sample = others.remove(index);
            error(&fit_some(shared, free, &others, error), &sample)
        })
        .collect();
    let values = parameters.to_array();
    Some(FamilyFit {
        fitted: free.iter().map(|&index| (Parameters::NAMES[index], values[index])).collect(),
        starts_from_measured_rows,
        rmse_pct: root_mean_square(&errors),
        max_pct: errors.iter().fold(0.0, |largest: f64, error| largest.max(error.abs())),
        left_out_rmse_pct: root_mean_square(&left_out),
    })
}

/// What the same program lost with its parameters on the GPU, as a part of its time.
fn measured_base(rows: &[Row], sample: &Sample) -> Option<f64> {
    let row = &rows[sample.row];
    let variant = row.variant.replace("cpu params", "gpu params");
    let base = rows.iter().find(|other| {
        other.variant == variant
            && other.variant != row.variant
            && (&other.table, &other.workload, &other.batch) == (&row.table, &row.workload, &row.batch)
    })?;
    Some(100.0 / base.performance_pct - 1.0)
}
