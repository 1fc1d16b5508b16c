//! Equation 1 of the paper, and the constants around it.
//!
//! A reader of PCIe memory may have only so many reads in flight (its *tags*), each of at most the maximum read request size.
//! When the round trip grows, all tags are out before the first answer is back, and the rate is what fits into a round trip:
//!
//! ```text
//! read rate = tags * read request size / round trip        (Eq. 1)
//! ```
//!
//! At a short round trip the wires are the limit instead. Writes are posted: the GPU waits for no answer, so they have no
//! such bound.

/// The PCIe path of one GPU, as it looks to the GPU's copy engines.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PciePath {
    /// Reads that may be in flight.
    pub tags: f64,
    /// Largest read request.
    pub read_request_bytes: f64,
    /// Round trip of a read when the GPU is in the server.
    pub native_rtt_us: f64,
    /// What the wires carry towards the GPU, measured in the server.
    pub read_link_gbps: f64,
    /// What the wires carry from the GPU, measured in the server.
    pub write_link_gbps: f64,
    /// What is left of that when posted writes cross the network.
    pub remote_write_gbps: f64,
}

/// A V100 behind PCIe Gen3 x16 (sections 3.4.3 and 4.2, Tables 6 and 7).
pub const V100: PciePath = PciePath {
    tags: 140.0,
    read_request_bytes: 128.0,
    native_rtt_us: 1.2,
    read_link_gbps: 11.2,
    write_link_gbps: 12.5,
    remote_write_gbps: 11.6,
};

impl PciePath {
    /// Equation 1, in gigabytes a second.
    pub fn tag_limited_gbps(&self, rtt_us: f64) -> f64 {
        // Bytes per microsecond are megabytes per second.
        self.tags * self.read_request_bytes / rtt_us / 1e3
    }

    /// How fast the GPU reads host memory: Equation 1, or the wires where they are slower.
    pub fn read_gbps(&self, rtt_us: f64) -> f64 {
        self.tag_limited_gbps(rtt_us).min(self.read_link_gbps)
    }

    /// How much longer a host-to-device copy takes than in the server, less one.
    pub fn read_slowdown(&self, rtt_us: f64) -> f64 {
        self.read_link_gbps / self.read_gbps(rtt_us) - 1.0
    }

    /// How much longer a device-to-host copy takes than in the server, less one. It does not depend on the distance.
    pub fn write_slowdown(&self) -> f64 {
        self.write_link_gbps / self.remote_write_gbps - 1.0
    }

    /// What the network adds to the round trip of a GPU in the server.
    pub fn added_rtt_us(&self, rtt_us: f64) -> f64 {
        (rtt_us - self.native_rtt_us).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_two_builds_read_as_fast_as_equation_1_says() {
        assert!((V100.read_gbps(6.8) - 2.635).abs() < 1e-3);
        assert!((V100.read_gbps(4.9) - 3.657).abs() < 1e-3);
    }

    #[test]
    fn in_the_server_the_wires_are_the_limit() {
        assert!(V100.tag_limited_gbps(1.2) > V100.read_link_gbps);
        assert_eq!(V100.read_gbps(1.2), V100.read_link_gbps);
        assert_eq!(V100.read_slowdown(1.2), 0.0);
    }

    #[test]
    fn larger_reads_or_more_tags_win_the_rate_back() {
        let large = PciePath { read_request_bytes: 512.0, ..V100 };
        assert!((large.read_gbps(6.8) - 10.54).abs() < 0.01);
        let many = PciePath { tags: 768.0, ..V100 };
        assert_eq!(many.read_gbps(6.8), V100.read_link_gbps);
    }
}
