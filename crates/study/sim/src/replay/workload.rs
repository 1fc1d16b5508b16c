//! What one seed makes of a trace: the order of arrival, the copies up to the full load, and which server wins ties.

use super::{GoRandom, Trace};
use pool::{Mix, Shape};

/// Load that arrives in a replay, in percent of all GPUs.
pub const LOAD_PCT_MAX: u64 = 130;

/// Values that other parts of the original drew from its one generator, at two moments: a message that was never
/// shown, and ten watches that chose their time-outs.
const DRAWN_BEFORE_ORDER: usize = 1;
const DRAWN_BEFORE_TIES: usize = 10;

/// The share of pods that the typical mix must cover, in percent.
const MIX_COVER_PCT: u64 = 95;

/// The order in which pods arrive, and which server wins a tie.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Indices of pods, in the order they arrive; copies repeat an index.
    pub arrivals: Vec<usize>,
    /// For each server, its rank among equals; smaller wins.
    pub orders: Vec<u32>,
    /// The generator, as it is when the first pod arrives.
    pub random: GoRandom,
}

impl Workload {
    /// Draws everything in the order in which the original drew it.
    pub fn new(trace: &Trace, seed: u64) -> Self {
        let mut random = GoRandom::new(seed);
        random.skip(DRAWN_BEFORE_ORDER);
        let mut arrivals: Vec<usize> = (0..trace.pods.len()).collect();
        random.shuffle(&mut arrivals);
        tune(trace, &mut arrivals, &mut random);
        random.skip(DRAWN_BEFORE_TIES);
        let orders = random.permutation(trace.nodes.len());
        Self { arrivals, orders, random }
    }

    /// What a list usually asks for, whatever the seed. `asked` says what a pod counts as.
    pub(super) fn mix(trace: &Trace, asked: impl Fn(&Shape) -> Vec<Shape>) -> Mix {
        let shapes: Vec<Shape> = trace.pods.iter().flat_map(|pod| asked(&pod.request.shape)).collect();
        Mix::observe(&shapes, MIX_COVER_PCT)
    }
}

/// Repeats or drops pods until the load is what it should be.
fn tune(trace: &Trace, arrivals: &mut Vec<usize>, random: &mut GoRandom) {
    let target = trace.gpu_milli() * LOAD_PCT_MAX / 100;
    let mut load: u64 = trace.pods.iter().map(super::Pod::gpu_milli).sum();
    if load > target {
        while load > target {
            let victim = random.below(arrivals.len() as u32) as usize;
            load -= trace.pods[arrivals.remove(victim)].gpu_milli();
        }
        return;
    }
    // Pods without GPUs add no load: a list of only those would be copied for ever.
    if load == target || load == 0 {
        return;
    }
    loop {
        let copy = random.below(trace.pods.len() as u32) as usize;
        // As in the original, one GPU of the pod is what must fit, not all of them.
        let one_gpu = u64::from(trace.pods[copy].request.shape.gpus.slot_milli());
        if load + one_gpu > target {
            return;
        }
        arrivals.push(copy);
        load += trace.pods[copy].gpu_milli();
    }
}
