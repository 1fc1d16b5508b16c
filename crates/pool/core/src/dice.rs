//! Randomness, handed in by the caller.

/// A source of uniform numbers.
pub trait Dice {
    /// A number in `0..bound`, each equally likely. `bound` is at least 1.
    fn below(&mut self, bound: u32) -> u32;
}

/// A small seeded generator (SplitMix64): equal seeds give equal numbers everywhere.
#[derive(Clone, Debug)]
pub struct SplitMix(u64);

impl SplitMix {
    /// Starts at a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in `(0, 1]`: never zero, so that its logarithm is finite.
    pub fn unit(&mut self) -> f64 {
        ((self.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// A waiting time with this mean, of something that may happen at any moment.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.unit().ln()
    }
}

impl Dice for SplitMix {
    fn below(&mut self, bound: u32) -> u32 {
        // Products that fall into the incomplete last stretch are drawn again, so that no number is likelier.
        let bound = u64::from(bound.max(1));
        let incomplete = (1u64 << 32) % bound;
        loop {
            let product = (self.next_u64() >> 32) * bound;
            if product & 0xffff_ffff >= incomplete {
                return (product >> 32) as u32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_below_the_bound_comes_equally_often() {
        let mut dice = SplitMix::new(7);
        let mut seen = [0u32; 6];
        for _ in 0..60_000 {
            seen[dice.below(6) as usize] += 1;
        }
        assert!(seen.iter().all(|&count| (9_600..10_400).contains(&count)), "{seen:?}");
    }

    #[test]
    fn waiting_times_have_their_mean() {
        let mut dice = SplitMix::new(7);
        let mean = (0..100_000).map(|_| dice.exponential(5.0)).sum::<f64>() / 100_000.0;
        assert!((4.9..5.1).contains(&mean), "{mean}");
    }
}
