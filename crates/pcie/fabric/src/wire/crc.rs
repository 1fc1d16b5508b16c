//! CRC-32C. (The ECRC of a TLP is another one, and none of our business.)
//!
//! Payloads are long, and going over them is most of what a link does; `crc-fast` multiplies without carry, many bytes at
//! once. Headers are a few tens of bytes, and there are several for each TLP: for so few, a table is quicker. It is asked
//! eight bytes at a time.

/// The polynomial, lowest bit first.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// Up to so many bytes the table is quicker.
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
pub fn crc(bytes: &[u8]) -> u32 {
    if bytes.len() > SHORT_BYTES { crc_fast::crc32_iscsi(bytes) } else { crc_and(0, bytes) }
}

/// The CRC of bytes that had the CRC `so_far` and then `bytes`. So the payload of a TLP is gone over once, and its CRC
/// serves for the packet (payload, then the packet's first bytes) and for the TLP (payload, then prefixes and header). Those
/// are few, so this is the table's.
#[inline]
pub fn crc_and(so_far: u32, bytes: &[u8]) -> u32 {
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
    fn short_and_long_are_the_same_crc() {
        assert_eq!(crc(b"123456789"), 0xe306_9283, "the check value of CRC-32C");
        let bytes: Vec<u8> = (0..4200u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for length in (0..700).chain(4000..bytes.len()) {
            for from in [0, 1, 7].map(|from| length.min(from)) {
                let part = &bytes[from..length];
                assert_eq!(crc(part), crc32c::crc32c(part), "{length} bytes without {from}");
            }
            for so_far in [0, 1, 0xdead_beef, u32::MAX] {
                let expected = crc32c::crc32c_append(so_far, &bytes[..length]);
                assert_eq!(crc_and(so_far, &bytes[..length]), expected, "{length} bytes behind {so_far:#x}");
            }
        }
    }
}
