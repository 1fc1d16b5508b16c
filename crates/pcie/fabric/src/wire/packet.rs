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
use super::{WireError, be16, be32, crc, crc_and, crc_and_few};
use crate::credit::Credits;
use crate::ids::{Endpoint, Route};
use units::{NodeId, PathId, SlotId};

/// The first byte of a header packet.
pub(crate) const HEADER: u8 = 1;
/// The first byte of a data packet.
pub(crate) const DATA: u8 = 2;
const ACK: u8 = 3;
const PING: u8 = 4;
const CRC_BYTES: usize = 4;
const ROUTE_BYTES: usize = 10;
const HEADER_HEAD_BYTES: usize = 8 + ROUTE_BYTES;
/// What a header packet adds to prefixes and TLP header.
pub const HEADER_PACKET_OVERHEAD: usize = HEADER_HEAD_BYTES + CRC_BYTES + CRC_BYTES;
/// The longest header packet.
pub const HEADER_PACKET_BYTES_MAX: usize = HEADER_PACKET_OVERHEAD + TLP_FRONT_BYTES_MAX;
/// What a data packet adds to its payload.
pub const DATA_PACKET_OVERHEAD: usize = DATA_HEAD_BYTES + CRC_BYTES;
const DATA_HEAD_BYTES: usize = 8;
/// The most words of an acknowledgement: a window of 4096 packets.
pub const ACK_WORDS_MAX: usize = 64;
const ACK_BYTES: usize = 8 + 8 + 24;
/// Prefixes and header of any TLP.
pub(crate) const TLP_FRONT_BYTES_MAX: usize = tlp::PREFIX_BYTES_MAX + tlp::HEADER_BYTES_MAX;

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

impl<'a> Ack<'a> {
    fn decode_front(bytes: &'a [u8], start: Start, sums: Sums) -> Result<(Self, &'a [u8]), WireError> {
        if start.small > ACK_WORDS_MAX {
            return Err(WireError::Length(start.small));
        }
        let (packet, rest) = take(bytes, ACK_BYTES + 8 * start.small, start.large != 0, sums)?;
        let ack = Self {
            next: be32(packet, 4),
            echo: u64::from(be32(packet, 8)) << 32 | u64::from(be32(packet, 12)),
            credits: get_credits(&packet[16..ACK_BYTES]),
            words: &packet[ACK_BYTES..],
        };
        Ok((ack, rest))
    }

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
    pub fn decode_front(bytes: &'a [u8], sums: Sums) -> Result<(Self, &'a [u8]), WireError> {
        let start = Start::of(bytes)?;
        match bytes[0] {
            HEADER => HeaderPacket::decode_front(bytes, sums).map(|(it, rest)| (Self::Header(it), rest)),
            DATA => DataPacket::decode_front(bytes, sums).map(|(it, rest)| (Self::Data(it), rest)),
            ACK => Ack::decode_front(bytes, start, sums).map(|(it, rest)| (Self::Ack(it), rest)),
            PING => {
                let (_, rest) = take(bytes, 4, start.large != 0 || start.small != 0, sums)?;
                Ok((Self::Ping, rest))
            }
            other => Err(WireError::UnknownKind(other)),
        }
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
    pub fn encode(&self, sums: Sums, out: &mut [u8]) -> Option<usize> {
        let (packet, check) = match self {
            Self::Header(it) => return it.encode(sums, out),
            Self::Data(it) => return it.encode(sums, out),
            Self::Ack(it) => {
                let (packet, check) = split_check(self.encoded_bytes(), out)?;
                packet[..4].copy_from_slice(&[ACK, (it.words.len() / 8) as u8, 0, 0]);
                packet[4..8].copy_from_slice(&it.next.to_be_bytes());
                packet[8..16].copy_from_slice(&it.echo.to_be_bytes());
                put_credits(&it.credits, &mut packet[16..ACK_BYTES]);
                packet[ACK_BYTES..].copy_from_slice(it.words);
                (packet, check)
            }
            Self::Ping => {
                let (packet, check) = split_check(self.encoded_bytes(), out)?;
                packet.copy_from_slice(&[PING, 0, 0, 0]);
                (packet, check)
            }
        };
        let sum = if sums == Sums::Sealed { 0 } else { crc(packet) };
        *check = sum.to_be_bytes();
        Some(self.encoded_bytes())
    }
}

/// The first `length` bytes of `bytes`, where the CRC behind them is theirs; and what follows that.
#[inline]
fn take(bytes: &[u8], length: usize, is_reserved: bool, sums: Sums) -> Result<(&[u8], &[u8]), WireError> {
    let (packet, check, rest) = cut(bytes, length, is_reserved)?;
    let sum = if sums == Sums::Sealed { 0 } else { crc(packet) };
    if check != sum { Err(WireError::Crc) } else { Ok((packet, rest)) }
}

/// The first `length` bytes of `bytes`, the CRC behind them, and what follows that.
#[inline]
fn cut(bytes: &[u8], length: usize, is_reserved: bool) -> Result<(&[u8], u32, &[u8]), WireError> {
    if is_reserved {
        return Err(WireError::Reserved);
    }
    let (packet, behind) = bytes.split_at_checked(length).ok_or(WireError::Truncated)?;
    let (check, rest) = behind.split_first_chunk().ok_or(WireError::Truncated)?;
    Ok((packet, u32::from_be_bytes(*check), rest))
}

/// The two lengths that stand behind a packet's kind, of which each kind uses one; the other is reserved.
#[derive(Clone, Copy)]
struct Start {
    small: usize,
    large: usize,
}

impl Start {
    #[inline]
    fn of(bytes: &[u8]) -> Result<Self, WireError> {
        let Some(&[_, small, large_high, large_low, ..]) = bytes.first_chunk::<8>() else {
            return Err(WireError::Truncated);
        };
        Ok(Self { small: small.into(), large: u16::from_be_bytes([large_high, large_low]).into() })
    }
}

impl<'a> HeaderPacket<'a> {
    /// Reads the header packet that `bytes` begin with; gives the rest. Where it is used what it gives is in registers.
    #[inline(always)]
    pub(crate) fn decode_front(bytes: &'a [u8], sums: Sums) -> Result<(Self, &'a [u8]), WireError> {
        // How long it is must be known before anything else, and must make sense.
        let Start { small, large } = Start::of(bytes)?;
        if !matches!(small, 12..=TLP_FRONT_BYTES_MAX) {
            return Err(WireError::Length(small));
        }
        let (packet, check, rest) = cut(bytes, HEADER_HEAD_BYTES + small + CRC_BYTES, large != 0)?;
        let sum = if sums == Sums::Sealed { 0 } else { crc_of_header(packet) };
        if check != sum {
            return Err(WireError::Crc);
        }
        let (head, behind) = packet.split_first_chunk::<HEADER_HEAD_BYTES>().ok_or(WireError::Truncated)?;
        let (front, tlp_crc) = behind.split_last_chunk().ok_or(WireError::Truncated)?;
        let end = |at| Endpoint { node: NodeId(be16(head, at)), slot: SlotId(be16(head, at + 2)) };
        let route = Route { source: end(8), destination: end(12), path: PathId(be16(head, 16)) };
        let (sequence, tlp_crc) = (be32(head, 4), u32::from_be_bytes(*tlp_crc));
        Ok((Self { sequence, route, front, tlp_crc }, rest))
    }

    /// See [`Packet::encode`].
    #[inline]
    pub fn encode(&self, sums: Sums, out: &mut [u8]) -> Option<usize> {
        let length = HEADER_PACKET_OVERHEAD + self.front.len();
        let (packet, check) = split_check(length, out)?;
        let (head, rest) = packet.split_first_chunk_mut::<HEADER_HEAD_BYTES>()?;
        let Route { source, destination, path } = self.route;
        let ends = [source.node.0, source.slot.0, destination.node.0, destination.slot.0];
        let ends = ends.iter().fold(0, |ends, id| ends << 16 | u64::from(*id));
        [head[0], head[1], head[2], head[3]] = [HEADER, self.front.len() as u8, 0, 0];
        head[4..8].copy_from_slice(&self.sequence.to_be_bytes());
        head[8..16].copy_from_slice(&ends.to_be_bytes());
        head[16..18].copy_from_slice(&path.0.to_be_bytes());
        let (front, tlp_crc) = rest.split_last_chunk_mut::<CRC_BYTES>()?;
        put_front(self.front, front);
        *tlp_crc = self.tlp_crc.to_be_bytes();
        let sum = if sums == Sums::Sealed { 0 } else { crc_of_header(packet) };
        *check = sum.to_be_bytes();
        Some(length)
    }
}

impl<'a> DataPacket<'a> {
    /// Reads the data packet that `bytes` begin with; gives the rest.
    #[inline]
    pub(crate) fn decode_front(bytes: &'a [u8], sums: Sums) -> Result<(Self, &'a [u8]), WireError> {
        let Start { small, large } = Start::of(bytes)?;
        if !matches!(large, 1..=tlp::PAYLOAD_BYTES_MAX) {
            return Err(WireError::Length(large));
        }
        let (packet, check, rest) = cut(bytes, DATA_HEAD_BYTES + large, small != 0)?;
        let (head, payload) = packet.split_first_chunk::<DATA_HEAD_BYTES>().ok_or(WireError::Truncated)?;
        let (sum, payload_crc) = match sums {
            Sums::Sealed => (0, None),
            Sums::Each => {
                let payload_crc = crc(payload);
                (crc_and_few(payload_crc, head), Some(payload_crc))
            }
        };
        if check != sum {
            return Err(WireError::Crc);
        }
        Ok((Self { sequence: be32(head, 4), payload, payload_crc }, rest))
    }

    /// See [`Packet::encode`].
    #[inline]
    pub fn encode(&self, sums: Sums, out: &mut [u8]) -> Option<usize> {
        let length = DATA_PACKET_OVERHEAD + self.payload.len();
        let (packet, check) = split_check(length, out)?;
        let (head, payload) = packet.split_first_chunk_mut::<DATA_HEAD_BYTES>()?;
        let [a, b] = (self.payload.len() as u16).to_be_bytes();
        let [c, d, e, f] = self.sequence.to_be_bytes();
        *head = [DATA, 0, a, b, c, d, e, f];
        payload.copy_from_slice(self.payload);
        let sum = match sums {
            Sums::Sealed => 0,
            Sums::Each => crc_and_few(self.payload_crc.unwrap_or_else(|| crc(self.payload)), head),
        };
        *check = sum.to_be_bytes();
        Some(length)
    }
}

/// The first `length` bytes of `out`: a packet, and behind it the place of its CRC.
fn split_check(length: usize, out: &mut [u8]) -> Option<(&mut [u8], &mut [u8; CRC_BYTES])> {
    out.get_mut(..length)?.split_last_chunk_mut()
}

/// The CRC of a header packet, which is nearly always that of a TLP without prefixes to an address above 4 GiB.
#[inline]
fn crc_of_header(packet: &[u8]) -> u32 {
    match <&[u8; HEADER_HEAD_BYTES + 16 + CRC_BYTES]>::try_from(packet) {
        Ok(packet) => crc_and_few(0, packet),
        Err(_) => crc(packet),
    }
}

/// The CRC of a payload, and then of the prefixes and the header that stand before it.
#[inline]
pub(crate) fn crc_and_front(payload_crc: u32, front: &[u8]) -> u32 {
    match <&[u8; 16]>::try_from(front) {
        Ok(front) => crc_and_few(payload_crc, front),
        Err(_) => crc_and(payload_crc, front),
    }
}

/// Copies prefixes and header to the beginning of `out`. Nearly always they are a header alone, of one of two lengths: a copy of
/// a length that the compiler knows is one or two instructions, another one a call.
#[inline]
pub(crate) fn put_front(front: &[u8], out: &mut [u8]) {
    if let Ok(front) = <&[u8; 16]>::try_from(front) {
        out[..16].copy_from_slice(front);
    } else if let Ok(front) = <&[u8; 12]>::try_from(front) {
        out[..12].copy_from_slice(front);
    } else {
        out[..front.len()].copy_from_slice(front);
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

    /// Written down by hand, as peers of every version read it.
    #[test]
    fn every_field_has_the_width_and_place_that_the_page_says() {
        let ends = (Endpoint::new(0x0102, 0x0304), Endpoint::new(0x0506, 0x0708));
        let route = Route { source: ends.0, destination: ends.1, path: PathId(0x090a) };
        for front_bytes in [12, 16, 20] {
            let front: Vec<u8> = (0..front_bytes).map(|at| 0x40 + at).collect();
            let header = HeaderPacket { sequence: 0x1112_1314, route, front: &front, tlp_crc: 0x2122_2324 };
            let mut expected = vec![1, front_bytes, 0, 0, 0x11, 0x12, 0x13, 0x14];
            expected.extend(1..=10);
            expected.extend_from_slice(&front);
            expected.extend([0x21, 0x22, 0x23, 0x24]);
            expected.extend(crc32c::crc32c(&expected).to_be_bytes());
            check(&Packet::Header(header), &expected);
        }
        for payload_bytes in [4, 128, 256, 260, 4096] {
            let payload: Vec<u8> = (0..payload_bytes).map(|at: u16| (at * 7) as u8).collect();
            let [high, low] = payload_bytes.to_be_bytes();
            let mut expected = vec![2, 0, high, low, 0x11, 0x12, 0x13, 0x14];
            let sum = crc32c::crc32c_append(crc32c::crc32c(&payload), &expected);
            expected.extend_from_slice(&payload);
            expected.extend(sum.to_be_bytes());
            let payload_crc = Some(crc32c::crc32c(&payload));
            check(
                &Packet::Data(DataPacket { sequence: 0x1112_1314, payload: &payload, payload_crc }),
                &expected,
            );
        }
    }

    fn check(packet: &Packet<'_>, expected: &[u8]) {
        let mut bytes = [0; 5000];
        let length = packet.encode(Sums::Each, &mut bytes).unwrap();
        assert_eq!(bytes[..length], *expected);
        assert_eq!(Packet::decode_front(expected, Sums::Each), Ok((*packet, &[][..])));
        let none = &expected[..expected.len() - 1];
        assert_eq!(Packet::decode_front(none, Sums::Each), Err(WireError::Truncated));
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
