//! The trust file of a box: the keys of which signatures count, and the time by the clock of the signing manager.
//!
//! No clock of this machine is compared with one elsewhere. The box keeps what the manager's clock said and what the
//! machine's own count of time since it was started said at that moment; the difference since is all that is used.

use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A moment by the count that every process of this machine shares: milliseconds since it was started, sleep included.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// Which start of the machine is meant.
    pub boot: String,
    /// Milliseconds since.
    pub since_boot_ms: u64,
}

impl Moment {
    /// Now.
    pub fn now() -> io::Result<Self> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let since_boot_ms = time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000;
        Ok(Self { boot, since_boot_ms })
    }
}

/// What a box has heard from its manager that its workers need.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trust {
    /// The public keys that sign lease tokens, as the manager writes them.
    pub keys: Vec<String>,
    /// What the manager's clock said (milliseconds since 1970)…
    pub manager_ms: u64,
    /// …when it was this moment here.
    pub at: Moment,
    /// Leases that were revoked: their tokens open nothing, whatever else they say. Kept here, so that it
    /// holds while no manager is there; the file counts only until this machine starts again, and then no
    /// borrower is admitted before the manager has told anew.
    #[serde(default)]
    pub denied: Vec<DeniedLease>,
}

/// A lease that was revoked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeniedLease {
    /// Which, as its tokens name it.
    pub lease: String,
    /// From then on none of its tokens would count anyway, by the manager's clock.
    pub until_ms: u64,
}

/// Why no token can be verified now.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The box has not heard from its manager since this machine was started.
    #[error("this box has not heard from its manager since it was started")]
    NotYet,
    /// The file cannot be read or written.
    #[error("cannot read or write the trust file {path}")]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

impl Trust {
    /// The manager's time at a moment. `None` when this machine was started again meanwhile.
    pub fn manager_ms_at(&self, moment: &Moment) -> Option<u64> {
        let passed_ms = moment.since_boot_ms.checked_sub(self.at.since_boot_ms)?;
        (moment.boot == self.at.boot).then_some(self.manager_ms.saturating_add(passed_ms))
    }

    /// Whether a lease was revoked.
    pub fn denies(&self, lease: &str) -> bool {
        self.denied.iter().any(|denied| denied.lease == lease)
    }

    /// Reads the file that the box keeps.
    pub fn read(path: &Path) -> Result<Self, TrustError> {
        let io = |source| TrustError::Io { path: path.to_owned(), source };
        match std::fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(TrustError::NotYet),
            Err(error) => Err(io(error)),
            Ok(text) => serde_json::from_slice(&text).map_err(|error| io(error.into())),
        }
    }

    /// Writes it, whole or not at all. It need not survive a power cut: the next start of the machine needs a new one.
    pub fn write(&self, path: &Path) -> Result<(), TrustError> {
        let io = |source| TrustError::Io { path: path.to_owned(), source };
        let directory = path.parent().ok_or_else(|| io(io::ErrorKind::InvalidInput.into()))?;
        let write = || -> io::Result<()> {
            let mut file = tempfile::Builder::new().prefix(".trust-").tempfile_in(directory)?;
            file.as_file().set_permissions(std::fs::Permissions::from_mode(0o600))?;
            file.write_all(&serde_json::to_vec(self)?)?;
            file.persist(path)?;
            Ok(())
        };
        write().map_err(io)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(boot: &str, since_boot_ms: u64) -> Moment {
        Moment { boot: boot.to_owned(), since_boot_ms }
    }

    fn trust() -> Trust {
        let denied = vec![DeniedLease { lease: "l-1".to_owned(), until_ms: 2_000_000 }];
        Trust { keys: vec!["key".to_owned()], manager_ms: 1_000_000, at: moment("one", 500), denied }
    }

    #[test]
    fn the_managers_clock_goes_on_by_our_own_count() {
        assert_eq!(trust().manager_ms_at(&moment("one", 500)), Some(1_000_000));
        assert_eq!(trust().manager_ms_at(&moment("one", 7_500)), Some(1_007_000));
    }

    #[test]
    fn after_a_new_start_of_the_machine_the_time_is_not_known() {
        assert_eq!(trust().manager_ms_at(&moment("two", 9_000)), None);
        assert_eq!(trust().manager_ms_at(&moment("one", 499)), None, "that moment was before");
    }

    #[test]
    fn a_file_reads_back_and_none_is_no_trust_yet() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trust");
        assert!(matches!(Trust::read(&path), Err(TrustError::NotYet)));
        trust().write(&path).unwrap();
        assert_eq!(Trust::read(&path).unwrap(), trust());
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_of_an_earlier_version_denies_nobody() {
        let text = r#"{"keys":[],"manager_ms":1,"at":{"boot":"one","since_boot_ms":2}}"#;
        assert!(!serde_json::from_str::<Trust>(text).unwrap().denies("l-1"));
        assert!(trust().denies("l-1") && !trust().denies("l-2"));
    }

    #[test]
    fn time_goes_on() {
        let first = Moment::now().unwrap();
        let second = Moment::now().unwrap();
        assert_eq!(first.boot, second.boot);
        assert!(second.since_boot_ms >= first.since_boot_ms && first.since_boot_ms > 0);
    }
}
