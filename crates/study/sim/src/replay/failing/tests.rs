//! Failures on a small cluster, much more often than in life.

use super::*;
use crate::replay::spares::Repairs;
use crate::replay::tiny;

fn plan(failures_per_gpu_year: f64, cover: f64) -> SparePlan {
    let process = FailureProcess { failures_per_gpu_year, repair_days: 4.0, repairs: Repairs::Exponential };
    SparePlan { process, cover, days: 300.0 }
}

/// As `replay_failing`, with everything checked after every arrival.
fn checked(policy: Policy, seed: u64, plan: &SparePlan) -> FailingOutcome {
    let trace = tiny::trace();
    let workload = Workload::new(&trace, seed);
    let pool = Pooled::new(&trace, &workload, policy, Boxes::One);
    let mut ward = Ward::new(&trace, pool, plan, SplitMix::new(seed));
    let mut random = workload.random.clone();
    for (number, &pod) in workload.arrivals.iter().enumerate() {
        ward.pass_time_until(plan.days * number as f64 / workload.arrivals.len() as f64);
        if let Ok(parts) = ward.pool.ask(&trace.pods[pod], &trace, Boxes::One, &mut random) {
            parts.iter().for_each(|(choice, request)| ward.lease(choice, request));
        }
        ward.check();
    }
    ward.pass_time_until(plan.days);
    ward.check();
    ward.finish(Curve { allocation_pct: Vec::new(), fragment_pct: Vec::new() })
}

#[test]
fn nothing_is_lost_or_held_twice_however_much_breaks() {
    let mut seen = [0; 5];
    for policy in [Policy::Random, Policy::Packing, Policy::Fgd] {
        for seed in 0..12 {
            let outcome = checked(policy, seed, &plan(6.0, [0.0, 0.9][seed as usize % 2]));
            let ways = [outcome.replaced, outcome.moved_whole, outcome.split, outcome.waited];
            assert_eq!(ways.iter().sum::<usize>(), outcome.failures_in_use, "{outcome:?}");
            assert!(outcome.failures >= outcome.failures_in_use);
            for (total, count) in seen.iter_mut().zip(ways.into_iter().chain([outcome.failures])) {
                *total += count;
            }
        }
    }
    assert!(seen.iter().all(|&count| count > 0), "every way out is taken sometimes: {seen:?}");
}

#[test]
fn spares_keep_leases_running() {
    let kept = |cover| -> f64 {
        let outcomes = (0..20).map(|seed| checked(Policy::Fgd, seed, &plan(2.0, cover)));
        outcomes.map(|outcome| outcome.lease_time_kept).sum::<f64>() / 20.0
    };
    let (without, with) = (kept(0.0), kept(0.99));
    assert!(without < 0.998 && with > 0.9995, "{without} {with}");
}

#[test]
fn without_failures_it_is_the_pooled_replay_on_fewer_gpus() {
    let trace = tiny::trace();
    let outcome = replay_failing(&trace, Policy::BestFit, 42, &plan(0.0, 0.0));
    let run = crate::replay::replay_pooled(&trace, Policy::BestFit, 42, Boxes::One);
    let pooled = Curve::new(&run.records, trace.gpu_milli());
    // As text, since columns without records hold no number, which equals nothing.
    assert_eq!(format!("{:?}", outcome.curve), format!("{pooled:?}"));
    assert_eq!((outcome.failures, outcome.spares_total(), outcome.lease_time_kept), (0, 0, 1.0));
}
