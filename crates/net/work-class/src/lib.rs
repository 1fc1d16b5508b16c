//! What a program is to the others on its GPU: one type for requests, leases, tokens and sessions.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// What a program is to the others on its GPU. Part of a request, a lease, its token and a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Class {
    /// It does not take part in sharing: no gate is closed or waited for on its behalf.
    #[default]
    Dedicated,
    /// Its latency is protected: while it has work, offline programs of the same GPU start none.
    Online,
    /// It works in the pauses of online programs.
    Offline,
}

impl Class {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Dedicated, Self::Online, Self::Offline];

    /// The number that stands for it in tokens, handshakes and pages. Numbers are never reused.
    pub const fn code(self) -> u8 {
        match self {
            Self::Dedicated => 0,
            Self::Online => 1,
            Self::Offline => 2,
        }
    }

    /// The class of a number, if there is one.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.code() == code)
    }

    /// Whether it takes no part in sharing.
    pub fn is_dedicated(&self) -> bool {
        *self == Self::Dedicated
    }

    /// Its name, as users write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dedicated => "dedicated",
            Self::Online => "online",
            Self::Offline => "offline",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no class.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no class; a program is dedicated, online or offline")]
pub struct UnknownClass(pub String);

impl FromStr for Class {
    type Err = UnknownClass;

    fn from_str(name: &str) -> Result<Self, UnknownClass> {
        Self::ALL
            .into_iter()
            .find(|class| class.name() == name)
            .ok_or_else(|| UnknownClass(name.chars().take(32).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_lead_back_to_their_class() {
        for class in Class::ALL {
            assert_eq!(Class::from_code(class.code()), Some(class));
            assert_eq!(class.to_string().parse(), Ok(class));
        }
        assert_eq!(Class::from_code(3), None);
        assert!("Online".parse::<Class>().unwrap_err().to_string().contains("dedicated, online or offline"));
        assert_eq!(Class::default(), Class::Dedicated);
    }
}
