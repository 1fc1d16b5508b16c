//! Fragmentation gradient descent: the box, and for a share the slot, whose fragment grows least.

use super::{truncated, whole_slots};
use crate::fragment::Leftover;
use crate::{GPU_MILLI, GpuBox, GpuNeed, Mix, SLOTS_PER_BOX_MAX, Shape, Slots};

/// The best score in this box and the slots that give it. `before` is what the box wastes now.
pub(super) fn best(state: &GpuBox, shape: &Shape, mix: &Mix, before: f64) -> (u8, Slots) {
    let mut buffer = [0u16; SLOTS_PER_BOX_MAX];
    let after = &mut buffer[..state.slot_milli_free.len()];
    after.copy_from_slice(&state.slot_milli_free);
    let cpu_milli = state.cpu_milli_free - shape.cpu_milli;
    let wasted = |slots: &[u16]| Leftover { model: state.model, cpu_milli, slots }.fragment(mix).wasted();

    let GpuNeed::Share(milli) = shape.gpus else {
        let slots = match shape.gpus {
            GpuNeed::Whole(count) => whole_slots(state, count),
            _ => Slots::NONE,
        };
        for slot in slots.iter() {
            after[slot] = 0;
        }
        return (sigmoid_score(before - wasted(after)), slots);
    };

    let mut best = None;
    for slot in state.slots_with(u32::from(milli)) {
        let left = state.slot_milli_free[slot];
        // A slot like an earlier one would score the same, and of equals the first is taken.
        if state.slot_milli_free[..slot].contains(&left) {
            continue;
        }
        after[slot] = left - milli;
        let score = sigmoid_score(before - wasted(after));
        after[slot] = left;
        if best.is_none_or(|(highest, _)| score > highest) {
            best = Some((score, slot));
        }
    }
    let (score, slot) = best.expect("the box was filtered before");
    (score, Slots::one(slot))
}

/// 50 if nothing changes, more if the fragment shrinks; a whole GPU either way makes 73 or 26.
fn sigmoid_score(shrinks_by_milli: f64) -> u8 {
    truncated(100.0 * (1.0 / (1.0 + (-shrinks_by_milli / f64::from(GPU_MILLI)).exp())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::bench_box::{shape, with_left};
    use crate::{BoxId, fragment_of};

    fn best_slot(left: &[u16], asked: u16, mix: &Mix) -> (u8, Slots) {
        let inventory = with_left(0, left);
        let state = inventory.get(BoxId(0));
        best(state, &shape(0, GpuNeed::Share(asked)), mix, fragment_of(state, mix).wasted())
    }

    #[test]
    fn a_share_goes_where_it_spoils_least() {
        let mix = Mix::observe([&shape(0, GpuNeed::Whole(1))], 95);
        // The second slot is spoilt for whole requests already; using it shrinks the fragment by 400.
        assert_eq!(best_slot(&[1000, 700], 400, &mix), (59, Slots::one(1)));
        // Breaking an idle slot makes 600 of it a fragment.
        assert_eq!(best_slot(&[1000, 1000], 400, &mix), (35, Slots::one(0)));
    }

    #[test]
    fn no_change_scores_fifty() {
        assert_eq!(sigmoid_score(0.0), 50);
        assert_eq!((sigmoid_score(1000.0), sigmoid_score(-1000.0)), (73, 26));
        assert_eq!((sigmoid_score(1e9), sigmoid_score(-1e9)), (100, 0));
    }

    #[test]
    fn whole_requests_take_the_first_idle_slots() {
        let inventory = with_left(0, &[500, 1000, 1000]);
        let mix = Mix::observe([&shape(0, GpuNeed::Whole(1))], 95);
        let (_, slots) = best(inventory.get(BoxId(0)), &shape(0, GpuNeed::Whole(2)), &mix, 500.0);
        assert_eq!(slots, [1, 2].into_iter().collect());
    }
}
