use super::*;
use proptest::prelude::*;

fn key(seed: u8) -> Key {
    Key::from_seed(&[seed; 32])
}

/// The definition, word by word, with plain arithmetic of wide numbers.
fn by_definition(key: &Key, block: &[u8]) -> Digest {
    let bytes = key.to_bytes();
    let number = |at: usize| u128::from_le_bytes(bytes[at..at + 16].try_into().unwrap());
    let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let mut padded = block.to_vec();
    padded.resize(block.len().next_multiple_of(16), 0);
    let mut folded = 0u128;
    for pass in 0..5 {
        let factor = match pass {
            4 => block.len() as u64,
            _ => padded.chunks(8).enumerate().fold(0u64, |sum, (index, word)| {
                let [low, high] =
                    [0, 4].map(|half| u32::from_le_bytes(word[half..half + 4].try_into().unwrap()));
                let at = (index + 2 * pass) * 8;
                let (low, high) = (low.wrapping_add(half(at)), high.wrapping_add(half(at + 4)));
                sum.wrapping_add(u64::from(low) * u64::from(high))
            }),
        };
        // Bit by bit: doubles and adds modulo the prime.
        let a = number(NH_KEY_BYTES + pass * 16) % PRIME;
        let mut term = 0u128;
        for bit in (0..64).rev() {
            term = (term * 2) % PRIME;
            if factor >> bit & 1 == 1 {
                term = (term + a) % PRIME;
            }
        }
        folded = (folded + term) % PRIME;
    }
    Digest(folded)
}

fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

#[test]
fn the_key_of_a_seed_never_changes() {
    let bytes = key(7).to_bytes();
    assert_eq!(bytes.len(), KEY_BYTES);
    assert_eq!(blake3::hash(&bytes).to_hex().as_str(), GOLDEN_KEY);
}

#[test]
fn golden_values_never_change() {
    let key = key(7);
    let found: Vec<String> = [0, 1, 15, 16, 17, 1000, BLOCK_BYTES - 1, BLOCK_BYTES]
        .iter()
        .map(|&bytes| format!("{bytes} {:?}", key.digest(&pattern(bytes, 1))))
        .chain([format!("zeros {:?}", key.digest(&[0; BLOCK_BYTES]))])
        .collect();
    assert_eq!(found, GOLDEN);
}

#[test]
fn zeros_of_all_lengths_differ_from_each_other() {
    let key = key(1);
    let zeros = [0; BLOCK_BYTES];
    let mut seen = std::collections::HashSet::new();
    for bytes in (0..=300).chain([4096, BLOCK_BYTES - 16, BLOCK_BYTES - 1, BLOCK_BYTES]) {
        assert!(seen.insert(key.digest(&zeros[..bytes])), "{bytes}");
    }
}

#[test]
fn every_bit_of_a_block_counts() {
    let key = key(2);
    for bytes in [33, 4096, BLOCK_BYTES] {
        let mut block = pattern(bytes, 3);
        let before = key.digest(&block);
        // All bits of the first and last unit, one bit of each word between.
        for bit in (0..128).chain((128..bytes * 8 - 136).step_by(37)).chain(bytes * 8 - 136..bytes * 8) {
            block[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(key.digest(&block), before, "bit {bit} of {bytes} bytes");
            block[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(key.digest(&block), before);
    }
}

#[test]
fn another_key_gives_another_digest() {
    let block = pattern(1000, 9);
    assert_ne!(key(1).digest(&block), key(2).digest(&block));
}

/// Words whose halves' sums with a key of zeros cancel: only the key's randomness tells such blocks apart.
#[test]
fn blocks_that_plain_sums_confuse_are_told_apart() {
    let key = key(4);
    let word = |low: u32, high: u32| (u64::from(high) << 32 | u64::from(low)).to_le_bytes();
    let of = |words: &[[u8; 8]]| key.digest(&words.concat());
    assert_ne!(of(&[word(2, 3), word(0, 0)]), of(&[word(3, 2), word(0, 0)]), "halves exchanged");
    assert_ne!(of(&[word(2, 3), word(0, 0)]), of(&[word(0, 0), word(2, 3)]), "words exchanged");
    assert_ne!(of(&[word(6, 1), word(0, 0)]), of(&[word(2, 3), word(0, 0)]), "the same product");
    assert_ne!(of(&[word(0, 5), word(0, 0)]), of(&[word(0, 9), word(0, 0)]), "times nothing");
}

#[test]
fn a_digest_is_below_the_prime_and_never_is_none_of_them() {
    let key = key(5);
    for seed in 0..200 {
        assert!(key.digest(&pattern(64, seed)).0 < PRIME);
    }
    const { assert!(Digest::NEVER.0 > PRIME) };
    assert_eq!(reduce(PRIME), PRIME);
    assert_eq!(reduce(PRIME + 1), 1);
    assert_eq!(reduce(u128::MAX - 1), PRIME);
}

#[test]
fn a_key_does_not_print_itself() {
    assert_eq!(format!("{:?}", key(1)), "Key(..)");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn the_fast_way_is_the_definition(bytes in 0..3000usize, seed: u64, of_key: u8) {
        let key = key(of_key);
        let block = pattern(bytes, seed);
        prop_assert_eq!(key.digest(&block), by_definition(&key, &block));
    }

    #[test]
    fn whole_blocks_are_the_definition_too(seed: u64) {
        let key = key(8);
        let block = pattern(BLOCK_BYTES - (seed % 3) as usize * 8, seed);
        prop_assert_eq!(key.digest(&block), by_definition(&key, &block));
    }

    /// Values that are close to the ends of their ranges, where carries are.
    #[test]
    fn folds_of_extreme_sums_are_right(picks in proptest::array::uniform5(0..6u8), of_key: u8) {
        let values = [0, 1, u64::MAX, u64::MAX - 1, 1 << 63, (1 << 32) - 1];
        let mut key = key(of_key);
        for (index, pick) in picks.iter().enumerate() {
            key.fold[index] = [0, 1, PRIME, PRIME - 1, 1 << 126, (1 << 64) - 1][usize::from(*pick)];
        }
        let sums: [u64; 4] = std::array::from_fn(|index| values[usize::from(picks[4 - index])]);
        let bytes = values[usize::from(picks[2])];
        let mut expected = 0u128;
        for (factor, a) in sums.into_iter().chain([bytes]).zip(key.fold) {
            for bit in 0..64 {
                if factor >> bit & 1 == 1 {
                    let doubled = (0..bit).fold(a % PRIME, |a, _| a * 2 % PRIME);
                    expected = (expected + doubled) % PRIME;
                }
            }
        }
        prop_assert_eq!(key.fold(sums, bytes), Digest(expected));
    }
}

const GOLDEN_KEY: &str = "98e86c6acbaadb7f6303b9094017c1d10dd394fae92f1c2c31e98d20ce1d94ea";
const GOLDEN: [&str; 9] = [
    "0 00000000000000000000000000000000",
    "1 16e129bb3b378b97a5ea90777f415bdb",
    "15 3157a2504ae586ffda21a1e0063f0b06",
    "16 00984db98eb265018787316500dd4924",
    "17 32a1dd2d2d4f1ac98cddd0a42d45e63a",
    "1000 5f8d4c0c5269af666a068d973a3b1d14",
    "65535 2eefd3bf49817f91e71f14abc09eb305",
    "65536 5bd80b6eebfb848e883d9a9580328b8a",
    "zeros 24b287553f2f0f0f7653cf448556e79e",
];

/// This machine's vectors and the plain loop give the same sums; elsewhere the golden values hold each of them.
#[test]
fn vectors_of_every_width_give_the_same_sums() {
    let key = key(3);
    for bytes in [0, 1, 15, 16, 2047, 2048, 2049, 6000, BLOCK_BYTES - 1, BLOCK_BYTES] {
        let block = pattern(bytes, bytes as u64);
        assert_eq!(key.sums(&block), key.sums_plain(&block), "{bytes} bytes");
    }
}
