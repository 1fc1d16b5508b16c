//! The first bytes of every message.

use super::ProtocolError;

/// Bytes of a head.
pub(crate) const HEAD_BYTES: usize = 40;

/// The most bytes of a body: a block.
pub(crate) const BODY_BYTES_MAX: usize = snapshot::BLOCK_BYTES;

/// A head. What `a`, `b` and `c` mean depends on the kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: u8,
    pub(crate) body_bytes: u32,
    pub(crate) a: u64,
    pub(crate) b: u64,
    pub(crate) c: u128,
}

impl Head {
    pub(crate) fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[0] = self.kind;
        bytes[4..8].copy_from_slice(&self.body_bytes.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.a.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.b.to_le_bytes());
        bytes[24..].copy_from_slice(&self.c.to_le_bytes());
        bytes
    }

    /// Reads a head, and refuses one whose body would be too long.
    pub(crate) fn decode(bytes: &[u8; HEAD_BYTES]) -> Result<Self, ProtocolError> {
        let kind = bytes[0];
        if bytes[1..4] != [0; 3] {
            return Err(ProtocolError::Malformed(kind));
        }
        let body_bytes = super::u32_of(&bytes[4..8]);
        if body_bytes as usize > BODY_BYTES_MAX {
            return Err(ProtocolError::TooLong(body_bytes));
        }
        let c = u128::from_le_bytes(bytes[24..].try_into().expect("16 bytes"));
        Ok(Self { kind, body_bytes, a: super::u64_of(&bytes[8..16]), b: super::u64_of(&bytes[16..24]), c })
    }

    /// An error unless the fields that the caller has not read are zero.
    pub(super) fn only(&self, a: bool, b: bool, c: bool, body: bool) -> Result<(), ProtocolError> {
        let fine =
            (a || self.a == 0) && (b || self.b == 0) && (c || self.c == 0) && (body || self.body_bytes == 0);
        if fine { Ok(()) } else { Err(ProtocolError::Malformed(self.kind)) }
    }
}
