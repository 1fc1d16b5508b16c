//! Many links through one pair of proxies: all of them, fairly, and each behind its own epoch.

mod pair;

use fabric::{
    Endpoint, Epoch, Event, Faults, LeaseSecret, Link, LinkConfig, LinkName, Role, Scripted, Time, Trunk,
    Willing,
};
use pair::{payload, write};
use std::time::Duration;

const LEASES: u32 = 512;

fn link(role: Role, lease: u32, epoch: u32) -> Link {
    let (host, slot) = (Endpoint::host(1), Endpoint::new(2, lease as u16));
    let ends = if role == Role::Host { [host, slot] } else { [slot, host] };
    let mut random = [role as u8; 32];
    random[..4].copy_from_slice(&lease.to_be_bytes());
    let secret = LeaseSecret([lease as u8; 32]);
    Link::new(LinkConfig::new(role, LinkName(lease), Epoch::from(epoch), secret, random, ends), Time(0))
        .unwrap()
}

struct Proxies {
    now: Time,
    trunks: [Trunk; 2],
    nets: [Scripted; 2],
    datagram: Vec<u8>,
    /// Bytes of payload that each lease got across, and datagrams that the host sent.
    arrived: Vec<u64>,
    host_datagrams: u64,
}

impl Proxies {
    fn new(faults: Faults) -> Self {
        Self {
            now: Time(0),
            trunks: [Trunk::new(256 << 10), Trunk::new(256 << 10)],
            nets: [Scripted::new(5, faults), Scripted::new(6, faults)],
            datagram: vec![0; 2000],
            arrived: vec![0; LEASES as usize],
            host_datagrams: 0,
        }
    }

    /// Moves what there is; the host stops after `most` datagrams.
    fn settle(&mut self, most: u64) {
        loop {
            let mut is_quiet = true;
            for end in 0..2 {
                while let Some(datagram) = self.nets[1 - end].receive(self.now) {
                    is_quiet = false;
                    let Some(lease) = self.trunks[end].on_datagram(self.now, datagram) else { continue };
                    while let Some(tlp) = self.trunks[end].receive(lease, Willing::ALL) {
                        self.arrived[lease.0 as usize] += tlp.payload.len() as u64;
                    }
                }
                while end == 1 || self.host_datagrams < most {
                    let Some(transmit) = self.trunks[end].transmit(self.now, &mut self.datagram) else {
                        break;
                    };
                    is_quiet = false;
                    self.host_datagrams += u64::from(end == 0);
                    self.nets[end].send(self.now, transmit.path, &self.datagram[..transmit.bytes]);
                }
            }
            if is_quiet {
                return;
            }
        }
    }

    fn advance(&mut self) {
        let [a, b] = &self.trunks;
        let due = [a.wake_at(), b.wake_at(), self.nets[0].next_at(), self.nets[1].next_at()];
        if let Some(at) = due.into_iter().flatten().min() {
            self.now = self.now.max(at);
        }
    }
}

/// (sum x)^2 / (n sum x^2): 1 when all get the same, 1/n when one gets all.
fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|share| *share as f64).sum();
    let squares: f64 = shares.iter().map(|share| (*share as f64).powi(2)).sum();
    sum * sum / (shares.len() as f64 * squares)
}

/// Half of the leases send small writes, half large ones, all of them more than there is room for; and the network
/// carries a bounded number of datagrams. No lease is left behind, and none with large TLPs gets more than its share.
fn fairness(faults: Faults) -> (f64, f64) {
    let mut proxies = Proxies::new(faults);
    for lease in 0..LEASES {
        assert!(proxies.trunks[0].add(link(Role::Host, lease, 1)).is_none());
        assert!(proxies.trunks[1].add(link(Role::Box, lease, 1)).is_none());
    }
    let (small, large) = (payload(1, 512), payload(2, 4096));
    let most = 60_000;
    while proxies.host_datagrams < most {
        for lease in 0..LEASES {
            let bytes = if lease % 2 == 0 { &small } else { &large };
            while proxies.trunks[0].send(LinkName(lease), &write(1, bytes)).unwrap().is_ok() {}
        }
        proxies.settle(most);
        proxies.advance();
    }
    let halves: Vec<u64> = proxies.arrived.iter().skip(1).step_by(2).copied().collect();
    (jain(&proxies.arrived), jain(&halves))
}

#[test]
fn five_hundred_and_twelve_leases_get_the_same() {
    let sound = fairness(Faults { delay: Duration::from_micros(5), ..Faults::default() });
    let lossy = fairness(Faults { delay: Duration::from_micros(5), lost: 20, ..Faults::default() });
    println!("Jain's index of {LEASES} leases: {sound:.4?}, with 2 % lost {lossy:.4?}");
    assert!(sound.0 >= 0.95 && sound.1 >= 0.99, "{sound:?}");
    assert!(lossy.0 >= 0.95 && lossy.1 >= 0.95, "{lossy:?}");
}

/// As a proxy with few slots: losses fill them too, and are mended all the same.
#[test]
fn a_bound_on_tlps_holds_and_losses_do_not_stop_it() {
    let mut proxies = Proxies::new(Faults { delay: Duration::from_micros(5), lost: 50, ..Faults::default() });
    proxies.trunks[0].limit_tlps(8);
    for lease in 0..4 {
        proxies.trunks[0].add(link(Role::Host, lease, 1));
        proxies.trunks[1].add(link(Role::Box, lease, 1));
    }
    let bytes = payload(1, 512);
    let mut sent = 0;
    for _ in 0..20_000 {
        for lease in 0..4 {
            while sent < 4000 && proxies.trunks[0].send(LinkName(lease), &write(1, &bytes)).unwrap().is_ok() {
                sent += 1;
            }
        }
        proxies.settle(u64::MAX);
        let in_flight: usize =
            (0..4).map(|lease| proxies.trunks[0].link(LinkName(lease)).unwrap().in_flight_tlps()).sum();
        assert!(in_flight <= 8, "{in_flight} on their way");
        proxies.advance();
    }
    assert_eq!(sent, 4000);
    assert_eq!(proxies.arrived.iter().sum::<u64>(), 4000 * 512);
}

#[test]
fn an_ended_lease_reaches_nobody_and_its_next_epoch_begins_clean() {
    let mut proxies = Proxies::new(Faults { delay: Duration::from_micros(5), ..Faults::default() });
    for end in 0..2 {
        let role = if end == 0 { Role::Host } else { Role::Box };
        proxies.trunks[end].add(link(role, 3, 1));
    }
    let bytes = payload(1, 512);
    for _ in 0..10 {
        proxies.settle(u64::MAX);
        proxies.advance();
    }
    assert_eq!(proxies.trunks[0].next_event(LinkName(3)), Some(Event::Established));
    // The host's datagrams are on their way while the box ends the lease, and then begins its next epoch.
    proxies.trunks[0].send(LinkName(3), &write(1, &bytes)).unwrap().unwrap();
    while let Some(transmit) = proxies.trunks[0].transmit(proxies.now, &mut proxies.datagram) {
        proxies.nets[0].send(proxies.now, transmit.path, &proxies.datagram[..transmit.bytes]);
    }
    assert!(proxies.trunks[1].remove(LinkName(3)).is_some());
    proxies.now = Time(proxies.now.0 + 100_000);
    proxies.settle(u64::MAX);
    assert_eq!(proxies.trunks[1].counters().unknown_links, 1);
    assert!(proxies.trunks[1].add(link(Role::Box, 3, 2)).is_none());
    for _ in 0..20 {
        proxies.advance();
        proxies.settle(u64::MAX);
    }
    assert_eq!(proxies.arrived[3], 0);
    assert!(
        proxies.trunks[1].link_counters(LinkName(3)).unwrap().other_epochs > 0,
        "the host tries again, in vain"
    );
    // The host learns of the new epoch too.
    assert!(proxies.trunks[0].add(link(Role::Host, 3, 2)).is_some());
    proxies.trunks[0].send(LinkName(3), &write(1, &bytes)).unwrap().unwrap();
    for _ in 0..20 {
        proxies.settle(u64::MAX);
        proxies.advance();
    }
    assert_eq!(proxies.arrived[3], 512);
}
