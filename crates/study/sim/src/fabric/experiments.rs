//! Measurements in the simulated world: the same ones that the paper made in the real one.

use super::constants::Constants;
use super::traffic::{Traffic, Volume};
use super::world::{Layout, World};

/// Time for queues and tags to settle before counting begins.
pub(super) const WARM_UP_US: f64 = 60.0;

/// Time that is counted: long enough that a round trip more or less changes the rate by half a percent at most. Reads come in
/// bursts, one per round trip; writes do not; steps are some 50 us long, and many GPUs even them out.
pub(super) fn counted_us(layout: &Layout, traffic: &[Traffic]) -> f64 {
    let time_us = |traffic: &Traffic| match traffic {
        Traffic::Idle => 0.0,
        Traffic::Read if *layout == Layout::Native => 200.0,
        Traffic::Read => 1_500.0,
        Traffic::Write | Traffic::HostWrites | Traffic::WritePeer { .. } => 200.0,
        Traffic::Steps { .. } => 4_000.0,
    };
    let longest_us = traffic.iter().map(time_us).fold(0.0, f64::max);
    longest_us / traffic.iter().filter(|traffic| **traffic != Traffic::Idle).count().max(1) as f64
}

/// Gigabytes a second, all GPUs together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Host memory to GPUs.
    pub down_gbps: f64,
    /// GPUs to host memory.
    pub up_gbps: f64,
    /// GPUs to GPUs.
    pub peer_gbps: f64,
}

impl Rate {
    pub(super) fn between(before: &Volume, after: &Volume) -> Self {
        Self {
            down_gbps: after.down.gbps_since(&before.down),
            up_gbps: after.up.gbps_since(&before.up),
            peer_gbps: after.peer.gbps_since(&before.peer),
        }
    }
}

/// What `traffic` moves when it has settled.
pub fn rates(constants: &Constants, layout: Layout, traffic: &[Traffic], seed: u64) -> Rate {
    let until_us = WARM_UP_US + counted_us(&layout, traffic);
    let mut world = World::new(constants, layout, traffic, seed, WARM_UP_US / 2.0);
    world.run(WARM_UP_US);
    let before = world.moved();
    world.run(until_us);
    Rate::between(&before, &world.moved())
}

/// GPUs behind one pair of proxies.
pub(super) fn behind_one(gpus: usize) -> Layout {
    Layout::Remote { proxy_of: vec![0; gpus] }
}

/// What a training GPU has to move, as far as Table 12 tells: chosen so that four of them behind one pair of proxies, where the paper
/// still finds its bandwidth linear, move what the paper's four do, 4.9 GB/s down and 2.3 up. How much a step moves at a time is
/// free; this is enough to need all tags for some round trips.
pub(super) const TRAINING: Traffic =
    Traffic::Steps { compute_us: 20.5, read_bytes: 64 << 10, write_bytes: 30_760 };

/// Training on `gpus` GPUs that share `pairs` pairs of proxies.
pub fn knee(constants: &Constants, gpus: usize, pairs: usize, seed: u64) -> Rate {
    let proxy_of = (0..gpus).map(|gpu| gpu % pairs.max(1)).collect();
    rates(constants, Layout::Remote { proxy_of }, &vec![TRAINING; gpus], seed)
}

/// Reads of a GPU with few tags, as Fig. 3 draws them.
#[derive(Clone, Debug, PartialEq)]
pub struct Pipeline {
    /// When each read was issued, in microseconds.
    pub issued_us: Vec<f64>,
    /// The part of the time in which a read could be issued at once, 0 to 1: the rate against the wire's.
    pub busy: f64,
}

/// Tags of Fig. 3.
const FIGURE_TAGS: f64 = 5.0;
/// Read size at which five tags just cover the native round trip.
const FIGURE_READ_BYTES: f64 = 4096.0;
/// How much of the flow is drawn.
pub(super) const FIGURE_US: f64 = 30.0;

/// The constants with Fig. 3's tags and reads.
pub(super) fn figure_3(constants: &Constants) -> Constants {
    Constants { tags: FIGURE_TAGS, read_request_bytes: FIGURE_READ_BYTES, ..*constants }
}

/// Fig. 3: five tags, a GPU in the server or behind proxies.
pub fn pipeline(constants: &Constants, is_remote: bool) -> Pipeline {
    let few = figure_3(constants);
    let layout = || if is_remote { behind_one(1) } else { Layout::Native };
    let mut world = World::new(&few, layout(), &[Traffic::Read], 0, 0.0);
    world.watch_reads();
    world.run(FIGURE_US);
    let plenty = Constants { tags: 4096.0, ..few };
    let rate = |constants: &Constants, layout| rates(constants, layout, &[Traffic::Read], 0).down_gbps;
    let busy = rate(&few, layout()) / rate(&plenty, Layout::Native);
    Pipeline { issued_us: world.read_times_us(), busy }
}
