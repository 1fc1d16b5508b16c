//! Packing: a slot in use before an idle slot, a box in use before an idle box.

use crate::{GPU_MILLI, GpuBox, GpuNeed, SLOTS_PER_BOX_MAX, Shape};

pub(super) fn score(state: &GpuBox, shape: &Shape) -> u8 {
    if shape.gpus == GpuNeed::None {
        return 0;
    }
    let slots = state.slot_milli_free.len();
    let idle = state.slots_with(GPU_MILLI).count();
    if idle == slots {
        // The box is idle; small idle boxes are given up first.
        return 33usize.saturating_sub(idle).max(idle).min(100) as u8;
    }
    let mut buffer = [0u16; SLOTS_PER_BOX_MAX];
    let ascending = &mut buffer[..slots];
    ascending.copy_from_slice(&state.slot_milli_free);
    ascending.sort_unstable();
    let milli = shape.gpus.slot_milli();
    let fitting = ascending.iter().map(|&free| u32::from(free)).filter(|&free| free >= milli);
    let (mut taken_idle, mut left_pct) = (0u32, 0u32);
    for free in fitting.take(shape.gpus.slots() as usize) {
        taken_idle += u32::from(free == GPU_MILLI);
        left_pct += free * 100 / GPU_MILLI;
    }
    if taken_idle > 0 {
        50u32.saturating_sub(taken_idle).max(33) as u8
    } else {
        100u32.saturating_sub(left_pct / 10).max(50) as u8
    }
}

#[cfg(test)]
mod tests {
    use crate::policy::bench_box::{shape, with_left};
    use crate::{BoxId, GpuNeed};

    #[test]
    fn slots_in_use_come_first_then_boxes_in_use() {
        let score = |slots: &[u16], gpus| super::score(with_left(0, slots).get(BoxId(0)), &shape(0, gpus));
        let share = GpuNeed::Share(300);
        assert_eq!(score(&[1000, 450, 800], share), 96);
        assert_eq!(score(&[1000, 200, 1000], share), 49);
        assert_eq!(score(&[1000, 200, 1000], GpuNeed::Whole(2)), 48);
        assert_eq!(score(&[1000, 1000], share), 31);
        assert_eq!(score(&[1000; 8], share), 25);
        assert_eq!(score(&[1000; 8], GpuNeed::None), 0);
    }
}
