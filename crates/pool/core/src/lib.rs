//! The pool as a pure function: what GPUs there are, what is asked for, and where each request goes.
//!
//! Two layers. The [`Ledger`] is what a manager runs: boxes, GPUs, leases, the queue, and what happens when something
//! breaks. Below it the [`Placer`] decides where a request goes; the simulator of recorded clusters uses it alone.
//!
//! ```text
//!   Request ─▶ filter (model, slots, CPU, memory) ─▶ score (Policy) ─▶ Choice (box and slots) ─▶ Inventory changes
//!                                                      ▲
//!                              Mix (what is usually asked for) ─▶ fragment of a box
//! ```
//!
//! No clock, no thread, no I/O; randomness is an argument. Equal inputs give equal choices on every replica.
//!
//! A box may have processors and memory of its own (a server with GPUs in it), or none (a box of a pool, whose GPUs
//! any host may borrow). The code is the same: without coupling, boxes and requests simply have none of either.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![forbid(unsafe_code)]

mod dice;
mod fragment;
mod inventory;
mod mix;
mod model;
mod placer;
mod policy;
mod ranking;
mod request;
mod slots;
mod spares;
mod spread;

mod audit;
mod ledger;
pub mod records;

#[cfg(test)]
mod simulation;

pub use audit::{AuditChain, AuditCheck, AuditDraft, BrokenChain, missing_audit_books, new_audit_book};
pub use dice::{Dice, SplitMix};
pub use fragment::{Fragment, fragment_of};
pub use inventory::{BoxId, BoxSpec, GpuBox, Inventory, InventoryError};
pub use ledger::{
    About, Answer, Batch, Command, Counts, Impossible, LargestPart, Ledger, LoadError, Measured, Moments,
    Outcome, RESTORED_KEY, Refusal, Restored, Settings, WRITES_MAX, measure_ledger, restored,
};
pub use mix::{Mix, Typical};
pub use model::{ModelFilter, ModelId, Models, TooManyModels};
pub use placer::{Choice, Placer, Walls};
pub use policy::{Policy, Scale, UnknownPolicy};
pub use request::{GpuNeed, Request, Shape};
pub use slots::{SLOTS_PER_BOX_MAX, Slots};
pub use spares::{plan_spares, poisson_cover, spares_for};

/// Thousandths in one GPU.
pub const GPU_MILLI: u32 = 1000;
