//! SHA-256, as hex digits: what tokens are stored as, and what chains the audit trail.

use std::fmt::Write;

/// A SHA-256 as 64 hex digits.
pub type Digest = String;

/// The SHA-256 of several parts, each with its length in front so that no two lists of parts look the same.
pub fn digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Digest {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    for part in parts {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    let mut text = String::with_capacity(64);
    for byte in context.finish().as_ref() {
        write!(text, "{byte:02x}").expect("writing to a string");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_part_ends_matters() {
        assert_ne!(digest([b"ab".as_slice(), b"c"]), digest([b"a".as_slice(), b"bc"]));
        // sha256 of eight zero bytes, as `head -c 8 /dev/zero | sha256sum` says.
        assert_eq!(
            digest([b"".as_slice()]),
            "af5570f5a1810b7af78caf4bc70a660f0df51e42baf91d4de5b2328de0e83dfc"
        );
    }
}
