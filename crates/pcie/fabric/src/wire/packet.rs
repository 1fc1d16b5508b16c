//! Packets: the paper's header and data packets, and what the link itself says.
//!
//! ```text
//!   header packet  | 1 | n | 0 | sequence | source node, slot | destination node, slot | path | n bytes: prefixes, TLP header | TLP CRC | packet CRC |
//!   data packet    | 2 | 0 | n | sequence | n bytes of payload | packet CRC |
//!   ack            | 3 | w | 0 | next sequence | echo | credits | w words of 64 bits | packet CRC |
//!   ping           | 4 | 0 | 0 | packet CRC |
//!     bytes          1   1   2   4          …
//! ```
//!
//! The packet CRC is CRC-32C, of a data packet's payload first and then of its first eight bytes: the CRC of the payload
//! alone is wanted for the TLP's CRC too. In an encrypted datagram the seal does its work better: there it is zero.
//!
//! A TLP is one header packet and, when it has a payload, the data packets that follow it in sequence. Every packet has a
//! CRC of its own, so that damage to one does not cost the others before it. An ack names the first packet that is
//! missing; bit i of its words stands for the packet 1 + i after that. The echo is the number of the newest datagram seen.

use super::hello::{get_credits, put_credits};
use super::{WireError, be16, be32, crc, crc_and};
use crate::credit::Credits;
use crate::ids::{Endpoint, Route};
use units::{NodeId, PathId, SlotId};

const HEADER: u8 = 1;
const DATA: u8 = 2;
const ACK: u8 = 3;
const PING: u8 = 4;
const CRC_BYTES: usize = 4;
const ROUTE_BYTES: usize = 10;
/// What a header packet adds to prefixes and TLP header.
pub const HEADER_PACKET_OVERHEAD: usize = 8 + ROUTE_BYTES + CRC_BYTES + CRC_BYTES;
/// The longest header packet.
pub const HEADER_PACKET_BYTES_MAX: usize = HEADER_PACKET_OVERHEAD + TLP_FRONT_BYTES_MAX;
/// What a data packet adds to its payload.
pub const DATA_PACKET_OVERHEAD: usize = DATA_HEAD_BYTES + CRC_BYTES;
const DATA_HEAD_BYTES: usize = 8;
/// The most words of an acknowledgement: a window of 4096 packets.
pub const ACK_WORDS_MAX: usize = 64;
const ACK_BYTES: usize = 8 + 8 + 24;
const TLP_FRONT_BYTES_MAX: usize = tlp::PREFIX_BYTES_MAX + tlp::HEADER_BYTES_MAX;

/// Everything of a TLP but its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderPacket<'a> {
    /// Its place in the sequence.
    pub sequence: u32,
    /// Its way.
    pub route: Route,
    /// Prefixes and TLP header as they travel on PCIe.
    pub front: &'a [u8],
    /// The TLP's own digest where it has one, else our CRC over the whole TLP: its payload, then prefixes and header.
    pub tlp_crc: u32,
}

/// A piece of a TLP's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataPacket<'a> {
    /// Its place in the sequence.
    pub sequence: u32,
    /// The bytes.
    pub payload: &'a [u8],
    /// Their CRC, where it has been computed already.
    pub payload_crc: Option<u32>,
}

/// What the other side has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack<'a> {
    /// The first packet that is missing.
    pub next: u32,
    /// The newest datagram.
    pub echo: u64,
    /// Up to where each class may be used.
    pub credits: Credits,
    /// Which packets are there after the missing one: whole words of 8 bytes.
    pub words: &'a [u8],
}

/// One packet of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet<'a> {
    /// Begins a TLP.
    Header(HeaderPacket<'a>),
    /// Goes on with it.
    Data(DataPacket<'a>),
    /// Says what arrived.
    Ack(Ack<'a>),
    /// Asks what arrived.
    Ping,
}

impl Ack<'_> {
    /// Each packet that arrived after the missing one, as its distance from it.
    pub fn received(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.chunks_exact(8).zip(0u32..).flat_map(|(word, index)| {
            let mut bits = u64::from_be_bytes(word.try_into().unwrap_or_default());
            std::iter::from_fn(move || {
                let bit = bits.trailing_zeros();
                bits &= bits.wrapping_sub(1);
                (bit < 64).then_some(1 + index * 64 + bit)
            })
        })
    }
}

/// Whether packets have CRCs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sums {
    /// They do.
    Each,
    /// They lie under a seal, and have zeros.
    Sealed,
}

impl<'a> Packet<'a> {
    /// Reads one packet off the front of `bytes`; gives the rest.
    #[inline]
    pub fn decode_front(bytes: &'a [u8], sums: Sums) -> Result<(Self, &'a [u8]), WireError> {
        if bytes.len() < 8 {
            return Err(WireError::Truncated);
        }
        let (small, large) = (usize::from(bytes[1]), usize::from(be16(bytes, 2)));
        // How long it is must be known before anything else, and must make sense.
        let length = match bytes[0] {
            HEADER if !matches!(small, 12..=TLP_FRONT_BYTES_MAX) => return Err(WireError::Length(small)),
            HEADER => HEADER_PACKET_OVERHEAD + small,
            DATA if !matches!(large, 1..=tlp::PAYLOAD_BYTES_MAX) => return Err(WireError::Length(large)),
            DATA => DATA_PACKET_OVERHEAD + large,
            ACK if small > ACK_WORDS_MAX => return Err(WireError::Length(small)),
            ACK => ACK_BYTES + 8 * small + CRC_BYTES,
            PING => 4 + CRC_BYTES,
            other => return Err(WireError::UnknownKind(other)),
        };
        let is_reserved = match bytes[0] {
            HEADER | ACK => large != 0,
            DATA => small != 0,
            _ => large != 0 || small != 0,
        };
        if is_reserved {
            return Err(WireError::Reserved);
        }
        if bytes.len() < length {
            return Err(WireError::Truncated);
        }
        let (packet, rest) = bytes.split_at(length);
        let (packet, check) = packet.split_at(length - CRC_BYTES);
        let mut payload_crc = None;
        let sum = match sums {
            Sums::Sealed => 0,
            Sums::Each if packet[0] == DATA => {
                let (head, payload) = packet.split_at(DATA_HEAD_BYTES);
                crc_and(*payload_crc.insert(crc(payload)), head)
            }
            Sums::Each => crc(packet),
        };
        if be32(check, 0) != sum {
            return Err(WireError::Crc);
        }
        let decoded = match packet[0] {
            HEADER => {
                let end =
                    |at| Endpoint { node: NodeId(be16(packet, at)), slot: SlotId(be16(packet, at + 2)) };
                let (front, tlp_crc) = packet[18..].split_at(small);
                Self::Header(HeaderPacket {
                    sequence: be32(packet, 4),
                    route: Route { source: end(8), destination: end(12), path: PathId(be16(packet, 16)) },
                    front,
                    tlp_crc: be32(tlp_crc, 0),
                })
            }
            DATA => {
                let payload = &packet[DATA_HEAD_BYTES..];
                Self::Data(DataPacket { sequence: be32(packet, 4), payload, payload_crc })
            }
            ACK => Self::Ack(Ack {
                next: be32(packet, 4),
                echo: u64::from(be32(packet, 8)) << 32 | u64::from(be32(packet, 12)),
                credits: get_credits(&packet[16..ACK_BYTES]),
                words: &packet[ACK_BYTES..],
            }),
            _ => Self::Ping,
        };
        Ok((decoded, rest))
    }

    /// How many bytes it takes.
    pub fn encoded_bytes(&self) -> usize {
        match self {
            Self::Header(it) => HEADER_PACKET_OVERHEAD + it.front.len(),
            Self::Data(it) => DATA_PACKET_OVERHEAD + it.payload.len(),
            Self::Ack(it) => ACK_BYTES + it.words.len() + CRC_BYTES,
            Self::Ping => 4 + CRC_BYTES,
        }
    }

    /// Writes it into the front of `out`; gives its length, or None when there is no room. What a peer would refuse
    /// (a front, payload or words of an impossible length) is the caller's bug.
    #[inline]
    pub fn encode(&self, sums: Sums, out: &mut [u8]) -> Option<usize> {
        let length = self.encoded_bytes();
        let out = out.get_mut(..length)?;
        let (packet, check) = out.split_at_mut(length - CRC_BYTES);
        match self {
            Self::Header(it) => {
                let route = &it.route;
                packet[0] = HEADER;
                packet[1] = it.front.len() as u8;
                packet[2..4].fill(0);
                packet[4..8].copy_from_slice(&it.sequence.to_be_bytes());
                let ids = [
                    route.source.node.0,
                    route.source.slot.0,
                    route.destination.node.0,
                    route.destination.slot.0,
                    route.path.0,
                ];
                for (out, id) in packet[8..18].chunks_exact_mut(2).zip(ids) {
                    out.copy_from_slice(&id.to_be_bytes());
                }
                let (front, tlp_crc) = packet[18..].split_at_mut(it.front.len());
                front.copy_from_slice(it.front);
                tlp_crc.copy_from_slice(&it.tlp_crc.to_be_bytes());
            }
            Self::Data(it) => {
                packet[..2].copy_from_slice(&[DATA, 0]);
                packet[2..4].copy_from_slice(&(it.payload.len() as u16).to_be_bytes());
                packet[4..8].copy_from_slice(&it.sequence.to_be_bytes());
                packet[8..].copy_from_slice(it.payload);
            }
            Self::Ack(it) => {
                packet[..4].copy_from_slice(&[ACK, (it.words.len() / 8) as u8, 0, 0]);
                packet[4..8].copy_from_slice(&it.next.to_be_bytes());
                packet[8..16].copy_from_slice(&it.echo.to_be_bytes());
                put_credits(&it.credits, &mut packet[16..ACK_BYTES]);
                packet[ACK_BYTES..].copy_from_slice(it.words);
            }
            Self::Ping => packet.copy_from_slice(&[PING, 0, 0, 0]),
        }
        let sum = match (sums, self) {
            (Sums::Sealed, _) => 0,
            (Sums::Each, Self::Data(it)) => {
                let payload_crc = it.payload_crc.unwrap_or_else(|| crc(it.payload));
                crc_and(payload_crc, &packet[..DATA_HEAD_BYTES])
            }
            (Sums::Each, _) => crc(packet),
        };
        check.copy_from_slice(&sum.to_be_bytes());
        Some(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_a_datagram_read_as_they_were_written() {
        let route = Route { source: Endpoint::host(7), destination: Endpoint::new(9, 3), path: PathId(2) };
        let packets = [
            Packet::Header(HeaderPacket { sequence: 5, route, front: &[0x40; 12], tlp_crc: 77 }),
            Packet::Data(DataPacket { sequence: 6, payload: b"four", payload_crc: Some(crc(b"four")) }),
            Packet::Ack(Ack {
                next: 9,
                echo: 1 << 40,
                credits: Credits::default(),
                words: &[0x80, 0, 0, 0, 0, 0, 0, 5],
            }),
            Packet::Ping,
        ];
        let mut bytes = [0; 256];
        let mut length = 0;
        for packet in &packets {
            length += packet.encode(Sums::Each, &mut bytes[length..]).unwrap();
        }
        let mut rest = &bytes[..length];
        for packet in packets {
            let (read, after) = Packet::decode_front(rest, Sums::Each).unwrap();
            assert_eq!(read, packet);
            rest = after;
        }
        assert!(rest.is_empty());
        let Packet::Ack(ack) = packets[2] else { unreachable!() };
        assert_eq!(ack.received().collect::<Vec<_>>(), [1, 3, 64]);
    }

    #[test]
    fn any_changed_bit_is_noticed() {
        let mut bytes = [0; 64];
        let packet = Packet::Data(DataPacket { sequence: 6, payload: b"payload!", payload_crc: None });
        let length = packet.encode(Sums::Each, &mut bytes).unwrap();
        for bit in 0..length * 8 {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(Packet::decode_front(&changed[..length], Sums::Each).is_err(), "bit {bit}");
        }
    }
}
