//! Which rows belong together, and how close a model must come to them.

use super::rows::Row;

/// Rows that one mechanism dominates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// ResNet-50 training (synthetic data, no XLA, parameters on the GPU) and glmark2.
    TrainingAndGlmark,
    /// Table 4 (hook model and both builds) and the two points of Fig. 4.
    Table4AndFig4,
    /// ResNet-50 training on 1 to 8 GPUs.
    Table12,
    /// Parameters kept in host memory, with and without XLA.
    CpuParameters,
    /// Inference, and training with XLA, on synthetic data.
    ForwardAndFused,
    /// Everything on ImageNet with parameters on the GPU.
    ImageNet,
    /// SSD320: kernels far shorter than the time between launches.
    ShortKernels,
    /// Nothing was published that a prediction could start from.
    NoPredictor,
}

/// How close the model must come, in percentage points.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// The bound on the root mean square error of the one model.
    pub rmse_pct_max: f64,
    /// The bound on the largest error of the family's own fit, where one was asked for.
    pub own_fit_max_pct: Option<f64>,
}

impl Family {
    /// All families, in the order of a report.
    pub const ALL: [Self; 8] = [
        Self::TrainingAndGlmark,
        Self::Table4AndFig4,
        Self::Table12,
        Self::CpuParameters,
        Self::ForwardAndFused,
        Self::ImageNet,
        Self::ShortKernels,
        Self::NoPredictor,
    ];

    /// A short name for tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::TrainingAndGlmark => "resnet50 training and glmark2",
            Self::Table4AndFig4 => "table 4 and fig. 4",
            Self::Table12 => "table 12",
            Self::CpuParameters => "cpu parameters",
            Self::ForwardAndFused => "inference and xla",
            Self::ImageNet => "imagenet",
            Self::ShortKernels => "ssd320",
            Self::NoPredictor => "no predictor published",
        }
    }
}

/// The bound for a family, where there is one.
pub fn target_of(family: Family) -> Option<Target> {
    let (rmse_pct_max, own_fit_max_pct) = match family {
        Family::TrainingAndGlmark => (1.0, None),
        Family::Table12 => (1.0, Some(1.0)),
        Family::Table4AndFig4 => (0.5, Some(0.5)),
        Family::CpuParameters => (0.6, Some(0.6)),
        Family::ForwardAndFused | Family::ImageNet | Family::ShortKernels | Family::NoPredictor => {
            return None;
        }
    };
    Some(Target { rmse_pct_max, own_fit_max_pct })
}

/// The family of a row.
pub fn family_of(row: &Row) -> Family {
    match row.table.as_str() {
        "4" | "fig4" => Family::Table4AndFig4,
        "11" => Family::ShortKernels,
        "12" => Family::Table12,
        "14" => Family::TrainingAndGlmark,
        "9" if row.variant.contains("cpu params") => Family::CpuParameters,
        "9" if row.workload.contains("imagenet") => Family::ImageNet,
        "9" if row.workload.contains("infer") || row.variant.contains("xla on") => Family::ForwardAndFused,
        "9" => Family::TrainingAndGlmark,
        _ => Family::NoPredictor,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::paper_rows;

    #[test]
    fn every_row_has_a_family_of_the_expected_size() {
        let rows = paper_rows();
        let sizes = Family::ALL.map(|family| rows.iter().filter(|row| family_of(row) == family).count());
        assert_eq!(sizes, [6, 6, 8, 8, 9, 12, 4, 17]);
    }
}
