//! That the pool was restored from a backup.

use super::{Kind, first_version};
use serde::{Deserialize, Serialize};

/// That the pool was restored.
pub(crate) const RESTORED: Kind<RestoredRecord> = Kind::new("restored", &[first_version]);

/// The last restore, at `restored/last`. The HTTP API never shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RestoredRecord {
    /// When the backup was made.
    pub(crate) backup_ms: u64,
    /// When it was restored.
    pub(crate) restored_ms: u64,
    /// Grants get higher epochs than this.
    pub(crate) epoch_floor: u64,
    /// Added to the tenure of leaders.
    pub(crate) tenure_base: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the first version has written it. A later version must still read it.
    const FIRST: &str =
        r#"{"v":1,"backup_ms":41,"restored_ms":42,"epoch_floor":1048583,"tenure_base":4398046511105}"#;

    #[test]
    fn the_first_version_is_read_as_what_it_was() {
        let record = RESTORED.read(FIRST.as_bytes()).unwrap();
        assert_eq!((record.backup_ms, record.epoch_floor), (41, 1_048_583));
        assert_eq!(String::from_utf8(RESTORED.write(&record)).unwrap(), FIRST);
    }
}
