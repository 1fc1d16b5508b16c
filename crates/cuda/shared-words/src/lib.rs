//! Words that several processes of a machine share, and what those processes know of each other.
//!
//! - [`SharedWords`]: an array of atomic words in a memory file, mapped by every process that has its descriptor.
//! - [`page`]: the page of `sharing` in such a file.
//! - [`memory_wait`]: an online session that waits for memory which a guest has.
//! - [`process`]: start times of processes, which tell a dead one from a later one with its number; a common clock.

#![deny(unsafe_code)]

pub mod memory_wait;
pub mod page;
pub mod process;
#[allow(unsafe_code, reason = "a mapping that other processes write to")]
mod words;

pub use words::SharedWords;
