//! Helpers for tests across crates.
//!
//! [`fuzz`] has one function for every decoder of bytes that strangers send. [`samples`] has golden values of
//! everything that travels, and the seeds that are made from them. [`corpus`] finds the seeds that are kept as files.

#![forbid(unsafe_code)]

pub mod corpus;
pub mod fuzz;
pub mod samples;
