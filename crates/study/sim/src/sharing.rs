//! Online and offline programs of a recorded cluster on the same GPUs: which sit together, and what that brings.
//!
//! ```text
//!   recorded pods (LS, BE) ─▶ cluster (10,000 GPUs, an online program on each; a queue of offline ones)
//!                                 │ each hour of a day: loads ─▶ seats and guests ─▶ a policy seats the guests
//!                                 ▼
//!                            utilisation, SM activity, memory, speed of guests, p99 of online programs
//! ```
//!
//! The recorded cluster says which programs there are: how many GPUs or what share of one each asked for, and whether it was
//! latency-sensitive (`LS`, here online) or best effort (`BE`, here offline). It does not say how busy they were. That is drawn
//! ([`Cluster::draw`]) so that utilisation and memory in use before sharing are those that MuxFlow's authors published for
//! their clusters. Speeds come from the model that the ledger uses, [`matching::speed`].

mod cluster;
mod day;
mod latency;
mod policy;
mod report;

pub use cluster::{Before, Cluster, OfflineProgram, OnlineProgram, Supply};
pub use day::{Day, Figures, simulate_day};
pub use latency::{SWITCH_US, p99_ratio};
pub use policy::{SHARD, Seated, Seating, seat};
pub use report::table;

/// What MuxFlow's authors published for their clusters, in percent: before and after.
pub mod published {
    /// GPU utilisation.
    pub const UTILIZATION: (f64, f64) = (26.0, 76.0);
    /// SM activity.
    pub const SM_ACTIVITY: (f64, f64) = (16.0, 33.0);
    /// GPU memory in use.
    pub const MEMORY: (f64, f64) = (42.0, 48.0);
}

#[cfg(test)]
mod tests;
