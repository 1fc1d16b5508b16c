//! What a link refuses: each wrong thing is dropped, counted under its own name, and changes nothing else.

mod pair;

use fabric::wire::{DatagramHeader, DatagramKind, HeaderPacket, Packet, Sums};
use fabric::{
    Counters, Endpoint, Epoch, Faults, LeaseSecret, Link, LinkConfig, LinkName, PathId, Route, Time,
};
use pair::{ALL, HOST, Pair, SLOT, completion, config, payload, plain, read, write};
use tlp::{Bdf, Header, Status, Tag, Tlp, TransactionId};

/// The whole counters, so that a test sees what else was counted.
fn dropped(pair: &Pair, end: usize) -> Counters {
    Counters {
        tlps_sent: 0,
        tlps_received: 0,
        datagrams_sent: 0,
        datagrams_received: 0,
        packets_sent: 0,
        packets_resent: 0,
        timeouts: 0,
        failovers: 0,
        ..*pair.ends[end].counters()
    }
}

fn established(change: impl Fn(&mut LinkConfig)) -> Pair {
    let mut pair = Pair::new(Faults::default(), 1, change);
    pair.establish();
    pair
}

/// The next datagram that the host would send.
fn next_datagram(pair: &mut Pair) -> Vec<u8> {
    let mut datagram = vec![0; 2000];
    let transmit = pair.ends[0].transmit(pair.now, &mut datagram).expect("something to send");
    datagram.truncate(transmit.bytes);
    datagram
}

fn deliver(pair: &mut Pair, mut datagram: Vec<u8>) {
    pair.ends[1].on_datagram(pair.now, &mut datagram);
}

/// After whatever was done to it, the link carries a write and a read as if nothing had been.
fn still_works(pair: &mut Pair) {
    let bytes = payload(77, 256);
    pair.ends[0].send(&write(77, &bytes)).unwrap();
    pair.ends[0].send(&read(78, 0x3ff)).unwrap();
    let (mut written, mut asked, mut answered) = (false, false, false);
    while !answered {
        pair.settle();
        let mut request = None;
        while let Some(tlp) = pair.ends[1].receive(ALL) {
            written |= tlp.payload == bytes;
            if tlp.header.tag().value() == 0x3ff {
                request = Some(tlp.header);
            }
        }
        if let Some(request) = request {
            asked = true;
            pair.ends[1].send(&completion(&request, &[7; 64])).unwrap();
        }
        while let Some(tlp) = pair.ends[0].receive(ALL) {
            answered |= tlp.payload == [7; 64];
        }
        assert!(answered || pair.advance(), "it hangs");
    }
    assert!(written && asked);
}

#[test]
fn noise() {
    let mut pair = established(|_| {});
    deliver(&mut pair, vec![]);
    deliver(&mut pair, vec![0x13; 27]);
    deliver(&mut pair, vec![0x13; 1000]);
    assert_eq!(dropped(&pair, 1), Counters { malformed_datagrams: 3, ..Counters::default() });
    still_works(&mut pair);
}

#[test]
fn datagrams_of_another_lease_epoch_session_or_path() {
    let mut pair = established(|_| {});
    pair.ends[0].send(&write(1, &payload(1, 64))).unwrap();
    let datagram = next_datagram(&mut pair);
    let (header, _) = DatagramHeader::decode(&datagram).unwrap();
    let with = |header: DatagramHeader| [header.encode().unwrap().as_slice(), &datagram[28..]].concat();
    deliver(&mut pair, with(DatagramHeader { link: LinkName(8), ..header }));
    deliver(&mut pair, with(DatagramHeader { epoch: Epoch(2), ..header }));
    deliver(&mut pair, with(DatagramHeader { epoch: Epoch(4), ..header }));
    deliver(&mut pair, with(DatagramHeader { session: !header.session, ..header }));
    deliver(&mut pair, with(DatagramHeader { is_encrypted: false, ..header }));
    deliver(&mut pair, with(DatagramHeader { path: PathId(2), ..header }));
    deliver(&mut pair, with(DatagramHeader { number: header.number + 1, ..header }));
    let expected = Counters {
        foreign_links: 1,
        other_epochs: 2,
        other_sessions: 2,
        foreign_paths: 1,
        forged_datagrams: 1,
        ..Counters::default()
    };
    assert_eq!(dropped(&pair, 1), expected);
    assert!(pair.ends[1].receive(ALL).is_none());
    still_works(&mut pair);
}

#[test]
fn a_datagram_of_an_ended_epoch_is_harmless_in_the_next() {
    let mut old = established(plain);
    old.ends[0].send(&write(1, &payload(1, 64))).unwrap();
    let stale = next_datagram(&mut old);
    let mut pair = established(|config| {
        plain(config);
        config.epoch = Epoch(4);
    });
    deliver(&mut pair, stale);
    assert_eq!(dropped(&pair, 1), Counters { other_epochs: 1, ..Counters::default() });
    assert!(pair.ends[1].receive(ALL).is_none());
}

#[test]
fn every_changed_bit_of_a_sealed_datagram() {
    let mut pair = established(|_| {});
    pair.ends[0].send(&write(1, &payload(1, 64))).unwrap();
    let datagram = next_datagram(&mut pair);
    for bit in 0..datagram.len() * 8 {
        let mut changed = datagram.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        deliver(&mut pair, changed);
    }
    let counters = dropped(&pair, 1);
    let (front, sealed) = (28 * 8, (datagram.len() - 28) as u64 * 8);
    assert_eq!((counters.malformed_datagrams, counters.forged_datagrams), (front, sealed));
    assert!(pair.ends[1].receive(ALL).is_none());
    deliver(&mut pair, datagram);
    assert!(pair.ends[1].receive(ALL).is_some(), "the true one is still welcome");
    still_works(&mut pair);
}

#[test]
fn a_datagram_that_comes_twice() {
    let mut pair = established(|_| {});
    pair.ends[0].send(&write(1, &payload(1, 64))).unwrap();
    let datagram = next_datagram(&mut pair);
    deliver(&mut pair, datagram.clone());
    deliver(&mut pair, datagram);
    assert_eq!(dropped(&pair, 1), Counters { replayed_datagrams: 1, ..Counters::default() });
    assert!(pair.ends[1].receive(ALL).is_some());
    assert!(pair.ends[1].receive(ALL).is_none());
    still_works(&mut pair);
}

/// A host that speaks the protocol, has the keys, and lies: plain, so that the test can write what it likes.
fn lie(pair: &mut Pair, number: u64, packets: &[Packet<'_>]) {
    // Whatever the honest end says next shows how its datagrams begin.
    pair.ends[0].send(&write(0, &payload(0, 4))).unwrap();
    let honest = next_datagram(pair);
    let (header, _) = DatagramHeader::decode(&honest).unwrap();
    assert_eq!(header.kind, DatagramKind::Packets);
    let header = DatagramHeader { number: 1000 + number, ..header };
    let mut datagram = header.encode().unwrap().to_vec();
    for packet in packets {
        let at = datagram.len();
        datagram.resize(at + packet.encoded_bytes(), 0);
        packet.encode(Sums::Each, &mut datagram[at..]).unwrap();
    }
    deliver(pair, datagram);
}

/// The front of a TLP and its CRC-32C, as an honest sender would have made them.
fn front(header: &Header) -> Vec<u8> {
    let mut raw = [0; 16];
    let bytes = header.encode(false, &mut raw).unwrap();
    raw[..bytes].to_vec()
}

fn header_packet(front: &[u8], sequence: u32, route: Route) -> Packet<'_> {
    Packet::Header(HeaderPacket { sequence, route, front, tlp_crc: crc32c::crc32c(front) })
}

const ROUTE: Route = Route { source: HOST, destination: SLOT, path: PathId(1) };

#[test]
fn tlps_with_wrong_routes() {
    let mut pair = established(plain);
    let message = front(&pair::message(5).header);
    let routes = [
        Route { destination: Endpoint::new(22, 6), ..ROUTE },
        Route { destination: Endpoint::new(23, 5), ..ROUTE },
        Route { source: Endpoint::host(12), ..ROUTE },
        Route { source: Endpoint::new(11, 1), ..ROUTE },
    ];
    for (sequence, route) in routes.into_iter().enumerate() {
        lie(&mut pair, sequence as u64, &[header_packet(&message, sequence as u32, route)]);
    }
    lie(&mut pair, 9, &[header_packet(&message, 4, Route { path: PathId(2), ..ROUTE })]);
    lie(&mut pair, 10, &[header_packet(&message, 4, ROUTE)]);
    assert_eq!(dropped(&pair, 1), Counters { wrong_routes: 5, ..Counters::default() });
    let tlp = pair.ends[1].receive(ALL).expect("the sixth was right");
    assert_eq!(front(&tlp.header), message);
    assert!(pair.ends[1].receive(ALL).is_none());
}

#[test]
fn tlps_that_are_none_or_not_whole() {
    let mut pair = established(plain);
    let message = front(&pair::message(5).header);
    let written = front(&write(3, &payload(3, 8)).header);
    let bad_crc = Packet::Header(HeaderPacket { sequence: 1, route: ROUTE, front: &message, tlp_crc: 1 });
    let data =
        |sequence, payload| Packet::Data(fabric::wire::DataPacket { sequence, payload, payload_crc: None });
    lie(&mut pair, 0, &[header_packet(&[0xff; 16], 0, ROUTE), bad_crc]);
    // Data of nothing; then a write with too much, one with too little, and what follows it.
    lie(&mut pair, 1, &[header_packet(&message, 2, ROUTE), data(3, b"stray")]);
    lie(&mut pair, 2, &[header_packet(&written, 4, ROUTE), data(5, b"more than 8")]);
    lie(
        &mut pair,
        3,
        &[header_packet(&written, 6, ROUTE), data(7, b"less"), header_packet(&message, 8, ROUTE)],
    );
    assert_eq!(dropped(&pair, 1), Counters { malformed_tlps: 4, stray_data: 1, ..Counters::default() });
    assert_eq!(std::iter::from_fn(|| pair.ends[1].receive(ALL).map(|_| ())).count(), 2);
}

#[test]
fn packets_from_beyond_the_window_and_acknowledgements_of_what_was_not_sent() {
    let mut pair = established(plain);
    let message = front(&pair::message(5).header);
    lie(&mut pair, 0, &[header_packet(&message, 1024, ROUTE), header_packet(&message, u32::MAX, ROUTE)]);
    let credits = fabric::Credits { headers: [u32::MAX; 3], data: [u32::MAX; 3] };
    let ack = |next, words| Packet::Ack(fabric::wire::Ack { next, echo: 0, credits, words });
    lie(&mut pair, 1, &[ack(1, &[]), ack(0, &[1, 0, 0, 0, 0, 0, 0, 0])]);
    let expected = Counters {
        packets_beyond_window: 1,
        duplicate_packets: 1,
        impossible_acks: 2,
        ..Counters::default()
    };
    assert_eq!(dropped(&pair, 1), expected);
    assert!(pair.ends[1].receive(ALL).is_none());
}

#[test]
fn more_than_there_are_credits_for() {
    let mut pair = established(|config| {
        plain(config);
        config.room.headers = [4; 3];
    });
    let message = front(&pair::message(5).header);
    let packets: Vec<_> = (0..6).map(|sequence| header_packet(&message, sequence, ROUTE)).collect();
    lie(&mut pair, 0, &packets);
    assert_eq!(dropped(&pair, 1), Counters { without_credit: 2, ..Counters::default() });
    assert_eq!(std::iter::from_fn(|| pair.ends[1].receive(ALL).map(|_| ())).count(), 4);
}

#[test]
fn completions_that_nobody_asked_for() {
    let mut pair = established(|_| {});
    // The box answers requests that the host never made; one that it made; and that one a second time.
    pair.ends[0].send(&read(1, 0x111)).unwrap();
    pair.settle();
    let request = pair.ends[1].receive(ALL).unwrap().header;
    let other_tag = read(1, 0x112).header;
    let mut other_requester = request;
    other_requester.set_id(TransactionId::new(Bdf(0x101), Tag::new(0x111).unwrap()));
    for answered in [other_tag, other_requester, request, request] {
        pair.ends[1].send(&completion(&answered, &[1; 64])).unwrap();
    }
    pair.settle();
    assert_eq!(pair.ends[0].receive(ALL).map(|tlp| tlp.header.id()), Some(request.id()));
    assert!(pair.ends[0].receive(ALL).is_none());
    assert_eq!(dropped(&pair, 0), Counters { unexpected_completions: 3, ..Counters::default() });
    assert_eq!(pair.ends[0].open_requests(), 0);
    // A request that was given up is open no more.
    pair.ends[0].send(&read(2, 0x111)).unwrap();
    assert!(pair.ends[0].forget_request(request.id()));
    assert!(!pair.ends[0].forget_request(request.id()));
    pair.settle();
    let late = pair.ends[1].receive(ALL).unwrap().header;
    pair.ends[1].send(&Tlp::new(late.completion(Bdf(0x200), Status::Success), &[])).unwrap();
    pair.settle();
    assert!(pair.ends[0].receive(ALL).is_none());
    assert_eq!(dropped(&pair, 0).unexpected_completions, 4);
    still_works(&mut pair);
}

#[test]
fn a_tag_is_used_once_at_a_time() {
    let mut pair = established(|_| {});
    pair.ends[0].send(&read(1, 5)).unwrap();
    let again = pair.ends[0].send(&read(2, 5));
    let id = TransactionId::new(Bdf(0x100), Tag::new(5).unwrap());
    assert_eq!(again, Err(fabric::SendError::Request(fabric::RequestError::TagInUse(id))));
}

#[test]
fn greetings_of_strangers() {
    let host = |change: fn(&mut LinkConfig)| {
        let mut config = config(fabric::Role::Host);
        change(&mut config);
        Link::new(config, Time(0)).unwrap()
    };
    let mut pair = established(|_| {});
    let strangers = [
        host(|config| config.secret = LeaseSecret([8; 32])),
        host(|config| config.random = [5; 32]),
        host(|config| config.protection = fabric::Protection::Plain),
    ];
    for mut stranger in strangers {
        let mut datagram = vec![0; 2000];
        let transmit = stranger.transmit(Time(0), &mut datagram).unwrap();
        pair.ends[1].on_datagram(Time(0), &mut datagram[..transmit.bytes]);
        assert!(!stranger.is_established());
    }
    assert_eq!(dropped(&pair, 1), Counters { foreign_hellos: 3, ..Counters::default() });
    still_works(&mut pair);
}

#[test]
fn silence_is_told_once() {
    let mut pair = established(|_| {});
    while pair.ends[0].next_event().is_some() {}
    pair.nets[0].cut(PathId(1), pair.now, Time(u64::MAX));
    pair.ends[0].send(&write(1, &payload(1, 64))).unwrap();
    for _ in 0..2000 {
        pair.settle();
        if pair.now > Time(2_000_000_000) || !pair.advance() {
            break;
        }
    }
    let events: Vec<_> = std::iter::from_fn(|| pair.ends[0].next_event()).collect();
    assert_eq!(events, [fabric::Event::Silent]);
}
