//! The pooled replay with spares held back, while GPUs break.
//!
//! ```text
//!                  break                       repaired, no lease waits and enough serve
//!   in service ───────────▶ in repair ──────────────────────────────────────▶ spare
//!       ▲                       │ repaired, otherwise                            │
//!       ├───────────────────────┘                                                │ another GPU of its model breaks
//!       └────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Pods arrive at even intervals. What ran on a broken GPU goes to a spare of the same model; if there is none, to an idle
//! GPU of that model; if there is none, it waits for a repair. A lease of several GPUs in one box first looks for a
//! spare in that box, then for another box with room for all of it; only then it is split.

mod ward;

use super::pooled::{Boxes, Pooled};
use super::{Curve, FailureProcess, Run, Trace, Workload};
use pool::{Policy, SplitMix};
use ward::Ward;

/// How to hold spares, and against what.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SparePlan {
    /// What breaks, and for how long.
    pub process: FailureProcess,
    /// The share of time in which spares must suffice, such as 0.999; zero holds back no spares at all.
    pub cover: f64,
    /// Days over which the pods arrive.
    pub days: f64,
}

/// Spares of one model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpares {
    /// The model.
    pub model: String,
    /// GPUs of it, spares included.
    pub gpus: usize,
    /// Spares held back.
    pub spares: usize,
}

/// What came of a replay with failures.
#[derive(Clone, Debug)]
pub struct FailingOutcome {
    /// Allocation and fragments over arrived load, as percent of all GPUs, spares included.
    pub curve: Curve,
    /// Spares by model.
    pub spares: Vec<ModelSpares>,
    /// GPUs that broke, whether in use or not.
    pub failures: usize,
    /// Of those, GPUs that were in use.
    pub failures_in_use: usize,
    /// What ran there went on, on a spare or an idle GPU, with its GPUs as close together as before.
    pub replaced: usize,
    /// A lease of several GPUs moved to another box as a whole.
    pub moved_whole: usize,
    /// A lease of several GPUs went on with one of them in another box.
    pub split: usize,
    /// What ran there had to wait for a repair.
    pub waited: usize,
    /// The share of leased GPU time in which the lease had all its GPUs.
    pub lease_time_kept: f64,
}

impl FailingOutcome {
    /// Spares held back, all models together.
    pub fn spares_total(&self) -> usize {
        self.spares.iter().map(|model| model.spares).sum()
    }
}

/// Replays a list with one policy and one seed while GPUs break. The seed drives the failures too.
pub fn replay_failing(trace: &Trace, policy: Policy, seed: u64, plan: &SparePlan) -> FailingOutcome {
    let workload = Workload::new(trace, seed);
    let pool = Pooled::new(trace, &workload, policy, Boxes::One);
    let mut ward = Ward::new(trace, pool, plan, SplitMix::new(seed));
    let mut random = workload.random.clone();
    let mut run = Run::with_capacity(workload.arrivals.len());
    let every = plan.days / workload.arrivals.len() as f64;
    for (number, &pod) in workload.arrivals.iter().enumerate() {
        ward.pass_time_until(every * number as f64);
        let pod = &trace.pods[pod];
        let granted = ward.pool.ask(pod, trace, Boxes::One, &mut random);
        if let Ok(parts) = &granted {
            parts.iter().for_each(|(choice, request)| ward.lease(choice, request));
        }
        run.record(pod.gpu_milli(), granted.is_ok(), &ward.pool.gpus);
    }
    ward.pass_time_until(plan.days);
    ward.finish(Curve::new(&run.records, trace.gpu_milli()))
}

#[cfg(test)]
mod tests;
