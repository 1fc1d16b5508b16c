//! Names and numbers of things. One that exists is valid: they are checked where they are read.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// Slots a box may have; the largest boxes sold have 20.
pub const SLOTS_PER_BOX_MAX: u8 = 64;

/// Something a client sent is out of bounds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct Invalid {
    /// Which part of what was sent.
    pub field: &'static str,
    /// What is wrong with it, and what would be right.
    pub problem: String,
}

impl Invalid {
    /// This part has this problem.
    pub fn new(field: &'static str, problem: impl Into<String>) -> Self {
        Self { field, problem: problem.into() }
    }
}

macro_rules! text {
    ($(#[$meta:meta])* $name:ident, $check:ident, $what:literal, $rule:literal) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Reads it, or says what is wrong with it.
            pub fn new(text: &str) -> Result<Self, Invalid> {
                if $check(text) { Ok(Self(text.into())) } else { Err(Invalid::new($what, $rule)) }
            }

            /// As it is written.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = Invalid;

            fn from_str(text: &str) -> Result<Self, Invalid> {
                Self::new(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = Invalid;

            fn try_from(text: String) -> Result<Self, Invalid> {
                Self::new(&text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0.as_ref().to_owned()
            }
        }
    };
}

text! {
    /// The name of a box, a tenant or an identity: small letters, digits, dots and dashes, 1 to 63 of them, with a
    /// letter or digit at both ends.
    Name, is_name, "name", "must be 1 to 63 of a-z, 0-9, '.', '-', and begin and end with a letter or digit"
}

text! {
    /// A model of GPU, such as `H200` or `NVIDIA A100-SXM4-80GB`: 1 to 64 letters, digits, spaces and `._+-`, with a
    /// letter or digit at both ends.
    Model, is_model, "model", "must be 1 to 64 letters, digits, spaces and '._+-', and begin and end with a letter or digit"
}

/// In the API's document these are texts with a pattern, whatever they are here.
macro_rules! text_schema {
    ($name:ident, $description:literal, $pattern:literal, $longest:literal, $example:literal) => {
        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                ObjectBuilder::new()
                    .schema_type(Type::String)
                    .description(Some($description))
                    .pattern(Some($pattern))
                    .min_length(Some(1))
                    .max_length(Some($longest))
                    .examples([$example])
                    .into()
            }
        }

        impl ToSchema for $name {}
    };
}

text_schema!(
    Name,
    "The name of a box, a tenant or an identity",
    "^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$",
    63,
    "rack1-a"
);
text_schema!(Model, "A model of GPU", "^[A-Za-z0-9]([A-Za-z0-9 ._+-]{0,62}[A-Za-z0-9])?$", 64, "H200");
text_schema!(
    GpuId,
    "A GPU, by where it sits: BOX/SLOT",
    "^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?/([0-9]|[1-5][0-9]|6[0-3])$",
    66,
    "rack1-a/3"
);
text_schema!(LeaseId, "A lease: l- and 16 hexadecimal digits", "^l-[0-9a-f]{16}$", 18, "l-00c0ffee00c0ffee");

fn is_name(text: &str) -> bool {
    is_word(text, 63, |c| c.is_ascii_lowercase() || c.is_ascii_digit(), b".-")
}

fn is_model(text: &str) -> bool {
    is_word(text, 64, u8::is_ascii_alphanumeric, b" ._+-")
}

fn is_word(text: &str, longest: usize, plain: fn(&u8) -> bool, inside: &[u8]) -> bool {
    let bytes = text.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else { return false };
    bytes.len() <= longest
        && plain(first)
        && plain(last)
        && bytes.iter().all(|byte| plain(byte) || inside.contains(byte))
}

/// A GPU, by where it sits: `BOX/SLOT`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GpuId {
    /// The box.
    pub box_name: Name,
    /// The slot in it, below [`SLOTS_PER_BOX_MAX`].
    pub slot: u8,
}

impl fmt::Display for GpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.box_name, self.slot)
    }
}

impl fmt::Debug for GpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for GpuId {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let wrong = || Invalid::new("gpu", "must be BOX/SLOT, such as rack1-a/3, with a slot below 64");
        let (box_name, slot) = text.split_once('/').ok_or_else(wrong)?;
        let number: u8 = slot.parse().map_err(|_| wrong())?;
        // One spelling each: `03` and `+3` are other names of what is `3`.
        if number >= SLOTS_PER_BOX_MAX || number.to_string() != slot {
            return Err(wrong());
        }
        Ok(Self { box_name: Name::new(box_name).map_err(|_| wrong())?, slot: number })
    }
}

impl TryFrom<String> for GpuId {
    type Error = Invalid;

    fn try_from(text: String) -> Result<Self, Invalid> {
        text.parse()
    }
}

impl From<GpuId> for String {
    fn from(id: GpuId) -> Self {
        id.to_string()
    }
}

/// A lease: `l-` and 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LeaseId(pub u64);

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "l-{:016x}", self.0)
    }
}

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for LeaseId {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let is_digit = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
        text.strip_prefix("l-")
            .filter(|digits| digits.len() == 16 && digits.bytes().all(is_digit))
            .and_then(|digits| u64::from_str_radix(digits, 16).ok())
            .map(Self)
            .ok_or_else(|| Invalid::new("lease", "must be l- and 16 hexadecimal digits"))
    }
}

impl TryFrom<String> for LeaseId {
    type Error = Invalid;

    fn try_from(text: String) -> Result<Self, Invalid> {
        text.parse()
    }
}

impl From<LeaseId> for String {
    fn from(id: LeaseId) -> Self {
        id.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        for good in ["a", "rack1-a", "a.b-c", &"x".repeat(63)] {
            assert_eq!(Name::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "A", "-a", "a-", "a/b", "a b", "ä", "a\n", &"x".repeat(64)] {
            assert!(Name::new(bad).is_err(), "{bad:?}");
        }
        assert!(Model::new("NVIDIA A100-SXM4-80GB").is_ok() && Model::new("a/b").is_err());
    }

    #[test]
    fn ids_have_one_spelling() {
        let id: GpuId = "rack1-a/63".parse().unwrap();
        assert_eq!((id.box_name.as_str(), id.slot, id.to_string()), ("rack1-a", 63, "rack1-a/63".into()));
        for bad in ["rack1-a", "rack1-a/", "rack1-a/64", "rack1-a/03", "rack1-a/+3", "a/1/2", "/1", "a/-1"] {
            assert!(bad.parse::<GpuId>().is_err(), "{bad:?}");
        }
        let lease: LeaseId = "l-00c0ffee00c0ffee".parse().unwrap();
        assert_eq!(lease.to_string(), "l-00c0ffee00c0ffee");
        for bad in ["00c0ffee00c0ffee", "l-00C0FFEE00C0FFEE", "l-+0c0ffee00c0ffee", "l-c0ffee"] {
            assert!(bad.parse::<LeaseId>().is_err(), "{bad:?}");
        }
        assert_eq!(serde_json::from_str::<LeaseId>("\"l-00c0ffee00c0ffee\"").unwrap(), lease);
    }
}
