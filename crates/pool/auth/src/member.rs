//! Machines that have joined: boxes and hosts.
//!
//! ```text
//!             join token                    renews, returns: same key
//!  (absent) -------------> member ───────────┐
//!              ▲             │ ▲─────────────┘
//!              │             ├── joins again with a new token: the new key counts, the old one no more
//!              └─────────────┴── revoked; away for longer than [`RETURN_WITHIN`] after its certificate ended
//! ```
//!
//! A certificate of a machine counts only while the machine is a member, and only for the key that it joined with. So
//! a machine that joins anew under a name puts every copy of the old key out.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::certificate::Certified;
use crate::hash::Digest;
use crate::identity::Identity;

/// A machine that was off for so long after its certificate ended comes back by itself: it still has the key
/// it joined with, and no admin has revoked it. After a holiday, a repair, a move to another rack it does;
/// one that was put away and forgotten is not let in for ever.
pub const RETURN_WITHIN: Duration = Duration::from_secs(30 * 24 * 3600);

/// What managers keep of a machine that has joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its name and kind.
    pub identity: Identity,
    /// The key it joined with. None for one that joined before keys were kept; it is learned when it renews.
    pub key: Option<Digest>,
    /// When.
    pub joined_ms: u64,
    /// The token that let it in.
    #[serde(default)]
    pub token: String,
    /// Tokens by which that token was made, the oldest first.
    #[serde(default)]
    pub lineage: Vec<String>,
    /// When its newest certificate ends.
    pub certified_until_ms: u64,
}

/// Why a machine is not let in, or not back in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemberRefusal {
    /// Another machine has joined under this name since, with another key.
    #[error("a machine with another key has joined under this name since")]
    OtherKey,
    /// It was away for too long.
    #[error("its certificate ended more than {} days ago", RETURN_WITHIN.as_secs() / 86_400)]
    AwayTooLong,
}

impl Member {
    /// Whether a certificate is of this member.
    pub fn check(&self, shown: &Certified) -> Result<(), MemberRefusal> {
        self.check_key(&shown.key)
    }

    /// Whether this key may have a certificate though it shows none that is in time.
    pub fn check_return(&self, key: &Digest, now_ms: u64) -> Result<(), MemberRefusal> {
        // A key that was never kept proves nothing by itself.
        if self.key.as_ref() != Some(key) {
            return Err(MemberRefusal::OtherKey);
        }
        let within_ms = u64::try_from(RETURN_WITHIN.as_millis()).unwrap_or(u64::MAX);
        if now_ms >= self.certified_until_ms.saturating_add(within_ms) {
            return Err(MemberRefusal::AwayTooLong);
        }
        Ok(())
    }

    /// Whether a renewal may be for this key: the one it has, and no other.
    pub fn check_key(&self, key: &Digest) -> Result<(), MemberRefusal> {
        match &self.key {
            Some(own) if own != key => Err(MemberRefusal::OtherKey),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(key: Option<&str>) -> Member {
        Member {
            identity: Identity::Box("rack1-a".into()),
            key: key.map(str::to_owned),
            joined_ms: 1000,
            token: "t".into(),
            lineage: Vec::new(),
            certified_until_ms: 2000,
        }
    }

    #[test]
    fn a_member_comes_back_with_its_own_key_and_in_time() {
        let within_ms = RETURN_WITHIN.as_millis() as u64;
        let (ours, theirs) = ("ours".to_owned(), "theirs".to_owned());
        let member_of_ours = member(Some("ours"));
        assert_eq!(member_of_ours.check_return(&ours, 2000 + within_ms - 1), Ok(()));
        assert_eq!(member_of_ours.check_return(&ours, 2000 + within_ms), Err(MemberRefusal::AwayTooLong));
        assert_eq!(member_of_ours.check_return(&theirs, 0), Err(MemberRefusal::OtherKey));
        assert_eq!(member(None).check_return(&ours, 0), Err(MemberRefusal::OtherKey), "it proves nothing");
        assert_eq!(member_of_ours.check_key(&theirs), Err(MemberRefusal::OtherKey));
        assert_eq!(member(None).check_key(&ours), Ok(()), "learned when it renews");
    }
}
