//! Parts of GPUs: which leases get them, and what is said to those that cannot have one.
//!
//! ```text
//!   lease with a share     a part that is large enough, the smallest first    whole GPUs only where no such part works
//!   any other lease        whole GPUs                                         never a part
//! ```
//!
//! A part is a GPU record with an epoch, a fence, a worker and a cleaning of its own, so no record ever has two holders. What
//! an operator does to one part by hand is done to its GPU, and so to all of them.
//!
//! A lease with a share does not fall back to a whole GPU when all parts are taken: it would keep the rest of that GPU from
//! leases that need it whole, while its tenant is charged for a share.

use super::boxes::BoxEntry;
use super::possible::gibibytes;
use super::queue::Wish;
use super::stock::{Mask, Seat};
use super::{GpuEntry, Ledger};
use pool_api::{Class, Explanation, Gpu, GpuId, GpuState, Model, Part};

/// The largest part of a pool, as a refusal or a reason names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LargestPart {
    /// Thousandths of a GPU.
    pub milli: u32,
    /// Its memory.
    pub memory_bytes: u64,
}

impl std::fmt::Display for LargestPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/1000 and {}", self.milli, gibibytes(self.memory_bytes))
    }
}

/// What is lent of a model in parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PartsOfModel {
    /// GPUs that are lent so, each once.
    pub(super) gpus: u64,
    /// Thousandths that work.
    pub(super) milli: u64,
    /// Of these, what is free.
    pub(super) free_milli: u64,
}

impl LargestPart {
    pub(super) fn of<'a>(gpus: impl Iterator<Item = &'a Gpu>) -> Option<Self> {
        let size = |gpu: &Gpu| Some(Self { milli: gpu.part?.milli, memory_bytes: gpu.memory_bytes });
        gpus.filter_map(size).max()
    }
}

impl Wish {
    /// Whether this part will do, as far as its size is concerned, or whether it is no part.
    pub(super) fn accepts_part(&self, gpu: &Gpu) -> bool {
        gpu.part.is_none_or(|part| self.accepts_seat(gpu.memory_bytes, Seat::Part { milli: part.milli }))
    }

    /// Whether it is a share of a GPU that is asked for.
    pub(super) fn is_share(&self) -> bool {
        self.class == Class::Dedicated && self.milli < crate::GPU_MILLI
    }
}

impl BoxEntry {
    /// The parts of one GPU, as they are now.
    fn parts(&self, part: Part) -> impl Iterator<Item = &GpuEntry> {
        self.slots
            .range(part.slots())
            .map(|(_, entry)| entry)
            .filter(move |entry| entry.gpu.part == Some(part))
    }
}

impl Ledger {
    /// All parts of the GPU that this is a part of, or this alone.
    pub(super) fn parts_beside(&self, id: &GpuId) -> Vec<GpuId> {
        let owner = self.boxes.get(&id.box_name);
        let part = owner.and_then(|owner| owner.slots.get(&id.slot)?.gpu.part);
        match (owner, part) {
            (Some(owner), Some(part)) => owner.parts(part).map(|entry| entry.gpu.id.clone()).collect(),
            _ => vec![id.clone()],
        }
    }

    /// The classes that will do. Where parts that would do are there, a lease with a share gets one of them alone.
    pub(super) fn classes_for(&self, wish: &Wish) -> Mask {
        self.parts_first(wish, self.stock.mask(|class| wish.accepts(class)))
    }

    /// Of these classes, the parts, if any of them are there; otherwise the others.
    pub(super) fn parts_first(&self, wish: &Wish, classes: Mask) -> Mask {
        #[cfg(test)]
        let classes = self.mutated_classes(wish, classes);
        let parts = classes & self.stock.parts();
        let whole = classes & !parts;
        match () {
            // A lease that names its GPUs has chosen.
            () if !wish.given.is_empty() => classes,
            () if whole == 0 || self.stock.present(parts) > 0 => parts,
            () => whole,
        }
    }

    #[cfg(test)]
    fn mutated_classes(&self, wish: &Wish, classes: Mask) -> Mask {
        use crate::simulation::Mutation;
        let smaller = Wish { milli: 1, ..wish.clone() };
        let is_wrong = match wish.is_share() {
            true => self.mutated(Mutation::OversellParts),
            false => self.mutated(Mutation::LendPartsAsGpus) && wish.gpus == 1,
        };
        if is_wrong { classes | self.stock.mask(|class| smaller.accepts(class)) } else { classes }
    }

    /// What there is of a model in parts.
    pub(super) fn parts_of_model(&self, model: &Model) -> PartsOfModel {
        let mut sum = PartsOfModel::default();
        for class in self.stock.classes() {
            let Seat::Part { milli } = class.seat else { continue };
            if class.model != *model {
                continue;
            }
            let mask = self.stock.mask(|other| other == class);
            let count = u64::from(Part { of: 0, milli }.count());
            sum.gpus += self.stock.present(mask).div_ceil(count);
            sum.milli += self.stock.present(mask) * u64::from(milli);
            sum.free_milli += self.stock.usable(mask) * u64::from(milli);
        }
        sum
    }

    /// Whether a lease waits for parts alone.
    pub(super) fn waits_for_parts(&self, wish: &Wish) -> bool {
        wish.given.is_empty() && self.classes_for(wish) & self.stock.parts() != 0
    }

    /// What must not be: a part with a lease that has no share, or a larger one.
    pub(super) fn part_inconsistencies(&self) -> Vec<String> {
        let mut found = Vec::new();
        for gpu in self.boxes.values().flat_map(|owner| owner.slots.values()).map(|entry| &*entry.gpu) {
            let holders = gpu.holders.iter().filter(|_| gpu.state == GpuState::Leased);
            for holder in
                holders.filter(|holder| gpu.part.is_some_and(|part| holder.share_milli > part.milli))
            {
                found.push(format!("{} has {} with {}/1000", gpu.id, holder.lease, holder.share_milli));
            }
        }
        found
    }

    /// What a lease with a share should know about the parts of the pool.
    pub(super) fn explain_parts(&self, wish: &Wish, answer: &mut Explanation) {
        if !wish.is_share() || !wish.given.is_empty() {
            return;
        }
        if self.waits_for_parts(wish) {
            let whole = self.stock.mask(|class| wish.accepts(class)) & !self.stock.parts();
            if self.stock.usable(whole) > 0 {
                answer.reasons.push("whole GPUs that are free are for leases without a share".to_owned());
                answer.remedies.push("leave the share out to have a whole GPU".to_owned());
            }
            return;
        }
        let gpus = self.boxes.values().flat_map(|owner| owner.slots.values()).map(|entry| &*entry.gpu);
        let known = gpus.filter(|gpu| wish.accepts_model(&gpu.model));
        if let Some(largest) = LargestPart::of(known) {
            answer.reasons.push(format!(
                "it waits for a whole GPU: no part that works is large enough, the largest part has {largest}"
            ));
            answer.remedies.push(format!("ask for a share of at most {largest}"));
        }
    }
}
