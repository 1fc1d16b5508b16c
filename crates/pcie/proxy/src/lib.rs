//! The two proxies of the PCIe plane, as processes run them.
//!
//! ```text
//!   virtual machine ◀─ vfio-user ─▶ HostProxy ◀─ Carrier ═ UDP ═ Carrier ─▶ BoxProxy ◀─▶ devices
//!                                   a row for each slot   one thread each    a row for each slot
//! ```
//!
//! The decisions are made elsewhere: `pcie` has the tables, ports and devices, `fabric` the link. Here are threads,
//! sockets and the order in which things are begun and ended. The pool's manager decides the pairings; see [`Pairing`].
//!
//! - [`Carrier`]: one thread that moves packets between a [`Side`] and the network.
//! - [`HostProxy`]: slots that virtual machines see; [`HostSlot`] is one of them.
//! - [`BoxProxy`]: slots with devices; [`FileStore`], [`watch()`] for devices that need a file or another program.
//! - [`Qmp`]: plugs a slot's device into a running QEMU, and takes it out.

#![forbid(unsafe_code)]

mod backlog;
mod boxes;
mod carrier;
mod files;
mod host;
mod pairing;
mod qmp;
mod watch;

pub use boxes::{BoxProxy, BoxSlotError, BoxSlotStatus};
pub use carrier::{Carrier, CarrierOptions, Side};
pub use files::FileStore;
pub use host::{
    AttachError, HostProxy, HostProxyOptions, HostSlot, HostSlotDevice, HostSlotError, HostSlotStatus,
};
pub use pairing::{DEVICE_WAITS, Pairing, PairingError, parse_path};
pub use qmp::{Qmp, QmpError};
pub use units::{Epoch, NodeId, SlotId};
pub use watch::watch;
