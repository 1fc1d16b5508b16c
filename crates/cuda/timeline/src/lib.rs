//! What ran when: which work of a session is timed on a worker ([`Book`]), how far the worker's clock is from the client's
//! ([`Clocks`]), and how all of it becomes a trace that Perfetto and chrome://tracing open ([`Trace`]).
//!
//! ```text
//!   worker: commands ─▶ Book: which events to record ─▶ driver ─▶ Book: spans ─▶ Notice::Timed
//!   client: Notice::Timed, calls, names ─▶ Trace (Clocks: the worker's times as ours) ─▶ lines of JSON ─▶ file
//! ```

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![forbid(unsafe_code)]

mod book;
mod clocks;
mod json;
mod names;
mod place;
mod thrift;
mod trace;

pub use book::{Base, Book, Due, Plan, Resolved, Stamps, Work};
pub use clocks::{Alignment, Clocks};
pub use trace::{CLOSE, Call, HEAD, LinkNumber, Push, Timed, Trace};
