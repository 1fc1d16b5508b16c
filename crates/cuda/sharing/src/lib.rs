//! Online and offline programs on one GPU: offline work runs while no online program has anything to do.
//!
//! ```text
//!   online session                          page (one per GPU)                    offline session
//!   Presence ── close, open ──────▶ closers: a bit per busy online slot ◀── Sentry: clears bits of the dead
//!   Regulator ── group budget ────▶ slots: owner, beat, times, orders   ◀── Turnstile: where streams wait, KernelTimes
//!                                        ▲
//!                                   Monitor (box): may a guest be here at all
//! ```
//!
//! - [`Page`] is a view over words that processes share. The gate is one of them: open when it is zero.
//! - [`Presence`] says when an online session closes and opens the gate.
//! - [`Turnstile`] says where an offline session's streams wait for the gate, with costs from [`KernelTimes`];
//!   [`graph_gates()`] says it for the nodes of a graph.
//! - [`Sentry`] finds owners that died or froze with the gate closed.
//! - [`Overstay`] finds a kernel that runs on at a closed gate.
//! - [`slice_us()`] says how long a session may have the device at a stretch, where the device can be told.
//! - [`FaultBackoff`] says how long offline sessions wait after faults that ended the contexts of all.
//! - [`Turns`] has sessions of leases with a share of the GPU take turns, in proportion to their shares.
//! - [`MemoryWait`] has an online session wait for memory that a guest has, where more is promised than the GPU has; by
//!   [`WantWatch`] the box sees it, and has the guest leave.
//! - [`Regulator`] measures what offline work costs an online session ([`CostMeter`]) and holds it within the session's slack
//!   ([`Governor`]); [`Monitor`] opens and closes the seat for guests.
//!
//! The crate knows no GPU, no clock, no thread and no process: time, and whether a process lives, are arguments. Where
//! it is in doubt it protects the online program: a page that is damaged counts as closed.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![forbid(unsafe_code)]

mod backoff;
mod cost;
mod expected;
mod governor;
mod graph_gates;
mod kernel_times;
mod linger;
mod longest_group;
mod memory;
mod memory_wait;
mod monitor;
mod mutant;
mod overstay;
mod page;
mod part;
mod presence;
mod probe;
mod regulator;
mod sentry;
mod slices;
mod turn_words;
mod turns;
mod turnstile;

#[cfg(test)]
mod tests;

pub use backoff::FaultBackoff;
pub use cost::{Cost, CostMeter};
pub use governor::{Governor, GovernorReading, Orders};
pub use graph_gates::{GraphStep, GraphTime, graph_gates};
pub use kernel_times::{KernelShape, KernelTimes};
pub use linger::{Contexts, Linger};
pub use longest_group::LongestGroup;
pub use memory_wait::{MEMORY_PATIENCE_NS, MemoryWait, WantWatch};
pub use monitor::{Limits, Monitor, MonitorState, OffReason, Reading, Seat};
pub use overstay::Overstay;
pub use page::{
    Distress, Field, Gate, Owner, OwnerNumberTooLarge, PAGE_WORDS, Page, PageError, PageHandle, SLOTS,
    SlotOwner, Ticket, Words,
};
pub use part::{Part, Share, WHOLE_MILLI};
pub use presence::{Presence, PresenceState};
pub use regulator::Regulator;
pub use sentry::{Cleared, Life, Sentry};
pub use slices::slice_us;
pub use turn_words::Holding;
pub use turns::{Standing, Turns};
pub use turnstile::{Demand, Turn, Turnstile};
pub use work_class::Class;
