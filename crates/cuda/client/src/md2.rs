//! MD2 (RFC 1319) and its HMAC (RFC 2104).
//!
//! MD2 protects nothing today. It is here because the CUDA runtime checks a driver with it; see [`crate::integrity`].

/// Bytes of a block, and of a digest.
pub const BLOCK_BYTES: usize = 16;

/// A digest.
pub type Digest = [u8; BLOCK_BYTES];

/// MD2 of all bytes of `parts`, one after the other.
pub fn md2(parts: &[&[u8]]) -> Digest {
    let mut state = State { x: [0; 3 * BLOCK_BYTES], checksum: [0; BLOCK_BYTES] };
    let mut block = [0; BLOCK_BYTES];
    let mut filled = 0;
    for &byte in parts.iter().copied().flatten() {
        block[filled] = byte;
        filled += 1;
        if filled == BLOCK_BYTES {
            state.absorb(&block);
            filled = 0;
        }
    }
    // A padding of n bytes of value n makes the last block full; a full last block gets a block of padding.
    let padding = BLOCK_BYTES - filled;
    block[filled..].fill(padding as u8);
    state.absorb(&block);
    let checksum = state.checksum;
    state.mix(&checksum);
    std::array::from_fn(|place| state.x[place])
}

/// HMAC-MD2 of `message` under a key of exactly one block.
pub fn hmac_md2(key: &[u8; BLOCK_BYTES], message: &[u8]) -> Digest {
    let inner = md2(&[&key.map(|byte| byte ^ 0x36), message]);
    md2(&[&key.map(|byte| byte ^ 0x5c), &inner])
}

struct State {
    x: [u8; 3 * BLOCK_BYTES],
    checksum: [u8; BLOCK_BYTES],
}

impl State {
    fn absorb(&mut self, block: &[u8; BLOCK_BYTES]) {
        let mut last = self.checksum[BLOCK_BYTES - 1];
        for (checksum, &byte) in self.checksum.iter_mut().zip(block) {
            *checksum ^= S[usize::from(byte ^ last)];
            last = *checksum;
        }
        self.mix(block);
    }

    fn mix(&mut self, block: &[u8; BLOCK_BYTES]) {
        for (place, &byte) in block.iter().enumerate() {
            self.x[BLOCK_BYTES + place] = byte;
            self.x[2 * BLOCK_BYTES + place] = byte ^ self.x[place];
        }
        let mut t = 0u8;
        for round in 0..18 {
            for x in &mut self.x {
                *x ^= S[usize::from(t)];
                t = *x;
            }
            t = t.wrapping_add(round);
        }
    }
}

/// A permutation of the bytes, made from the digits of pi (RFC 1319, section 3.2).
#[rustfmt::skip]
const S: [u8; 256] = [
     41,  46,  67, 201, 162, 216, 124,   1,  61,  54,  84, 161, 236, 240,   6,  19,
     98, 167,   5, 243, 192, 199, 115, 140, 152, 147,  43, 217, 188,  76, 130, 202,
     30, 155,  87,  60, 253, 212, 224,  22, 103,  66, 111,  24, 138,  23, 229,  18,
    190,  78, 196, 214, 218, 158, 222,  73, 160, 251, 245, 142, 187,  47, 238, 122,
    169, 104, 121, 145,  21, 178,   7,  63, 148, 194,  16, 137,  11,  34,  95,  33,
    128, 127,  93, 154,  90, 144,  50,  39,  53,  62, 204, 231, 191, 247, 151,   3,
    255,  25,  48, 179,  72, 165, 181, 209, 215,  94, 146,  42, 172,  86, 170, 198,
     79, 184,  56, 210, 150, 164, 125, 182, 118, 252, 107, 226, 156, 116,   4, 241,
     69, 157, 112,  89, 100, 113, 135,  32, 134,  91, 207, 101, 230,  45, 168,   2,
     27,  96,  37, 173, 174, 176, 185, 246,  28,  70,  97, 105,  52,  64, 126,  15,
     85,  71, 163,  35, 221,  81, 175,  58, 195,  92, 249, 206, 186, 197, 234,  38,
     44,  83,  13, 110, 133,  40, 132,   9, 211, 223, 205, 244,  65, 129,  77,  82,
    106, 220,  55, 200, 108, 193, 171, 250,  36, 225, 123,   8,  12, 189, 177,  74,
    120, 136, 149, 139, 227,  99, 232, 109, 233, 203, 213, 254,  59,   0,  29,  57,
    242, 239, 183,  14, 102,  88, 208, 228, 166, 119, 114, 248, 235, 117,  75,  10,
     49,  68,  80, 180, 143, 237,  31,  26, 219, 153, 141,  51, 159,  17, 131,  20,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(digest: Digest) -> String {
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The test suite of RFC 1319, appendix A.5.
    #[test]
    fn the_vectors_of_the_rfc_hold() {
        let alphabet = "abcdefghijklmnopqrstuvwxyz";
        let digits = "1234567890".repeat(8);
        let alphanumeric = [&alphabet.to_uppercase(), alphabet, "0123456789"].concat();
        for (message, digest) in [
            ("", "8350e5a3e24c153df2275c9f80692773"),
            ("a", "32ec01ec4a6dac72c0ab96fb34c0b5d1"),
            ("abc", "da853b0d3f88d99b30283a69e6ded6bb"),
            ("message digest", "ab4f496bfb2a530b219ff33031fe06b0"),
            (alphabet, "4e8ddff3650292ab5a4108c3aa47940b"),
            (&alphanumeric, "da33def2a42df13975352846c30338cd"),
            (&digits, "d5976f79d83d3a0dc9806c3c66f3efd8"),
        ] {
            assert_eq!(hex(md2(&[message.as_bytes()])), digest, "{message:?}");
        }
    }

    #[test]
    fn the_table_is_a_permutation() {
        let mut sorted = S;
        sorted.sort_unstable();
        assert!(sorted.iter().enumerate().all(|(place, &byte)| place == usize::from(byte)));
    }

    /// The state after one block of a key of the CUDA runtime under the inner mask of HMAC.
    #[test]
    fn one_block_leaves_the_known_state() {
        let key = 0x146a_ddae_53a9_a752_aa08_4136_0bf5_5a9f_u128.to_be_bytes();
        let mut state = State { x: [0; 48], checksum: [0; 16] };
        state.absorb(&key.map(|byte| byte ^ 0x36));
        assert_eq!(hex(std::array::from_fn(|place| state.x[place])), "8b219a49e86d1aeef237f9b54a8c3c75");
    }

    #[test]
    fn how_a_message_is_cut_into_parts_does_not_matter() {
        assert_eq!(md2(&[b"message", b"", b" digest"]), md2(&[b"message digest"]));
    }
}
