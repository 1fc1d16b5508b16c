//! Clustering: requests of a kind together, so that large requests find boxes that small ones left alone.

use super::Scale;
use crate::{GpuBox, GpuNeed, Shape};

pub(super) fn score(state: &GpuBox, shape: &Shape, scale: Scale) -> u8 {
    if shape.gpus == GpuNeed::None {
        return 0;
    }
    // What is in use, as at most 25 points: it only decides among boxes with equal company.
    let in_use = 25 * scale.gpu_milli.saturating_sub(state.gpu_milli_free) / scale.gpu_milli;
    let company = match state.kinds_beside(shape.gpus) {
        (true, false) => 75,
        (true, true) => 50,
        (false, false) => 25,
        (false, true) => 0,
    };
    (in_use + company) as u8
}

#[cfg(test)]
mod tests {
    use crate::policy::bench_box::{SCALE, shape, with_left};
    use crate::{BoxId, GpuNeed};

    #[test]
    fn its_own_kind_is_the_best_company() {
        let score =
            |slots: &[u16], gpus| super::score(with_left(0, slots).get(BoxId(0)), &shape(0, gpus), SCALE);
        let share = GpuNeed::Share(100);
        assert_eq!(score(&[1000, 500], share), 75 + 20);
        assert_eq!(score(&[0, 500], share), 50 + 23);
        assert_eq!(score(&[1000, 1000], share), 25 + 18);
        assert_eq!(score(&[1000, 0], share), 21);
        assert_eq!(score(&[1000, 500], GpuNeed::Whole(1)), 20);
        assert_eq!(score(&[1000, 500], GpuNeed::None), 0);
    }
}
