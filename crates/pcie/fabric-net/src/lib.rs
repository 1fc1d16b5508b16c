//! Networks for the PCIe fabric. The fabric decides; a [`Port`] moves datagrams; a [`Pump`] introduces them to each other.
//!
//! - [`UdpPort`]: UDP, many datagrams in one system call where the kernel can cut and join them (GSO, GRO).
//! - [`StreamPort`]: a connection of the `transport` crate for each path; over shared-memory rings it is the fastest way
//!   between two proxies on one machine.
//! - [`MemoryPort`]: two threads of one process, for measurements.
//!
//! The in-memory network with faults is [`fabric::Scripted`]: it needs no shell.

#![forbid(unsafe_code)]

mod batch;
mod memory;
mod port;
mod pump;
mod stream;
mod udp;
mod waker;

pub use memory::MemoryPort;
pub use port::Port;
pub use pump::Pump;
pub use stream::StreamPort;
pub use udp::{UdpCounters, UdpPort};
pub use waker::Waker;
