//! What travels: datagrams, and the packets in them. All numbers are big-endian, as in TLPs.
//!
//! ```text
//!   datagram = header (28 B) │ packet │ packet │ … │ seal (16 B, when encrypted)
//! ```
//!
//! Decoding borrows, allocates nothing and refuses whatever it would not write itself.

mod datagram;
mod hello;
mod packet;

pub use datagram::{DATAGRAM_HEADER_BYTES, DatagramHeader, DatagramKind, EpochField, SEAL_BYTES};
pub use hello::{Hello, MAC_BYTES, RANDOM_BYTES};
pub use packet::{
    ACK_WORDS_MAX, Ack, DATA_PACKET_OVERHEAD, DataPacket, HEADER_PACKET_BYTES_MAX, HEADER_PACKET_OVERHEAD,
    HeaderPacket, Packet, Sums,
};
pub(crate) use packet::{DATA, HEADER, TLP_FRONT_BYTES_MAX, crc_and_front, put_front};
pub use packet_crc::{crc, crc_and, crc_and_few};

/// Why bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The bytes end too early.
    #[error("cut off")]
    Truncated,
    /// A version, kind or flag that this version does not know.
    #[error("unknown kind {0:#04x}")]
    UnknownKind(u8),
    /// Bits that must be zero.
    #[error("reserved bits are set")]
    Reserved,
    /// A length that cannot be.
    #[error("a length of {0}")]
    Length(usize),
    /// The CRC is wrong.
    #[error("wrong CRC")]
    Crc,
}

#[inline]
fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
