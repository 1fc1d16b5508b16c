//! Best fit: the box with the least left over afterwards.

use super::{Scale, truncated};
use crate::{GpuBox, Shape};

pub(super) fn score(state: &GpuBox, shape: &Shape, scale: Scale) -> u8 {
    let cpu_left = state.cpu_milli_free - shape.cpu_milli;
    let gpu_left = state.gpu_milli_free - shape.gpus.total_milli();
    let left_over = 0.5 * f64::from(cpu_left) / f64::from(scale.cpu_milli)
        + 0.5 * f64::from(gpu_left) / f64::from(scale.gpu_milli);
    truncated(100.0 * (1.0 - left_over))
}

#[cfg(test)]
mod tests {
    use crate::policy::bench_box::{SCALE, shape, with_left};
    use crate::{BoxId, GpuNeed};

    #[test]
    fn the_box_with_less_left_over_wins() {
        let score = |slots: &[u16]| {
            let inventory = with_left(64_000, slots);
            super::score(inventory.get(BoxId(0)), &shape(32_000, GpuNeed::Whole(1)), SCALE)
        };
        assert_eq!(score(&[1000, 1000]), 81);
        assert_eq!(score(&[1000, 0]), 87);
    }
}
