//! The constants of the closed form, from rows: the fit, what each row would say if it were left out, and what the formula
//! loses without each of its parts.

use crate::closed_form::{Graph, Inputs, PARAMETER_COUNT, Parameters, loss};
use crate::equation::PciePath;
use crate::least_squares;
use crate::paper::{Explained, Family, NoPredictor, Row, family_of, inputs_of};

/// A measured row with what is needed to predict it.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Which row of the file, counted from 0.
    pub row: usize,
    /// Its family.
    pub family: Family,
    /// What the formula needs.
    pub explained: Explained,
    /// What was measured, in percent.
    pub measured_pct: f64,
}

/// A part of the formula that can be left out, to see what it is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// `max(T, period)`: without it, the kernel's duration alone.
    LaunchPeriod,
    /// `min(1, t0/T)`: without it, every kernel exposes the same.
    Hiding,
    /// The fixed cost of an operation: without it, the loss is proportional to the added round trip.
    FixedCost,
    /// What further GPUs add.
    Contention,
    /// The round trips of parameter copies: without them, only the rate counts.
    CopyLatency,
    /// That writes are posted: without it, gradients come back as slowly as parameters are read.
    PostedWrites,
}

impl Part {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::LaunchPeriod,
        Self::Hiding,
        Self::FixedCost,
        Self::Contention,
        Self::CopyLatency,
        Self::PostedWrites,
    ];

    /// The formula without it, in words.
    pub fn without(self) -> &'static str {
        match self {
            Self::LaunchPeriod => "kernel duration instead of the period between launches",
            Self::Hiding => "long kernels hide nothing",
            Self::FixedCost => "no fixed cost per operation",
            Self::Contention => "further GPUs cost nothing",
            Self::CopyLatency => "copies lose rate but no round trips",
            Self::PostedWrites => "writes are as slow as reads",
        }
    }

    /// The parameter that has no effect without this part.
    fn parameter(self) -> Option<usize> {
        match self {
            Self::FixedCost => Some(1),
            Self::LaunchPeriod => Some(3),
            Self::Hiding => Some(4),
            Self::Contention => Some(5),
            Self::CopyLatency => Some(7),
            Self::PostedWrites => None,
        }
    }
}

/// Rows that can be predicted, and for the others why they cannot.
pub fn samples(rows: &[Row]) -> (Vec<Sample>, Vec<(usize, NoPredictor)>) {
    let mut known = Vec::new();
    let mut unknown = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        match inputs_of(row) {
            Ok(explained) => known.push(Sample {
                row: index,
                family: family_of(row),
                explained,
                measured_pct: row.performance_pct,
            }),
            Err(reason) => unknown.push((index, reason)),
        }
    }
    (known, unknown)
}

/// What the formula predicts for a workload, in percent.
pub fn predict_pct(parameters: &Parameters, path: &PciePath, inputs: &Inputs) -> f64 {
    loss(parameters, path, inputs).kept_pct()
}

/// Predicted less measured, in percentage points.
pub fn error_pct(parameters: &Parameters, path: &PciePath, sample: &Sample) -> f64 {
    predict_pct(parameters, path, &sample.explained.inputs) - sample.measured_pct
}

/// The constants that come closest to `samples`, every row with the same weight.
pub fn fit(path: &PciePath, samples: &[Sample]) -> Parameters {
    fit_without(path, samples, None)
}

/// Fits only the constants `free`, by index, and leaves the others as they are in `start`.
pub fn fit_some(
    start: &Parameters,
    free: &[usize],
    samples: &[Sample],
    error: impl Fn(&Parameters, &Sample) -> f64,
) -> Parameters {
    let with = |values: &[f64]| {
        let mut all = start.to_array();
        for (&index, &value) in free.iter().zip(values) {
            all[index] = value;
        }
        Parameters::from_array(all)
    };
    let first: Vec<f64> = free.iter().map(|&index| start.to_array()[index]).collect();
    let found = least_squares::fit(&first, |values| {
        let parameters = with(values);
        samples.iter().map(|sample| error(&parameters, sample)).collect()
    });
    with(&found.parameters)
}

/// The constants of a formula that lacks a part.
pub fn fit_without(path: &PciePath, samples: &[Sample], part: Option<Part>) -> Parameters {
    let changed: Vec<Sample> = samples.iter().map(|sample| strip(sample, part)).collect();
    let found = least_squares::fit(&Parameters::GUESS.to_array(), |values| {
        let parameters = parameters_without(values, part);
        changed.iter().map(|sample| error_pct(&parameters, path, sample)).collect()
    });
    parameters_without(&found.parameters, part)
}

/// The errors of the formula without a part, after fitting what is left.
pub fn errors_without(path: &PciePath, samples: &[Sample], part: Part) -> Vec<f64> {
    let parameters = fit_without(path, samples, Some(part));
    samples.iter().map(|sample| error_pct(&parameters, path, &strip(sample, Some(part)))).collect()
}

/// For each sample, the error of a fit that never saw it.
pub fn leave_one_out(path: &PciePath, samples: &[Sample]) -> Vec<f64> {
    let error = |left_out: usize| {
        let others: Vec<Sample> = samples
            .iter()
            .enumerate()
            .filter(|(index, _)| *index != left_out)
            .map(|(_, sample)| sample.clone())
            .collect();
        error_pct(&fit(path, &others), path, &samples[left_out])
    };
    (0..samples.len()).map(error).collect()
}

/// Which samples move when parameter `index` does.
pub fn moved_by(path: &PciePath, parameters: &Parameters, samples: &[Sample], index: usize) -> Vec<bool> {
    let mut values = parameters.to_array();
    values[index] *= 1.01;
    let nudged = Parameters::from_array(values);
    let moves = |sample: &Sample| {
        let inputs = &sample.explained.inputs;
        (predict_pct(&nudged, path, inputs) - predict_pct(parameters, path, inputs)).abs() > 1e-9
    };
    samples.iter().map(moves).collect()
}

/// The square root of the mean square; 0 of nothing.
pub fn root_mean_square(errors: &[f64]) -> f64 {
    if errors.is_empty() {
        return 0.0;
    }
    (errors.iter().map(|error| error * error).sum::<f64>() / errors.len() as f64).sqrt()
}

fn parameters_without(values: &[f64], part: Option<Part>) -> Parameters {
    let mut array = [0.0; PARAMETER_COUNT];
    array.copy_from_slice(values);
    if let Some(index) = part.and_then(Part::parameter) {
        array[index] = 0.0;
    }
    Parameters::from_array(array)
}

/// A sample as a formula without `part` sees it.
fn strip(sample: &Sample, part: Option<Part>) -> Sample {
    let mut sample = sample.clone();
    let inputs = &mut sample.explained.inputs;
    match part {
        Some(Part::Hiding) => inputs.graph = Graph::WithShortKernels,
        Some(Part::PostedWrites) => {
            if let Some(copies) = &mut inputs.parameter_copies {
                copies.host_to_device = 1.0;
            }
        }
        _ => {}
    }
    sample
}
