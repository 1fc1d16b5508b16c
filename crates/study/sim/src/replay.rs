//! A recorded cluster, replayed through the pool's own placement.
//!
//! ```text
//!   trace (nodes, pods) ─▶ workload (one seed: order, copies up to 130 % load, ties) ─▶ run ─▶ records ─▶ curve
//!   published tables ──────────────────────────────────────────────────────────────────────────▶ compare
//! ```
//!
//! The rules follow the simulator behind "Beware of Fragmentation" (USENIX ATC 2023), including its random generator and
//! its arithmetic, so that equality with the published tables is the test, not a tolerance.

mod coupled;
mod csv;
mod curve;
mod failing;
mod go_random;
mod parallel;
mod pooled;
mod published;
mod published_arithmetic;
mod spares;
mod table;
#[cfg(test)]
mod tiny;
mod trace;
mod workload;

pub use coupled::replay_coupled;
pub use csv::TraceError;
pub use curve::{Curve, Record, Run};
pub use failing::{FailingOutcome, ModelSpares, SparePlan, replay_failing};
pub use go_random::GoRandom;
pub use parallel::map_in_parallel;
pub use pooled::{Boxes, replay_pooled};
pub use published::{Published, compare};
pub use spares::{Effort, FailureProcess, PlayedOut, Repairs, SparesNeeded, play_out, spares_needed};
pub use table::{Extras, PolicyResult, SeedMeans, SeedsPublished, replay_table};
pub use trace::{ClassedPod, Node, Pod, Trace, read_classes};
pub use workload::{LOAD_PCT_MAX, Workload};
