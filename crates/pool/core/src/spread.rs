//! One request over several boxes: for GPUs that no single box has, where the borrower does not need them together.

use crate::{BoxId, Choice, GpuNeed, Inventory, ModelId, Models, Request, Slots};
use std::cmp::Reverse;
use std::collections::BTreeMap;

impl crate::Placer {
    /// Whole GPUs of one model from as few boxes as possible, or nothing if no accepted model has enough.
    ///
    /// Each part comes with the request it stands for, to grant and release it by. Of the models that can serve, the
    /// one with the fewest idle GPUs left is taken, which leaves the larger stock to larger requests. Looks at every
    /// box; the manager should keep idle GPUs counted by model and by how many a box has.
    pub fn choose_spread(&self, request: &Request, models: &Models) -> Option<Vec<(Choice, Request)>> {
        let GpuNeed::Whole(count) = request.shape.gpus else { return None };
        let mut idle_by_model: BTreeMap<ModelId, u32> = BTreeMap::new();
        for (_, state) in self.inventory().iter() {
            if request.shape.models.accepts(state.model()) {
                *idle_by_model.entry(state.model()).or_default() += state.idle_slots().count();
            }
        }
        let enough = idle_by_model.into_iter().filter(|&(_, idle)| idle >= u32::from(count));
        let (model, _) = enough.min_by_key(|&(model, idle)| (idle, model))?;
        let models = request.shape.models.only(model, models).expect("it is one of the accepted models");
        let parts = fewest_boxes(self.inventory(), model, u32::from(count));
        let part = |(id, slots): (BoxId, Slots)| {
            let gpus = GpuNeed::Whole(slots.count() as u8);
            (Choice { id, slots, score: 0 }, Request::gpus(gpus, models.clone()))
        };
        Some(parts.into_iter().map(part).collect())
    }
}

/// Idle slots of this model, from the boxes that have most of them.
fn fewest_boxes(inventory: &Inventory, model: ModelId, count: u32) -> Vec<(BoxId, Slots)> {
    let of_model = inventory.iter().filter(|(_, state)| state.model() == model);
    let mut boxes: Vec<_> = of_model
        .map(|(id, state)| (Reverse(state.idle_slots().count()), state.order, id, state.idle_slots()))
        .filter(|(idle, ..)| idle.0 > 0)
        .collect();
    boxes.sort_by_key(|&(idle, order, id, _)| (idle, order, id));
    let (mut parts, mut missing) = (Vec::new(), count);
    for (_, _, id, idle) in boxes {
        if missing == 0 {
            break;
        }
        let slots: Slots = idle.iter().take(missing as usize).collect();
        missing -= slots.count();
        parts.push((id, slots));
    }
    assert_eq!(missing, 0, "the idle slots were counted before");
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BoxSpec, Mix, ModelFilter, Placer, Policy, Scale};

    #[test]
    fn a_spread_request_gets_one_model_from_few_boxes() {
        let mut models = Models::default();
        let (a, b) = (models.id("A").unwrap(), models.id("B").unwrap());
        let mut inventory = Inventory::default();
        for (model, gpus) in [(a, 1), (a, 2), (a, 1), (b, 1), (b, 1)] {
            inventory.add(&BoxSpec { model, gpus, cpu_milli: 0, memory_mib: 0, order: 0 }).unwrap();
        }
        let mut placer =
            Placer::new(inventory, Policy::BestFit, Scale { cpu_milli: 1, gpu_milli: 2000 }, Mix::default());
        let request = |count| Request::gpus(GpuNeed::Whole(count), ModelFilter::any());
        let parts = placer.choose_spread(&request(3), &models).unwrap();
        let boxes: Vec<_> = parts.iter().map(|(choice, _)| (choice.id.0, choice.slots.count())).collect();
        assert_eq!(boxes, [(1, 2), (0, 1)]);
        for (choice, part) in &parts {
            placer.grant(choice, part);
        }
        // Model B has two idle GPUs in two boxes, model A only one; no model has three.
        let parts = placer.choose_spread(&request(2), &models).unwrap();
        assert!(parts.iter().all(|(choice, _)| placer.inventory().get(choice.id).model() == b));
        assert_eq!(placer.choose_spread(&request(3), &models), None);
    }
}
