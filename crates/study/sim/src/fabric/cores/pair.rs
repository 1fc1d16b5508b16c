//! A pair of proxies: two trunks, the cables between them, and the host proxy's wires.

use super::super::agenda::Instant;
use super::super::constants::Constants;
use super::super::crossing::Wire;
use fabric::{
    Credits, Endpoint, Epoch, LeaseSecret, Link, LinkConfig, LinkName, Protection, Role, Time, Trunk,
};
use std::time::Duration;

/// What Ethernet, IP and UDP add to a datagram.
const FRAMING_BYTES: usize = 42;
/// Bytes on their way are not what bounds these proxies.
const IN_FLIGHT_BYTES: usize = 64 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Up,
    Down,
}

/// One proxy.
#[derive(Debug)]
pub(super) struct Proxy {
    pub(super) trunk: Trunk,
    pub(super) cable: Wire,
    /// The next time its trunk is asked for a datagram.
    pub(super) asked_at: Option<Instant>,
}

/// A datagram that left.
pub(super) struct Left {
    pub(super) link: LinkName,
    pub(super) bytes: Vec<u8>,
    /// TLPs that began their way with it.
    pub(super) tlps: usize,
    pub(super) arrives_at: Instant,
}

#[derive(Debug)]
pub(super) struct Pair {
    pub(super) host_up: Wire,
    pub(super) host_down: Wire,
    /// The box proxy sends up, the host proxy down.
    pub(super) proxies: [Proxy; 2],
    datagram: Vec<u8>,
}

pub(super) fn time(now: Instant) -> Time {
    Time(now / 1000)
}

/// A datacenter's proxy in hardware: it acknowledges at once what it received.
fn link(role: Role, gpu: usize, constants: &Constants, datagram_bytes: usize) -> Link {
    let (host, slot) = (Endpoint::host(1), Endpoint::new(2, gpu as u16 + 1));
    let ends = if role == Role::Host { [host, slot] } else { [slot, host] };
    let random = [role as u8 + 1; 32];
    let mut config =
        LinkConfig::new(role, LinkName(gpu as u32), Epoch(1), LeaseSecret([1; 32]), random, ends);
    let slots = constants.proxy_slots.round().max(1.0) as u32;
    (config.protection, config.datagram_bytes) = (Protection::Plain, datagram_bytes);
    (config.window, config.in_flight_bytes_max) = (4096, IN_FLIGHT_BYTES);
    // Completions of all tags may wait at once; what bounds a GPU's own packets is its port's credit.
    (config.queued_max, config.queued_bytes_max) = (32_768, usize::MAX);
    config.room = Credits::room([slots, 4096, 8192], [64 << 20; 3]);
    (config.ack_delay, config.ack_every) = (Duration::ZERO, 1);
    (config.timeout_min, config.timeout_max) = (Duration::from_millis(2), Duration::from_millis(20));
    Link::new(config, Time(0)).expect("the configuration is sound")
}

impl Pair {
    /// Proxies for these GPUs, whose links have greeted each other.
    pub(super) fn new(
        constants: &Constants,
        gpus: impl Iterator<Item = usize>,
        wire: &Wire,
        datagram_bytes: usize,
    ) -> Self {
        let proxy = || {
            let mut trunk = Trunk::new(IN_FLIGHT_BYTES);
            trunk.limit_tlps(constants.proxy_slots.round().max(1.0) as usize);
            let cable = Wire::new(constants.network_gbps, constants.network_rtt_us / 2.0);
            Proxy { trunk, cable, asked_at: None }
        };
        let mut proxies = [proxy(), proxy()];
        for gpu in gpus {
            proxies[Way::Up as usize].trunk.add(link(Role::Box, gpu, constants, datagram_bytes));
            proxies[Way::Down as usize].trunk.add(link(Role::Host, gpu, constants, datagram_bytes));
        }
        let mut datagram = vec![0; datagram_bytes];
        loop {
            let mut is_quiet = true;
            for from in 0..2 {
                while let Some(sent) = proxies[from].trunk.transmit(Time(0), &mut datagram) {
                    proxies[1 - from].trunk.on_datagram(Time(0), &mut datagram[..sent.bytes]);
                    is_quiet = false;
                }
            }
            if is_quiet {
                break;
            }
        }
        Self { host_up: *wire, host_down: *wire, proxies, datagram }
    }

    pub(super) fn proxy(&mut self, way: Way) -> &mut Proxy {
        &mut self.proxies[way as usize]
    }

    /// TLPs of a link that are on their way.
    fn on_their_way(&self, way: Way, link: LinkName) -> usize {
        self.proxies[way as usize].trunk.link(link).map_or(0, Link::in_flight_tlps)
    }

    /// The next datagram of the proxy that sends `way`. What carries TLPs is converted first; acknowledgements are the
    /// proxy's own.
    pub(super) fn transmit(
        &mut self,
        way: Way,
        now: Instant,
        conversion: Instant,
        counts: &mut [usize],
    ) -> Option<Left> {
        let proxy = &mut self.proxies[way as usize];
        let sent = proxy.trunk.transmit(time(now), &mut self.datagram)?;
        let (link, count) = (sent.link, &mut counts[sent.link.0 as usize]);
        let after = self.on_their_way(way, link);
        let tlps = after - std::mem::replace(count, after);
        let cable = &mut self.proxies[way as usize].cable;
        let arrives_at = cable.send(now, (sent.bytes + FRAMING_BYTES) as f64);
        let conversion = if tlps > 0 { conversion } else { 0 };
        let bytes = self.datagram[..sent.bytes].to_vec();
        Some(Left { link, bytes, tlps, arrives_at: arrives_at + conversion })
    }

    /// A datagram arrives at the proxy that sends `way`; what it acknowledged is on its way no more.
    pub(super) fn on_datagram(
        &mut self,
        way: Way,
        now: Instant,
        link: LinkName,
        mut bytes: Vec<u8>,
        counts: &mut [usize],
    ) {
        self.proxies[way as usize].trunk.on_datagram(time(now), &mut bytes);
        counts[link.0 as usize] = self.on_their_way(way, link);
    }
}
