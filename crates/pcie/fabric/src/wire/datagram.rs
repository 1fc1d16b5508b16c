//! The front of every datagram.
//!
//! ```text
//! byte 0         1       2          4        8        12        16                 24
//!    | 1 │ kind | flags | path     | link   | epoch  | session | datagram number  | CRC of bytes 0 to 23 |
//! ```
//!
//! The header is in the clear, since it says which link's key opens the rest; the seal covers it. Its CRC lets a
//! receiver drop noise before it looks anything up.

use super::{WireError, be16, be32, crc_and_few};
use units::{Epoch, LinkName, PathId, TooLarge};

/// Length of the header.
pub const DATAGRAM_HEADER_BYTES: usize = 28;
/// Length of the seal of an encrypted datagram.
pub const SEAL_BYTES: usize = 16;
/// What its CRC is made of.
const CHECKED_BYTES: usize = 24;
const VERSION: u8 = 0x10;
const ENCRYPTED: u8 = 0x01;

/// What follows the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DatagramKind {
    /// The host greets.
    Hello = 1,
    /// The box greets back.
    Answer = 2,
    /// Packets.
    Packets = 3,
}

/// An epoch as a datagram has it, and as a link's keys are made of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochField(u32);

impl EpochField {
    /// In the order in which they travel.
    pub const fn to_bytes(self) -> [u8; 4] {
        self.0.to_be_bytes()
    }
}

impl TryFrom<Epoch> for EpochField {
    type Error = TooLarge;

    fn try_from(epoch: Epoch) -> Result<Self, TooLarge> {
        epoch.in_32_bits().map(Self)
    }
}

/// The front of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramHeader {
    /// What follows.
    pub kind: DatagramKind,
    /// Whether the packets are sealed; in greetings, whether they will be.
    pub is_encrypted: bool,
    /// Over which path.
    pub path: PathId,
    /// Of which link.
    pub link: LinkName,
    /// Of which epoch.
    pub epoch: Epoch,
    /// Which of the sessions that epoch may have seen; 0 in greetings.
    pub session: u32,
    /// Counts the datagrams of one sender; never used twice with one key.
    pub number: u64,
}

impl DatagramHeader {
    /// Reads it off the front of `bytes`; gives the rest.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let Some((raw, rest)) = bytes.split_first_chunk::<DATAGRAM_HEADER_BYTES>() else {
            return Err(WireError::Truncated);
        };
        let kind = match raw[0] {
            0x11 => DatagramKind::Hello,
            0x12 => DatagramKind::Answer,
            0x13 => DatagramKind::Packets,
            other => return Err(WireError::UnknownKind(other)),
        };
        if raw[1] & !ENCRYPTED != 0 {
            return Err(WireError::Reserved);
        }
        if raw.first_chunk::<CHECKED_BYTES>().map(|checked| crc_and_few(0, checked)) != Some(be32(raw, 24)) {
            return Err(WireError::Crc);
        }
        let header = Self {
            kind,
            is_encrypted: raw[1] & ENCRYPTED != 0,
            path: PathId(be16(raw, 2)),
            link: LinkName(be32(raw, 4)),
            epoch: Epoch::from(be32(raw, 8)),
            session: be32(raw, 12),
            number: u64::from(be32(raw, 16)) << 32 | u64::from(be32(raw, 20)),
        };
        Ok((header, rest))
    }

    /// The bytes of it. An epoch that they have no room for is refused.
    pub fn encode(&self) -> Result<[u8; DATAGRAM_HEADER_BYTES], TooLarge> {
        let mut raw = [0; DATAGRAM_HEADER_BYTES];
        self.put(EpochField::try_from(self.epoch)?, &mut raw);
        Ok(raw)
    }

    /// The same, with what is known to be the epoch, to where the bytes leave from.
    #[inline]
    pub(crate) fn put(&self, epoch: EpochField, raw: &mut [u8; DATAGRAM_HEADER_BYTES]) {
        raw[0] = VERSION | self.kind as u8;
        raw[1] = u8::from(self.is_encrypted);
        raw[2..4].copy_from_slice(&self.path.0.to_be_bytes());
        raw[4..8].copy_from_slice(&self.link.0.to_be_bytes());
        raw[8..12].copy_from_slice(&epoch.to_bytes());
        raw[12..16].copy_from_slice(&self.session.to_be_bytes());
        raw[16..24].copy_from_slice(&self.number.to_be_bytes());
        if let Some((checked, check)) = raw.split_first_chunk_mut::<CHECKED_BYTES>() {
            check.copy_from_slice(&crc_and_few(0, checked).to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(epoch: u64) -> DatagramHeader {
        DatagramHeader {
            kind: DatagramKind::Packets,
            is_encrypted: true,
            path: PathId(0x0203),
            link: LinkName(0x0405_0607),
            epoch: Epoch(epoch),
            session: 0x0c0d_0e0f,
            number: 0x1011_1213_1415_1617,
        }
    }

    #[test]
    fn every_field_has_the_width_and_place_that_the_page_says() {
        let bytes = header(0x0809_0a0b).encode().unwrap();
        let expected: Vec<u8> = [0x13, 1].into_iter().chain(2..24).collect();
        assert_eq!(bytes[..24], expected);
        assert_eq!(DatagramHeader::decode(&bytes), Ok((header(0x0809_0a0b), &[][..])));
    }

    #[test]
    fn an_epoch_that_the_field_has_no_room_for_is_refused_and_not_cut_off() {
        let last = header(u32::MAX.into());
        assert_eq!(DatagramHeader::decode(&last.encode().unwrap()).unwrap().0, last);
        for epoch in [1 << 32, (1 << 32) + 3, u64::MAX] {
            let refused = header(epoch).encode();
            assert_eq!(refused, Err(TooLarge { what: "epoch", value: epoch, bits: 32 }));
        }
    }
}
