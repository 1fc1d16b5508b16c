//! Leases by the first digits of their names.

use crate::operate::ask;
use pool_api::{ErrorCode, ErrorDetail, Lease, LeaseId};
use pool_client::{Client, ClientError};
use std::str::FromStr;

/// A lease as a user names it: whole, or by enough digits that only one lease begins with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LeaseName {
    Whole(LeaseId),
    /// Begins with `l-`.
    Prefix(String),
}

impl FromStr for LeaseName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(id) = text.parse() {
            return Ok(Self::Whole(id));
        }
        let digits = text.strip_prefix("l-").unwrap_or(text);
        let is_digit = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
        if (1..16).contains(&digits.len()) && digits.chars().all(is_digit) {
            Ok(Self::Prefix(format!("l-{digits}")))
        } else {
            Err("write l- and 16 hexadecimal digits, or the first few of them".to_owned())
        }
    }
}

impl LeaseName {
    /// The lease that is meant.
    pub(crate) fn resolve(&self, client: &Client) -> Result<LeaseId, ClientError> {
        match self {
            Self::Whole(id) => Ok(*id),
            Self::Prefix(prefix) => {
                let (leases, _) = ask::all::<Lease>(client, "/v1/leases")?;
                choose(prefix, leases.iter().map(|lease| (lease.id, lease.state.is_live())))
            }
        }
    }
}

/// The one lease that begins so. Leases that are over count only if no live one begins so.
fn choose(prefix: &str, leases: impl Iterator<Item = (LeaseId, bool)>) -> Result<LeaseId, ClientError> {
    let found: Vec<_> = leases.filter(|(id, _)| id.to_string().starts_with(prefix)).collect();
    let live: Vec<_> = found.iter().filter(|(_, is_live)| *is_live).collect();
    let refuse = |code, message: String, hint: &str| {
        Err(ClientError::Refused(ErrorDetail { code, message, hint: hint.to_owned() }))
    };
    match (live.as_slice(), found.as_slice()) {
        ([(id, _)], _) | ([], [(id, _)]) => Ok(*id),
        ([], []) => refuse(
            ErrorCode::NotFound,
            format!("no lease begins with {prefix}"),
            "`dxpu lease ls --all` shows them",
        ),
        _ => {
            let names: Vec<String> = found.iter().map(|(id, _)| id.to_string()).collect();
            let message = format!("{} leases begin with {prefix}: {}", names.len(), names.join(", "));
            refuse(ErrorCode::BadRequest, message, "write more digits")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_digits_name_a_lease_if_only_one_begins_so() {
        let ids =
            [(LeaseId(0xab00 << 48), true), (LeaseId(0xab10 << 48), true), (LeaseId(0xcd00 << 48), false)];
        let chosen = |prefix: &str| choose(prefix, ids.into_iter()).map_err(|error| error.to_string());
        assert_eq!(chosen("l-ab1"), Ok(ids[1].0));
        assert_eq!(chosen("l-c"), Ok(ids[2].0), "one that is over, since no live one begins so");
        assert!(chosen("l-ab").unwrap_err().starts_with("2 leases begin with l-ab: "));
        assert_eq!(chosen("l-9").unwrap_err(), "no lease begins with l-9");
        assert_eq!("c0ffee".parse(), Ok(LeaseName::Prefix("l-c0ffee".to_owned())));
        assert_eq!("l-00c0ffee00c0ffee".parse(), Ok(LeaseName::Whole(LeaseId(0x00c0_ffee_00c0_ffee))));
        assert!("l-".parse::<LeaseName>().is_err() && "L-C0".parse::<LeaseName>().is_err());
    }
}
