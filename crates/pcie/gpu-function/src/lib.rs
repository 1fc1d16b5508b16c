//! The box's side of the dxpu GPU function: a guest's connections become connections to a worker.
//!
//! ```text
//!   packets ─▶ GpuEndpoint ─▶ GpuFunction (core) ─ Action ─▶ Bridge ─ two threads ─▶ the worker's Unix socket
//!           ◀─             ◀─ push, taken ◀────────────────── queues, and `wake`
//! ```
//!
//! Each channel that a guest opens is one connection, byte for byte: the guest's library says everything itself, first of
//! all its token. Queues are bounded both ways; the faster end waits for the slower one.

#![forbid(unsafe_code)]

mod bridge;
mod endpoint;

pub use endpoint::{GpuEndpoint, Pass};
