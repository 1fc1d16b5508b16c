//! Random graphs: between two gates no path costs more than the budget.

use super::{Dice, first_failure, is_found};
use crate::{GraphStep, graph_gates, mutant::Mutant};

fn longest(lengths: &[u64], after: &[u32]) -> u64 {
    after.iter().map(|&before| lengths[before as usize]).max().unwrap_or(0)
}

/// A random graph: on no path is more done between two gates than the budget allows, or one node.
fn run(seed: u64) -> Result<(), String> {
    let mut dice = Dice::new(seed);
    let count = 1 + dice.below(40) as usize;
    let mut after: Vec<Vec<u32>> = Vec::new();
    let mut works = Vec::new();
    for at in 0..count as u64 {
        let edges = if at == 0 { 0 } else { dice.below(4) };
        after.push((0..edges).map(|_| dice.below(at) as u32).collect());
        works.push(dice.below(5) > 0);
    }
    let steps: Vec<_> =
        after.iter().zip(&works).map(|(after, &is_work)| GraphStep { after, is_work }).collect();
    let (time_ns, budget_ns) = (1 + dice.below(1_000_000), 1 + dice.below(100_000));
    let gates = graph_gates(&steps, time_ns, budget_ns);
    let mut depth: Vec<u64> = Vec::new();
    for step in &steps {
        depth.push(longest(&depth, step.after) + u64::from(step.is_work));
    }
    let cost_ns = time_ns.div_ceil(depth.iter().copied().max().unwrap_or(0).max(1));
    let mut done: Vec<u64> = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        let before = if gates[at] { 0 } else { longest(&done, step.after) };
        done.push(before + if step.is_work { cost_ns } else { 0 });
        if done[at] > budget_ns.max(cost_ns) {
            return Err(format!("node {at} ends a path of {} without a gate", done[at]));
        }
    }
    Ok(())
}

#[test]
fn no_path_between_two_gates_costs_more_than_the_budget_in_10000_graphs() {
    assert_eq!(first_failure(0..10_000, run), None);
    assert!(is_found(Mutant::GraphWithoutGates, 0..100, run));
}
