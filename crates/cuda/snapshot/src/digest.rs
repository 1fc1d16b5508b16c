//! The keyed digest of a block of at most 64 KiB: NH (the hash of UMAC, RFC 4418) with four Toeplitz passes, folded to
//! 127 bits modulo a prime.
//!
//! # Definition
//!
//! A block has 1 to [`BLOCK_BYTES`] bytes. Zeros fill it up to a multiple of [`UNIT_BYTES`]; `n` is its number of
//! 64-bit words then, and `m[0..n]` are these words, little-endian. `lo` and `hi` are the 32-bit halves of a word.
//! The key has 64-bit words `k[0..8198]` and five numbers `a[0..5]` below 2^127.
//!
//! ```text
//! y[p]   = Σ (i in 0..n)  ((lo m[i] + lo k[i + 2p]) mod 2^32) · ((hi m[i] + hi k[i + 2p]) mod 2^32)   mod 2^64,   p in 0..4
//! digest = (y[0]·a[0] + y[1]·a[1] + y[2]·a[2] + y[3]·a[3] + bytes·a[4])   mod (2^127 - 1)
//! ```
//!
//! # Why it can be trusted
//!
//! For two different blocks of one length, each `y` agrees with probability at most 2^-32 over the key. Each pass shifts
//! the key by one unit, that is by whole pairs of halves. So of the last unit in which two blocks differ, pass `p` uses a
//! part of the key that no earlier pass used for a differing unit, and all four agree with at most 2^-128. (RFC 4418
//! itself pairs halves of different units, which this argument does not cover.) Different sums, or different lengths, have
//! the same fold with probability at most 2^-126: an `a` is uniform in 0..2^127, in which the residue 0 occurs twice. So a
//! changed block looks unchanged with less than 2^-125, as long as its data does not depend on the key.
//!
//! The upper bit of a digest is never set. [`Digest::NEVER`] has it set: it equals no block's digest.
//!
//! # What it is not
//!
//! A digest is no authentication: a writer that knows the key can make two blocks with one digest.

use std::fmt;
use zeroize::{Zeroize, Zeroizing};

/// The most bytes of a block. Paged caches of inference touch small pages all over memory, so larger blocks would make
/// far more bytes dirty than changed; smaller ones would make the tables larger for little.
pub const BLOCK_BYTES: usize = 64 << 10;

/// Blocks are filled up with zeros to a multiple of this, and a pass shifts the key by it.
pub const UNIT_BYTES: usize = 16;

/// Toeplitz passes: each makes an undetected change 2^32 times less likely.
pub const PASSES: usize = 4;

/// Bytes of the part of the key that is added to the block.
pub const NH_KEY_BYTES: usize = BLOCK_BYTES + (PASSES - 1) * UNIT_BYTES;

/// Numbers of the key that fold the sums and the length.
pub const FOLD_KEYS: usize = PASSES + 1;

/// Bytes of a whole key as [`Key::to_bytes`] writes it.
pub const KEY_BYTES: usize = NH_KEY_BYTES + FOLD_KEYS * 16;

/// 64-bit words of a unit.
const UNIT_WORDS: usize = UNIT_BYTES / 8;

/// The prime 2^127 - 1, which folds are taken modulo.
const PRIME: u128 = u128::MAX >> 1;

/// The digest of a block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub u128);

impl Digest {
    /// Equals no digest of a block: a table full of these calls every block dirty.
    pub const NEVER: Self = Self(u128::MAX);
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The key of one session's digests.
pub struct Key {
    /// The words `k`.
    nh: Box<[u64]>,
    /// Their upper halves, so that sums need not shift them out each time.
    nh_high: Box<[u64]>,
    /// The numbers `a`.
    fold: [u128; FOLD_KEYS],
}

impl Drop for Key {
    fn drop(&mut self) {
        self.nh.zeroize();
        self.nh_high.zeroize();
        self.fold.zeroize();
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    /// The key that a session's random seed stands for: [`KEY_BYTES`] of BLAKE3's output for it, in the order of
    /// [`Key::to_bytes`].
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        let mut bytes = Zeroizing::new(vec![0; KEY_BYTES]);
        let mut hasher = blake3::Hasher::new_derive_key("dxpu 2026-11-16 key of digests of device memory");
        hasher.update(seed);
        hasher.finalize_xof().fill(&mut bytes);
        let (nh, fold) = bytes.split_at(NH_KEY_BYTES);
        Self {
            nh: nh.chunks_exact(8).map(word).collect(),
            nh_high: nh.chunks_exact(8).map(|bytes| word(bytes) >> 32).collect(),
            fold: std::array::from_fn(|index| {
                let number = fold[index * 16..index * 16 + 16].try_into().expect("16 bytes");
                u128::from_le_bytes(number) & PRIME
            }),
        }
    }

    /// The key as a GPU wants it: the words `k`, then the numbers `a`, all little-endian.
    pub fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(KEY_BYTES));
        bytes.extend(self.nh.iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend(self.fold.iter().flat_map(|number| number.to_le_bytes()));
        bytes
    }

    /// The digest of a block.
    ///
    /// # Panics
    ///
    /// If the block has more than [`BLOCK_BYTES`].
    pub fn digest(&self, block: &[u8]) -> Digest {
        assert!(block.len() <= BLOCK_BYTES, "a block has at most 64 KiB");
        self.fold(self.sums(block), block.len() as u64)
    }

    /// The four sums `y`, with the widest vectors that this processor has.
    #[allow(unsafe_code)]
    fn sums(&self, block: &[u8]) -> [u64; PASSES] {
        #[cfg(target_arch = "x86_64")]
        {
            if std::is_x86_feature_detected!("avx512f") && std::is_x86_feature_detected!("avx512dq") {
                // SAFETY: the processor was just asked for these instructions.
                return unsafe { self.sums_of_512_bits(block) };
            }
            if std::is_x86_feature_detected!("avx2") {
                // SAFETY: the processor was just asked for these instructions.
                return unsafe { self.sums_of_256_bits(block) };
            }
        }
        self.sums_plain(block)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512dq")]
    fn sums_of_512_bits(&self, block: &[u8]) -> [u64; PASSES] {
        self.sums_plain(block)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn sums_of_256_bits(&self, block: &[u8]) -> [u64; PASSES] {
        self.sums_plain(block)
    }

    /// The same with the instructions that every processor has. Compiled anew into each function above.
    #[inline(always)]
    fn sums_plain(&self, block: &[u8]) -> [u64; PASSES] {
        /// Words that are unpacked at a time: they stay in the innermost cache, and so does their part of the key.
        const PIECE: usize = 256;
        let mut sums = [0; PASSES];
        let (mut words, mut highs) = ([0; PIECE], [0; PIECE]);
        for (index, piece) in block.chunks(PIECE * 8).enumerate() {
            let count = unpack(piece, &mut words);
            for (high, word) in highs.iter_mut().zip(&words) {
                *high = word >> 32;
            }
            for (pass, sum) in sums.iter_mut().enumerate() {
                let at = index * PIECE + pass * UNIT_WORDS;
                let (lows_key, highs_key) = (&self.nh[at..at + count], &self.nh_high[at..at + count]);
                let of_pass = products(&words[..count], &highs[..count], lows_key, highs_key);
                *sum = of_pass.wrapping_add(*sum);
            }
        }
        words.zeroize();
        highs.zeroize();
        sums
    }

    fn fold(&self, sums: [u64; PASSES], bytes: u64) -> Digest {
        let factors = sums.into_iter().chain([bytes]);
        let sum = factors.zip(self.fold).fold(0, |sum, (factor, key)| {
            // factor · key = low + high · 2^64, and 2^127 counts as 1.
            let low = u128::from(factor) * (key & u128::from(u64::MAX));
            let high = u128::from(factor) * (key >> 64);
            let sum = reduce(sum + reduce(low));
            let sum = reduce(sum + ((high & u128::from(u64::MAX >> 1)) << 64));
            reduce(sum + (high >> 63))
        });
        Digest(if sum == PRIME { 0 } else { sum })
    }
}

/// The same modulo the prime, and at most the prime. `number` is below 2^128 - 1.
fn reduce(number: u128) -> u128 {
    (number & PRIME) + (number >> 127)
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("8 bytes"))
}

/// A piece of a block as words, filled up to a whole unit with zeros; says how many there are.
#[inline(always)]
fn unpack(piece: &[u8], words: &mut [u64]) -> usize {
    let whole = piece.chunks_exact(8);
    let rest = whole.remainder();
    let count = piece.len().next_multiple_of(UNIT_BYTES) / 8;
    words[piece.len() / 8..count].fill(0);
    for (word, bytes) in words.iter_mut().zip(whole) {
        *word = self::word(bytes);
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        words[piece.len() / 8] = u64::from_le_bytes(last);
        last.zeroize();
    }
    count
}

/// The sum of all words' products. A loop over 64-bit words without branches: compilers turn it into vectors, and the
/// masks into nothing.
#[inline(always)]
fn products(lows: &[u64], highs: &[u64], lows_key: &[u64], highs_key: &[u64]) -> u64 {
    const LOW: u64 = u32::MAX as u64;
    let messages = lows.iter().zip(highs);
    let keys = lows_key.iter().zip(highs_key);
    messages.zip(keys).fold(0, |sum, ((low, high), (low_key, high_key))| {
        let product = (low.wrapping_add(*low_key) & LOW) * (high.wrapping_add(*high_key) & LOW);
        product.wrapping_add(sum)
    })
}

#[cfg(test)]
mod tests;
