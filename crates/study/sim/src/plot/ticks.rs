//! Where to put marks on an axis.

use super::Axis;

/// Round numbers within an axis, about as many as asked for.
pub(super) fn ticks(axis: &Axis, about: usize) -> Vec<f64> {
    let step = step(axis, about);
    let (first, last) = ((axis.from / step).ceil() as i64, (axis.to / step + 1e-9).floor() as i64);
    (first..=last).map(|number| number as f64 * step).collect()
}

/// The number as it stands beside a mark, with the decimals that the step needs.
pub(super) fn label(value: f64, axis: &Axis, about: usize) -> String {
    let decimals = (-step(axis, about).log10()).ceil().max(0.0) as usize;
    format!("{value:.decimals$}")
}

/// One, two or five times a power of ten.
fn step(axis: &Axis, about: usize) -> f64 {
    let rough = (axis.to - axis.from) / about.max(1) as f64;
    let power = 10f64.powf(rough.log10().floor());
    let round = [1.0, 2.0, 5.0].into_iter().find(|round| rough <= round * power * 1.0001);
    round.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(from: f64, to: f64) -> Axis {
        Axis { label: String::new(), from, to }
    }

    #[test]
    fn marks_are_round_numbers() {
        assert_eq!(ticks(&axis(0.0, 130.0), 7), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0, 120.0]);
        assert_eq!(ticks(&axis(82.5, 97.5), 4), [85.0, 90.0, 95.0]);
        let small = axis(0.0, 0.9);
        let labels: Vec<String> = ticks(&small, 4).iter().map(|&tick| label(tick, &small, 4)).collect();
        assert_eq!(labels, ["0.0", "0.5"]);
        assert_eq!(label(100.0, &axis(0.0, 130.0), 7), "100");
    }
}
