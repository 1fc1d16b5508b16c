//! The end-to-end CRC: made by the first sender, checked by the last receiver, never changed between.
//!
//! CRC-32 with polynomial 0x04C11DB7 over end-to-end prefixes, header and payload; seed all ones, result complemented,
//! the bits of each byte taken from the lowest up. Two bits may change on the way, so both are taken as ones: `Type[0]`
//! (a bridge turns a type 1 configuration request into type 0) and EP (a switch may poison). Written as a big-endian
//! DW, the result has the byte order of the specification's table: its lowest byte first.

const TYPE_0: u8 = 0x01;
const EP: u8 = 0x40;

/// The digest of a packet. `end_to_end` are its end-to-end prefixes, `header` its 12 or 16 header bytes.
///
/// Calls with a header shorter than one DW have no defined result, but do not panic.
pub fn ecrc(end_to_end: &[u8], header: &[u8], payload: &[u8]) -> u32 {
    ecrc_of_parts(end_to_end, header, &[payload])
}

/// The same for a payload that lies in several pieces.
pub fn ecrc_of_parts(end_to_end: &[u8], header: &[u8], payload: &[&[u8]]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    // Type[0] of a prefix's own type is covered as it is: only the header's changes on the way.
    if !end_to_end.is_empty() {
        crc.update(end_to_end);
    }
    let mut masked = [0; 16];
    let known = header.len().min(16);
    masked[..known].copy_from_slice(&header[..known]);
    masked[0] |= TYPE_0;
    masked[2] |= EP;
    crc.update(&masked[..known]);
    for part in payload {
        crc.update(part);
    }
    crc.finalize().swap_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bits_that_may_change_on_the_way_do_not_count() {
        let header = [0x44, 0, 0x80, 1, 0, 0x18, 2, 0xf, 3, 0, 0, 0x10];
        let (mut type_1, mut poisoned, mut other) = (header, header, header);
        type_1[0] |= 1;
        poisoned[2] |= 0x40;
        other[2] ^= 0x20;
        let digest = ecrc(&[], &header, &[1, 2, 3, 4]);
        assert_eq!(ecrc(&[], &type_1, &[1, 2, 3, 4]), digest);
        assert_eq!(ecrc(&[], &poisoned, &[1, 2, 3, 4]), digest);
        assert_ne!(ecrc(&[], &other, &[1, 2, 3, 4]), digest);
        assert_ne!(ecrc(&[0x91, 0, 0, 0], &header, &[1, 2, 3, 4]), digest);
        assert_eq!(ecrc_of_parts(&[], &header, &[&[1], &[2, 3], &[4]]), digest);
    }

    /// Bit by bit, as the specification's text says it, with a register that shifts to the left.
    #[test]
    fn the_table_driven_form_is_the_one_in_the_text() {
        let header = [0x40, 0, 0x80, 1, 0, 0x18, 2, 0xf, 0xfe, 0xd0, 0, 0x10];
        let payload = [0xde, 0xad, 0xbe, 0xef];
        let mut bytes = [header.as_slice(), &payload].concat();
        bytes[0] |= 1;
        bytes[2] |= 0x40;
        let mut register = u32::MAX;
        for byte in bytes {
            for bit in 0..8 {
                let feedback = (register >> 31) ^ u32::from(byte >> bit & 1);
                register = register << 1 ^ if feedback == 1 { 0x04c1_1db7 } else { 0 };
            }
        }
        let result = !register;
        // Result bit 0 goes to digest bit 7, 1 to 6, …, 8 to 15: each byte is turned around.
        let digest = u32::from_be_bytes(result.to_be_bytes().map(u8::reverse_bits));
        assert_eq!(ecrc(&[], &header, &payload), digest);
    }
}
