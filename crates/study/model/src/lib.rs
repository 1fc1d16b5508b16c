//! What a workload keeps when its GPU is somewhere else.
//!
//! Three ways to the answer, from the coarse to the fine:
//!
//! 1. [`closed_form`]: one formula with nine constants, fitted to the measurements of the DxPU paper ([`paper`], [`fitting`])
//!    and checked against them ([`check`]).
//! 2. [`profile`] and [`replay`]: a recorded program, replayed with the clocks of the client, the link and the GPU under the
//!    costs of either plane.
//! 3. [`predict`]: from such a profile, the performance kept over a range of round trips, the terms that cost most, and advice.
//!
//! Everything here is a function of its arguments: no file, socket, clock or environment variable. Times are microseconds,
//! sizes bytes and rates gigabytes (10^9) a second unless a name says otherwise.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![forbid(unsafe_code)]

pub mod check;
pub mod closed_form;
pub mod equation;
pub mod family_fit;
pub mod fitting;
pub mod least_squares;
pub mod paper;
pub mod predict;
pub mod profile;
pub mod replay;
