//! The random generator of Go's `math/rand`, so that published seeds mean here what they meant there.
//!
//! An additive register of 607 words, `y[n] = y[n-607] + y[n-273]` modulo 2^64. Seeding mixes a small congruence with
//! 607 constants, which are themselves the register's state after 7.8 x 10^12 steps from a fixed start. They are
//! computed here once, by raising x to that power modulo the register's polynomial.

use pool::Dice;
use std::sync::OnceLock;

const LENGTH: usize = 607;
const FEED: usize = 334;
const STEPS_TO_CONSTANTS: u64 = 7_800_000_000_000;
const MERSENNE_31: u64 = (1 << 31) - 1;

/// Seeded as Go's `rand.Seed` does.
#[derive(Clone, Debug)]
pub struct GoRandom {
    register: [u64; LENGTH],
    tap: usize,
    feed: usize,
}

impl GoRandom {
    /// Starts at a seed.
    pub fn new(seed: u64) -> Self {
        static CONSTANTS: OnceLock<[u64; LENGTH]> = OnceLock::new();
        let constants = CONSTANTS.get_or_init(constants);
        let seed = match seed % MERSENNE_31 {
            0 => 89_482_311,
            seed => seed,
        };
        let mut register = congruence_fill(seed, 40, 20);
        for (word, constant) in register.iter_mut().zip(constants) {
            *word ^= constant;
        }
        Self { register, tap: 0, feed: FEED }
    }

    /// The next 63 random bits.
    pub fn raw(&mut self) -> u64 {
        self.tap = self.tap.checked_sub(1).unwrap_or(LENGTH - 1);
        self.feed = self.feed.checked_sub(1).unwrap_or(LENGTH - 1);
        let sum = self.register[self.feed].wrapping_add(self.register[self.tap]);
        self.register[self.feed] = sum;
        sum & (u64::MAX >> 1)
    }

    /// Throws values away that something else consumed in the original.
    pub fn skip(&mut self, values: usize) {
        for _ in 0..values {
            self.raw();
        }
    }

    /// Go's `Intn`: a number in `0..bound`.
    pub fn below(&mut self, bound: u32) -> u32 {
        assert!(bound > 0 && bound <= 1 << 30, "this generator draws below 1 to 2^30");
        if bound.is_power_of_two() {
            return (self.raw() >> 32) as u32 & (bound - 1);
        }
        let last = (1u32 << 31) - 1 - (1u32 << 31) % bound;
        loop {
            let value = (self.raw() >> 32) as u32;
            if value <= last {
                return value % bound;
            }
        }
    }

    /// Go's `Shuffle`.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below_by_product(last as u32 + 1);
            items.swap(last, other as usize);
        }
    }

    /// Go's `Perm`: the numbers `0..count` in random order.
    pub fn permutation(&mut self, count: usize) -> Vec<u32> {
        let mut numbers = vec![0; count];
        for next in 0..count {
            let other = self.below(next as u32 + 1) as usize;
            numbers[next] = numbers[other];
            numbers[other] = next as u32;
        }
        numbers
    }

    /// The other way Go draws below a bound: `Shuffle` uses it.
    fn below_by_product(&mut self, bound: u32) -> u32 {
        let mut draw = || u64::from((self.raw() >> 31) as u32) * u64::from(bound);
        let mut product = draw();
        if (product as u32) < bound {
            let threshold = bound.wrapping_neg() % bound;
            while (product as u32) < threshold {
                product = draw();
            }
        }
        (product >> 32) as u32
    }
}

impl Dice for GoRandom {
    fn below(&mut self, bound: u32) -> u32 {
        GoRandom::below(self, bound)
    }
}

/// Fills a register from the small congruence: three values a word, shifted over each other.
fn congruence_fill(seed: u64, high_shift: u32, middle_shift: u32) -> [u64; LENGTH] {
    let mut state = seed;
    let mut next = || {
        state = state * 48_271 % MERSENNE_31;
        state
    };
    for _ in 0..20 {
        next();
    }
    let mut register = [0; LENGTH];
    for word in &mut register {
        *word = next() << high_shift ^ next() << middle_shift ^ next();
    }
    register
}

/// The slot that holds `y[n]` of the register's sequence; `y[1]` is overwritten by the first step.
fn slot_of(n: u64) -> usize {
    let length = LENGTH as u64;
    ((FEED as u64 + length - n % length) % length) as usize
}

fn constants() -> [u64; LENGTH] {
    let start = congruence_fill(1, 20, 10);
    let sequence: Vec<u64> = (1..=LENGTH as u64).map(|n| start[slot_of(n)]).collect();
    let mut power = x_to_the(STEPS_TO_CONSTANTS);
    let mut constants = [0; LENGTH];
    for n in STEPS_TO_CONSTANTS + 1..=STEPS_TO_CONSTANTS + LENGTH as u64 {
        let product = |(coefficient, word): (&u64, &u64)| coefficient.wrapping_mul(*word);
        constants[slot_of(n)] =
            power.iter().zip(&sequence).map(product).fold(0, |sum: u64, term| sum.wrapping_add(term));
        power = times_x(&power);
    }
    constants
}

/// Coefficients, lowest first, of a polynomial modulo x^607 - x^334 - 1 over 64-bit words.
type Polynomial = Vec<u64>;

fn x_to_the(exponent: u64) -> Polynomial {
    let mut power = vec![0; LENGTH];
    power[0] = 1;
    for bit in (0..u64::BITS - exponent.leading_zeros()).rev() {
        power = squared(&power);
        if exponent >> bit & 1 == 1 {
            power = times_x(&power);
        }
    }
    power
}

fn times_x(polynomial: &[u64]) -> Polynomial {
    let top = polynomial[LENGTH - 1];
    let mut product = vec![top];
    product.extend_from_slice(&polynomial[..LENGTH - 1]);
    product[FEED] = product[FEED].wrapping_add(top);
    product
}

fn squared(polynomial: &[u64]) -> Polynomial {
    let mut product = vec![0u64; 2 * LENGTH - 1];
    for (i, a) in polynomial.iter().enumerate() {
        for (term, b) in product[i..].iter_mut().zip(polynomial) {
            *term = term.wrapping_add(a.wrapping_mul(*b));
        }
    }
    // x^607 = x^334 + 1, from the top down, so that what comes down is brought down in its turn.
    for high in (LENGTH..product.len()).rev() {
        let coefficient = product[high];
        for lower in [high - LENGTH + FEED, high - LENGTH] {
            product[lower] = product[lower].wrapping_add(coefficient);
        }
    }
    product.truncate(LENGTH);
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_constants_are_those_of_go() {
        let low_63 = u64::MAX >> 1;
        let constants = constants();
        assert_eq!(constants[0] & low_63, 5_041_579_894_721_019_882);
        assert_eq!(constants[LENGTH - 1] & low_63, 4_152_330_101_494_654_406);
    }

    #[test]
    fn a_seed_gives_the_values_it_gives_in_go() {
        let mut random = GoRandom::new(42);
        let values: Vec<u64> = (0..4).map(|_| random.raw()).collect();
        assert_eq!(
            values,
            [
                3_440_579_354_231_278_675,
                608_747_136_543_856_411,
                5_571_782_338_101_878_760,
                1_926_012_586_526_624_009
            ]
        );
    }

    #[test]
    fn shuffles_and_permutations_lose_nothing() {
        let mut random = GoRandom::new(1);
        let mut items: Vec<u32> = (0..1000).collect();
        random.shuffle(&mut items);
        let mut permutation = random.permutation(1000);
        assert_ne!(items, permutation);
        items.sort_unstable();
        permutation.sort_unstable();
        assert_eq!(items, permutation);
        assert!(items.iter().copied().eq(0..1000));
    }
}
