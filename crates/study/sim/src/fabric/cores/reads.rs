//! Reads over a distance, held against the paper's Eq. 1: tags × read size / round trip, or the link if that is less.

use super::super::constants::Constants;
use super::super::experiments::{Rate, behind_one};
use super::super::traffic::Traffic;
use super::world::CoreWorld;

/// Payload of completions and writes: what root complexes give at most, more often than not.
const PAYLOAD_BYTES: f64 = 256.0;

/// As on an ordinary network.
const DATAGRAM_BYTES: usize = 1452;

/// Copies between a host and a device behind a link, over the real cores in made-up time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DistantReads {
    /// Reads that the device may have open.
    pub tags: u16,
    /// The size of each.
    pub read_bytes: u32,
    /// What the network adds to the round trip.
    pub delay_us: f64,
    /// What one read alone takes.
    pub rtt_us: f64,
    /// What the link carries of host-to-device writes with the same payload: the most there is.
    pub push_gbps: f64,
    /// What the device's reads bring.
    pub read_gbps: f64,
    /// The same for device-to-host writes.
    pub write_gbps: f64,
}

impl DistantReads {
    /// Eq. 1 for the round trip that one read takes.
    pub fn equation_1_gbps(&self) -> f64 {
        f64::from(self.tags) * f64::from(self.read_bytes) / (self.rtt_us * 1e3)
    }

    /// What can be expected: the link, or Eq. 1 if that is less.
    pub fn expected_gbps(&self) -> f64 {
        self.equation_1_gbps().min(self.push_gbps)
    }
}

fn copy(constants: &Constants, traffic: Traffic, microseconds: f64) -> Rate {
    let settle_us = 4.0 * constants.rtt_us() + 10.0;
    let mut world = CoreWorld::with_datagrams(constants, behind_one(1), &[traffic], 0, 0.0, DATAGRAM_BYTES);
    world.run(settle_us);
    let before = world.moved();
    world.run(settle_us + microseconds);
    Rate::between(&before, &world.moved())
}

/// Copies with each number of tags, over a link of `link_gbps` with `delay_us` of round trip.
pub fn distant_reads(tags: &[u16], read_bytes: u32, delay_us: f64, link_gbps: f64) -> Vec<DistantReads> {
    let size = f64::from(read_bytes);
    let alone = Constants {
        tags: 1.0,
        read_request_bytes: size,
        write_payload_bytes: size.min(PAYLOAD_BYTES),
        // Wires that take no time: the cable is the link.
        wire_gbps: 1e6,
        native_rtt_us: 0.0,
        network_rtt_us: delay_us,
        conversion_rtt_us: 0.0,
        network_gbps: link_gbps,
        proxy_slots: 4096.0,
        gpu_credit_us: 0.0,
        port_credits: 1024.0,
        ..Constants::paper()
    };
    let rtt_us = size / (copy(&alone, Traffic::Read, 50.0 * delay_us).down_gbps * 1e3);
    let push_gbps = copy(&alone, Traffic::HostWrites, 200.0).down_gbps;
    let write_gbps = copy(&alone, Traffic::Write, 200.0).up_gbps;
    let reads = tags.iter().map(|&tags| {
        // Fifty round trips, or fewer of those that move much.
        let in_flight = f64::from(tags) * size;
        let time_us = delay_us * (5e6 / in_flight).clamp(10.0, 50.0);
        let constants = Constants { tags: f64::from(tags), ..alone };
        let read_gbps = copy(&constants, Traffic::Read, time_us.max(100.0)).down_gbps;
        DistantReads { tags, read_bytes, delay_us, rtt_us, push_gbps, read_gbps, write_gbps }
    });
    reads.collect()
}
