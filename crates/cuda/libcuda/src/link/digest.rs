//! A digest of a transfer whose pieces come in any order and of any size.
//!
//! The digest is linear: each byte adds its value times a weight of its place, modulo a prime, so pieces can be added
//! as they come, by several threads, and cut differently the next time. Two primes below 2^61 with weights of their
//! own: two transfers that differ have the same digest with a probability of about 2^-120, if the difference does not
//! depend on the weights. It guards against accidents, not against a worker that lies.

use locks::lock;
use std::sync::Mutex;

/// The Mersenne prime 2^61 - 1: reducing by it takes a shift and an addition.
const PRIME: u64 = (1 << 61) - 1;
const WORD_BYTES: usize = 8;
/// Where the two sequences of weights begin.
const SEEDS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xd1b5_4a32_d192_ed03];

/// The digest so far.
#[derive(Default)]
pub(super) struct Digest {
    sums: Mutex<[u64; 2]>,
}

impl Digest {
    /// Adds the bytes from `offset` on.
    pub(super) fn add(&self, offset: u64, bytes: &[u8]) {
        let added = SEEDS.map(|seed| sum(seed, offset, bytes));
        let mut sums = lock(&self.sums);
        for (sum, more) in sums.iter_mut().zip(added) {
            *sum = reduce(u128::from(*sum) + u128::from(more));
        }
    }

    /// The digest of all bytes added.
    pub(super) fn value(&self) -> u128 {
        let [high, low] = *lock(&self.sums);
        u128::from(high) << 64 | u128::from(low)
    }
}

fn sum(seed: u64, offset: u64, bytes: &[u8]) -> u64 {
    // The first word may begin before the piece; what is missing of it counts as zero.
    let ahead = (offset % WORD_BYTES as u64) as usize;
    let mut word = offset / WORD_BYTES as u64;
    let (first, rest) = bytes.split_at(bytes.len().min((WORD_BYTES - ahead) % WORD_BYTES));
    let mut total = 0_u128;
    if !first.is_empty() {
        total += product(seed, word, value(first) << (8 * ahead));
        word += 1;
    }
    for piece in rest.chunks(WORD_BYTES) {
        total += product(seed, word, value(piece));
        word += 1;
        // Each product is below 2^125: three of them fit.
        total = u128::from(reduce(total));
    }
    reduce(total)
}

fn value(bytes: &[u8]) -> u64 {
    let mut word = [0; WORD_BYTES];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

fn product(seed: u64, word: u64, value: u64) -> u128 {
    u128::from(weight(seed, word)) * u128::from(value)
}

/// A number below the prime, different for each word: the mixing steps of SplitMix64.
fn weight(seed: u64, word: u64) -> u64 {
    let mut z = seed.wrapping_add(word.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) >> 3
}

fn reduce(value: u128) -> u64 {
    let once = (value & u128::from(PRIME)) + (value >> 61);
    let twice = (once & u128::from(PRIME)) as u64 + (once >> 61) as u64;
    if twice >= PRIME { twice - PRIME } else { twice }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest_of(bytes: &[u8]) -> u128 {
        let digest = Digest::default();
        digest.add(0, bytes);
        digest.value()
    }

    fn noise(bytes: usize) -> Vec<u8> {
        (0..bytes as u64).map(|n| weight(7, n) as u8).collect()
    }

    #[test]
    fn pieces_may_be_cut_and_come_in_any_way() {
        let bytes = noise(10_000);
        let whole = digest_of(&bytes);
        for piece in [1, 3, 7, 8, 9, 64, 1000, 4096] {
            let digest = Digest::default();
            let mut starts: Vec<usize> = (0..bytes.len()).step_by(piece).collect();
            starts.reverse();
            starts.rotate_left(piece % 5);
            for start in starts {
                digest.add(start as u64, &bytes[start..(start + piece).min(bytes.len())]);
            }
            assert_eq!(digest.value(), whole, "pieces of {piece}");
        }
    }

    #[test]
    fn any_changed_byte_changes_it() {
        let bytes = noise(300);
        let whole = digest_of(&bytes);
        for at in 0..bytes.len() {
            for flip in [1, 0x80, 0xff] {
                let mut other = bytes.clone();
                other[at] ^= flip;
                assert_ne!(digest_of(&other), whole, "byte {at}");
            }
        }
        let mut swapped = bytes.clone();
        swapped.swap(8, 16);
        assert_ne!(digest_of(&swapped), whole);
    }
}
