//! The whole table: policies by seeds, on all processors.

use super::failing::{FailingOutcome, SparePlan, replay_failing};
use super::published::compare;
use super::{Boxes, Curve, LOAD_PCT_MAX, Run, Trace, map_in_parallel, replay_coupled, replay_pooled};
use pool::Policy;

/// The mean over seeds of one way to replay.
#[derive(Clone, Debug)]
pub struct SeedMeans {
    /// Allocation and fragment ratio over arrived load.
    pub curve: Curve,
    /// Pods that were turned away.
    pub refused: f64,
    /// Of those, pods that found free GPUs, but not the processors or memory to go with them.
    pub refused_for_cpu_or_memory: f64,
    /// The load at which the first pod with GPUs was turned away, in percent of all GPUs; the seeds in which none was
    /// count with the full load.
    pub first_refusal_pct: f64,
}

/// What became of one policy.
#[derive(Clone, Debug)]
pub struct PolicyResult {
    /// The policy.
    pub policy: Policy,
    /// As published.
    pub coupled: SeedMeans,
    /// The mean of the published rows for the same seeds, where there are any.
    pub published: Option<SeedsPublished>,
    /// Coupling removed, the GPUs of a request in one box.
    pub pooled: Option<SeedMeans>,
    /// Coupling removed, the GPUs of a request from any boxes.
    pub pooled_any_box: Option<SeedMeans>,
    /// Coupling removed, spares held back, and GPUs breaking: one outcome a seed.
    pub failing: Vec<FailingOutcome>,
}

/// Ours against the published rows of the same seeds.
#[derive(Clone, Debug)]
pub struct SeedsPublished {
    /// Seeds for which both tables have a row.
    pub rows_total: usize,
    /// Of those, rows that equal ours in every column of both tables.
    pub rows_exact: usize,
    /// The mean published curve.
    pub curve: Curve,
    /// The mean of our curves for those seeds.
    pub ours: Curve,
}

/// What to replay beside the published way.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extras {
    /// Also with the coupling removed.
    pub pooled: bool,
    /// Also with spares and failures.
    pub failing: Option<SparePlan>,
}

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Coupled,
    Pooled(Boxes),
    Failing(SparePlan),
}

enum Outcome {
    Run { curve: Curve, refused: usize, for_cpu_or_memory: usize, first_refusal_pct: f64 },
    Failing(Box<FailingOutcome>),
}

/// Replays a trace with each policy and each seed.
pub fn replay_table(trace: &Trace, policies: &[Policy], seeds: &[u64], extras: Extras) -> Vec<PolicyResult> {
    let mut ways = vec![Way::Coupled];
    if extras.pooled {
        ways.extend([Way::Pooled(Boxes::One), Way::Pooled(Boxes::Any)]);
    }
    ways.extend(extras.failing.map(Way::Failing));
    let mut jobs = Vec::new();
    for &policy in policies {
        for &way in &ways {
            jobs.extend(seeds.iter().map(|&seed| (policy, way, seed)));
        }
    }
    let outcomes = map_in_parallel(&jobs, |&(policy, way, seed)| match way {
        Way::Coupled => condensed(&replay_coupled(trace, policy, seed), trace),
        Way::Pooled(boxes) => condensed(&replay_pooled(trace, policy, seed, boxes), trace),
        Way::Failing(plan) => Outcome::Failing(Box::new(replay_failing(trace, policy, seed, &plan))),
    });
    let mut outcomes = outcomes.into_iter();
    let mut next = || -> Vec<Outcome> { outcomes.by_ref().take(seeds.len()).collect() };
    let mut results = Vec::new();
    for &policy in policies {
        let coupled = next();
        let mut result = PolicyResult {
            policy,
            published: against_published(trace, policy, seeds, &coupled),
            coupled: means(&coupled),
            pooled: None,
            pooled_any_box: None,
            failing: Vec::new(),
        };
        if extras.pooled {
            result.pooled = Some(means(&next()));
            result.pooled_any_box = Some(means(&next()));
        }
        if extras.failing.is_some() {
            let failing = next().into_iter().filter_map(|outcome| match outcome {
                Outcome::Failing(failing) => Some(*failing),
                Outcome::Run { .. } => None,
            });
            result.failing = failing.collect();
        }
        results.push(result);
    }
    results
}

/// Records are large and only their curve is needed later.
fn condensed(run: &Run, trace: &Trace) -> Outcome {
    let pct = |milli: u64| 100.0 * milli as f64 / trace.gpu_milli() as f64;
    Outcome::Run {
        first_refusal_pct: run.first_refusal_milli.map_or(LOAD_PCT_MAX as f64, pct),
        curve: Curve::new(&run.records, trace.gpu_milli()),
        refused: run.refused,
        for_cpu_or_memory: run.refused_for_cpu_or_memory,
    }
}

fn means(outcomes: &[Outcome]) -> SeedMeans {
    let (mut curves, mut sums) = (Vec::new(), [0.0; 3]);
    for outcome in outcomes {
        if let Outcome::Run { curve, refused, for_cpu_or_memory, first_refusal_pct } = outcome {
            curves.push(curve);
            sums[0] += *refused as f64;
            sums[1] += *for_cpu_or_memory as f64;
            sums[2] += first_refusal_pct;
        }
    }
    let [refused, refused_for_cpu_or_memory, first_refusal_pct] = sums.map(|sum| sum / curves.len() as f64);
    SeedMeans { curve: mean_curve(&curves), refused, refused_for_cpu_or_memory, first_refusal_pct }
}

/// The mean of curves, column by column.
pub(super) fn mean_curve(curves: &[&Curve]) -> Curve {
    let mean = |columns: fn(&Curve) -> &[f64]| -> Vec<f64> {
        let length = curves.first().map_or(0, |curve| columns(curve).len());
        let column = |number: usize| curves.iter().map(|curve| columns(curve)[number]).sum::<f64>();
        (0..length).map(|number| column(number) / curves.len() as f64).collect()
    };
    Curve {
        allocation_pct: mean(|curve| &curve.allocation_pct),
        fragment_pct: mean(|curve| &curve.fragment_pct),
    }
}

fn against_published(
    trace: &Trace,
    policy: Policy,
    seeds: &[u64],
    outcomes: &[Outcome],
) -> Option<SeedsPublished> {
    let published = trace.published.as_ref()?;
    let mut pairs = Vec::new();
    for (&seed, outcome) in seeds.iter().zip(outcomes) {
        if let (Some(theirs), Outcome::Run { curve, .. }) = (published.curve(policy, seed), outcome) {
            pairs.push((curve, theirs));
        }
    }
    if pairs.is_empty() {
        return None;
    }
    let (ours, theirs): (Vec<&Curve>, Vec<&Curve>) = pairs.iter().copied().unzip();
    Some(SeedsPublished {
        rows_total: pairs.len(),
        rows_exact: pairs.iter().filter(|(ours, theirs)| compare(ours, theirs)).count(),
        curve: mean_curve(&theirs),
        ours: mean_curve(&ours),
    })
}
