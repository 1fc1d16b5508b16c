//! Parts of a GPU: slots of their own, each for one lease with a share.
//!
//! ```text
//!   GPU 0 in four parts    slots 0 1 2 3          GPU 1    slots 4 5 6 7          there is no slot for the GPU as a whole
//! ```
//!
//! All parts of a GPU are alike. Counts of GPUs have it once.

use crate::{Gpu, GpuReport, GpuState, Guest, Invalid, Name};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A GPU is lent in so many parts at most: each has a worker with a driver context of its own.
pub const PARTS_PER_GPU_MAX: u8 = 8;

/// A part of a GPU. Its memory is what a lease may use of the GPU's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// The number of the GPU in its box.
    #[schema(maximum = 31)]
    pub of: u8,
    /// Thousandths of the GPU: 1000 by the number of its parts, rounded down.
    #[schema(minimum = 125, maximum = 500)]
    pub milli: u32,
}

impl Part {
    /// One of the equal parts of a GPU.
    pub fn new(of: u8, count: u8) -> Self {
        Self { of, milli: 1000 / u32::from(count) }
    }

    /// In how many parts its GPU is lent.
    pub fn count(self) -> u8 {
        // What was rounded down divides back: 1000 / 142 is 7.
        1000_u32.checked_div(self.milli).and_then(|count| u8::try_from(count).ok()).unwrap_or(u8::MAX)
    }

    /// The slots of all parts of its GPU.
    pub fn slots(self) -> std::ops::Range<u8> {
        let first = self.of.saturating_mul(self.count());
        first..first.saturating_add(self.count())
    }

    /// Whether it is in one of the slots of its GPU, and of a size that there is.
    pub(crate) fn check(self, slot: u8) -> Result<(), Invalid> {
        if !(2..=PARTS_PER_GPU_MAX).contains(&self.count()) || self != Self::new(self.of, self.count()) {
            return Err(Invalid::new(
                "gpus.part.milli",
                "must be 1000 by a number from 2 to 8, rounded down",
            ));
        }
        if !self.slots().contains(&slot) {
            return Err(Invalid::new(
                "gpus.part.of",
                "must be the number of the slot by the number of parts",
            ));
        }
        Ok(())
    }
}

/// Whether counts of GPUs have what is in a slot: not a seat for guests, and of the parts of a GPU the first alone.
fn is_counted(slot: u8, guest: Option<Guest>, part: Option<Part>) -> bool {
    guest.is_none() && part.is_none_or(|part| part.slots().start == slot)
}

impl Gpu {
    /// Whether counts of GPUs have it: seats for guests are no GPUs, and of the parts of a GPU the first counts alone.
    pub fn is_counted(&self) -> bool {
        is_counted(self.slot, self.guest, self.part)
    }
}

impl GpuReport {
    /// Whether counts of GPUs have it, as [`Gpu::is_counted`] says.
    pub fn is_counted(&self) -> bool {
        is_counted(self.slot, self.guest, self.part)
    }
}

/// The GPUs among these slots, each once, and what each is doing. A GPU in parts is leased if one of them is; otherwise it is
/// as its most useful part.
pub fn counted<'a>(slots: impl IntoIterator<Item = &'a Gpu>) -> Vec<(&'a Gpu, GpuState)> {
    let mut found: Vec<(&Gpu, GpuState)> = Vec::new();
    let mut at_of: BTreeMap<(&Name, Part), usize> = BTreeMap::new();
    // The slot of a GPU's first part is below those of the others, but lists may be in any order.
    let (first, others): (Vec<&Gpu>, Vec<&Gpu>) = slots.into_iter().partition(|gpu| gpu.is_counted());
    for gpu in first {
        if let Some(part) = gpu.part {
            at_of.insert((&gpu.box_name, part), found.len());
        }
        found.push((gpu, gpu.state));
    }
    for gpu in others {
        let at = gpu.part.and_then(|part| at_of.get(&(&gpu.box_name, part)));
        if let Some(known) = at.and_then(|at| found.get_mut(*at)) {
            known.1 = known.1.min_by_use(gpu.state);
        }
    }
    found
}

impl GpuState {
    /// Of the states of two parts, the one that their GPU is in.
    fn min_by_use(self, other: Self) -> Self {
        let rank = |state: Self| match state {
            Self::Leased => 0,
            Self::Cleaning => 1,
            Self::Free => 2,
            Self::BurnIn => 3,
            Self::Bad => 4,
            Self::Absent => 5,
        };
        if rank(other) < rank(self) { other } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_knows_the_slots_of_its_gpu() {
        for count in 2..=PARTS_PER_GPU_MAX {
            let part = Part::new(3, count);
            assert_eq!((part.count(), part.slots()), (count, 3 * count..4 * count));
            assert_eq!((part.check(3 * count), part.check(4 * count - 1)), (Ok(()), Ok(())));
            assert_eq!(part.check(4 * count).unwrap_err().field, "gpus.part.of");
        }
        for milli in [0, 1, 124, 126, 400, 1000, u32::MAX] {
            assert_eq!(Part { of: 0, milli }.check(0).unwrap_err().field, "gpus.part.milli", "{milli}");
        }
    }

    #[test]
    fn a_gpu_in_parts_counts_once_and_is_leased_if_a_part_is() {
        let gpu = |slot: u8, part: Option<Part>, state: &str| -> Gpu {
            serde_json::from_value(serde_json::json!({
                "id": format!("a/{slot}"), "box_name": "a", "slot": slot, "model": "H200", "memory_bytes": 1, "uuid": "u",
                "part": part, "state": state, "epoch": 1, "cleaned_epoch": 1, "health": {"ok": true}
            }))
            .unwrap()
        };
        let half = |of| Some(Part::new(of, 2));
        let slots = [
            gpu(1, half(0), "leased"),
            gpu(0, half(0), "free"),
            gpu(2, half(1), "bad"),
            gpu(3, half(1), "free"),
            gpu(4, None, "bad"),
        ];
        let seen: Vec<_> = counted(&slots).into_iter().map(|(gpu, state)| (gpu.slot, state)).collect();
        assert_eq!(seen, [(0, GpuState::Leased), (2, GpuState::Free), (4, GpuState::Bad)]);
    }
}
