//! Simulations over the real cores, and the plots they draw.
//!
//! - [`fabric`]: PCIe over a network, packet by packet: tags, wires, proxies and their slots.
//! - [`replay`]: a recorded cluster through the pool's own placement: as it was published, then with GPUs out of their
//!   servers, then with spares while GPUs break.
//! - [`plot`]: line charts as SVG.

#![forbid(unsafe_code)]

pub mod fabric;
pub mod plot;
pub mod replay;
