//! The replay with the coupling removed: the same GPUs in boxes, the same processors and memory in hosts, and any host
//! borrows from any box.
//!
//! Nothing is added: a pod still needs a host with the processors and memory it asks for, and GPUs it can use; they just
//! need not be in one machine. Pods without GPUs never touch a box. Hosts are filled by best fit whatever the policy,
//! so that policies differ only in what they do with GPUs.

use super::coupled::PUBLISHED_SCALE;
use super::{Pod, Run, Trace, Workload};
use pool::{BoxSpec, Choice, Dice, GpuNeed, Inventory, Mix, ModelFilter, Placer, Policy, Request, Shape};

/// Where the GPUs of one request may come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boxes {
    /// One box, as programs with NVLink want it; also the rule of the published replay.
    One,
    /// Any boxes, if no single one has enough.
    Any,
}

/// Replays a list with one policy and one seed, coupling removed.
pub fn replay_pooled(trace: &Trace, policy: Policy, seed: u64, boxes: Boxes) -> Run {
    let workload = Workload::new(trace, seed);
    let mut pool = Pooled::new(trace, &workload, policy, boxes);
    let mut random = workload.random.clone();
    let mut run = Run::with_capacity(workload.arrivals.len());
    for &pod in &workload.arrivals {
        let pod = &trace.pods[pod];
        let granted = pool.ask(pod, trace, boxes, &mut random);
        if let Err(refusal) = &granted {
            run.refuse(pod, *refusal == NoRoom::OnHosts);
        }
        run.record(pod.gpu_milli(), granted.is_ok(), &pool.gpus);
    }
    run
}

/// Which side turned a pod away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoRoom {
    /// The GPUs are there, but no host has the processors and memory.
    OnHosts,
    /// No GPUs.
    InBoxes,
}

/// Boxes of GPUs, and hosts without any.
pub(super) struct Pooled {
    pub(super) gpus: Placer,
    hosts: Placer,
}

impl Pooled {
    pub(super) fn new(trace: &Trace, workload: &Workload, policy: Policy, boxes: Boxes) -> Self {
        let (mut gpus, mut hosts) = (Inventory::default(), Inventory::default());
        for (node, &order) in trace.nodes.iter().zip(&workload.orders) {
            let server = BoxSpec {
                model: node.model,
                gpus: node.gpus,
                cpu_milli: node.cpu_milli,
                memory_mib: node.memory_mib,
                order,
            };
            let in_range = "the trace was checked when it was read";
            gpus.add(&BoxSpec { cpu_milli: 0, memory_mib: 0, ..server.clone() }).expect(in_range);
            hosts.add(&BoxSpec { gpus: 0, ..server }).expect(in_range);
        }
        let mix = Workload::mix(trace, |shape| asked_of_boxes(shape, boxes));
        Self {
            gpus: Placer::new(gpus, policy, PUBLISHED_SCALE, mix),
            hosts: Placer::new(hosts, Policy::BestFit, PUBLISHED_SCALE, Mix::default()),
        }
    }

    /// Grants a pod its host and its GPUs, or neither. The parts say which GPUs.
    pub(super) fn ask(
        &mut self,
        pod: &Pod,
        trace: &Trace,
        boxes: Boxes,
        dice: &mut dyn Dice,
    ) -> Result<Parts, NoRoom> {
        let parts = self.choose_gpus(&pod.request.shape, trace, boxes, dice).ok_or(NoRoom::InBoxes)?;
        let on_host = request_of_host(&pod.request);
        let host = self.hosts.choose(&on_host, dice).ok_or(NoRoom::OnHosts)?;
        self.hosts.grant(&host, &on_host);
        for (choice, request) in &parts {
            self.gpus.grant(choice, request);
        }
        Ok(parts)
    }

    fn choose_gpus(
        &mut self,
        shape: &Shape,
        trace: &Trace,
        boxes: Boxes,
        dice: &mut dyn Dice,
    ) -> Option<Parts> {
        if shape.gpus == GpuNeed::None {
            return Some(Vec::new());
        }
        let request = Request::gpus(shape.gpus, shape.models.clone());
        match self.gpus.choose(&request, dice) {
            Some(choice) => Some(vec![(choice, request)]),
            None if boxes == Boxes::Any => self.gpus.choose_spread(&request, &trace.models),
            None => None,
        }
    }
}

/// The GPUs of one pod: slots of boxes, with the request each part stands for.
pub(super) type Parts = Vec<(Choice, Request)>;

/// What a pod asks of hosts.
fn request_of_host(request: &Request) -> Request {
    let shape = Shape { cpu_milli: request.shape.cpu_milli, gpus: GpuNeed::None, models: ModelFilter::any() };
    Request { shape, memory_mib: request.memory_mib }
}

/// What a pod counts as in the mix that boxes are judged by: without processors, and not at all without GPUs. Where GPUs
/// may come from any box, whole GPUs are asked for one at a time.
fn asked_of_boxes(shape: &Shape, boxes: Boxes) -> Vec<Shape> {
    let asked = |gpus| Shape { cpu_milli: 0, gpus, models: shape.models.clone() };
    match (shape.gpus, boxes) {
        (GpuNeed::None, _) => Vec::new(),
        (GpuNeed::Whole(count), Boxes::Any) => vec![asked(GpuNeed::Whole(1)); usize::from(count)],
        (gpus, _) => vec![asked(gpus)],
    }
}
