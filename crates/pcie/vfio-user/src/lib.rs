//! vfio-user: PCI devices that live in another process than the virtual machine which uses them.
//!
//! A virtual machine (QEMU, Cloud Hypervisor) connects to a Unix socket, one for each slot, and sees a PCI device
//! there. This crate is both ends of that socket:
//!
//! - [`Server`] shows a [`Device`] to a virtual machine. A device answers reads when it can: at once, or after its
//!   registers were fetched from another machine. A read that takes too long is answered with all ones, as PCI does.
//! - [`Client`] drives a device that some other program serves.
//!
//! A peer that connects is not trusted: every length is bounded, every file descriptor is looked at before it is
//! used, and memory is reached only through [`GuestMemory`], which checks every range and survives files that shrink.
//!
//! Reading order: [`message`] (the protocol), [`GuestMemory`] and [`Interrupts`] (what a device does to its guest),
//! [`Device`], [`Session`] (one peer, without I/O of its own), [`Server`], [`Client`].

// Modules that need unsafe code say so at their top; everything else is held to safe code.
#![deny(unsafe_code)]

pub mod message;

mod access;
mod backing;
mod client;
mod device;
mod endpoint;
mod interrupts;
mod mapping;
mod memory;
mod server;
mod session;
mod socket;

pub use access::{AccessId, Answer, Completion, Completions};
pub use client::{Client, ClientError, ClientEvent, RequestId};
pub use device::{Bus, Device, RegionShape, Shape};
pub use endpoint::ClientEndpoint;
pub use interrupts::{Interrupts, IrqKind, SetIrqsError};
pub use memory::{DMA_MAPS_MAX, GuestMemory, MapError, MemoryFault, Rights};
pub use server::{Options, ServeError, Server, Stop};
pub use session::{DATA_BYTES_MAX, PENDING_MAX, Session, Violation};
pub use socket::{Connection, FDS_MAX, Incoming, ReceiveError};
