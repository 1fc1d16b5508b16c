//! From a row to what the closed form needs, saying which inputs the paper gives and which are inferred from its text.

use super::families::{Family, family_of};
use super::rows::Row;
use crate::closed_form::{Graph, Inputs, ParameterCopies, Setting};

/// Where the inputs of a row come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The paper gives them for this very row.
    Published,
    /// They are carried over from another row of the paper, for the reason given.
    Inferred(&'static str),
}

/// A row that can be predicted.
#[derive(Clone, Debug, PartialEq)]
pub struct Explained {
    /// What the formula needs.
    pub inputs: Inputs,
    /// Where it comes from.
    pub source: Source,
}

/// Why a row cannot be predicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoPredictor {
    /// What the paper does not say.
    pub reason: &'static str,
}

/// Mean kernel durations of ResNet-50 by batch size (section 4.3.2): training, and inference, which the text puts 48.2, 55.5 and
/// 55.1 % above training.
const TRAINING_KERNEL_US: [(&str, f64); 3] = [("32", 56.0), ("64", 102.3), ("128", 193.0)];
const INFERENCE_KERNEL_US: [(&str, f64); 3] = [("32", 83.0), ("64", 159.1), ("128", 299.3)];

/// XLA lengthens the mean kernel of the default configuration from 102.3 to 131.0 us.
const XLA_KERNEL_FACTOR: f64 = 131.0 / 102.3;

/// With the parameters on the CPU, XLA raises the share of memory operations from 14.9 to 16.7 % and shortens each from 35.1 to
/// 11.3 us.
const XLA_MEMOP_FACTOR: f64 = 16.7 / 14.9;
const MEMOP_US: f64 = 35.1;
const MEMOP_XLA_US: f64 = 11.3;

/// Table 10: share of memory operations with the parameters on the GPU.
const SYNTHETIC_SHARE: f64 = 0.002;
const IMAGENET_TRAINING_SHARE: f64 = 0.028;
const IMAGENET_INFERENCE_SHARE: f64 = 0.090;

/// Training sends the parameters down and the gradients back, byte for byte; inference only reads parameters.
const TRAINING_HOST_TO_DEVICE: f64 = 0.5;
const INFERENCE_HOST_TO_DEVICE: f64 = 1.0;

/// What the formula needs to explain `row`, or what is missing.
pub fn inputs_of(row: &Row) -> Result<Explained, NoPredictor> {
    let plain = |setting, kernel_us| Inputs {
        setting,
        graph: Graph::WithShortKernels,
        rtt_us: row.rtt_us,
        kernel_us,
        gpus: 1.0,
        input_share: 0.0,
        parameter_copies: None,
    };
    let published = |inputs| Ok(Explained { inputs, source: Source::Published });
    let missing = Err(NoPredictor { reason: "the paper publishes no kernel duration for it" });
    match family_of(row) {
        Family::NoPredictor => missing,
        Family::Table4AndFig4 => {
            let Some(kernel_us) = row.mean_kernel_us else { return missing };
            let is_hook = row.variant.contains("hook");
            published(plain(if is_hook { Setting::Hook } else { Setting::FirstBuilds }, kernel_us))
        }
        Family::Table12 => {
            let (Some(kernel_us), Some(gpus)) = (row.mean_kernel_us, gpu_count(&row.workload)) else {
                return missing;
            };
            published(Inputs { gpus, ..plain(Setting::Evaluation, kernel_us) })
        }
        Family::ShortKernels | Family::TrainingAndGlmark => {
            let Some(kernel_us) = row.mean_kernel_us else { return missing };
            published(plain(Setting::Evaluation, kernel_us))
        }
        Family::ForwardAndFused | Family::ImageNet | Family::CpuParameters => resnet(row)
            .ok_or(NoPredictor { reason: "the paper publishes no kernel duration for this batch size" }),
    }
}

/// The ResNet-50 rows of Table 9 that differ from its default configuration.
fn resnet(row: &Row) -> Option<Explained> {
    let is_training = row.workload.contains("train");
    let is_imagenet = row.workload.contains("imagenet");
    let has_xla = row.variant.contains("xla on");
    let on_cpu = row.variant.contains("cpu params");

    let durations = if is_training { TRAINING_KERNEL_US } else { INFERENCE_KERNEL_US };
    let eager_us = durations.iter().find(|(batch, _)| *batch == row.batch)?.1;
    // The text gives the effect of XLA on kernels for training with the parameters on the GPU. With the parameters on the CPU
    // or in inference it speaks of memory operations only.
    let fused_us = if has_xla && is_training && !on_cpu { eager_us * XLA_KERNEL_FACTOR } else { eager_us };
    let kernel_us = row.mean_kernel_us.unwrap_or(fused_us);

    let input_share = match (is_imagenet, is_training) {
        (false, _) => 0.0,
        (true, true) => IMAGENET_TRAINING_SHARE,
        (true, false) => IMAGENET_INFERENCE_SHARE,
    };
    let inputs = Inputs {
        setting: Setting::Evaluation,
        graph: if is_training && !has_xla { Graph::WithShortKernels } else { Graph::LongKernelsOnly },
        rtt_us: row.rtt_us,
        kernel_us,
        gpus: 1.0,
        input_share,
        parameter_copies: on_cpu
            .then(|| parameter_copies(row, is_training, is_imagenet, has_xla, input_share))
            .flatten(),
    };
    if on_cpu && inputs.parameter_copies.is_none() {
        return None;
    }
    Some(Explained { inputs, source: source(row, has_xla, on_cpu, is_imagenet) })
}

fn parameter_copies(
    row: &Row,
    is_training: bool,
    is_imagenet: bool,
    has_xla: bool,
    input_share: f64,
) -> Option<ParameterCopies> {
    // Table 10, for the rows that do not carry it themselves (XLA on).
    let table_10 = match (is_imagenet, is_training) {
        (false, true) => 0.075,
        (false, false) => 0.156,
        (true, true) => 0.099,
        (true, false) => 0.223,
    };
    let share = row.memop_share.unwrap_or(table_10 * if has_xla { XLA_MEMOP_FACTOR } else { 1.0 });
    let without = if is_imagenet { input_share } else { SYNTHETIC_SHARE };
    Some(ParameterCopies {
        share: share - without,
        host_to_device: if is_training { TRAINING_HOST_TO_DEVICE } else { INFERENCE_HOST_TO_DEVICE },
        copy_us: if has_xla { MEMOP_XLA_US } else { MEMOP_US },
    })
}

fn source(row: &Row, has_xla: bool, on_cpu: bool, is_imagenet: bool) -> Source {
    if on_cpu && has_xla {
        return Source::Inferred("Table 10's share, changed by XLA as the text says for one configuration");
    }
    if on_cpu && row.memop_share.is_some() {
        return Source::Published;
    }
    if is_imagenet {
        return Source::Inferred(
            "the kernels of the synthetic data set, and Table 10's share of copies at batch 128",
        );
    }
    if row.mean_kernel_us.is_some() {
        return Source::Published;
    }
    if row.workload.contains("infer") {
        return Source::Inferred("the kernels of inference without XLA");
    }
    Source::Inferred("kernels lengthened by XLA as the text says for batch 64")
}

fn gpu_count(workload: &str) -> Option<f64> {
    let words: Vec<&str> = workload.split(' ').collect();
    let at = words.iter().position(|word| word.starts_with("gpu"))?;
    words.get(at.checked_sub(1)?)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::paper_rows;

    fn explained(part: &str) -> Explained {
        let rows = paper_rows();
        let row = rows.iter().find(|row| row.name().contains(part)).expect(part);
        inputs_of(row).expect(part)
    }

    #[test]
    fn fifty_three_rows_have_something_to_start_from() {
        let rows = paper_rows();
        let explained: Vec<_> = rows.iter().filter_map(|row| inputs_of(row).ok()).collect();
        assert_eq!(explained.len(), 53);
        assert_eq!(explained.iter().filter(|row| row.source == Source::Published).count(), 32);
    }

    #[test]
    fn a_row_is_read_as_the_paper_means_it() {
        let eight = explained("12 / resnet50 train 8 gpus / 128").inputs;
        assert_eq!((eight.gpus, eight.kernel_us), (8.0, 193.0));
        assert_eq!(explained("hook model / 64 @4.9us").inputs.setting, Setting::Hook);
        assert_eq!(explained("implementation / 64 @4.9us").inputs.setting, Setting::FirstBuilds);
        assert_eq!(
            explained("infer synthetic / xla off gpu params / 32").inputs.graph,
            Graph::LongKernelsOnly
        );
        let fused = explained("train synthetic / xla on gpu params / 64");
        assert_eq!((fused.inputs.kernel_us, fused.inputs.graph), (131.0, Graph::LongKernelsOnly));
    }

    #[test]
    fn parameters_on_the_cpu_are_what_the_gpu_row_does_not_copy() {
        let copies = explained("infer imagenet / xla off cpu params").inputs.parameter_copies.unwrap();
        assert!((copies.share - (0.223 - 0.090)).abs() < 1e-12);
        assert_eq!(copies.host_to_device, 1.0);
        let fused = explained("train synthetic / xla on cpu params").inputs.parameter_copies.unwrap();
        assert!((fused.share - (0.075 * 16.7 / 14.9 - 0.002)).abs() < 1e-12);
        assert_eq!(fused.copy_us, 11.3);
    }
}
