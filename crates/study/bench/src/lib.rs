//! What measurements are made with. `dxpu bench`, simulations, tests and the examples of this crate use it; no product code
//! does.
//!
//! ```text
//!   bare     a transport alone: round trips, throughput        network   UDP, rings, memory: bare, and under two links
//!   link     two links without a network: conversion, fairness copier    a device with copy engines, set up by its host
//! ```
//!
//! Everything here goes through the public interfaces of what it measures.

#![forbid(unsafe_code)]

pub mod bare;
pub mod copier;
pub mod link;
pub mod network;
