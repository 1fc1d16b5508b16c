//! What the pass-through driver library (`cuda-trace`) writes down, and how it becomes a profile.
//!
//! The library lives in the program's own process, so it only appends fixed-size entries to a file ([`entry`]). After the program
//! has ended, `dxpu` reads them ([`log`]) and works out what they mean: streams and events get small numbers, kernels that were
//! not timed get the duration of those that were, and the time that the recording itself took is taken out ([`recording`]).
//! What `dxpu inject` added is in the same file ([`injected`]).
//!
//! The file never leaves the machine or the command that made it: the profile is the format that others read.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![forbid(unsafe_code)]

pub mod entry;
pub mod injected;
pub mod log;
pub mod recording;
