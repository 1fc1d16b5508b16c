//! The same worlds over the real state machines: devices and host ports of `pcie`, links and trunks of `fabric`.
//!
//! ```text
//!   DmaDevice ──wire──▶ box Trunk ══conversion, cable══▶ host Trunk ──conversion, wire──▶ HostPort ─▶ host memory
//!   DmaDevice ◀──wire── box Trunk ◀══════════════════════ host Trunk ◀──────────wire───── HostPort
//! ```
//!
//! Tags, request sizes, completions, order, sequence numbers, acknowledgements, retransmission and credits are the
//! product's own code. What is simulated is the world around it: the time that wires, cables, conversions in hardware and
//! host memory take. A proxy's slots are the trunk's bound on TLPs, and the room for posted TLPs that a link grants; a
//! GPU's credit is the time its proxy waits before it takes a write from the link.

mod memory;
mod pair;
mod reads;
mod world;

pub use reads::{DistantReads, distant_reads};
pub use world::CoreWorld;

use super::constants::Constants;
use super::experiments::{FIGURE_US, Pipeline, Rate, TRAINING, WARM_UP_US, behind_one, counted_us, figure_3};
use super::traffic::Traffic;
use super::world::Layout;

/// What `traffic` moves over the real cores when it has settled.
pub fn core_rates(constants: &Constants, layout: Layout, traffic: &[Traffic], seed: u64) -> Rate {
    let until_us = WARM_UP_US + counted_us(&layout, traffic) / 2.0;
    let mut world = CoreWorld::new(constants, layout, traffic, seed, WARM_UP_US / 2.0);
    world.run(WARM_UP_US);
    let before = world.moved();
    world.run(until_us);
    Rate::between(&before, &world.moved())
}

/// Training on `gpus` GPUs that share `pairs` pairs of proxies, over the real cores.
pub fn core_knee(constants: &Constants, gpus: usize, pairs: usize, seed: u64) -> Rate {
    let proxy_of = (0..gpus).map(|gpu| gpu % pairs.max(1)).collect();
    core_rates(constants, Layout::Remote { proxy_of }, &vec![TRAINING; gpus], seed)
}

/// Fig. 3 over the real cores: five tags, a GPU in the server or behind proxies.
pub fn core_pipeline(constants: &Constants, is_remote: bool) -> Pipeline {
    let few = figure_3(constants);
    let layout = || if is_remote { behind_one(1) } else { Layout::Native };
    let mut world = CoreWorld::new(&few, layout(), &[Traffic::Read], 0, 0.0);
    world.watch_reads();
    world.run(FIGURE_US);
    let plenty = Constants { tags: 768.0, ..few };
    let rate = |constants: &Constants, layout| core_rates(constants, layout, &[Traffic::Read], 0).down_gbps;
    let busy = rate(&few, layout()) / rate(&plenty, Layout::Native);
    Pipeline { issued_us: world.read_times_us(), busy }
}
