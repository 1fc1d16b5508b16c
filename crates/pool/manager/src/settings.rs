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
    /// How long the certificates of boxes and hosts last.
    pub certificate_life: Duration,
    /// Connections at a time; fewer if the process may not have so many files open.
    pub connections_max: usize,
}

impl Settings {
    /// [`Settings::certificate_life`] in milliseconds.
    pub(crate) fn certificate_life_ms(&self) -> u64 {
        u64::try_from(self.certificate_life.as_millis()).unwrap_or(u64::MAX)
    }
}

/// An audit trail of about half a gigabyte.
pub const AUDIT_KEEP: u64 = 1_000_000;

/// Short, so that an unnoticed copy of a key is worth a day. A machine renews after a third of it, so that
/// clocks may be half a day apart and a manager may be away for half a day. One that was off for longer comes back by
/// its key ([`pool_auth::RETURN_WITHIN`]).
pub const CERTIFICATE_LIFE: Duration = Duration::from_secs(24 * 3600);

/// Every box and every borrower keeps one open, and long polls do too.
pub const CONNECTIONS_MAX: usize = 20_000;

/// Short enough that a dead leader is replaced in less than the five seconds we promise.
pub const LEADER_TTL: Duration = Duration::from_secs(3);
