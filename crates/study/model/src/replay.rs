//! A profile replayed under the costs of a plane.
//!
//! A formula cannot tell which waits overlap with work that is still queued; a replay can. It keeps a few clocks and moves each
//! record over them in order, with nothing but sums and maxima, so that a higher cost never makes a program faster:
//!
//! ```text
//!   program ──call──▶ way there ──▶ issuer ──▶ stream, copy engines ──▶ way back ──▶ program
//!   (client clock)    (link clock)  (worker)   (GPU clocks)              (link clock)
//! ```
//!
//! - **Native**: the program is its own issuer, and the ways take no time.
//! - **Api plane**: one-way calls cost the program their own call time; the worker issues them in order when they arrive. A
//!   program that waits for the GPU is told half a round trip after the fact, and what it asks next needs the other half: a wait costs a
//!   round trip of the GPU's time only where nothing else is queued. Bulk data takes bytes / bandwidth in lanes of its own.
//! - **Pcie plane**: as native, but every operation on the GPU loses what the closed form says it loses, reads run at Eq. 1's rate,
//!   and the end of work is seen half a round trip late.
//!
//! The time that the program itself spends between calls is kept as recorded. Calls of several threads are taken as one sequence.
//! The one exception to sums and maxima are polls: a loop that asks until the GPU is done ends as soon as it is.

mod charges;
mod clocks;
mod engine;
mod machine;
mod plane;

pub use charges::{ALL_TERMS, Term};
pub use engine::{Outcome, replay, replay_without};
pub use machine::{Habits, Machine, calibrate, habits};
pub use plane::{Api, Charged, CopyLatency, Pcie, Plane};
