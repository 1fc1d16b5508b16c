//! The ways to a GPU, and the constants of each. Every constant is in the open, since each is to be measured one day.

use crate::closed_form::Parameters;
use crate::equation::PciePath;

/// How a program reaches its GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Plane {
    /// The GPU is in the same machine.
    Native,
    /// PCIe packets travel.
    Pcie(Pcie),
    /// CUDA calls travel.
    Api(Api),
}

/// Where an operation's loss is felt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Charged {
    /// By a filler kernel before it, as latency is injected into a local GPU: the GPU loses its length, and the launching thread
    /// the time of its launch. A GPU that waits for launches anyway loses nothing.
    Filler {
        /// What even the shortest filler takes of a busy queue.
        least_us: f64,
        /// What its launch takes of the launching thread.
        host_us: f64,
    },
    /// On the GPU's time and on the launching thread's: what the measured builds do. SSD320, whose GPU waits for launches most
    /// of the time, lost 16 %, so the distance must hold the launching side up as well.
    GpuAndHost,
}

/// When a host-to-device copy waits for the distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyLatency {
    /// Besides the time its bytes take.
    Always,
    /// Only where its bytes do not take longer anyway.
    UnlessSlowed,
}

/// The pcie plane at one distance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pcie {
    /// Round trip of a PCIe read.
    pub rtt_us: f64,
    /// The path of the GPU's copy engines.
    pub path: PciePath,
    /// What the network carries, in gigabytes a second.
    pub bandwidth_gbps: f64,
    /// Added round trips that a kernel or memset loses.
    pub exposed_round_trips: f64,
    /// What it loses besides, in microseconds of round trip.
    pub fixed_us: f64,
    /// Where that is felt.
    pub charged: Charged,
    /// Kernels longer than this hide the distance, in a program without chains of short ones; `None`: nothing is hidden.
    pub hiding_us: Option<f64>,
    /// Added round trips that a host-to-device copy loses; a device-to-host copy loses half as many.
    pub copy_round_trips: f64,
    /// When a host-to-device copy loses them.
    pub copy_latency: CopyLatency,
    /// Added round trips by which the end of work is seen late.
    pub wait_round_trips: f64,
}

impl Pcie {
    /// The plane as the paper's builds behaved: the constants of the closed form.
    pub fn as_measured(parameters: &Parameters, path: PciePath, rtt_us: f64, bandwidth_gbps: f64) -> Self {
        Self {
            rtt_us,
            path,
            bandwidth_gbps,
            exposed_round_trips: parameters.exposed_round_trips,
            fixed_us: parameters.fixed_us,
            charged: Charged::GpuAndHost,
            copy_latency: CopyLatency::Always,
            hiding_us: None,
            copy_round_trips: parameters.copy_round_trips,
            wait_round_trips: 0.5,
        }
    }

    /// The plane as the paper's experiment injects it into a local GPU (section 3.4.2): one filler kernel of the added round trip
    /// per operation, which takes at least `filler_us` and its launch `host_us` of the launching thread; copies lengthened by one
    /// added round trip or to Eq. 1's rate. Posted writes lose no rate there.
    pub fn as_injected(
        path: PciePath,
        rtt_us: f64,
        bandwidth_gbps: f64,
        filler_us: f64,
        host_us: f64,
    ) -> Self {
        Self {
            rtt_us,
            path: PciePath { remote_write_gbps: path.write_link_gbps, ..path },
            bandwidth_gbps,
            exposed_round_trips: 1.0,
            fixed_us: 0.0,
            charged: Charged::Filler { least_us: filler_us, host_us },
            copy_latency: CopyLatency::UnlessSlowed,
            hiding_us: None,
            copy_round_trips: 1.0,
            wait_round_trips: 0.0,
        }
    }
}

/// The api plane at one distance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Api {
    /// Round trip of a small message.
    pub rtt_us: f64,
    /// What the network carries each way, in gigabytes a second.
    pub bandwidth_gbps: f64,
    /// What a one-way call costs the program.
    pub call_us: f64,
    /// What a call that only asks for state costs the program.
    pub local_call_us: f64,
    /// What it costs the worker to issue a call; `None`: as long as the call took the program on its own machine.
    pub dispatch_us: Option<f64>,
    /// Size of a command.
    pub command_bytes: f64,
    /// Uploads up to this size travel inside their command.
    pub inline_bytes: u64,
    /// Bulk data travels in pieces of this size; the copy engine works on one while the next arrives.
    pub chunk_bytes: u64,
    /// Commands that may be on the way.
    pub window_calls: usize,
}

impl Api {
    /// The plane as `dxpu bench api` measured it: 0.4 us a launch and 9 ns a state query on the calling thread.
    pub fn as_measured(rtt_us: f64, bandwidth_gbps: f64) -> Self {
        Self {
            rtt_us,
            bandwidth_gbps,
            call_us: 0.4,
            local_call_us: 0.009,
            dispatch_us: None,
            command_bytes: 200.0,
            inline_bytes: 64 << 10,
            chunk_bytes: 1 << 20,
            window_calls: 1 << 16,
        }
    }
}
