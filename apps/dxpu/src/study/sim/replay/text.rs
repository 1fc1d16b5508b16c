//! The findings for people.

use super::{Findings, SparesAt};
use pool::Policy;
use sim::replay::{FailingOutcome, PolicyResult};

pub(super) fn print(findings: &Findings) {
    let Findings { trace, seeds, results, .. } = findings;
    outln!(
        "list {}: {} pods, {} GPUs in {} servers; mean of {} seeds at 130 % arrived load\n",
        trace.list,
        trace.pods.len(),
        trace.gpus(),
        trace.nodes.len(),
        seeds.len()
    );
    print_coupled(results);
    if results.iter().any(|result| result.pooled.is_some()) {
        outln!("\npooled: the same GPUs in boxes, the same CPUs and memory in hosts");
        print_pooled(results);
    }
    if let Some(plan) = &findings.spare_plan {
        outln!(
            "\npooled, with spares for {} % of the time, GPUs breaking {:.1} % a year for {} days, over {} days",
            (plan.cover * 1e8).round() / 1e6,
            plan.process.failures_per_gpu_year * 100.0,
            plan.process.repair_days,
            plan.days
        );
        print_failing(results);
    }
    findings.spares.iter().for_each(print_spares);
}

/// Prints rows under a heading: the first column to the left, the others to the right.
fn print_table<const N: usize>(heading: [&str; N], rows: impl IntoIterator<Item = [String; N]>) {
    let mut lines = vec![heading.map(str::to_owned)];
    lines.extend(rows);
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    for line in &lines {
        let mut text = format!("  {:<1$}", line[0], widths[0]);
        for (cell, width) in line.iter().zip(widths).skip(1) {
            text.push_str(&format!("   {cell:>width$}"));
        }
        outln!("{text}");
    }
}

fn print_coupled(results: &[PolicyResult]) {
    let row = |result: &PolicyResult| {
        let (published, rows) = match &result.published {
            Some(published) => (
                format!("{:.3}", published.curve.allocation_at_full_load()),
                format!("{} of {}", published.rows_exact, published.rows_total),
            ),
            None => ("-".to_owned(), "-".to_owned()),
        };
        let means = &result.coupled;
        [
            result.policy.to_string(),
            format!("{:.3}", means.curve.allocation_at_full_load()),
            published,
            rows,
            format!("{:.3}", means.curve.fragment_at_full_load()),
            format!("{:.2}", means.first_refusal_pct),
            format!("{:.0}", means.refused),
            format!("{:.0}", means.refused_for_cpu_or_memory),
        ]
    };
    let heading = [
        "policy",
        "allocated %",
        "published",
        "rows equal",
        "fragment %",
        "first refusal at load %",
        "refused",
        "CPU or memory lacking",
    ];
    print_table(heading, results.iter().map(row));
    if results.iter().any(|result| result.policy == Policy::Random && result.published.is_some()) {
        outln!("  (random draws from threads in the original: its rows can only come near)");
    }
}

fn print_pooled(results: &[PolicyResult]) {
    let row = |result: &PolicyResult| {
        let (one, any) = (result.pooled.as_ref()?, result.pooled_any_box.as_ref()?);
        let coupled = result.coupled.curve.allocation_at_full_load();
        let (one_box, any_box) = (one.curve.allocation_at_full_load(), any.curve.allocation_at_full_load());
        Some([
            result.policy.to_string(),
            format!("{one_box:.3}"),
            format!("{:+.2}", one_box - coupled),
            format!("{:.2}", one.first_refusal_pct),
            format!("{:.0}", one.refused),
            format!("{:.0}", one.refused_for_cpu_or_memory),
            format!("{any_box:.3}"),
            format!("{:+.2}", any_box - coupled),
            format!("{:.2}", any.first_refusal_pct),
        ])
    };
    let heading = [
        "policy",
        "allocated %",
        "gain",
        "first refusal at load %",
        "refused",
        "no host",
        "any box: allocated %",
        "gain",
        "first refusal at load %",
    ];
    print_table(heading, results.iter().filter_map(row));
}

fn print_failing(results: &[PolicyResult]) {
    let row = |result: &PolicyResult| {
        let outcomes = &result.failing;
        let mean = |figure: fn(&FailingOutcome) -> f64| {
            outcomes.iter().map(figure).sum::<f64>() / outcomes.len() as f64
        };
        let count = |figure: fn(&FailingOutcome) -> f64| format!("{:.1}", mean(figure));
        [
            result.policy.to_string(),
            format!("{:.3}", mean(|outcome| outcome.curve.allocation_at_full_load())),
            outcomes.first().map_or(0, FailingOutcome::spares_total).to_string(),
            count(|outcome| outcome.failures as f64),
            count(|outcome| outcome.failures_in_use as f64),
            count(|outcome| outcome.replaced as f64),
            count(|outcome| outcome.moved_whole as f64),
            count(|outcome| outcome.split as f64),
            count(|outcome| outcome.waited as f64),
            format!("{:.5}", mean(|outcome| outcome.lease_time_kept * 100.0)),
        ]
    };
    let heading = [
        "policy",
        "allocated %",
        "spares",
        "broke",
        "in use",
        "replaced",
        "moved whole",
        "split",
        "waited",
        "lease time kept %",
    ];
    print_table(heading, results.iter().map(row));
    if let Some(first) = results.first().and_then(|result| result.failing.first()) {
        let models =
            first.spares.iter().map(|model| format!("{} of {} {}", model.spares, model.gpus, model.model));
        outln!("  spares by model: {}", models.collect::<Vec<_>>().join(", "));
    }
}

fn print_spares(spares: &SparesAt) {
    let process = &spares.process;
    outln!(
        "\nspares needed, GPUs breaking {:.1} % a year, back after {} days",
        process.failures_per_gpu_year * 100.0,
        process.repair_days
    );
    let heading = [
        "GPUs",
        "in repair",
        "computed",
        "simulated",
        "covered %",
        "error",
        "with one less %",
        "served at once %",
        "years played",
    ];
    let rows = spares.needed.iter().map(|needed| {
        [
            needed.gpus.to_string(),
            format!("{:.2}", needed.mean_in_repair),
            needed.computed.to_string(),
            needed.simulated.to_string(),
            format!("{:.3}", needed.with.covered * 100.0),
            format!("{:.4}", needed.with.covered_error * 100.0),
            needed.with_one_less.map_or("-".to_owned(), |less| format!("{:.3}", less.covered * 100.0)),
            format!("{:.3}", needed.with.served_at_once * 100.0),
            format!("{:.0}", needed.with.years),
        ]
    });
    print_table(heading, rows);
}
