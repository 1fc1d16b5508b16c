//! Mutants: a seed of the corpus, changed a little, the same way each time.

/// Xorshift: small, fast, and the same everywhere.
pub(crate) struct Random(u64);

impl Random {
    /// Each target and number has its own sequence.
    pub(crate) fn new(target: &str, number: u64) -> Self {
        let start = target.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        let mut random = Self((start ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1);
        (0..4).for_each(|_| _ = random.next());
        random
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`; 0 if that is 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        if bound == 0 { 0 } else { ((self.next() >> 16) % bound as u64) as usize }
    }
}

/// Values that lengths and counts lie with.
const LIES: [u64; 12] = [
    0,
    1,
    0x7f,
    0xff,
    0xffff,
    0x10_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    1 << 40,
    u64::MAX / 2,
    u64::MAX,
];

/// Words of the languages in the corpus.
const WORDS: [&str; 22] = [
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    ";",
    ",",
    ":",
    "-",
    ".reg .b32 %r<9>;",
    "4294967295",
    ".v4",
    ".entry",
    "bra",
    "@%p1 ",
    "/*",
    "ld.global",
    "0x",
    ".f64",
    "%tid.x",
    "\"",
];

/// One mutant of one of `seeds`.
pub(crate) fn mutant(random: &mut Random, seeds: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = seeds[random.below(seeds.len())].1.clone();
    for _ in 0..1 + random.below(4) {
        let at = random.below(bytes.len());
        match random.below(11) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
            1 if !bytes.is_empty() => bytes[at] = random.next() as u8,
            2 => bytes.truncate(at),
            3 => {
                let end = (at + random.below(32)).min(bytes.len());
                bytes.drain(at..end);
            }
            4 => {
                let end = (at + random.below(64)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                let to = random.below(bytes.len() + 1);
                bytes.splice(to..to, piece);
            }
            5 => {
                let lie = LIES[random.below(LIES.len())].to_le_bytes();
                let width = [1, 2, 4, 8][random.below(4)];
                if at + width <= bytes.len() {
                    bytes[at..at + width].copy_from_slice(&lie[..width]);
                }
            }
            6 => {
                let word = WORDS[random.below(WORDS.len())];
                bytes.splice(at..at, word.bytes());
            }
            7 => {
                let number = LIES[random.below(LIES.len())].to_string();
                bytes.splice(at..at, number.bytes());
            }
            // A word for a word: texts stay texts, and get far into their reader.
            8 | 9 => {
                let other = &seeds[random.below(seeds.len())].1;
                let word = word_at(other, random.below(other.len()));
                let word = other[word].to_vec();
                bytes.splice(word_at(&bytes, at), word);
            }
            _ => {
                let other = &seeds[random.below(seeds.len())].1;
                bytes.truncate(at);
                bytes.extend_from_slice(&other[random.below(other.len())..]);
            }
        }
    }
    bytes
}

/// The word of a text around `at`: letters, digits and what names and types are made of.
fn word_at(bytes: &[u8], at: usize) -> std::ops::Range<usize> {
    let in_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.%$".contains(byte);
    let (before, behind) = bytes.split_at(at.min(bytes.len()));
    let start = before.iter().rposition(|byte| !in_word(byte)).map_or(0, |last| last + 1);
    let end = at + behind.iter().position(|byte| !in_word(byte)).unwrap_or(behind.len());
    start..end.max(start)
}
