//! Above which epoch grants begin.

use super::{Kind, first_version};
use serde::{Deserialize, Serialize};

/// Above which epoch grants begin.
pub(crate) const FLOOR: Kind<FloorRecord> = Kind::new("epochs", &[first_version]);

/// The highest epoch of every GPU whose record is gone with its box, at `epochs/floor`. The HTTP API never shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FloorRecord {
    /// Grants get higher epochs than this.
    pub(crate) epoch_floor: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the first version has written it. A later version must still read it.
    const FIRST: &str = r#"{"v":1,"epoch_floor":7}"#;

    #[test]
    fn the_first_version_is_read_as_what_it_was() {
        let record = FLOOR.read(FIRST.as_bytes()).unwrap();
        assert_eq!(record.epoch_floor, 7);
        assert_eq!(String::from_utf8(FLOOR.write(&record)).unwrap(), FIRST);
    }
}
