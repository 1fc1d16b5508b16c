//! A profile in a few numbers: what a person looks at first, and what advice starts from.

use super::{Action, Direction, Profile};
use std::collections::BTreeMap;

/// Kernels up to this length are *short*, as in the paper: a round trip is a large part of them.
pub const SHORT_KERNEL_US: f64 = 10.0;

/// How often and how long a kernel ran.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelUse {
    /// Its name.
    pub name: String,
    /// How often it was launched.
    pub launches: u64,
    /// How long the GPU worked on it, all launches together.
    pub gpu_us: f64,
}

/// Copies of one kind: a direction, pinned or not, waited for or not, of about one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CopyClass {
    /// The direction.
    pub direction: Direction,
    /// Whether the host memory is page-locked.
    pub pinned: bool,
    /// Whether the calls returned only when the copies were done.
    pub waits: bool,
    /// The largest power of two that is not above the sizes.
    pub bytes_from: u64,
    /// How many.
    pub count: u64,
    /// How much, all together.
    pub bytes: u64,
    /// How long the copy engine took, all together.
    pub gpu_us: f64,
}

/// A profile in numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// How long it lasted.
    pub wall_us: f64,
    /// Steps, where the program has them.
    pub steps: u64,
    /// Launches; a graph counts once.
    pub launches: u64,
    /// Launches of graphs with more than one kernel.
    pub graph_launches: u64,
    /// Launches whose kernels are short.
    pub short_launches: u64,
    /// Time of the GPU in kernels.
    pub kernel_us: f64,
    /// Memsets.
    pub memsets: u64,
    /// Calls in which the program waited for the GPU (copies that wait not counted).
    pub waits: u64,
    /// Calls that asked whether the GPU is done.
    pub queries: u64,
    /// Other calls whose answer the program needs.
    pub awaited_calls: u64,
    /// Calls that only asked for state.
    pub local_calls: u64,
    /// Copies by kind.
    pub copies: Vec<CopyClass>,
    /// Kernels, the most launched first.
    pub kernels: Vec<KernelUse>,
    /// Launches by duration on the GPU: from each power of two of microseconds to the next, beginning with those below 1 us.
    pub duration_classes: Vec<u64>,
    /// Launches by the wall time since the launch before, in the same classes.
    pub period_classes: Vec<u64>,
}

impl Summary {
    /// Mean duration of a launch on the GPU.
    pub fn mean_kernel_us(&self) -> f64 {
        self.kernel_us / (self.launches.max(1) as f64)
    }

    /// Mean wall time between launches: what the distance is weighed against.
    pub fn mean_period_us(&self) -> f64 {
        self.wall_us / (self.launches.max(1) as f64)
    }
}

/// Counts a time in its class: 0 below 1 us, then one per power of two.
fn tally(classes: &mut Vec<u64>, us: f64) {
    let class = if us < 1.0 { 0 } else { us.log2().floor() as usize + 1 };
    if classes.len() <= class {
        classes.resize(class + 1, 0);
    }
    classes[class] += 1;
}

/// Counts a profile.
pub fn summarise(profile: &Profile) -> Summary {
    let mut summary = Summary { wall_us: profile.wall_us, ..Summary::default() };
    let mut kernels = vec![(0u64, 0.0); profile.kernels.len()];
    let mut launched_us = None;
    let mut copies: BTreeMap<(Direction, bool, bool, u64), (u64, u64, f64)> = BTreeMap::new();
    for record in &profile.records {
        match record.action {
            Action::Launch { kernel, kernels: count, gpu_us, .. } => {
                summary.launches += 1;
                summary.graph_launches += u64::from(count > 1);
                summary.short_launches += u64::from(gpu_us <= SHORT_KERNEL_US);
                summary.kernel_us += gpu_us;
                tally(&mut summary.duration_classes, gpu_us);
                if let Some(before_us) = launched_us.replace(record.at_us) {
                    tally(&mut summary.period_classes, record.at_us - before_us);
                }
                let used = &mut kernels[kernel as usize];
                *used = (used.0 + 1, used.1 + gpu_us);
            }
            Action::Copy { direction, bytes, pinned, waits, gpu_us, .. } => {
                let bytes_from = if bytes == 0 { 0 } else { 1 << bytes.ilog2() };
                let class = copies.entry((direction, pinned, waits, bytes_from)).or_default();
                *class = (class.0 + 1, class.1 + bytes, class.2 + gpu_us);
            }
            Action::Memset { .. } => summary.memsets += 1,
            Action::Wait { .. } => summary.waits += 1,
            Action::Query { .. } => summary.queries += 1,
            Action::Local { calls } => summary.local_calls += u64::from(calls),
            Action::Other { awaited } => summary.awaited_calls += u64::from(awaited),
            Action::Step => summary.steps += 1,
            Action::RecordEvent { .. } | Action::StreamWait { .. } => {}
        }
    }
    summary.copies = copies
        .into_iter()
        .map(|((direction, pinned, waits, bytes_from), (count, bytes, gpu_us))| CopyClass {
            direction,
            pinned,
            waits,
            bytes_from,
            count,
            bytes,
            gpu_us,
        })
        .collect();
    summary.kernels = profile
        .kernels
        .iter()
        .zip(kernels)
        .filter(|(_, (launches, _))| *launches != 0)
        .map(|(name, (launches, gpu_us))| KernelUse { name: name.clone(), launches, gpu_us })
        .collect();
    summary.kernels.sort_by(|a, b| b.launches.cmp(&a.launches).then_with(|| a.name.cmp(&b.name)));
    summary
}
