//! Names that certificates and tokens carry: `spiffe://dxpu/box/rack1-a`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::role::Role;

/// What every name begins with.
const PREFIX: &str = "spiffe://dxpu/";

/// The longest name of a box, tenant, user and so on: what DNS allows a label.
const NAME_BYTES_MAX: usize = 63;

/// A person, program or machine that the pool knows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Identity {
    /// A manager.
    Manager(String),
    /// The agent of a box.
    Box(String),
    /// The agent of a host of the PCIe plane.
    Host(String),
    /// A person or program that borrows for a tenant.
    User {
        /// The tenant.
        tenant: String,
        /// The person or program.
        user: String,
    },
    /// Looks after GPUs.
    Operator(String),
    /// May do everything that is not a machine's own business.
    Admin(String),
    /// May look.
    Viewer(String),
}

/// Not a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Names are short and plain, because they end up in paths, keys and certificates.
    #[error(
        "{0:?} is no name: 1 to 63 of a-z, 0-9, dot and dash, beginning and ending with a letter or digit"
    )]
    Name(String),
    /// Not `spiffe://dxpu/...` with a kind that we know.
    #[error("{0:?} is no identity of a pool: write one such as spiffe://dxpu/box/NAME")]
    Identity(String),
}

/// Whether a text can name a box, host, tenant, user or manager.
pub fn check_name(name: &str) -> Result<(), NameError> {
    let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = name.as_bytes();
    let is_fine = bytes.len() <= NAME_BYTES_MAX
        && bytes.first().is_some_and(plain)
        && bytes.last().is_some_and(plain)
        && bytes.iter().all(|byte| plain(byte) || matches!(byte, b'.' | b'-'));
    if is_fine { Ok(()) } else { Err(NameError::Name(name.chars().take(80).collect())) }
}

impl Identity {
    /// What it is entitled to.
    pub fn role(&self) -> Role {
        match self {
            Self::Manager(_) => Role::Manager,
            Self::Box(_) => Role::Box,
            Self::Host(_) => Role::Host,
            Self::User { .. } => Role::Tenant,
            Self::Operator(_) => Role::Operator,
            Self::Admin(_) => Role::Admin,
            Self::Viewer(_) => Role::Viewer,
        }
    }

    /// The tenant it belongs to; only users belong to one.
    pub fn tenant(&self) -> Option<&str> {
        match self {
            Self::User { tenant, .. } => Some(tenant),
            _ => None,
        }
    }

    /// The last part of its name.
    pub fn short_name(&self) -> &str {
        match self {
            Self::Manager(name)
            | Self::Box(name)
            | Self::Host(name)
            | Self::Operator(name)
            | Self::Admin(name)
            | Self::Viewer(name)
            | Self::User { user: name, .. } => name,
        }
    }

    /// Whether every part is a name. Identities made by hand are checked before they are used.
    pub fn check(&self) -> Result<(), NameError> {
        if let Some(tenant) = self.tenant() {
            check_name(tenant)?;
        }
        check_name(self.short_name())
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        match self {
            Self::Manager(name) => write!(f, "manager/{name}"),
            Self::Box(name) => write!(f, "box/{name}"),
            Self::Host(name) => write!(f, "host/{name}"),
            Self::User { tenant, user } => write!(f, "tenant/{tenant}/{user}"),
            Self::Operator(name) => write!(f, "operator/{name}"),
            Self::Admin(name) => write!(f, "admin/{name}"),
            Self::Viewer(name) => write!(f, "viewer/{name}"),
        }
    }
}

impl FromStr for Identity {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let unknown = || NameError::Identity(text.chars().take(160).collect());
        let path = text.strip_prefix(PREFIX).ok_or_else(unknown)?;
        let parts: Vec<&str> = path.split('/').collect();
        let own = |name: &str| name.to_owned();
        let identity = match parts[..] {
            ["manager", name] => Self::Manager(own(name)),
            ["box", name] => Self::Box(own(name)),
            ["host", name] => Self::Host(own(name)),
            ["tenant", tenant, user] => Self::User { tenant: own(tenant), user: own(user) },
            ["operator", name] => Self::Operator(own(name)),
            ["admin", name] => Self::Admin(own(name)),
            ["viewer", name] => Self::Viewer(own(name)),
            _ => return Err(unknown()),
        };
        identity.check()?;
        Ok(identity)
    }
}

impl TryFrom<String> for Identity {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl From<Identity> for String {
    fn from(identity: Identity) -> Self {
        identity.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check_is_refused(text: &str) {
        assert!(text.parse::<Identity>().is_err(), "{text}");
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for text in [
            "spiffe://dxpu/manager/m1",
            "spiffe://dxpu/box/rack1-a",
            "spiffe://dxpu/host/hv-7",
            "spiffe://dxpu/tenant/vision/ada",
            "spiffe://dxpu/operator/night.shift",
            "spiffe://dxpu/admin/first",
            "spiffe://dxpu/viewer/wall",
        ] {
            assert_eq!(text.parse::<Identity>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn nothing_else_is_a_name() {
        for text in [
            "",
            "spiffe://dxpu/",
            "spiffe://dxpu/box/",
            "spiffe://dxpu/box/a/b",
            "spiffe://dxpu/tenant/vision",
            "spiffe://dxpu/box/Rack",
            "spiffe://dxpu/box/../admin/first",
            "spiffe://elsewhere/box/a",
            "spiffe://dxpu/root/a",
            "spiffe://dxpu/box/-a",
            "spiffe://dxpu/box/a\n",
        ] {
            check_is_refused(text);
        }
        check_is_refused(&format!("spiffe://dxpu/box/{}", "a".repeat(64)));
    }

    proptest! {
        #[test]
        fn whatever_is_read_is_written_the_same(text in "(spiffe://dxpu/)?[a-z/.-]{0,40}") {
            if let Ok(identity) = text.parse::<Identity>() {
                prop_assert_eq!(identity.to_string(), text);
            }
        }
    }
}
