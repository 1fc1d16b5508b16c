//! What the conversion costs: TLP to packet, packet to TLP, at both ends.
//!
//! The clock is an argument, as everywhere here; whoever measures brings one.

use crate::{Endpoint, Epoch, LeaseId, LeaseSecret, Link, LinkConfig, Protection, Role, Time, Willing};
use std::time::Duration;
use tlp::{Bdf, Header, Span, Tlp};

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conversion {
    /// With or without encryption.
    pub protection: Protection,
    /// Payload of each TLP.
    pub payload_bytes: u32,
    /// TLPs that are handed over together, and share datagrams where they fit.
    pub batch: u32,
    /// How often.
    pub rounds: u32,
    /// The longest datagram.
    pub datagram_bytes: usize,
}

/// Two links that know each other.
pub fn established_pair(protection: Protection, datagram_bytes: usize) -> (Link, Link) {
    let make = |role, random, ends| {
        let secret = LeaseSecret([1; 32]);
        let mut config = LinkConfig::new(role, LeaseId(1), Epoch(1), secret, [random; 32], ends);
        (config.protection, config.datagram_bytes) = (protection, datagram_bytes);
        Link::new(config, Time(0)).expect("the configuration is sound")
    };
    let (host, slot) = (Endpoint::host(1), Endpoint::new(2, 3));
    let (mut a, mut b) = (make(Role::Host, 1, [host, slot]), make(Role::Box, 2, [slot, host]));
    let mut datagram = vec![0; datagram_bytes];
    for _ in 0..2 {
        carry(Time(0), &mut a, &mut b, &mut datagram);
        carry(Time(0), &mut b, &mut a, &mut datagram);
    }
    (a, b)
}

/// Moves all that `from` has to say; gives the number of datagrams.
fn carry(now: Time, from: &mut Link, to: &mut Link, datagram: &mut [u8]) -> u32 {
    let mut count = 0;
    while let Some(transmit) = from.transmit(now, datagram) {
        to.on_datagram(now, &mut datagram[..transmit.bytes]);
        count += 1;
    }
    count
}

/// Time per TLP for all four steps: encode, write, read, decode, with the acknowledgements that belong to them.
/// `clock` tells the time since any moment.
pub fn conversion(what: Conversion, mut clock: impl FnMut() -> Duration) -> Duration {
    let (mut a, mut b) = established_pair(what.protection, what.datagram_bytes);
    let payload = vec![0x5a; what.payload_bytes as usize];
    let mut datagram = vec![0; what.datagram_bytes];
    let mut now = Time(1);
    let mut received = 0;
    let mut round = |a: &mut Link, b: &mut Link, number: u32| {
        now.0 += 1000;
        for index in 0..what.batch {
            let address = 0x10_0000_0000 + u64::from(number % 1024) * 4096 * u64::from(index + 1);
            let span = Span::of_bytes(address, what.payload_bytes).expect("a payload of one page at most");
            let tlp = Tlp::new(Header::memory_write(Bdf::new(1, 0, 0), span), &payload);
            a.send(&tlp).expect("the last batch has left");
        }
        carry(now, a, b, &mut datagram);
        while let Some(tlp) = b.receive(Willing::ALL) {
            received += u64::from(tlp.payload.len() == payload.len());
        }
        carry(now, b, a, &mut datagram);
    };
    for number in 0..64 {
        round(&mut a, &mut b, number);
    }
    let began = clock();
    for number in 0..what.rounds {
        round(&mut a, &mut b, number);
    }
    let took = clock() - began;
    // Acknowledgements wait for company; what they hold back leaves with the next round.
    assert!(received > u64::from(what.rounds) * u64::from(what.batch), "not every TLP came through");
    took / what.rounds / what.batch
}
