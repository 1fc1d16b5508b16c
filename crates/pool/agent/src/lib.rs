//! The agents of a pool's machines.
//!
//! ```text
//!   dxpu box  ──▶ gpu_box::serve ─┐                            ┌─ slots of a box:  GPUs with a worker each, other devices
//!                                 ├─ reporting ◀─▶ managers    │    (brain decides, slot acts)
//!   dxpu host ──▶ host::serve ────┘  orders ──▶ slot threads ──┴─ slots of a host: sockets of the proxy, QEMU's monitor
//!
//!   dxpu worker --by-lease DIR ──▶ worker_word: what a worker tells the box that started it
//! ```
//!
//! An agent joins the pool once and keeps its identity (`membership`). From then on it reports what is, hears what should
//! be, and makes it so. It starts workers as `THIS-EXECUTABLE worker …`: a process that calls [`gpu_box::serve`] must have
//! that command.

#![forbid(unsafe_code)]

mod complaint;
mod error;
mod given;
pub mod gpu_box;
pub mod host;
mod membership;
mod reporting;
pub mod worker_word;

pub use error::{AgentError, Role};
pub use membership::{Joining, has_joined};
