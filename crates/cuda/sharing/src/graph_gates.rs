//! Where the work of a graph waits for the gate.
//!
//! A graph is launched as a whole, so its groups are cut when it is made: a node that waits for the gate stands in front of each
//! node at which a path through the graph has cost more than the budget.
//!
//! ```text
//!   launch ─▶ wait  k k k  gate  k k k k  gate  k k …          gates: nodes that the device itself carries out
//! ```
//!
//! What a node costs is not known: events around a launch time the graph as a whole. The time is spread evenly over the nodes of
//! the longest path.

use crate::mutant::{Mutant, is_planted};

/// So many launches are timed. The shortest counts: the others may contain a switch to another program.
const SAMPLES: u32 = 3;

/// What a launch of a graph takes, learned from its first launches.
#[derive(Clone, Copy, Debug, Default)]
pub struct GraphTime {
    shortest_ns: u64,
    samples: u32,
}

impl GraphTime {
    /// Whether the next launch is to be timed.
    pub fn is_sampled(&self) -> bool {
        self.samples < SAMPLES
    }

    /// A launch that was timed took so long.
    pub fn sample(&mut self, ns: u64) {
        self.shortest_ns = if self.samples == 0 { ns } else { self.shortest_ns.min(ns) };
        self.samples = self.samples.saturating_add(1);
    }

    /// The time, when enough launches were timed.
    pub fn ns(&self) -> Option<u64> {
        (!self.is_sampled()).then_some(self.shortest_ns)
    }
}

/// A node of a graph.
#[derive(Clone, Copy, Debug)]
pub struct GraphStep<'a> {
    /// The places of those before it. Each is less than its own.
    pub after: &'a [u32],
    /// Whether it occupies the device.
    pub is_work: bool,
}

/// For each node whether a gate stands in front of it. The launch has waited already, so the first group has none.
pub fn graph_gates(steps: &[GraphStep<'_>], time_ns: u64, budget_ns: u64) -> Vec<bool> {
    // The longest path to each node, of so many nodes that work.
    let mut depths: Vec<u64> = Vec::with_capacity(steps.len());
    for step in steps {
        let before = longest(&depths, step.after);
        depths.push(before + u64::from(step.is_work));
    }
    let deepest = depths.iter().copied().max().unwrap_or(0).max(1);
    let cost_ns = time_ns.div_ceil(deepest).max(1);
    // The longest path to each node since the gates on it.
    let mut paths: Vec<u64> = Vec::with_capacity(steps.len());
    let mut gates = Vec::with_capacity(steps.len());
    for step in steps {
        let before = longest(&paths, step.after);
        let sum = before.saturating_add(if step.is_work { cost_ns } else { 0 });
        let is_gated = before > 0 && sum > budget_ns;
        gates.push(is_gated && !is_planted(Mutant::GraphWithoutGates));
        paths.push(if is_gated { sum - before } else { sum });
    }
    gates
}

fn longest(lengths: &[u64], after: &[u32]) -> u64 {
    after.iter().filter_map(|&before| lengths.get(before as usize)).copied().max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_is_cut_into_groups_of_the_budget() {
        let places: Vec<[u32; 1]> = (0..100).map(|at: u32| [at.wrapping_sub(1)]).collect();
        let step = |at: usize| GraphStep { after: if at == 0 { &[] } else { &places[at] }, is_work: true };
        let chain: Vec<_> = (0..100).map(step).collect();
        // 10 us each.
        let gates = graph_gates(&chain, 1_000_000, 50_000);
        let at: Vec<usize> = (0..100).filter(|&at| gates[at]).collect();
        assert_eq!(at, (5..100).step_by(5).collect::<Vec<_>>());
        assert!(!graph_gates(&chain, 40_000, 50_000).contains(&true), "all of it is one group");
        let gates = graph_gates(&chain, 100_000_000, 50_000);
        assert!(!gates[0] && gates[1..].iter().all(|&gate| gate), "each is longer than the budget");
    }

    #[test]
    fn the_shortest_of_three_launches_counts() {
        let mut time = GraphTime::default();
        for ns in [900, 300, 5_000] {
            assert!(time.is_sampled() && time.ns().is_none());
            time.sample(ns);
        }
        assert_eq!((time.ns(), time.is_sampled()), (Some(300), false));
    }
}
