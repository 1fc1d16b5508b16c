//! PCIe over a network, packet by packet: why reads crawl, why writes do not, and where a proxy runs full.
//!
//! ```text
//!   GPU ──wire──▶ box proxy ══slots, conversion, network══▶ host proxy ──wire──▶ host memory     (up)
//!   GPU ◀──wire── box proxy ◀══════════════════════════════ host proxy ◀──wire── host memory     (down)
//! ```
//!
//! Every transaction packet is followed from requester to completer by discrete events, twice: over the product's own
//! state machines ([`CoreWorld`]), which is what counts, and by a model ([`World`]), which is fast enough to ask what each
//! figure rests on and checks the first. In the model four rules make all results:
//!
//! 1. A reader holds a **tag** until its data is back. With all tags out it waits (Fig. 3).
//! 2. A wire carries one packet at a time, headers and link overhead included.
//! 3. A proxy keeps each packet in a **slot** until the far proxy has acknowledged it, and has only so many. A slot that holds a
//!    write to a GPU is free only when the GPU has given the receiver's credit back. All GPUs behind a proxy share its slots.
//! 4. A GPU may have only so many packets waiting at its proxy (**credits**); then it stalls, which keeps the queue fair.
//!
//! Nothing is random but the phase in which each GPU begins, and that comes from a seed.

mod agenda;
mod constants;
mod cores;
mod crossing;
mod experiments;
mod paper;
mod traffic;
mod world;

pub use constants::{Constant, Constants};
pub use cores::{CoreWorld, DistantReads, core_knee, core_pipeline, core_rates, distant_reads};
pub use experiments::{Pipeline, Rate, knee, pipeline, rates};
pub use paper::{Claim, Reliance, Report, compare, report};
pub use traffic::{Flow, Traffic, Volume};
pub use world::{Layout, World};
