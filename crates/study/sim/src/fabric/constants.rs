//! Every number the simulation rests on, each with where it comes from.

use model::equation::V100;

/// The constants of one build. All can be changed; [`Constants::paper`] is the build of the paper's evaluation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constants {
    /// Reads that a GPU may have in flight. Published: about 140.
    pub tags: f64,
    /// Largest read request. Published: 128.
    pub read_request_bytes: f64,
    /// Payload of a posted write. The smallest that PCIe knows, as the read request is.
    pub write_payload_bytes: f64,
    /// Data in one completion. Root complexes split at 64 bytes, or 128; 64 explains the native 11.2 GB/s.
    pub completion_bytes: f64,
    /// PCIe Gen3 x16 after line coding: 8 GT/s * 16 lanes * 128/130 / 8 bits.
    pub wire_gbps: f64,
    /// The part of a wire that acknowledgements and credit updates leave for packets. Assumed; 0.94 explains both native rates.
    pub wire_efficiency: f64,
    /// Header, framing and check of a write or a read request (4 DW header).
    pub request_overhead_bytes: f64,
    /// The same for a completion (3 DW header).
    pub completion_overhead_bytes: f64,
    /// Round trip of a read when the GPU is in the server. Published: 1.2.
    pub native_rtt_us: f64,
    /// The network's part of the round trip, there and back. Published: 1.9.
    pub network_rtt_us: f64,
    /// The conversions' part: both proxies, there and back. Published: 3.7.
    pub conversion_rtt_us: f64,
    /// What two 100 Gbit/s cables carry each way.
    pub network_gbps: f64,
    /// What the network adds to a packet: route, checks, framing. Assumed; it binds nothing.
    pub network_overhead_bytes: f64,
    /// Packets that a proxy can have unacknowledged in each direction. Not published ("limited"); 256 gives 11.6 GB/s of writes.
    pub proxy_slots: f64,
    /// How long a GPU keeps the credit of a write it received: half its native round trip. Assumed.
    pub gpu_credit_us: f64,
    /// Packets that one GPU may have waiting at its proxy. Assumed; it shares the proxy out and binds nothing else.
    pub port_credits: f64,
}

/// One of the constants, to be named and changed.
#[derive(Clone, Copy)]
pub struct Constant {
    /// Its name.
    pub name: &'static str,
    /// Whether the paper publishes it.
    pub is_published: bool,
    /// The factor by which it is made a little worse, to see what rests on it. Sizes are powers of two, so they are halved.
    pub worse: f64,
    get: fn(&mut Constants) -> &mut f64,
}

impl Constant {
    /// `constants` with this one made worse.
    pub fn worsened(&self, constants: &Constants) -> Constants {
        let mut changed = *constants;
        *(self.get)(&mut changed) *= self.worse;
        changed
    }
}

const LESS: f64 = 0.9;
const MORE: f64 = 1.1;
const HALF: f64 = 0.5;

const fn constant(
    name: &'static str,
    is_published: bool,
    worse: f64,
    get: fn(&mut Constants) -> &mut f64,
) -> Constant {
    Constant { name, is_published, worse, get }
}

impl Constants {
    /// The build of the evaluation: a V100 at 6.8 us.
    pub fn paper() -> Self {
        Self {
            tags: V100.tags,
            read_request_bytes: V100.read_request_bytes,
            write_payload_bytes: 128.0,
            completion_bytes: 64.0,
            wire_gbps: 15.754,
            wire_efficiency: 0.94,
            request_overhead_bytes: 24.0,
            completion_overhead_bytes: 20.0,
            native_rtt_us: V100.native_rtt_us,
            network_rtt_us: 1.9,
            conversion_rtt_us: 3.7,
            network_gbps: 25.0,
            network_overhead_bytes: 64.0,
            proxy_slots: 256.0,
            gpu_credit_us: V100.native_rtt_us / 2.0,
            port_credits: 64.0,
        }
    }

    /// The paper's other build, given the first. Only its round trip is published, 4.9 us; network and conversion are taken to
    /// share what is not native as they do in the first.
    pub fn second_build(&self) -> Self {
        const FACTOR: f64 = (4.9 - 1.2) / (6.8 - 1.2);
        Self {
            network_rtt_us: self.network_rtt_us * FACTOR,
            conversion_rtt_us: self.conversion_rtt_us * FACTOR,
            ..*self
        }
    }

    /// Round trip of a read across the network.
    pub fn rtt_us(&self) -> f64 {
        self.native_rtt_us + self.network_rtt_us + self.conversion_rtt_us
    }

    /// All of them, for reports of what a result rests on.
    pub const ALL: [Constant; 16] = [
        constant("tags", true, LESS, |c| &mut c.tags),
        constant("read_request_bytes", true, HALF, |c| &mut c.read_request_bytes),
        constant("write_payload_bytes", false, HALF, |c| &mut c.write_payload_bytes),
        constant("completion_bytes", false, HALF, |c| &mut c.completion_bytes),
        constant("wire_gbps", true, LESS, |c| &mut c.wire_gbps),
        constant("wire_efficiency", false, LESS, |c| &mut c.wire_efficiency),
        constant("request_overhead_bytes", false, MORE, |c| &mut c.request_overhead_bytes),
        constant("completion_overhead_bytes", false, MORE, |c| &mut c.completion_overhead_bytes),
        constant("native_rtt_us", true, MORE, |c| &mut c.native_rtt_us),
        constant("network_rtt_us", true, MORE, |c| &mut c.network_rtt_us),
        constant("conversion_rtt_us", true, MORE, |c| &mut c.conversion_rtt_us),
        constant("network_gbps", true, LESS, |c| &mut c.network_gbps),
        constant("network_overhead_bytes", false, MORE, |c| &mut c.network_overhead_bytes),
        constant("proxy_slots", false, LESS, |c| &mut c.proxy_slots),
        constant("gpu_credit_us", false, MORE, |c| &mut c.gpu_credit_us),
        constant("port_credits", false, LESS, |c| &mut c.port_credits),
    ];
}
