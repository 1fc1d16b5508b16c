//! Means and rounding exactly as the published tables were made (with NumPy), to the last digit.

/// NumPy's pairwise sum: eight partial sums up to 128 values, halves beyond.
fn pairwise_sum(values: &[f64]) -> f64 {
    const BLOCK: usize = 128;
    if values.len() < 8 {
        return values.iter().sum();
    }
    if values.len() > BLOCK {
        let half = values.len() / 2;
        let (left, right) = values.split_at(half - half % 8);
        return pairwise_sum(left) + pairwise_sum(right);
    }
    let (eights, rest) = values.as_chunks::<8>();
    let mut sums = [0.0; 8];
    for eight in eights {
        for (sum, value) in sums.iter_mut().zip(eight) {
            *sum += value;
        }
    }
    let [a, b, c, d, e, f, g, h] = sums;
    rest.iter().fold(((a + b) + (c + d)) + ((e + f) + (g + h)), |sum, value| sum + value)
}

/// The mean; values must not be empty.
pub(super) fn mean(values: &[f64]) -> f64 {
    pairwise_sum(values) / values.len() as f64
}

/// Two decimals as NumPy rounds: scaled, to even, scaled back.
pub(super) fn rounded_2(value: f64) -> f64 {
    (value * 100.0).round_ties_even() / 100.0
}

/// Two decimals as printing rounds: by the exact value.
pub(super) fn printed_2(value: f64) -> f64 {
    format!("{value:.2}").parse().expect("what was printed can be read")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_made_in_eights_and_halves() {
        // In this order a plain sum loses every small value; eight partial sums keep seven eighths of them.
        let mut values = vec![1.0; 64];
        values[0] = 1e16;
        assert_eq!(values.iter().sum::<f64>(), 1e16);
        assert_eq!(pairwise_sum(&values), 1e16 + 56.0);
        let many: Vec<f64> = (0..1000).map(f64::from).collect();
        assert_eq!(pairwise_sum(&many), 499_500.0);
        assert_eq!(mean(&[1.0, 2.0]), 1.5);
    }

    #[test]
    fn the_two_ways_to_round_differ() {
        assert_eq!((rounded_2(0.285), printed_2(0.285)), (0.28, 0.28));
        // 2.675 is a little less than it looks, but times a hundred it is exactly a half.
        assert_eq!((rounded_2(2.675), printed_2(2.675)), (2.68, 2.67));
    }
}
