//! A million packets in each case over networks of bad habits: every TLP exactly once and in order.

mod pair;

use fabric::{Faults, LinkConfig, PathId, Time};
use pair::{ALL, Pair, payload, plain, read, refusal, two_paths, write};
use std::collections::VecDeque;
use std::time::Duration;

/// Packets of each case: header packets and data packets of both directions.
const PACKETS: u64 = 1_000_000;

fn bad(lost: u16) -> Faults {
    Faults {
        lost,
        repeated: 50,
        damaged: 20,
        late: 200,
        late_by: Duration::from_micros(40),
        delay: Duration::from_micros(3),
    }
}

/// Both ends send posted writes as fast as they may; the host also reads, the box answers.
struct Traffic {
    /// Next posted write to send and to expect, by sender.
    sent: [u64; 2],
    expected: [u64; 2],
    /// Requests of the host on their way, oldest first; and those that the box owes.
    asked: VecDeque<u64>,
    next_read: u64,
    next_asked: u64,
    next_answer: u64,
    owed: VecDeque<tlp::Header>,
}

/// Sizes that make one packet, two and several.
fn bytes_of(number: u64) -> usize {
    [4, 64, 128, 256, 1500, 4096][(number % 6) as usize] / 4 * 4
}

fn run(name: &str, pair: &mut Pair, packets: u64) {
    pair.establish();
    let mut traffic = Traffic {
        sent: [0; 2],
        expected: [0; 2],
        asked: VecDeque::new(),
        next_read: 0,
        next_asked: 0,
        next_answer: 0,
        owed: VecDeque::new(),
    };
    // A write is at least two packets, a read and its refusal one each; checked below.
    let writes = packets / 5;
    let reads = packets / 10;
    let done = |traffic: &Traffic| {
        traffic.expected == [writes; 2] && traffic.next_answer == reads && traffic.asked.is_empty()
    };
    while !done(&traffic) {
        for end in 0..2 {
            while traffic.sent[end] < writes {
                let number = traffic.sent[end];
                let payload = payload(number, bytes_of(number));
                if pair.ends[end].send(&write(number, &payload)).is_err() {
                    break;
                }
                traffic.sent[end] += 1;
            }
        }
        // Half of all tags, in turn: none is used again before it is free.
        while traffic.next_read < reads && traffic.asked.len() < 128 {
            let tag = 0x100 + (traffic.next_read % 512) as u16;
            if pair.ends[0].send(&read(traffic.next_read, tag)).is_err() {
                break;
            }
            traffic.asked.push_back(traffic.next_read);
            traffic.next_read += 1;
        }
        while let Some(request) = traffic.owed.front() {
            if pair.ends[1].send(&refusal(request)).is_err() {
                break;
            }
            traffic.owed.pop_front();
        }
        pair.settle();
        for end in 0..2 {
            while let Some(tlp) = pair.ends[end].receive(ALL) {
                take(name, &mut traffic, end, &tlp);
            }
        }
        pair.settle();
        assert!(done(&traffic) || pair.advance(), "{name}: nothing will ever happen again");
        assert!(pair.now < Time(3600 * 1_000_000_000), "{name}: an hour, and still not done");
    }
    let first_sent: u64 = pair.ends.iter().map(|end| end.counters().packets_sent).sum();
    assert!(first_sent >= packets, "{name}: only {first_sent} packets");
}

fn take(name: &str, traffic: &mut Traffic, end: usize, tlp: &tlp::Tlp<'_>) {
    match tlp.header.body {
        tlp::Body::Memory(it) if tlp.class() == tlp::Class::Posted => {
            let number = traffic.expected[1 - end];
            assert_eq!(it.address / 4096, number, "{name}: the order of writes to end {end}");
            assert_eq!(
                tlp.payload,
                payload(number, bytes_of(number)),
                "{name}: the payload of write {number}"
            );
            traffic.expected[1 - end] += 1;
        }
        tlp::Body::Memory(it) => {
            assert_eq!((end, it.address / 4096), (1, traffic.next_asked), "{name}: the order of reads");
            traffic.next_asked += 1;
            traffic.owed.push_back(tlp.header);
        }
        tlp::Body::Completion(it) => {
            let number = traffic.asked.pop_front().expect("somebody asked");
            assert_eq!(number, traffic.next_answer, "{name}: the order of answers");
            assert_eq!(u64::from(it.id.tag.value()), 0x100 + number % 512);
            traffic.next_answer += 1;
        }
        other => panic!("{name}: nobody sent {other:?}"),
    }
}

fn report(name: &str, pair: &Pair) {
    let counters = pair.ends.each_ref().map(|end| *end.counters());
    let sum = |of: fn(&fabric::Counters) -> u64| of(&counters[0]) + of(&counters[1]);
    println!(
        "{name:24} {:7} TLPs {:8} packets {:8} datagrams {:7} resent {:5} timeouts {} failovers, {:.1} ms on its clock",
        sum(|c| c.tlps_received),
        sum(|c| c.packets_sent),
        pair.datagrams,
        sum(|c| c.packets_resent),
        sum(|c| c.timeouts),
        sum(|c| c.failovers),
        pair.now.0 as f64 / 1e6,
    );
    for counters in counters {
        let refused = counters.forged_datagrams + counters.malformed_datagrams + counters.corrupt_packets;
        // Nothing but damage was refused: the peer is honest.
        assert_eq!(
            counters.refused() - refused,
            counters.other_sessions + counters.foreign_hellos,
            "{counters:?}"
        );
    }
}

fn case(name: &str, faults: Faults, seed: u64, change: impl Fn(&mut LinkConfig)) -> Pair {
    let mut pair = Pair::new(faults, seed, change);
    run(name, &mut pair, PACKETS);
    report(name, &pair);
    pair
}

#[test]
fn a_sound_network_resends_nothing() {
    let delay = Duration::from_micros(3);
    let pair = case("sound", Faults { delay, ..Faults::default() }, 1, |_| {});
    for end in &pair.ends {
        assert_eq!(
            (end.counters().packets_resent, end.counters().timeouts, end.counters().refused()),
            (0, 0, 0)
        );
    }
}

#[test]
fn a_tenth_lost_reordered_repeated_and_damaged() {
    let pair = case("bad, encrypted", bad(100), 2, |_| {});
    assert!(pair.ends.iter().all(|end| end.counters().forged_datagrams > 100), "damage reaches the seal");
}

#[test]
fn the_same_without_encryption() {
    let pair = case("bad, plain", bad(100), 3, plain);
    assert!(pair.ends.iter().all(|end| end.counters().corrupt_packets > 100), "damage reaches the packets");
}

#[test]
fn a_path_is_cut_in_the_middle_and_comes_back() {
    let mut pair = Pair::new(bad(100), 4, two_paths);
    for net in &mut pair.nets {
        net.cut(PathId(1), Time(20_000_000), Time(60_000_000));
        net.cut(PathId(2), Time(90_000_000), Time(120_000_000));
    }
    run("cut", &mut pair, PACKETS);
    report("bad, paths cut in turn", &pair);
    assert!(pair.now > Time(90_000_000), "the second cut was reached");
    assert!(pair.ends.iter().all(|end| end.counters().failovers >= 2));
}

#[test]
fn one_direction_of_a_path_is_cut_for_good() {
    let mut pair = Pair::new(bad(20), 5, two_paths);
    pair.nets[1].cut(PathId(1), Time(10_000_000), Time(u64::MAX));
    run("one way", &mut pair, PACKETS / 5);
    report("bad, one way cut", &pair);
    assert_eq!(pair.ends[1].active_path(), PathId(2));
}
