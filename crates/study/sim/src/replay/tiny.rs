//! A small cluster made up for tests.

use super::{Node, Pod, Trace};
use pool::{GpuNeed, Models, Request, Shape};

/// Ten servers of two models with 1, 2, 4 and 8 GPUs, and pods of every kind, two thirds of the load the GPUs can bear.
pub(super) fn trace() -> Trace {
    let mut models = Models::default();
    let mut nodes = Vec::new();
    for (number, gpus) in [8, 8, 4, 4, 4, 2, 2, 2, 1, 8].into_iter().enumerate() {
        let model = models.id(if number < 6 { "A" } else { "B" }).unwrap();
        // The first and the last server are short of processors for the GPUs they have.
        let cpu_milli = if number % 9 == 0 { 8_000 } else { 12_000 * gpus as u32 };
        nodes.push(Node { name: format!("node-{number}"), cpu_milli, memory_mib: 65_536, gpus, model });
    }
    let kinds = [
        (GpuNeed::None, 2_000),
        (GpuNeed::Share(300), 2_000),
        (GpuNeed::Share(600), 3_000),
        (GpuNeed::Whole(1), 4_000),
        (GpuNeed::Whole(1), 8_000),
        (GpuNeed::Whole(2), 8_000),
        (GpuNeed::Whole(4), 16_000),
    ];
    let pod = |number: usize| {
        let (gpus, cpu_milli) = kinds[number % kinds.len()];
        let shape = Shape { cpu_milli, gpus, models: pool::ModelFilter::any() };
        Pod { name: format!("pod-{number:02}"), request: Request { shape, memory_mib: 1024 } }
    };
    Trace { list: "tiny".to_owned(), nodes, pods: (0..21).map(pod).collect(), models, published: None }
}
