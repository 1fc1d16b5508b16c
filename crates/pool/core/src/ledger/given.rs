//! Leases that name their GPUs.
//!
//! A scheduler beside the pool, such as that of Kubernetes, has chosen the GPUs already; two schedulers must not disagree.
//! So such a lease gets exactly these GPUs or waits for them. It keeps other leases from none: a scheduler that sees what
//! is free seldom chooses what is not. A lost GPU is replaced by itself alone, unless the lease's program outlives the
//! loss: then the lease is bound to its names until its first grant, and moves like any other afterwards.

use super::Ledger;
use super::explain::{Fallen, OBSTACLES, obstacle};
use super::possible::Impossible;
use super::queue::Wish;
use super::stock::{Mask, Place, Standing};
use pool_api::{Explanation, Grant, LeaseId, Topology};

impl Ledger {
    /// The GPUs that a wish names, if all of them can be had now and are of these classes.
    pub(super) fn given_places(&self, wish: &Wish, classes: Mask) -> Option<Vec<Place>> {
        let mut places = Vec::with_capacity(wish.given.len());
        let mut model = None;
        for id in &wish.given {
            let entry = self.entry(id)?;
            let is_free = match self.stock.standing(entry.place) {
                Standing::Usable => true,
                Standing::Spare => wish.lost,
                Standing::Busy | Standing::Gone => false,
            };
            // A slot may have got another GPU since the lease was asked for.
            let is_alike = *model.get_or_insert(&entry.gpu.model) == &entry.gpu.model;
            if !is_free || !is_alike || !self.stock.is_of(entry.place, classes) {
                return None;
            }
            places.push(entry.place);
        }
        Some(places)
    }

    /// The very GPUs that a lease has lost, if all of them can be had again.
    pub(super) fn given_again(&self, id: LeaseId, lost: &[Grant], classes: Mask) -> Option<Vec<Place>> {
        let mut places = Vec::with_capacity(lost.len());
        for grant in lost {
            places.push(self.usable_again(id, grant, classes, &places)?);
        }
        Some(places)
    }

    /// Whether the GPUs that a wish names could ever serve it together.
    pub(super) fn check_given(&self, wish: &Wish) -> Result<(), Impossible> {
        let mut first = None;
        for id in &wish.given {
            let refused = |why| Err(Impossible::Given { gpu: id.clone(), why });
            let owner = self.boxes.get(&id.box_name).filter(|owner| owner.record.revoked.is_none());
            let Some(owner) = owner else { return refused("its box is not in this pool") };
            let Some(gpu) = owner.slots.get(&id.slot).map(|entry| &*entry.gpu) else {
                return refused("its box has no such slot");
            };
            let first = *first.get_or_insert(gpu);
            if gpu.only_pcie {
                return refused("it is no GPU that programs reach without a host");
            }
            if !wish.accepts_guest(gpu.guest.is_some()) {
                return refused(
                    "seats for guests are for offline leases, and offline leases get nothing else",
                );
            }
            if !wish.accepts_part(gpu) {
                return refused("a part of a GPU is for leases with a share that is not larger");
            }
            if !wish.accepts_model(&gpu.model) {
                return refused("it is of another model than was asked for");
            }
            if gpu.model != first.model {
                return refused("all GPUs of a lease are of one model, and this one is of another");
            }
            if !wish.accepts_memory(gpu.memory_bytes) {
                return refused("it has less memory than was asked for");
            }
            if !wish.accepts_kind(owner.record.kind) {
                return refused("its box is of another kind than was asked for");
            }
            if wish.topology == Topology::Nvlink && gpu.nvlink_group != first.nvlink_group {
                return refused("it is not joined by NVLink with the others");
            }
        }
        Ok(())
    }

    /// What holds up the GPUs that a wish names.
    pub(super) fn explain_given(&self, wish: &Wish, fallen: &Fallen, answer: &mut Explanation) {
        for filter in OBSTACLES {
            for place in fallen.get(&filter).into_iter().flatten() {
                let gpu = self.gpu_at(*place);
                answer.reasons.push(format!("{gpu}, which it names, is {}", obstacle(filter)));
            }
        }
        if !answer.reasons.is_empty() {
            let names: Vec<String> = wish.given.iter().map(ToString::to_string).collect();
            answer.remedies.push(format!(
                "wait until {} can be had, or release it and ask again with other GPUs",
                names.join(", ")
            ));
        }
    }
}
