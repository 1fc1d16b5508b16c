//! Cutting requests and completions into packets.
//!
//! ```text
//!   request     |<─ at most MRRS or MPS ─>|  and no packet over a boundary of 4 KiB
//!   completion  |<─ at most MPS ─>| every cut at a multiple of the read completion boundary
//! ```

/// No request crosses a multiple of this.
pub const PAGE_BYTES: u64 = 4096;
/// Max_Payload_Size after a reset.
pub const MAX_PAYLOAD_BYTES_RESET: SizeLimit = SizeLimit(128);
/// Max_Read_Request_Size after a reset.
pub const MAX_READ_BYTES_RESET: SizeLimit = SizeLimit(512);

/// A value of Max_Payload_Size or Max_Read_Request_Size: 128, 256, 512, 1024, 2048 or 4096 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SizeLimit(u16);

/// A size that the device control register cannot hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not one of 128, 256, 512, 1024, 2048, 4096")]
pub struct SizeLimitError(pub u32);

impl SizeLimit {
    /// Of a number of bytes.
    pub const fn new(bytes: u32) -> Result<Self, SizeLimitError> {
        match bytes {
            128 | 256 | 512 | 1024 | 2048 | 4096 => Ok(Self(bytes as u16)),
            _ => Err(SizeLimitError(bytes)),
        }
    }

    /// Of the three bits in the device control register; None for the two reserved values.
    pub const fn from_bits(bits: u8) -> Option<Self> {
        if bits <= 5 { Some(Self(128 << bits)) } else { None }
    }

    /// Those three bits.
    pub const fn to_bits(self) -> u8 {
        self.0.trailing_zeros() as u8 - 7
    }

    /// In bytes.
    pub const fn bytes(self) -> u32 {
        self.0 as u32
    }
}

/// Where a completer may cut: a root complex at 64 or 128 bytes, other completers at 128.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadCompletionBoundary {
    /// Some root complexes.
    Bytes64,
    /// All others.
    #[default]
    Bytes128,
}

impl ReadCompletionBoundary {
    /// In bytes.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Bytes64 => 64,
            Self::Bytes128 => 128,
        }
    }
}

/// Cuts `bytes` bytes from `address` on into requests of at most `limit`: MRRS for reads, MPS for writes. Each item is
/// the address and the number of bytes of one request. Nothing comes of zero bytes. Stops at the end of the address
/// space.
pub const fn split_request(address: u64, bytes: u64, limit: SizeLimit) -> Pieces {
    let room = u64::MAX - address;
    // The last byte of the address space cannot be reached; no device has memory there.
    Pieces { address, left: if bytes < room { bytes } else { room }, limit: limit.bytes() as u64 }
}

/// See [`split_request`].
#[derive(Clone, Debug)]
pub struct Pieces {
    address: u64,
    left: u64,
    limit: u64,
}

impl Iterator for Pieces {
    type Item = (u64, u32);

    fn next(&mut self) -> Option<(u64, u32)> {
        if self.left == 0 {
            return None;
        }
        let address = self.address;
        // Cuts fall on multiples of the limit, which divides 4 KiB: so no packet crosses a page, all but the first and
        // the last are whole, and the DWs around a packet's bytes are never more than the limit.
        let bytes = (self.limit - address % self.limit).min(self.left);
        self.address += bytes;
        self.left -= bytes;
        Some((address, bytes as u32))
    }
}

/// One packet of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionPiece {
    /// Where its bytes lie in all the bytes that were asked for.
    pub offset: usize,
    /// How many of them it brings.
    pub bytes: usize,
    /// Bytes of padding before them in the payload, 0 to 3.
    pub skipped: usize,
    /// Its length field.
    pub length_dw: u16,
    /// Its byte count: what is still owed, its own included.
    pub byte_count: u16,
    /// Its lower address.
    pub lower_address: u8,
}

/// Cuts the answer to a read into completions of at most `limit` (MPS), at multiples of `boundary`.
///
/// `address` is that of the first byte asked for and `byte_count` as in [`crate::Span::byte_count`]; more than 4096
/// count as 4096.
pub const fn split_completion(
    address: u64,
    byte_count: u16,
    limit: SizeLimit,
    boundary: ReadCompletionBoundary,
) -> CompletionPieces {
    let left = if byte_count > 4096 { 4096 } else { byte_count as u64 };
    CompletionPieces { address, left, offset: 0, limit: limit.bytes() as u64, boundary: boundary.bytes() }
}

/// See [`split_completion`].
#[derive(Clone, Debug)]
pub struct CompletionPieces {
    address: u64,
    left: u64,
    offset: usize,
    limit: u64,
    boundary: u64,
}

impl Iterator for CompletionPieces {
    type Item = CompletionPiece;

    fn next(&mut self) -> Option<CompletionPiece> {
        if self.left == 0 {
            return None;
        }
        let skipped = self.address % 4;
        // The limit is a multiple of the boundary, so the last boundary within the limit lies after the first byte.
        let room = self.limit - self.address % self.boundary;
        let bytes = room.min(self.left);
        let piece = CompletionPiece {
            offset: self.offset,
            bytes: bytes as usize,
            skipped: skipped as usize,
            length_dw: (skipped + bytes).div_ceil(4) as u16,
            byte_count: self.left as u16,
            lower_address: self.address as u8 & 0x7f,
        };
        self.address = self.address.wrapping_add(bytes);
        self.left -= bytes;
        self.offset += bytes as usize;
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(bytes: u32) -> SizeLimit {
        SizeLimit::new(bytes).unwrap()
    }

    #[test]
    fn a_read_is_cut_at_the_page_and_at_the_limit() {
        let pieces: Vec<_> = split_request(0xffc, 520, limit(256)).collect();
        assert_eq!(pieces, [(0xffc, 4), (0x1000, 256), (0x1100, 256), (0x1200, 4)]);
        assert_eq!(split_request(0x1000, 0, limit(128)).count(), 0);
        assert_eq!(split_request(u64::MAX - 3, 100, limit(128)).collect::<Vec<_>>(), [(u64::MAX - 3, 3)]);
    }

    #[test]
    fn a_completion_is_cut_at_the_boundary() {
        let cut = |address, count, mps, boundary| {
            split_completion(address, count, limit(mps), boundary)
                .map(|piece| (piece.lower_address, piece.length_dw, piece.byte_count))
                .collect::<Vec<_>>()
        };
        let (rc, others) = (ReadCompletionBoundary::Bytes64, ReadCompletionBoundary::Bytes128);
        assert_eq!(cut(0x1000, 256, 128, others), [(0, 32, 256), (0, 32, 128)]);
        assert_eq!(cut(0x1001, 255, 128, others), [(1, 32, 255), (0, 32, 128)]);
        assert_eq!(cut(0x1044, 256, 128, rc), [(0x44, 31, 256), (0x40, 32, 132), (0x40, 1, 4)]);
        assert_eq!(cut(0x1044, 256, 128, others), [(0x44, 15, 256), (0, 32, 196), (0, 17, 68)]);
        assert_eq!(cut(0x1003, 1, 4096, others), [(3, 1, 1)]);
    }

    #[test]
    fn sizes_are_those_of_the_register() {
        for bits in 0..8 {
            let size = SizeLimit::from_bits(bits);
            assert_eq!(size.is_some(), bits < 6);
            assert!(size.is_none_or(|size| size.to_bits() == bits && size.bytes() == 128 << bits));
        }
        assert_eq!(SizeLimit::new(100), Err(SizeLimitError(100)));
    }
}
