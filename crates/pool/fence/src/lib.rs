//! Which borrower may use a GPU of a box, decided on the box alone.
//!
//! ```text
//!   token ─▶ signed by a key the manager uses? this box, this slot? not over? not revoked? ─▶ fence: its epoch against the slot's ─▶ in
//!                       ▲ trust file                            ▲ clock in it  ▲ list in it     ▲ fence file
//!                       └────────────── written by the box ─────┴──────────────┘                └─ written before any admission
//! ```
//!
//! The manager may be away: everything needed lies in two files. The trust file holds the manager's public keys, what
//! the manager's clock said when, and which leases were revoked; the fence file of a slot holds the highest epoch that was let in and the
//! highest that was cleaned up after. Every final refusal is written down too, for the pool's audit trail.

#![forbid(unsafe_code)]

mod admission;
mod epochs;
mod fence;
mod parts;
mod refusals;
mod trust;

pub use admission::{Denial, LeaseAdmission, Tenancy};
pub use epochs::{EpochRefusal, Epochs};
pub use fence::{Fence, FenceError};
pub use parts::PartHeld;
pub use refusals::Refusals;
pub use trust::{DeniedLease, Moment, Trust, TrustError};
