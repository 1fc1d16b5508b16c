//! Memory of a program that another process maps too.
//!
//! ```text
//!   program: SharedPages::create ─ descriptor ─▶ other process: SharedPages::adopt
//!            └── pages, filled and sealed ──────────────┘
//! ```
//!
//! The one who adopts trusts the other in nothing. A file whose size is sealed cannot be cut short, so that no access to the
//! mapping faults; every place in it is checked; and its bytes are copied, never referenced, because the other process may
//! change them at any time.

#![deny(unsafe_code)]

mod file;
#[allow(unsafe_code, reason = "a mapping that another process writes to")]
mod pages;

pub use file::NotShareable;
pub use pages::{OutsideOfPages, SharedPages};
