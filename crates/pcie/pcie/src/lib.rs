//! PCI Express above the packets: what a proxy must know to stand in for a switch, and devices to put behind it.
//!
//! Everything is a state machine without I/O: packets and the time go in, packets come out. [`tlp`] has the bytes of
//! packets, the `fabric` crate the network between proxies, `vfio-user` the door to virtual machines.
//!
//! - [`config`]: configuration space, capabilities, BARs.
//! - [`tables`]: the two mapping tables of the paper, and the three routings.
//! - [`flow`]: tags, completion timeout, ordering rules.
//! - [`Switch`]: the host's proxy as a switch with slots, for a program that has a root complex.
//! - [`BoxEndpoints`]: the box's end of its slots: devices, and which host each serves.
//! - [`host`]: the host's end of one slot: accesses of a guest become packets, a device's packets become memory accesses.
//! - [`endpoint`]: devices: NVMe, and engines that copy memory.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![forbid(unsafe_code)]

mod boxes;
mod switch;
mod tlp_buf;

pub mod config;
pub mod endpoint;
pub mod flow;
pub mod host;
pub mod tables;

pub use boxes::{BoxEndpoints, Outgoing};
pub use switch::{Route, Switch, SwitchOptions, SwitchOutput, SwitchViolations};
pub use tlp::{Bdf, SizeLimit, TagSpace};
pub use tlp_buf::{TlpBuf, enabled_runs};
pub use units::Time;
