//! Dot product: what is left of a box and what is asked for, as two directions.
//!
//! The *smaller* product wins: it is small where little is left, so full boxes fill up first.

use super::{Scale, truncated};
use crate::{GpuBox, Shape};

pub(super) fn score(state: &GpuBox, shape: &Shape, scale: Scale) -> u8 {
    let of_cpu = |milli: u32| f64::from(milli) / f64::from(scale.cpu_milli);
    let of_gpu = |milli: u32| f64::from(milli) / f64::from(scale.gpu_milli);
    let product = of_cpu(state.cpu_milli_free) * of_cpu(shape.cpu_milli)
        + of_gpu(state.gpu_milli_free) * of_gpu(shape.gpus.total_milli());
    truncated(100.0 * (1.0 - product / 2.0))
}

#[cfg(test)]
mod tests {
    use crate::policy::bench_box::{SCALE, shape, with_left};
    use crate::{BoxId, GpuNeed};

    #[test]
    fn the_fuller_box_wins() {
        let score = |slots: &[u16]| {
            let inventory = with_left(64_000, slots);
            super::score(inventory.get(BoxId(0)), &shape(64_000, GpuNeed::Whole(2)), SCALE)
        };
        // 0.5 x 0.5 from processors; 1 x 0.25 or 0.25 x 0.25 from GPUs; half of the sum.
        assert_eq!(score(&[1000; 8]), 75);
        assert_eq!(score(&[1000, 1000, 0, 0, 0, 0, 0, 0]), 84);
    }
}
