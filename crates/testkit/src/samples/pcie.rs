//! Golden PCIe packets and datagrams of the fabric.

use super::Seed;
use fabric::wire::{Ack, DataPacket, DatagramHeader, DatagramKind, HeaderPacket, Hello, Packet, Sums, crc};
use fabric::{Credits, Endpoint, Epoch, LinkName, PathId, Route};
use tlp::{
    AtomicOp, Bdf, Header, MemoryOp, MessageRouting, Prefixes, ReadCompletionBoundary, SizeLimit, Span,
    Status, Tag, Tlp, TransactionId, code, split_completion,
};

/// One TLP of every kind.
fn tlps() -> Vec<(&'static str, Vec<u8>)> {
    let id = TransactionId::new(Bdf::new(0x12, 3, 4), Tag::truncated(0x2a5));
    let (low, high) = (0xfee0_0000, 0x38_0000_0000);
    let span = |address, bytes| Span::of_bytes(address, bytes).expect("within a page");
    let read = Header::memory_read(id, span(low + 3, 130));
    let limit = SizeLimit::new(128).expect("one of the sizes");
    let mut pieces = split_completion(low + 3, 130, limit, ReadCompletionBoundary::Bytes128);
    let piece = pieces.next().expect("130 bytes are something");
    let bridge = Bdf::new(0x13, 0, 0);
    let payload: Vec<u8> = (0..piece.length_dw * 4).map(|at| at as u8).collect();
    let headers = [
        ("memory-read-3dw", read),
        ("memory-read-4dw", Header::memory_read(id, span(high, 4096))),
        ("memory-read-locked", Header::memory(MemoryOp::ReadLocked, id, span(low, 4))),
        ("memory-flush", Header::memory_read(id, span(low, 0))),
        ("memory-write-3dw", Header::memory_write(bridge, span(low, 4))),
        ("memory-write-4dw", Header::memory_write(bridge, span(high + 1, 6))),
        ("deferrable-write", Header::memory(MemoryOp::DeferrableWrite, id, span(high, 64))),
        ("io-read", Header::io(false, id, 0xcf8, 0xf)),
        ("io-write", Header::io(true, id, 0xcfc, 0x3)),
        ("config-read-0", Header::config_read(id, false, bridge, 0x10)),
        ("config-write-0", Header::config_write(id, false, bridge, 0x4, 0x3)),
        ("config-read-1", Header::config_read(id, true, bridge, 0x100)),
        ("config-write-1", Header::config_write(id, true, bridge, 0xffc, 0xf)),
        ("completion", read.completion(bridge, Status::UnsupportedRequest)),
        ("completion-data", read.completion_data(bridge, &piece)),
        ("fetch-add", Header::atomic(AtomicOp::FetchAdd, id, low, 4)),
        ("swap", Header::atomic(AtomicOp::Swap, id, high, 8)),
        ("compare-and-swap", Header::atomic(AtomicOp::CompareAndSwap, id, high, 16)),
        ("message", Header::message(bridge, MessageRouting::RootComplex, code::PM_PME)),
        ("message-local", Header::message(bridge, MessageRouting::Local, code::ASSERT_INTA)),
    ];
    let bytes = |tlp: Tlp<'_>| {
        let mut bytes = vec![0; tlp.encoded_bytes()];
        tlp.encode(&mut bytes).expect("the sample is sound");
        bytes
    };
    let mut samples: Vec<(&'static str, Vec<u8>)> = headers
        .iter()
        .map(|(name, header)| (*name, bytes(Tlp::new(*header, &payload[..header.payload_bytes()]))))
        .collect();
    let write = Tlp::new(Header::memory_write(bridge, span(low, 4)), &[1, 2, 3, 4]);
    let prefixes = Prefixes::new(&[0x8e, 1, 2, 3, 0x91, 4, 5, 6]).expect("two prefixes");
    let dressed = Tlp { prefixes, ..write }.with_digest().expect("the sample is sound");
    samples.push(("memory-write-prefixed-digest", bytes(dressed)));
    samples
}

fn datagram(header: DatagramHeader, body: &[u8]) -> Vec<u8> {
    [header.encode().expect("a small epoch").as_slice(), body].concat()
}

/// A TLP, an acknowledgement and a ping in one datagram.
fn packets(sums: Sums) -> Vec<u8> {
    let route = Route { source: Endpoint::host(1), destination: Endpoint::new(2, 3), path: PathId(4) };
    let front = &tlps()[4].1[..12];
    let credits = Credits { headers: [1, 2, 3], data: [4, 5, 6] };
    let all = [
        Packet::Header(HeaderPacket { sequence: 5, route, front, tlp_crc: crc(front) }),
        Packet::Data(DataPacket { sequence: 6, payload: &[1, 2, 3, 4], payload_crc: None }),
        Packet::Ack(Ack { next: 7, echo: 8, credits, words: &[0, 0, 0, 0, 0, 0, 0, 9] }),
        Packet::Ping,
    ];
    let mut body = vec![0; 512];
    let mut length = 0;
    for packet in all {
        length += packet.encode(sums, &mut body[length..]).expect("there is room");
    }
    body.truncate(length);
    body
}

/// All of them.
pub fn pcie() -> Vec<Seed> {
    let mut seeds: Vec<Seed> =
        tlps().into_iter().map(|(name, bytes)| Seed::new("tlp", format!("{name}.bin"), bytes)).collect();
    let header = DatagramHeader {
        kind: DatagramKind::Packets,
        is_encrypted: false,
        path: PathId(4),
        link: LinkName(10),
        epoch: Epoch(11),
        session: 12,
        number: 13,
    };
    let hello = Hello {
        random: [1; 32],
        answers: [0; 32],
        window: 1024,
        datagram_bytes: 1452,
        credits: Credits { headers: [1, 2, 3], data: [4, 5, 6] },
    };
    let greeting = [hello.encode().as_slice(), &[7; 32]].concat();
    let datagrams = [
        ("packets", datagram(header, &packets(Sums::Each))),
        ("opened", datagram(DatagramHeader { is_encrypted: true, ..header }, &packets(Sums::Sealed))),
        ("hello", datagram(DatagramHeader { kind: DatagramKind::Hello, session: 0, ..header }, &greeting)),
        ("answer", datagram(DatagramHeader { kind: DatagramKind::Answer, session: 0, ..header }, &greeting)),
    ];
    seeds.extend(
        datagrams.into_iter().map(|(name, bytes)| Seed::new("fabric_datagram", format!("{name}.bin"), bytes)),
    );
    seeds.extend(
        moves().into_iter().map(|(name, bytes)| Seed::new("fabric_link", format!("{name}.bin"), bytes)),
    );
    seeds
}

/// What a peer may do; see `fuzz::fabric_link`.
fn moves() -> Vec<(&'static str, Vec<u8>)> {
    let samples = tlps();
    let front = |name: &str| {
        let (_, bytes) = samples.iter().find(|(known, _)| *known == name).expect("one of the samples");
        bytes.clone()
    };
    let (message, write, answer) = (front("message"), front("memory-write-3dw"), front("completion"));
    let message = |sequence: u8, what: u8| [&[what, sequence], message.as_slice()].concat();
    let write =
        |sequence: u8| [&[0x10, sequence], &write[..12], &[1, sequence + 1, 1], &[1, 2, 3, 4]].concat();
    let end = [0x80, 0, 1].as_slice();
    vec![
        ("message", [message(0, 8).as_slice(), end].concat()),
        ("out-of-order", [message(1, 8).as_slice(), end, &message(0, 8), end].concat()),
        ("duplicate", [message(0, 8).as_slice(), &message(0, 8), end].concat()),
        ("wrong-slot", [message(0, 12).as_slice(), &message(1, 8), end].concat()),
        ("write-with-a-wrong-crc", [write(0).as_slice(), end].concat()),
        ("answer-to-nobody", [&[0, 0], answer.as_slice(), end].concat()),
        ("impossible-ack", [&[6, 3, 0], [0xff; 8].as_slice(), end].concat()),
        ("stray-data-and-pings", [&[1, 0, 1, 9, 9, 9, 9, 3, 3], end].concat()),
        ("beyond-the-window", [message(0x7f, 8).as_slice(), &message(0x80, 8), end].concat()),
    ]
}
