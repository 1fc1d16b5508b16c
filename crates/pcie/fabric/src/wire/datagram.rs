//! The front of every datagram.
//!
//! ```text
//! byte 0         1       2          4        8        12        16                 24
//!    | 1 │ kind | flags | path     | lease  | epoch  | session | datagram number  | CRC of bytes 0 to 23 |
//! ```
//!
//! The header is in the clear, since it says which link's key opens the rest; the seal covers it. Its CRC lets a
//! receiver drop noise before it looks anything up.

use super::{WireError, be16, be32, crc};
use crate::ids::{Epoch, LeaseId, PathId};

/// Length of the header.
pub const DATAGRAM_HEADER_BYTES: usize = 28;
/// Length of the seal of an encrypted datagram.
pub const SEAL_BYTES: usize = 16;
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

/// The front of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramHeader {
    /// What follows.
    pub kind: DatagramKind,
    /// Whether the packets are sealed; in greetings, whether they will be.
    pub is_encrypted: bool,
    /// Over which path.
    pub path: PathId,
    /// Of which lease.
    pub lease: LeaseId,
    /// Of which epoch.
    pub epoch: Epoch,
    /// Which of the sessions that epoch may have seen; 0 in greetings.
    pub session: u32,
    /// Counts the datagrams of one sender; never used twice with one key.
    pub number: u64,
}

impl DatagramHeader {
    /// Reads it off the front of `bytes`; gives the rest.
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
        if be32(raw, 24) != crc(&raw[..24]) {
            return Err(WireError::Crc);
        }
        let header = Self {
            kind,
            is_encrypted: raw[1] & ENCRYPTED != 0,
            path: PathId(be16(raw, 2)),
            lease: LeaseId(be32(raw, 4)),
            epoch: Epoch(be32(raw, 8)),
            session: be32(raw, 12),
            number: u64::from(be32(raw, 16)) << 32 | u64::from(be32(raw, 20)),
        };
        Ok((header, rest))
    }

    /// The bytes of it.
    pub fn encode(&self) -> [u8; DATAGRAM_HEADER_BYTES] {
        let mut raw = [0; DATAGRAM_HEADER_BYTES];
        raw[0] = VERSION | self.kind as u8;
        raw[1] = u8::from(self.is_encrypted);
        raw[2..4].copy_from_slice(&self.path.0.to_be_bytes());
        raw[4..8].copy_from_slice(&self.lease.0.to_be_bytes());
        raw[8..12].copy_from_slice(&self.epoch.0.to_be_bytes());
        raw[12..16].copy_from_slice(&self.session.to_be_bytes());
        raw[16..24].copy_from_slice(&self.number.to_be_bytes());
        let check = crc(&raw[..24]);
        raw[24..].copy_from_slice(&check.to_be_bytes());
        raw
    }
}
