//! One way through a pair of proxies: slots, conversion, network.

use super::agenda::{Instant, ps};
use super::constants::Constants;
use std::collections::VecDeque;

/// A wire or a cable: one packet at a time, then the way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wire {
    free_at: Instant,
    ps_per_byte: f64,
    latency: Instant,
}

impl Wire {
    pub(super) fn new(gbps: f64, latency_us: f64) -> Self {
        // One gigabyte a second is a byte a nanosecond.
        Self { free_at: 0, ps_per_byte: 1e3 / gbps, latency: ps(latency_us) }
    }

    /// When it has carried all that it was given.
    pub(super) fn free_at(&self) -> Instant {
        self.free_at
    }

    /// Whether it carries something now.
    pub(super) fn is_busy(&self, now: Instant) -> bool {
        self.free_at > now
    }

    /// When `bytes` that are ready at `now` have arrived.
    pub(super) fn send(&mut self, now: Instant, bytes: f64) -> Instant {
        self.free_at = self.free_at.max(now) + (bytes * self.ps_per_byte).round() as Instant;
        self.free_at + self.latency
    }
}

/// A packet that left its proxy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Departure<P> {
    pub(super) packet: P,
    /// When it leaves the far proxy, converted back.
    pub(super) delivered_at: Instant,
    /// When its slot is free again.
    pub(super) slot_free_at: Instant,
}

/// One direction of a pair of proxies.
#[derive(Debug)]
pub(super) struct Crossing<P> {
    slots_free: usize,
    waiting: VecDeque<P>,
    cable: Wire,
    conversion: Instant,
    acknowledgement: Instant,
    overhead_bytes: f64,
}

/// What a crossing must know of a packet.
pub(super) trait Crosses {
    /// Its data.
    fn payload_bytes(&self) -> f64;
    /// How long the receiver keeps the credit beyond the arrival.
    fn credit(&self) -> Instant;
}

impl<P: Crosses + Copy> Crossing<P> {
    pub(super) fn new(constants: &Constants) -> Self {
        let one_way_us = constants.network_rtt_us / 2.0;
        Self {
            slots_free: constants.proxy_slots.round().max(1.0) as usize,
            waiting: VecDeque::new(),
            cable: Wire::new(constants.network_gbps, one_way_us),
            // Two proxies there, two back.
            conversion: ps(constants.conversion_rtt_us / 4.0),
            acknowledgement: ps(one_way_us),
            overhead_bytes: constants.network_overhead_bytes,
        }
    }

    /// A packet reaches the near proxy; it leaves at once if there is a slot.
    pub(super) fn arrive(&mut self, now: Instant, packet: P) -> Option<Departure<P>> {
        self.waiting.push_back(packet);
        self.depart(now)
    }

    /// A slot became free; the packet that takes it.
    pub(super) fn slot_freed(&mut self, now: Instant) -> Option<Departure<P>> {
        self.slots_free += 1;
        self.depart(now)
    }

    fn depart(&mut self, now: Instant) -> Option<Departure<P>> {
        if self.slots_free == 0 {
            return None;
        }
        let packet = self.waiting.pop_front()?;
        self.slots_free -= 1;
        let converted = now + self.conversion;
        let across = self.cable.send(converted, packet.payload_bytes() + self.overhead_bytes);
        Some(Departure {
            packet,
            delivered_at: across + self.conversion,
            // The far proxy acknowledges what it received before it converts it.
            slot_free_at: across + packet.credit() + self.acknowledgement,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug)]
    struct Packet;

    impl Crosses for Packet {
        fn payload_bytes(&self) -> f64 {
            128.0
        }
        fn credit(&self) -> Instant {
            0
        }
    }

    #[test]
    fn a_wire_carries_one_packet_at_a_time() {
        let mut wire = Wire::new(1.0, 2.0);
        assert_eq!(wire.send(0, 1000.0), ps(1.0 + 2.0));
        assert_eq!(wire.send(0, 1000.0), ps(2.0 + 2.0));
        assert_eq!(wire.send(ps(10.0), 1000.0), ps(11.0 + 2.0));
    }

    #[test]
    fn a_full_proxy_keeps_packets_waiting_until_a_slot_is_acknowledged() {
        let constants = Constants { proxy_slots: 2.0, ..Constants::paper() };
        let mut crossing = Crossing::new(&constants);
        let first = crossing.arrive(0, Packet).expect("a free slot");
        assert!(crossing.arrive(0, Packet).is_some());
        assert!(crossing.arrive(0, Packet).is_none());
        // Conversion, cable, way, acknowledgement.
        let expected = ps(3.7 / 4.0) + ps((128.0 + 64.0) / 25e3) + ps(0.95) + ps(0.95);
        assert_eq!(first.slot_free_at, expected);
        assert!(crossing.slot_freed(first.slot_free_at).is_some());
        assert!(crossing.slot_freed(first.slot_free_at).is_none());
    }
}
