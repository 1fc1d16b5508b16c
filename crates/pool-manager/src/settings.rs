//! What an operator may choose.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pool_store::Store;

use crate::clock::Clock;

/// How a manager runs.
#[derive(Clone)]
pub struct Settings {
    /// Its name among managers.
    pub name: String,
    /// Where it listens.
    pub listen: SocketAddr,
    /// How others reach it: `https://host:port`. From `listen` if none is given.
    pub advertise: Option<String>,
    /// Where everything is kept.
    pub store: Arc<dyn Store>,
    /// Where the first manager of a pool writes the first admin's credential.
    pub admin_file: PathBuf,
    /// What time it is.
    pub clock: Clock,
    /// How long a silent leader leads.
    pub leader_ttl: Duration,
    /// Timers and bounds of the ledger.
    pub ledger: pool::Settings,
    /// Entries of the audit trail that are kept.
    pub audit_keep: u64,
    /// How long the certificates of boxes and people last.
    pub certificate_life: Duration,
    /// Connections at a time; fewer if the process may not have so many files open.
    pub connections_max: usize,
}

/// An audit trail of about half a gigabyte.
pub const AUDIT_KEEP: u64 = 1_000_000;

/// A box renews in time; a machine that is off for longer joins again.
pub const CERTIFICATE_LIFE: Duration = Duration::from_secs(365 * 24 * 3600);

/// Every box and every borrower keeps one open, and long polls do too.
pub const CONNECTIONS_MAX: usize = 20_000;

/// Short enough that a dead leader is replaced in less than the five seconds we promise.
pub const LEADER_TTL: Duration = Duration::from_secs(3);
