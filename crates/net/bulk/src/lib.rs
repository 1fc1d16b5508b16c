//! Bulk lanes: large transfers over several connections at once, for both ends of a session.
//!
//! ```text
//!   send, send_later ─▶ chunks ─▶ lane 0..n ─▶ (network) ─▶ chunks ─▶ expectation of that transfer ─▶ its memory
//! ```
//!
//! A transfer has a name and a length that both ends know. Its bytes travel in chunks, each with its place, over any
//! lane in any order. The receiving end says what it expects; chunks that come before that are kept within a window.
//!
//! Two forms each way. The *later* forms own their memory's guard and run on lane threads alone. The blocking forms
//! borrow: there the caller's own thread moves the bytes between its memory and lane buffers, and the lane threads
//! move lane buffers over the network, so no borrow ever reaches another thread.
//!
//! This crate lives in other people's processes: it has no global state, its threads are named and small, a panic in
//! a source or sink ends the session and nothing else, and after a `done` was called its memory is not touched again.

#![forbid(unsafe_code)]

mod buffer;
mod coverage;
mod ends;
mod expectation;
mod fault;
mod incoming;
mod landed;
mod lanes;
mod outgoing;
mod receiver;
mod sender;

pub use cuda_wire::{LinkLost, Sink, Source};
pub use ends::Done;
pub use expectation::Expectation;
pub use fault::Fault;
pub use lanes::{Here, Lanes, LanesConfig};
