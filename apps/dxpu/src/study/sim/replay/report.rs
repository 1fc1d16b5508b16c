//! The findings as JSON.

use super::{Findings, SparesAt};
use serde::Serialize;
use sim::replay::{FailingOutcome, PlayedOut, PolicyResult, SeedMeans, SparesNeeded};

#[derive(Serialize)]
pub(super) struct Report {
    list: String,
    gpus: usize,
    pods: usize,
    seeds: Vec<u64>,
    /// The figures of the policy, where only one was asked for.
    #[serde(flatten)]
    one: Option<PolicyReport>,
    /// Over all policies, where several were asked for. Random is among them and cannot be exact.
    #[serde(flatten)]
    all: Option<AllReport>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    spares: Vec<SparesReport>,
}

#[derive(Serialize)]
struct AllReport {
    #[serde(skip_serializing_if = "Option::is_none")]
    rows_exact: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rows_total: Option<usize>,
    policies: Vec<PolicyReport>,
}

#[derive(Serialize)]
struct PolicyReport {
    policy: &'static str,
    #[serde(flatten)]
    coupled: MeansReport,
    #[serde(flatten)]
    published: Option<PublishedReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pooled: Option<PooledReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pooled_any_box: Option<PooledReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pooled_with_spares: Option<FailingReport>,
}

#[derive(Serialize)]
struct MeansReport {
    allocation_pct: f64,
    frag_ratio_pct: f64,
    refused: f64,
    refused_for_cpu_or_memory: f64,
    first_refusal_load_pct: f64,
}

#[derive(Serialize)]
struct PublishedReport {
    published_allocation_pct: f64,
    published_frag_ratio_pct: f64,
    rows_exact: usize,
    rows_total: usize,
}

#[derive(Serialize)]
struct PooledReport {
    #[serde(flatten)]
    means: MeansReport,
    gain_points: f64,
}

#[derive(Serialize)]
struct FailingReport {
    allocation_pct: f64,
    frag_ratio_pct: f64,
    gain_points: f64,
    failures_per_gpu_year: f64,
    repair_days: f64,
    cover_pct: f64,
    days: f64,
    spares: usize,
    spares_by_model: Vec<ModelReport>,
    failures: f64,
    failures_in_use: f64,
    replaced: f64,
    moved_whole: f64,
    split: f64,
    waited: f64,
    lease_time_kept_pct: f64,
}

#[derive(Serialize)]
struct ModelReport {
    model: String,
    gpus: usize,
    spares: usize,
}

#[derive(Serialize)]
struct SparesReport {
    failures_per_gpu_year: f64,
    repair_days: f64,
    pools: Vec<PoolReport>,
}

#[derive(Serialize)]
struct PoolReport {
    gpus: usize,
    mean_in_repair: f64,
    spares_computed: usize,
    spares_simulated: usize,
    simulated: PlayedReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    simulated_with_one_less: Option<PlayedReport>,
}

#[derive(Serialize)]
struct PlayedReport {
    years: f64,
    failures: u64,
    covered_pct: f64,
    covered_pct_error: f64,
    served_at_once_pct: f64,
}

fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

pub(super) fn report(findings: &Findings) -> Report {
    let mut policies: Vec<PolicyReport> =
        findings.results.iter().map(|result| policy_report(result, findings)).collect();
    let (one, all) = match policies.len() {
        1 => (policies.pop(), None),
        _ => (None, Some(all_report(policies))),
    };
    Report {
        list: findings.trace.list.clone(),
        gpus: findings.trace.gpus(),
        pods: findings.trace.pods.len(),
        seeds: findings.seeds.clone(),
        one,
        all,
        spares: findings.spares.iter().map(spares_report).collect(),
    }
}

fn all_report(policies: Vec<PolicyReport>) -> AllReport {
    let sum = |rows: fn(&PublishedReport) -> usize| -> Option<usize> {
        policies.iter().map(|policy| policy.published.as_ref().map(rows)).sum()
    };
    AllReport { rows_exact: sum(|rows| rows.rows_exact), rows_total: sum(|rows| rows.rows_total), policies }
}

fn policy_report(result: &PolicyResult, findings: &Findings) -> PolicyReport {
    let published = result.published.as_ref().map(|published| PublishedReport {
        published_allocation_pct: rounded(published.curve.allocation_at_full_load()),
        published_frag_ratio_pct: rounded(published.curve.fragment_at_full_load()),
        rows_exact: published.rows_exact,
        rows_total: published.rows_total,
    });
    let coupled = result.coupled.curve.allocation_at_full_load();
    let pooled = |means: &SeedMeans| PooledReport {
        gain_points: rounded(means.curve.allocation_at_full_load() - coupled),
        means: means_report(means),
    };
    PolicyReport {
        policy: result.policy.name(),
        coupled: means_report(&result.coupled),
        published,
        pooled: result.pooled.as_ref().map(pooled),
        pooled_any_box: result.pooled_any_box.as_ref().map(pooled),
        pooled_with_spares: failing_report(&result.failing, coupled, findings),
    }
}

fn means_report(means: &SeedMeans) -> MeansReport {
    MeansReport {
        allocation_pct: rounded(means.curve.allocation_at_full_load()),
        frag_ratio_pct: rounded(means.curve.fragment_at_full_load()),
        refused: rounded(means.refused),
        refused_for_cpu_or_memory: rounded(means.refused_for_cpu_or_memory),
        first_refusal_load_pct: rounded(means.first_refusal_pct),
    }
}

fn failing_report(outcomes: &[FailingOutcome], coupled: f64, findings: &Findings) -> Option<FailingReport> {
    let (plan, first) = (findings.spare_plan.as_ref()?, outcomes.first()?);
    let mean = |figure: &dyn Fn(&FailingOutcome) -> f64| {
        rounded(outcomes.iter().map(figure).sum::<f64>() / outcomes.len() as f64)
    };
    let allocation_pct = mean(&|outcome| outcome.curve.allocation_at_full_load());
    let models = first.spares.iter().map(|model| ModelReport {
        model: model.model.clone(),
        gpus: model.gpus,
        spares: model.spares,
    });
    Some(FailingReport {
        allocation_pct,
        frag_ratio_pct: mean(&|outcome| outcome.curve.fragment_at_full_load()),
        gain_points: rounded(allocation_pct - coupled),
        failures_per_gpu_year: plan.process.failures_per_gpu_year,
        repair_days: plan.process.repair_days,
        cover_pct: rounded(plan.cover * 100.0),
        days: plan.days,
        spares: first.spares_total(),
        spares_by_model: models.collect(),
        failures: mean(&|outcome| outcome.failures as f64),
        failures_in_use: mean(&|outcome| outcome.failures_in_use as f64),
        replaced: mean(&|outcome| outcome.replaced as f64),
        moved_whole: mean(&|outcome| outcome.moved_whole as f64),
        split: mean(&|outcome| outcome.split as f64),
        waited: mean(&|outcome| outcome.waited as f64),
        lease_time_kept_pct: mean(&|outcome| outcome.lease_time_kept * 100.0),
    })
}

fn spares_report(spares: &SparesAt) -> SparesReport {
    SparesReport {
        failures_per_gpu_year: spares.process.failures_per_gpu_year,
        repair_days: spares.process.repair_days,
        pools: spares.needed.iter().map(pool_report).collect(),
    }
}

fn pool_report(needed: &SparesNeeded) -> PoolReport {
    PoolReport {
        gpus: needed.gpus,
        mean_in_repair: rounded(needed.mean_in_repair),
        spares_computed: needed.computed,
        spares_simulated: needed.simulated,
        simulated: played_report(&needed.with),
        simulated_with_one_less: needed.with_one_less.as_ref().map(played_report),
    }
}

fn played_report(played: &PlayedOut) -> PlayedReport {
    PlayedReport {
        years: rounded(played.years),
        failures: played.failures,
        covered_pct: rounded(played.covered * 100.0),
        covered_pct_error: rounded(played.covered_error * 100.0),
        served_at_once_pct: rounded(played.served_at_once * 100.0),
    }
}
