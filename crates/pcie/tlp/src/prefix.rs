//! Prefixes: DWs in front of the header. We keep them and look at no more than where they go.
//!
//! ```text
//! byte 0: 100 L tttt   L = 0: local, for the next link only; L = 1: end to end
//! ```

use crate::error::{DecodeError, Malformed};
use crate::kind::PREFIX;

/// The specification lets a receiver take up to four end-to-end prefixes. It bounds local ones nowhere; we take as many.
const OF_ONE_KIND_MAX: usize = 4;
/// The most bytes of prefixes in front of a header.
pub const PREFIX_BYTES_MAX: usize = 2 * OF_ONE_KIND_MAX * 4;
const END_TO_END: u8 = 0x10;

/// How far a prefix goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixKind {
    /// To the other end of this link.
    Local,
    /// All the way, and covered by the ECRC.
    EndToEnd,
}

/// The prefixes of a packet, as they came: local ones first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prefixes<'a> {
    bytes: &'a [u8],
    local_bytes: usize,
}

impl<'a> Prefixes<'a> {
    /// No prefix, as on nearly every packet.
    pub const NONE: Self = Self { bytes: &[], local_bytes: 0 };

    /// Of whole DWs, each of them a prefix.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (prefixes, rest) = Self::scan(bytes)?;
        match rest.first() {
            None => Ok(prefixes),
            Some(_) if rest.len() < 4 => Err(Malformed::PrefixBytes(bytes.len())),
            Some(byte) => Err(Malformed::NotAPrefix { byte: *byte }),
        }
    }

    /// Splits the prefixes off the front of `bytes`; gives what follows them, a header if all is well.
    #[inline]
    pub fn split(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), DecodeError> {
        match bytes.first() {
            None => return Err(DecodeError::Truncated { need: 12, have: 0 }),
            Some(byte) if byte & PREFIX == 0 => return Ok((Self::NONE, bytes)),
            Some(_) => {}
        }
        let (prefixes, rest) = Self::scan(bytes)?;
        if rest.len() < 4 {
            let need = prefixes.bytes.len() + 16;
            return Err(DecodeError::Truncated { need, have: bytes.len() });
        }
        Ok((prefixes, rest))
    }

    /// Takes DWs while they are prefixes.
    fn scan(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Malformed> {
        let (mut local, mut end_to_end) = (0, 0);
        for dw in bytes.chunks_exact(4) {
            if dw[0] & 0xe0 != PREFIX {
                break;
            }
            if dw[0] & END_TO_END != 0 {
                end_to_end += 1;
            } else if end_to_end > 0 {
                return Err(Malformed::PrefixOrder);
            } else {
                local += 1;
            }
            if local > OF_ONE_KIND_MAX || end_to_end > OF_ONE_KIND_MAX {
                return Err(Malformed::TooManyPrefixes(OF_ONE_KIND_MAX));
            }
        }
        let (prefixes, rest) = bytes.split_at((local + end_to_end) * 4);
        Ok((Self { bytes: prefixes, local_bytes: local * 4 }, rest))
    }

    /// All of them as they travel.
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Those that go all the way; the ECRC covers them.
    pub fn end_to_end(&self) -> &'a [u8] {
        &self.bytes[self.local_bytes..]
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Each prefix: how far it goes, its four bits of type, its three bytes.
    pub fn iter(&self) -> impl Iterator<Item = (PrefixKind, u8, [u8; 3])> + use<'a> {
        self.bytes.chunks_exact(4).map(|dw| {
            let kind = if dw[0] & END_TO_END != 0 { PrefixKind::EndToEnd } else { PrefixKind::Local };
            (kind, dw[0] & 0xf, [dw[1], dw[2], dw[3]])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_kept_and_told_apart() {
        let bytes = [0x8e, 1, 2, 3, 0x91, 4, 5, 6];
        let prefixes = Prefixes::new(&bytes).unwrap();
        assert_eq!(prefixes.as_bytes(), bytes);
        assert_eq!(prefixes.end_to_end(), &bytes[4..]);
        let all: Vec<_> = prefixes.iter().collect();
        assert_eq!(all, [(PrefixKind::Local, 0xe, [1, 2, 3]), (PrefixKind::EndToEnd, 1, [4, 5, 6])]);
    }

    #[test]
    fn each_wrong_form_is_told() {
        assert_eq!(Prefixes::new(&[0x91, 0, 0, 0, 0x8e, 0, 0, 0]), Err(Malformed::PrefixOrder));
        assert_eq!(Prefixes::new(&[0x91, 0, 0, 0].repeat(5)), Err(Malformed::TooManyPrefixes(4)));
        assert_eq!(Prefixes::new(&[0x81, 0, 0, 0].repeat(5)), Err(Malformed::TooManyPrefixes(4)));
        assert_eq!(Prefixes::new(&[0x91, 0, 0, 0, 0x91]), Err(Malformed::PrefixBytes(5)));
        assert_eq!(Prefixes::new(&[0x40, 0, 0, 0]), Err(Malformed::NotAPrefix { byte: 0x40 }));
        assert_eq!(Prefixes::new(&[0xa0, 0, 0, 0]), Err(Malformed::NotAPrefix { byte: 0xa0 }));
    }
}
