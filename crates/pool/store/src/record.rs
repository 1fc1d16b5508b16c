//! What is stored: a key, a value, and when it came about.

use std::fmt;

use crate::error::Refusal;

/// Counts the transactions that changed the store. Grows, and is never given out twice.
///
/// The numbers of one engine say nothing about those of another: SQLite begins at 1, etcd counts what others do too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl Revision {
    /// The one after this.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// One key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its path, such as `lease/00017`.
    pub key: String,
    /// What was put there; empty when only keys were asked for.
    pub value: Vec<u8>,
    /// The transaction that made the key. A key that was deleted and put again is a new one.
    pub created: Revision,
    /// The transaction that last put a value.
    pub modified: Revision,
}

/// Long enough for any path; keys are read and compared all the time.
pub const KEY_BYTES_MAX: usize = 1024;

/// A key is a path that can be shown: text without control characters.
pub(crate) fn check_key(key: &str) -> Result<(), Refusal> {
    let is_fine = !key.is_empty() && key.len() <= KEY_BYTES_MAX && !key.chars().any(char::is_control);
    if is_fine { Ok(()) } else { Err(Refusal::BadKey { key: key.escape_debug().take(80).collect() }) }
}

/// The first byte string after all that begin with `prefix`; none when all keys do.
///
/// The last byte of UTF-8 text is below 0xff, so adding one never carries.
pub(crate) fn end_of_prefix(prefix: &str) -> Option<Vec<u8>> {
    let mut end = prefix.as_bytes().to_vec();
    *end.last_mut()? += 1;
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_its_neighbour() {
        assert_eq!(end_of_prefix("lease/"), Some(b"lease0".to_vec()));
        assert_eq!(end_of_prefix(""), None);
        let end = end_of_prefix("größe").unwrap();
        assert!("größe\u{10ffff}".as_bytes() < end.as_slice());
    }

    #[test]
    fn a_key_is_text_that_can_be_shown() {
        assert!(check_key("lease/00017").is_ok());
        for bad in ["", "a\nb", "a\0", &"x".repeat(KEY_BYTES_MAX + 1)] {
            assert!(matches!(check_key(bad), Err(Refusal::BadKey { .. })), "{bad:?}");
        }
    }
}
