//! What a client must remember to bring a lost worker back.
//!
//! ```text
//!            safe cut                                         position
//!               │                                                │
//!   manifest ◀──┤ frame frame frame frame frame frame frame frame│ ◀── sent
//!   (folded)    │          ▲mark                ▲mark            │
//!               └ host data: bytes that the worker was pushed, or pulled
//! ```
//!
//! [`Journal`] keeps the command frames since the last safe cut as they were sent, the host's bytes that they used, and a
//! mark for each thing that the program observed, at the position where it was delivered. What lies before a safe cut is
//! folded into the [`Manifest`]: the commands that make the same objects again.
//!
//! [`Replay`] is what a fresh session is told: the manifest, the restore of the image, then the frames. It holds back the
//! frames behind a mark until the same thing has happened again, and compares it with what the program saw.
//!
//! Reading order: [`Observation`] (what a mark is), `frames` (how sent buffers are kept), [`Journal`], `manifest`,
//! [`Replay`]. Nothing here knows a socket, a clock or a thread.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![forbid(unsafe_code)]

mod calls;
mod digest;
mod fold_aside;
mod frames;
mod host_data;
mod images;
mod journal;
mod manifest;
mod mutant;
mod observation;
mod policy;
mod prints;
mod replay;
#[cfg(test)]
mod tests;
mod trough;

pub use digest::{Digest, Digester};
pub use fold_aside::{Fold, Folded};
pub use frames::Unreadable;
pub use host_data::Serving;
pub use images::ImageHash;
pub use journal::{CutRefused, Journal, Truncated};
pub use manifest::{Dangling, Item, Load, Manifest};
pub use observation::Observation;
pub use policy::{CutPolicy, CutTurn, Filled};
pub use replay::{
    Awaited, DeferredVerdict, Difference, HostCallHeard, HostCallVerdict, Landing, Moved, PrintVerdict,
    PullVerdict, Replay, Step, Verdict,
};
pub use trough::Trough;
