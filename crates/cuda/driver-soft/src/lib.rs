//! A CUDA device in software: the driver trait over the PTX engine.
//!
//! ```text
//!  commands ── tables (names, promises) ── admit ──▶ lines (a thread for each busy stream) ── work
//!                                                     │ copies, fills, waits          │ kernels
//!                                                     ▼                               ▼
//!                                       space (blocks at the client's addresses)   crew (host threads for blocks)
//!                                                     └── memory: mmap, relaxed atomics; the only `unsafe`
//! ```
//!
//! A command changes the tables in the order of the program's calls and puts work into a line; everything that CUDA answers
//! at once is answered then. Lines execute in their own time. Several sessions share a device's memory through a
//! [`MemoryLedger`].

#![deny(unsafe_code)]

mod account;
mod activity;
mod admit;
mod arrays;
mod commands;
mod conditional;
mod config;
mod context;
mod crew;
mod cut;
mod device_info;
mod device_memory;
mod driver;
mod exports;
mod frozen;
mod gate;
mod graph;
mod green;
mod heap;
mod launch;
mod ledger;
mod line;
mod link;
mod load;
#[allow(unsafe_code, reason = "pages at chosen addresses and racy accesses to them")]
mod memory;
mod merged;
mod module;
mod op;
mod promises;
mod ranges;
mod read_back;
mod restore;
mod retire;
mod samplers;
mod session;
mod shared_event;
mod sharing_gate;
mod soft_cubin;
mod space;
mod status;
mod sync;
mod transfer;
mod turns;
mod view;
mod work;

pub use activity::Unit;
pub use config::{COMPUTE_CAPABILITY, DEVICE_NAME, SoftConfig};
pub use driver::SoftDriver;
pub use ledger::{LocalLedger, MemoryLedger, SessionLedger, SharedLedger};
pub use status::SoftStatus;
