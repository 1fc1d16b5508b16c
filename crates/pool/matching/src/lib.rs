//! Which offline programs sit beside which online ones.
//!
//! ```text
//!   measured pairs ─▶ Fit ─▶ SpeedModel ─▶ speed of each pair of kinds ─▶ transport ─▶ how many of each kind where
//! ```
//!
//! - [`speed`]: how fast an offline program runs beside an online one, from what is measured of both.
//! - [`transport`]: the best plan between kinds of GPUs and kinds of programs, exactly, however many there are of each.
//! - [`hungarian`]: one program to one GPU, exactly (Kuhn and Munkres); in shards, as published, it is the baseline.
//! - [`measured`]: the constants of models of GPU that have been measured.
//! - [`kinds`]: GPUs and programs by kind.
//!
//! All of it is arithmetic: no clock, no chance, no I/O.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![forbid(unsafe_code)]

pub mod hungarian;
pub mod kinds;
pub mod measured;
pub mod speed;
pub mod transport;

#[cfg(test)]
mod tests;
