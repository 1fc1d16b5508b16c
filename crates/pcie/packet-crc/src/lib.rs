//! CRC-32C of packets. (The ECRC of a TLP is another one, and none of our business.)
//!
//! ```text
//!   bytes ──▶ few?  ── the processor's instruction, eight bytes at a time; without it, a table
//!             many? ── `crc-fast`
//! ```
//!
//! Headers are a few tens of bytes, and there are several for each TLP: what counts there is how soon the first byte is looked at.
//! Calling an instruction that not every processor has is what this crate is for: its callers forbid `unsafe`.

#![deny(unsafe_code)]

/// The polynomial, lowest bit first.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// Up to so many bytes the instruction is quicker than `crc-fast`.
#[cfg(target_arch = "x86_64")]
const FEW_BYTES: usize = 256;
/// Up to so many bytes the table is.
const SHORT_BYTES: usize = 32;

/// `TABLES[k][b]` is what byte `b` does to a CRC when `k` more bytes follow it.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 != 0 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut behind = 1;
    while behind < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[behind - 1][byte];
            tables[behind][byte] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        behind += 1;
    }
    tables
}

/// The CRC of `bytes`.
#[inline]
#[allow(unsafe_code)]
pub fn crc(bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() <= FEW_BYTES && has_instruction() {
        // SAFETY: the processor was just asked for the instruction.
        return unsafe { by_instruction(0, bytes) };
    }
    if bytes.len() <= SHORT_BYTES { by_table(0, bytes) } else { crc_fast::crc32_iscsi(bytes) }
}

/// Whether the processor has an instruction for this CRC.
#[cfg(target_arch = "x86_64")]
#[inline]
fn has_instruction() -> bool {
    std::is_x86_feature_detected!("sse4.2")
}

/// The CRC of bytes that had the CRC `so_far` and then `bytes`. So the payload of a TLP is gone over once, and its CRC
/// serves for the packet (payload, then the packet's first bytes) and for the TLP (payload, then prefixes and header). Those
/// are few, so there is no quicker way for many.
#[inline]
#[allow(unsafe_code)]
pub fn crc_and(so_far: u32, bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if has_instruction() {
        // SAFETY: the processor was just asked for these instructions.
        return unsafe { by_instruction(so_far, bytes) };
    }
    by_table(so_far, bytes)
}

/// The same for bytes whose number the compiler knows: then there is no loop.
#[inline]
#[allow(unsafe_code)]
pub fn crc_and_few<const N: usize>(so_far: u32, bytes: &[u8; N]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if has_instruction() {
        // SAFETY: the processor was just asked for these instructions.
        return unsafe { few_by_instruction(so_far, bytes) };
    }
    by_table(so_far, bytes)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
fn few_by_instruction<const N: usize>(so_far: u32, bytes: &[u8; N]) -> u32 {
    by_instruction(so_far, bytes)
}

#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "sse4.2")]
fn by_instruction(so_far: u32, bytes: &[u8]) -> u32 {
    use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u32, _mm_crc32_u64};
    let mut crc = u64::from(!so_far);
    // Four at a time: the loop itself would be three of four instructions.
    let (many, rest) = bytes.as_chunks::<32>();
    for many in many {
        for eight in many.as_chunks::<8>().0 {
            crc = _mm_crc32_u64(crc, u64::from_le_bytes(*eight));
        }
    }
    let (eights, rest) = rest.as_chunks::<8>();
    for eight in eights {
        crc = _mm_crc32_u64(crc, u64::from_le_bytes(*eight));
    }
    let mut crc = crc as u32;
    let (fours, rest) = rest.as_chunks::<4>();
    for four in fours {
        crc = _mm_crc32_u32(crc, u32::from_le_bytes(*four));
    }
    for byte in rest {
        crc = _mm_crc32_u8(crc, *byte);
    }
    !crc
}

fn by_table(so_far: u32, bytes: &[u8]) -> u32 {
    let mut crc = !so_far;
    let (eights, rest) = bytes.as_chunks::<8>();
    for eight in eights {
        let word = u64::from_le_bytes(*eight) ^ u64::from(crc);
        let place = |byte: u32| TABLES[7 - byte as usize][(word >> (8 * byte) & 0xff) as usize];
        crc = place(0) ^ place(1) ^ place(2) ^ place(3) ^ place(4) ^ place(5) ^ place(6) ^ place(7);
    }
    for byte in rest {
        crc = crc >> 8 ^ TABLES[0][(crc as u8 ^ byte) as usize];
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_with_and_without_the_instruction_are_the_same_crc() {
        assert_eq!(crc(b"123456789"), 0xe306_9283, "the check value of CRC-32C");
        let bytes: Vec<u8> = (0..9000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for length in (0..700).chain((1000..bytes.len()).step_by(61)).chain(4000..4200) {
            for from in [0, 1, 7].map(|from| length.min(from)) {
                let part = &bytes[from..length];
                assert_eq!(crc(part), crc32c::crc32c(part), "{length} bytes without {from}");
            }
            if let Some(few) = bytes[length..].first_chunk::<38>() {
                assert_eq!(crc_and_few(7, few), crc32c::crc32c_append(7, few), "38 bytes from {length}");
            }
            for so_far in [0, 1, 0xdead_beef, u32::MAX] {
                let expected = crc32c::crc32c_append(so_far, &bytes[..length]);
                assert_eq!(crc_and(so_far, &bytes[..length]), expected, "{length} bytes behind {so_far:#x}");
                assert_eq!(
                    by_table(so_far, &bytes[..length]),
                    expected,
                    "{length} behind {so_far:#x}, table"
                );
            }
        }
    }
}
