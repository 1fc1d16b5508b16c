//! The replay as published: GPUs with the processors and memory of the servers they sit in.

use super::{Pod, Record, Run, Trace, Workload};
use pool::{BoxSpec, Inventory, Placer, Policy, Scale};

/// What counts as full in the published scores.
pub(super) const PUBLISHED_SCALE: Scale = Scale { cpu_milli: 128_000, gpu_milli: 8_000 };

/// Replays a list with one policy and one seed.
pub fn replay_coupled(trace: &Trace, policy: Policy, seed: u64) -> Run {
    let workload = Workload::new(trace, seed);
    let mut placer = placer(trace, &workload, policy);
    let mut random = workload.random.clone();
    let mut run = Run::with_capacity(workload.arrivals.len());
    for &pod in &workload.arrivals {
        let pod = &trace.pods[pod];
        let choice = placer.choose(&pod.request, &mut random);
        match &choice {
            Some(choice) => placer.grant(choice, &pod.request),
            None => {
                let walls = placer.walls(&pod.request);
                run.refuse(pod, walls.cpu + walls.memory > 0);
            }
        }
        run.record(pod.gpu_milli(), choice.is_some(), &placer);
    }
    run
}

fn placer(trace: &Trace, workload: &Workload, policy: Policy) -> Placer {
    let mut inventory = Inventory::default();
    for (node, &order) in trace.nodes.iter().zip(&workload.orders) {
        let spec = BoxSpec {
            model: node.model,
            gpus: node.gpus,
            cpu_milli: node.cpu_milli,
            memory_mib: node.memory_mib,
            order,
        };
        inventory.add(&spec).expect("the trace was checked when it was read");
    }
    let mix = Workload::mix(trace, |shape| vec![shape.clone()]);
    Placer::new(inventory, policy, PUBLISHED_SCALE, mix)
}

impl Run {
    pub(super) fn with_capacity(arrivals: usize) -> Self {
        Self {
            records: Vec::with_capacity(arrivals),
            refused: 0,
            refused_for_cpu_or_memory: 0,
            first_refusal_milli: None,
        }
    }

    /// Notes that a pod was turned away, before its arrival is recorded.
    pub(super) fn refuse(&mut self, pod: &Pod, for_cpu_or_memory: bool) {
        self.refused += 1;
        self.refused_for_cpu_or_memory += usize::from(for_cpu_or_memory);
        if pod.gpu_milli() > 0 && self.first_refusal_milli.is_none() {
            let arrived = self.records.last().map_or(0, |last| last.arrived_milli);
            self.first_refusal_milli = Some(arrived + pod.gpu_milli());
        }
    }

    /// Notes how things stand after an arrival.
    pub(super) fn record(&mut self, asked_milli: u64, granted: bool, placer: &Placer) {
        let (arrived, used) =
            self.records.last().map_or((0, 0), |last| (last.arrived_milli, last.used_milli));
        let idle = placer.inventory().gpu_milli_free();
        // Where nothing is idle, nothing is fragment.
        let fragment_pct = if idle == 0 { 0.0 } else { 100.0 * placer.wasted() / idle as f64 };
        self.records.push(Record {
            arrived_milli: arrived + asked_milli,
            used_milli: used + if granted { asked_milli } else { 0 },
            fragment_pct,
        });
    }
}
