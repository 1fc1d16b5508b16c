//! PCIe packets, and what carries them between proxies.

use bench_harness::link::established_pair;
use fabric::wire::{Ack, DataPacket, DatagramHeader, DatagramKind, HeaderPacket, Hello, Packet, Sums, crc};
use fabric::{Credits, Endpoint, Link, PathId, Protection, Route, Time, Willing};
use tlp::{Header, Tlp};

/// A TLP as it travels on PCIe. What decodes, encodes to the same bytes.
pub fn tlp(bytes: &[u8]) {
    let Ok((tlp, rest)) = Tlp::decode_front(bytes) else { return };
    let mut again = [0; tlp::TLP_BYTES_MAX];
    let length = tlp.encode(&mut again).expect("what was decoded can be encoded");
    assert_eq!(&again[..length], &bytes[..bytes.len() - rest.len()]);
    assert_eq!(tlp.header.kind().class(), tlp.class());
    let digested = tlp.with_digest().expect("what was decoded can have a digest");
    assert!(digested.digest_is_right());
    let _ = (tlp.to_string(), tlp.header.routing(), tlp.digest_is_right());
}

/// A datagram of the fabric: its header, then a greeting or packets, with and without CRCs.
pub fn fabric_datagram(bytes: &[u8]) {
    let Ok((header, mut body)) = DatagramHeader::decode(bytes) else { return };
    let again = header.encode().expect("an epoch that was decoded fits");
    assert_eq!(again, bytes[..bytes.len() - body.len()]);
    if header.kind != DatagramKind::Packets {
        if let Ok((hello, mac)) = Hello::decode(body) {
            assert_eq!([hello.encode().as_slice(), mac].concat(), body);
        }
        return;
    }
    let sums = if header.is_encrypted { Sums::Sealed } else { Sums::Each };
    while let Ok((packet, rest)) = Packet::decode_front(body, sums) {
        let mut again = vec![0; packet.encoded_bytes()];
        assert_eq!(packet.encode(sums, &mut again), Some(again.len()));
        assert_eq!(again, body[..body.len() - rest.len()]);
        if let Packet::Ack(ack) = &packet {
            assert!(ack.received().all(|distance| distance as usize <= ack.words.len() * 8));
        }
        body = rest;
    }
}

/// Takes values off the front of the input; zeros behind its end.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        bytes
    }

    /// Mostly near zero, sometimes from the other end.
    fn sequence(&mut self) -> u32 {
        i32::from(self.byte() as i8) as u32
    }
}

/// A peer that has the keys and says what the input tells it to: moves of a byte each and what they need. The link must
/// not panic, must not hold more than its room, and what it delivers must be TLPs.
pub fn fabric_link(bytes: &[u8]) {
    let (mut peer, mut link) = established_pair(Protection::Plain, 8952);
    let mut datagram = vec![0; 8952];
    let header = honest_header(&mut peer, &mut datagram);
    let mut input = Input(bytes);
    let mut now = Time(1000);
    for number in 1..200 {
        if input.0.is_empty() {
            break;
        }
        let front = DatagramHeader { number, ..header }.encode().expect("the epoch is small");
        let mut length = front.len();
        datagram[..length].copy_from_slice(&front);
        while !input.0.is_empty() && length < 4096 {
            let what = input.byte();
            if what & 0x80 != 0 {
                break;
            }
            length += write(what, &mut input, &mut datagram[length..]);
        }
        link.on_datagram(now, &mut datagram[..length]);
        let willing = Willing { non_posted: input.byte() & 1 == 0, ..Willing::ALL };
        while let Some(tlp) = link.receive(willing) {
            let mut encoded = [0; tlp::TLP_BYTES_MAX];
            tlp.encode(&mut encoded).expect("only whole TLPs are delivered");
        }
        now.0 += u64::from(input.byte()) * 1000;
        while link.transmit(now, &mut datagram).is_some() {}
    }
}

fn honest_header(peer: &mut Link, datagram: &mut [u8]) -> DatagramHeader {
    let header = Header::message(tlp::Bdf(1), tlp::MessageRouting::RootComplex, 0);
    peer.send(&Tlp::new(header, &[])).expect("a new link has room");
    let transmit = peer.transmit(Time(1), datagram).expect("and something to send");
    DatagramHeader::decode(&datagram[..transmit.bytes]).expect("which it writes well").0
}

fn write(what: u8, input: &mut Input<'_>, out: &mut [u8]) -> usize {
    let packet = match what & 3 {
        0 => {
            let sequence = input.sequence();
            let slot = if what & 4 == 0 { Endpoint::new(2, 3) } else { Endpoint::new(2, 4) };
            let route = Route { source: Endpoint::host(1), destination: slot, path: PathId(1) };
            let front = input.bytes(if what & 8 == 0 { 12 } else { 16 });
            if front.len() < 12 {
                return 0;
            }
            let tlp_crc = if what & 16 == 0 { crc(front) } else { 0 };
            Packet::Header(HeaderPacket { sequence, route, front, tlp_crc })
        }
        1 => {
            let (sequence, count) = (input.sequence(), usize::from(input.byte()) * 4);
            let payload = input.bytes(count);
            if payload.is_empty() {
                return 0;
            }
            Packet::Data(DataPacket { sequence, payload, payload_crc: None })
        }
        2 => {
            let (next, echo) = (input.sequence(), u64::from(input.byte()));
            let credits = Credits { headers: [u32::from(what) * 9; 3], data: [u32::from(what) * 99; 3] };
            let words = input.bytes(if what & 4 == 0 { 0 } else { 8 });
            let words = if words.len() == 8 { words } else { &[] };
            Packet::Ack(Ack { next, echo, credits, words })
        }
        _ => Packet::Ping,
    };
    packet.encode(Sums::Each, out).unwrap_or(0)
}
