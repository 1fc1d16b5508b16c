//! Policies: how good a box is for a request, as an integer from 0 to 100.
//!
//! Scores are truncated to integers on purpose. That makes many boxes equally good, and which of those is taken is
//! then decided by their order; published results depend on both.

mod best_fit;
mod clustering;
mod dot_product;
mod fgd;
mod packing;

use crate::{GpuBox, GpuNeed, Inventory, Mix, Shape, Slots};
use std::fmt;
use std::str::FromStr;

/// How to choose among the boxes that can serve a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Any box, by lot.
    Random,
    /// The box whose leftovers point least in the direction of the request.
    DotProduct,
    /// A box that serves requests of the same kind already.
    Clustering,
    /// A slot in use before an idle slot, a box in use before an idle box.
    Packing,
    /// The box with the least left over afterwards.
    BestFit,
    /// The box whose fragment grows least.
    Fgd,
}

/// There is no such policy.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("there is no policy {0:?}; the policies are random, dotprod, clustering, packing, bestfit and fgd")]
pub struct UnknownPolicy(pub String);

impl Policy {
    /// Every policy, in the order of the published tables.
    pub const ALL: [Self; 6] =
        [Self::Random, Self::DotProduct, Self::Clustering, Self::Packing, Self::BestFit, Self::Fgd];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::DotProduct => "dotprod",
            Self::Clustering => "clustering",
            Self::Packing => "packing",
            Self::BestFit => "bestfit",
            Self::Fgd => "fgd",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        Self::ALL
            .into_iter()
            .find(|policy| policy.name() == name)
            .ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}

/// What counts as a full box, so that scores of different resources compare.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// Thousandths of a processor in the largest box.
    pub cpu_milli: u32,
    /// Thousandths of GPUs in the largest box.
    pub gpu_milli: u32,
}

impl Scale {
    /// The largest box of an inventory, as it is now.
    pub fn of(inventory: &Inventory) -> Self {
        let largest = |amount: fn(&GpuBox) -> u32| inventory.iter().map(|(_, state)| amount(state)).max();
        // Where no box has any of a resource, no request asks for it, and one avoids dividing by zero.
        Self {
            cpu_milli: largest(GpuBox::cpu_milli_free).unwrap_or(0).max(1),
            gpu_milli: largest(GpuBox::gpu_milli_free).unwrap_or(0).max(1),
        }
    }
}

/// What a policy may look at beside the box and the request.
#[derive(Clone, Debug)]
pub(crate) struct Judge {
    pub(crate) policy: Policy,
    pub(crate) scale: Scale,
    pub(crate) mix: Mix,
}

/// A score of 0 to 100 from a number that should be in that range. Truncates, as the published code does.
fn truncated(score: f64) -> u8 {
    score.clamp(0.0, 100.0) as u8
}

impl Judge {
    /// How good a box is for a request that fits it. `fragment` is what the box wastes now.
    pub(crate) fn score(&self, state: &GpuBox, shape: &Shape, fragment: f64) -> u8 {
        match self.policy {
            Policy::Random => 0,
            Policy::DotProduct => dot_product::score(state, shape, self.scale),
            Policy::Clustering => clustering::score(state, shape, self.scale),
            Policy::Packing => packing::score(state, shape),
            Policy::BestFit => best_fit::score(state, shape, self.scale),
            Policy::Fgd => fgd::best(state, shape, &self.mix, fragment).0,
        }
    }

    /// The slots a request gets in a box that was chosen for it.
    pub(crate) fn slots(
        &self,
        state: &GpuBox,
        shape: &Shape,
        fragment: f64,
        dice: &mut dyn crate::Dice,
    ) -> Slots {
        match (shape.gpus, self.policy) {
            (GpuNeed::None, _) => Slots::NONE,
            (GpuNeed::Whole(count), _) => whole_slots(state, count),
            (GpuNeed::Share(_), Policy::Random) => Slots::one(random_slot(state, shape, dice)),
            (GpuNeed::Share(_), Policy::Fgd) => fgd::best(state, shape, &self.mix, fragment).1,
            (GpuNeed::Share(milli), _) => Slots::one(snuggest_slot(state, milli)),
        }
    }
}

/// The idle slots with the lowest numbers.
fn whole_slots(state: &GpuBox, count: u8) -> Slots {
    state.slots_with(crate::GPU_MILLI).take(usize::from(count)).collect()
}

/// The slot with the least left that suffices, the lowest number of equals.
fn snuggest_slot(state: &GpuBox, milli: u16) -> usize {
    let fitting = state.slots_with(u32::from(milli));
    fitting.min_by_key(|&slot| state.slot_milli_free[slot]).expect("the box was filtered before")
}

/// Any slot that suffices. Drawn slot by slot, as the published code does, though one draw would do.
fn random_slot(state: &GpuBox, shape: &Shape, dice: &mut dyn crate::Dice) -> usize {
    let mut chosen = None;
    for (seen, slot) in state.slots_with(shape.gpus.slot_milli()).enumerate() {
        if dice.below(seen as u32 + 1) == 0 {
            chosen = Some(slot);
        }
    }
    chosen.expect("the box was filtered before, and the first slot is always drawn")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_can_be_read_back() {
        for policy in Policy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert!("worst".parse::<Policy>().unwrap_err().to_string().contains("bestfit"));
    }
}

#[cfg(test)]
pub(crate) mod bench_box {
    //! One box in a given state, for tests of scores.

    use super::*;
    use crate::{BoxId, BoxSpec, ModelFilter, ModelId, Request};

    pub(crate) const SCALE: Scale = Scale { cpu_milli: 128_000, gpu_milli: 8_000 };

    /// A box with so much left: made by taking the rest in shares.
    pub(crate) fn with_left(cpu_milli: u32, slots: &[u16]) -> Inventory {
        let mut inventory = Inventory::default();
        let spec = BoxSpec { model: ModelId(0), gpus: slots.len(), cpu_milli, memory_mib: 0, order: 0 };
        inventory.add(&spec).unwrap();
        for (slot, &left) in slots.iter().enumerate() {
            let gpus = match 1000 - left {
                0 => continue,
                1000 => GpuNeed::Whole(1),
                milli => GpuNeed::Share(milli),
            };
            inventory.take(BoxId(0), Slots::one(slot), &Request::gpus(gpus, ModelFilter::any()));
        }
        inventory
    }

    pub(crate) fn shape(cpu_milli: u32, gpus: GpuNeed) -> Shape {
        Shape { cpu_milli, gpus, models: ModelFilter::any() }
    }
}
