//! The kubelet's plugin of the driver `dxpu.dev`: containers of a claim get the GPUs of the claim's lease.
//!
//! ```text
//! kubelet ── registration socket ──▶ who we are, where we serve
//!         ── plugin socket ────────▶ prepare   claim (API server), lease (manager) ▸ token, authority, CDI file
//!                                    unprepare files go; the lease too, if its claim is gone
//!                                    health    of every prepared device, as a stream
//! refresher thread ── manager ─────▶ leases of prepared claims are renewed, their tokens written anew
//! ```
//!
//! The plugin makes no lease: the controller does, when the scheduler has allocated the claim. Both find the lease by the
//! claim's UID ([`kube_claims::lease_key`]). The plugin renews what it has prepared, so that a pod keeps its GPUs while the
//! controller is away. A file with all prepared claims lets the next plugin go on where the last one was.

#![forbid(unsafe_code)]

mod claims;
mod error;
mod files;
mod grpc;
mod health;
mod leases;
mod node;
mod plugin;
mod prepared;
pub mod proto;
mod refresh;
mod service;
mod socket;

pub use claims::{
    AllocatedDevices, AllocatedResult, Allocation, ApiServer, Claims, ClaimsError, FoundClaim, Metadata,
    Status,
};
pub use error::{NodeError, PrepareError};
pub use leases::{Way, Ways};
pub use node::{Node, Settings};
pub use socket::{PLUGIN_SOCKET, REGISTRATION_SOCKET};
