//! What the conversion costs: TLP to packet, packet to TLP, at both ends; and how fairly many links share a network.
//!
//! The clock is an argument; the measuring program brings one.

use fabric::{
    Endpoint, Epoch, Faults, LeaseSecret, Link, LinkConfig, LinkName, Protection, Role, Scripted, Time,
    Trunk, Willing,
};
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
        let mut config = LinkConfig::new(role, LinkName(1), Epoch(1), secret, [random; 32], ends);
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

/// How fairly a trunk shares its network, and on what that was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fairness {
    /// Links through one pair of trunks.
    pub leases: u32,
    /// Datagrams that the network carried.
    pub datagrams: u64,
    /// (sum x)^2 / (n sum x^2) of the bytes that arrived for each: 1 when all get the same, 1/n when one gets all.
    pub jain: f64,
}

/// Half of `leases` links send small writes, half large ones, all of them more than there is room for, through one pair of
/// trunks over a network of 5 us each way that carries `datagrams` datagrams. The time is made up.
pub fn fairness(leases: u32, datagrams: u64) -> Fairness {
    let mut trunks = [Trunk::new(256 << 10), Trunk::new(256 << 10)];
    let faults = Faults { delay: Duration::from_micros(5), ..Faults::default() };
    let mut nets = [Scripted::new(5, faults), Scripted::new(6, faults)];
    for link in 0..leases {
        let (host, slot) = (Endpoint::host(1), Endpoint::new(2, link as u16 + 1));
        for (trunk, (role, ends)) in
            trunks.iter_mut().zip([(Role::Host, [host, slot]), (Role::Box, [slot, host])])
        {
            let (secret, random) = (LeaseSecret([1; 32]), [role as u8 + 1; 32]);
            let config = LinkConfig::new(role, LinkName(link), Epoch(1), secret, random, ends);
            trunk.add(Link::new(config, Time(0)).expect("the configuration is sound"));
        }
    }
    let payload = [0x5a; 4096];
    let span = |bytes| Span::of_bytes(0x10_0000_0000, bytes).expect("a page at most");
    let writes = [512, 4096].map(|bytes| Header::memory_write(Bdf::new(1, 0, 0), span(bytes)));
    let mut arrived = vec![0u64; leases as usize];
    let (mut now, mut sent, mut datagram) = (Time(0), 0, vec![0; 2000]);
    while sent < datagrams {
        for link in 0..leases {
            let header = writes[link as usize % 2];
            let tlp = Tlp::new(header, &payload[..header.payload_bytes()]);
            while matches!(trunks[0].send(LinkName(link), &tlp), Some(Ok(()))) {}
        }
        for end in 0..2 {
            while let Some(datagram) = nets[1 - end].receive(now) {
                let Some(link) = trunks[end].on_datagram(now, datagram) else { continue };
                while let Some(tlp) = trunks[end].receive(link, Willing::ALL) {
                    arrived[link.0 as usize] += tlp.payload.len() as u64;
                }
            }
            while let Some(transmit) = trunks[end].transmit(now, &mut datagram) {
                nets[end].send(now, transmit.path, &datagram[..transmit.bytes]);
                sent += u64::from(end == 0);
            }
        }
        let due = [trunks[0].wake_at(), trunks[1].wake_at(), nets[0].next_at(), nets[1].next_at()];
        now = due.into_iter().flatten().min().map_or(now, |at| at.max(now));
    }
    let sum: f64 = arrived.iter().map(|bytes| *bytes as f64).sum();
    let squares: f64 = arrived.iter().map(|bytes| (*bytes as f64).powi(2)).sum();
    Fairness { leases, datagrams: sent, jain: sum * sum / (f64::from(leases) * squares) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trunk_shares_its_network_among_those_with_large_and_small_writes() {
        let found = fairness(32, 4000);
        assert!(found.jain > 0.95 && found.jain <= 1.0 && found.datagrams >= 4000, "{found:?}");
    }
}
