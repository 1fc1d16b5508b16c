//! The numbers that crates of the PCIe plane hand to each other: one type for each, wherever it is used.
//!
//! - [`Epoch`], [`NodeId`], [`SlotId`], [`PathId`], [`LinkName`]: who speaks with whom, and in which pairing.
//! - [`Time`]: a moment, as an argument.
//!
//! A format may have fewer bits for a number than its type has. It then asks for those bits with a function such as
//! [`Epoch::in_32_bits`], which fails rather than cut the number off: a cut epoch is another tenant's epoch.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![forbid(unsafe_code)]

mod ids;
mod time;

pub use ids::{Epoch, LinkName, NodeId, PathId, SlotId, TooLarge};
pub use time::Time;
