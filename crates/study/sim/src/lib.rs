//! Simulations over the real cores, and the plots they draw.
//!
//! - [`fabric`]: PCIe over a network, packet by packet: tags, wires, proxies and their slots.
//! - [`replay`]: a recorded cluster through the pool's own placement: as it was published, then with GPUs out of their
//!   servers, then with spares while GPUs break.
//! - [`sharing`]: online and offline programs of a recorded cluster on the same GPUs: which sit together, and what that brings.
//! - [`plot`]: line charts as SVG.

#![forbid(unsafe_code)]

pub mod fabric;
pub mod plot;
pub mod replay;
pub mod sharing;
