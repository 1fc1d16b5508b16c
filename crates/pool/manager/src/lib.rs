//! The manager of a pool: grants leases, watches boxes, replaces broken GPUs.
//!
//! ```text
//!   HTTP over TLS ──▶ handlers ──▶ jobs ──▶ one thread that owns the books ──▶ store
//!   (tokio, many)     (parse)     (desk)    (ledger, access, audit)            (one commit for many jobs)
//! ```
//!
//! Any number of managers may run on one store; one leads, the others send clients there. The leader's thread is the
//! only one that changes anything, one job after the other, so there are no locks around the pool's state and no two
//! changes that half meet. Answers go out after the commit.
//!
//! This crate links no driver: a manager runs anywhere.

#![forbid(unsafe_code)]

mod local;
mod manager;
mod settings;

mod backup;
mod bootstrap;
mod tls;

mod descriptors;
mod door;
mod server;

mod http;
mod metrics;
mod problem;
mod protection;

mod claim;
mod desk;
mod session;
mod tries;

mod leader;
mod readiness;

mod access;
mod audit;
mod books;
mod copies;
mod history;
mod records;
mod revocation;
mod staged;
mod told;
mod waiters;

mod clock;
mod status;

pub use backup::{Backup, BackupError, Done, RestoreError, Taken, restore, take};
pub use bootstrap::{BootstrapError, begin, new_admin, write_private};
pub use clock::Clock;
pub use http::openapi;
pub use leader::ELECTION;
pub use local::Local;
pub use manager::{Manager, StartError};
pub use settings::{AUDIT_KEEP, CERTIFICATE_LIFE, CONNECTIONS_MAX, LEADER_TTL, Settings};
pub use tls::TlsError;
