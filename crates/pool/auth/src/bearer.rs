//! Tokens that people and programs show: `dxpu-user.ID.SECRET`, and once to join: `dxpu-join.ID.SECRET`.
//!
//! The manager keeps a hash. The identifier finds the record, so that only one comparison is made, in constant time.
//!
//! ```text
//!            made                     shown to join, with a key
//! (nothing) ------> valid, not used -----------------------------> used for that key --- expires_ms ---> gone
//!                        \----------------- expires_ms, revoked -------------------------------------/
//! ```
//!
//! A join token that was used goes on working for the very key it was used for: if the answer was lost, the machine
//! asks again.

use std::fmt;

use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

use crate::hash::{Digest, digest};
use crate::identity::Identity;
use crate::secret::Secret;

/// What a token is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenKind {
    /// Be certified, once.
    Join,
    /// Authenticate as one identity, again and again.
    User,
}

impl TokenKind {
    fn prefix(self) -> &'static str {
        match self {
            Self::Join => "dxpu-join",
            Self::User => "dxpu-user",
        }
    }
}

/// Bytes of randomness: too many to guess, so a plain hash is enough to store.
const SECRET_BYTES: usize = 32;

/// Hex digits of an identifier.
const ID_DIGITS: usize = 16;

/// How many tokens may stand between a token and the first one: the record of each names them all, so that a revocation
/// finds what descends from a token also when tokens in between have expired.
pub const LINEAGE_MAX: usize = 16;

/// A token as it is shown.
#[derive(Clone, PartialEq, Eq)]
pub struct BearerToken {
    kind: TokenKind,
    id: String,
    secret: Secret,
}

impl BearerToken {
    /// A new one.
    pub fn make(kind: TokenKind) -> Self {
        let id = digest([Secret::random(16).reveal().as_bytes()])[..ID_DIGITS].to_owned();
        Self { kind, id, secret: Secret::random(SECRET_BYTES) }
    }

    /// Reads what a caller shows. None when it cannot be a token.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.');
        let kind = match parts.next()? {
            "dxpu-join" => TokenKind::Join,
            "dxpu-user" => TokenKind::User,
            _ => return None,
        };
        let (id, secret) = (parts.next()?, parts.next()?);
        let is_id = id.len() == ID_DIGITS && id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let is_secret = secret.len() == 43
            && secret.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
        if !is_id || !is_secret || parts.next().is_some() {
            return None;
        }
        Some(Self { kind, id: id.to_owned(), secret: Secret::new(secret) })
    }

    /// Under which its record is found.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// What it claims to be good for.
    pub fn kind(&self) -> TokenKind {
        self.kind
    }

    /// The whole token, for its bearer.
    pub fn reveal(&self) -> Secret {
        Secret::new(format!("{}.{}.{}", self.kind.prefix(), self.id, self.secret.reveal()))
    }

    fn digest(&self) -> Digest {
        digest([self.kind.prefix().as_bytes(), self.id.as_bytes(), self.secret.reveal().as_bytes()])
    }
}

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.…", self.kind.prefix(), self.id)
    }
}

/// What the manager keeps of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    /// The identifier in the token.
    pub id: String,
    /// What it is good for.
    pub kind: TokenKind,
    /// The identity with which its bearer speaks, or joins.
    pub identity: Identity,
    /// Of the token, never the token.
    pub digest: Digest,
    /// The identity that made it.
    pub created_by: String,
    /// The tokens by which it was made, the oldest first: revoking one of them revokes this one with it.
    /// Empty for one that the store's owner made.
    #[serde(default)]
    pub lineage: Vec<String>,
    /// When.
    pub created_ms: u64,
    /// The first moment at which it is no longer good.
    pub expires_ms: u64,
    /// The key it was used for, if it is a join token that was used.
    pub used_for: Option<Digest>,
    /// What people wrote about it.
    #[serde(default)]
    pub note: String,
}

/// Why a token is not accepted. Strangers are told no more than that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenRefusal {
    /// Nothing like that was ever made here, or it was revoked.
    #[error("this token is not known")]
    Unknown,
    /// Its time is over.
    #[error("this token has expired")]
    Expired,
    /// It was for one use, and another machine has used it.
    #[error("this token was used already")]
    Used,
    /// A join token does not authenticate a user, and a user token does not join.
    #[error("this token is of the other kind: a join token joins once, a user token authenticates")]
    WrongKind,
}

impl TokenRecord {
    /// The record of a new token.
    pub fn new(
        token: &BearerToken,
        identity: Identity,
        created_by: &str,
        now_ms: u64,
        expires_ms: u64,
    ) -> Self {
        Self {
            id: token.id.clone(),
            kind: token.kind,
            identity,
            digest: token.digest(),
            created_by: created_by.to_owned(),
            lineage: Vec::new(),
            created_ms: now_ms,
            expires_ms,
            used_for: None,
            note: String::new(),
        }
    }

    /// The lineage of a token that is made with this one; none if it would be longer than [`LINEAGE_MAX`].
    pub fn lineage_of_children(&self) -> Option<Vec<String>> {
        let whole = self.lineage.iter().chain([&self.id]).cloned().collect::<Vec<_>>();
        (whole.len() <= LINEAGE_MAX).then_some(whole)
    }

    /// Whether it is this token, or was made with it, or with one that was.
    pub fn descends_from(&self, id: &str) -> bool {
        self.id == id || self.lineage.iter().any(|older| older == id)
    }

    /// Whether a token speaks for [`TokenRecord::identity`] now.
    pub fn check_user(&self, shown: &BearerToken, now_ms: u64) -> Result<&Identity, TokenRefusal> {
        self.check(shown, TokenKind::User, now_ms)?;
        Ok(&self.identity)
    }

    /// Whether a token may have a key certified now. The caller then writes [`TokenRecord::used_for`] before it answers.
    pub fn check_join(
        &self,
        shown: &BearerToken,
        key: &Digest,
        now_ms: u64,
    ) -> Result<&Identity, TokenRefusal> {
        self.check(shown, TokenKind::Join, now_ms)?;
        match &self.used_for {
            Some(other) if other != key => Err(TokenRefusal::Used),
            _ => Ok(&self.identity),
        }
    }

    fn check(&self, shown: &BearerToken, kind: TokenKind, now_ms: u64) -> Result<(), TokenRefusal> {
        // The secret first: a caller that does not have it learns nothing else.
        let same: bool = shown.digest().as_bytes().ct_eq(self.digest.as_bytes()).into();
        if !same || shown.kind != self.kind {
            Err(TokenRefusal::Unknown)
        } else if self.kind != kind {
            Err(TokenRefusal::WrongKind)
        } else if now_ms >= self.expires_ms {
            Err(TokenRefusal::Expired)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn made(kind: TokenKind) -> (BearerToken, TokenRecord) {
        let token = BearerToken::make(kind);
        let record = TokenRecord::new(&token, Identity::Box("a".into()), "admin", 1000, 2000);
        (token, record)
    }

    #[test]
    fn a_token_is_good_until_it_expires() {
        let (token, record) = made(TokenKind::User);
        assert_eq!(record.check_user(&token, 1999), Ok(&Identity::Box("a".into())));
        assert_eq!(record.check_user(&token, 2000), Err(TokenRefusal::Expired));
    }

    #[test]
    fn a_join_token_is_for_one_key() {
        let (token, mut record) = made(TokenKind::Join);
        let (ours, theirs) = ("ours".to_owned(), "theirs".to_owned());
        assert!(record.check_join(&token, &ours, 1000).is_ok());
        record.used_for = Some(ours.clone());
        assert!(record.check_join(&token, &ours, 1000).is_ok(), "the answer may have been lost");
        assert_eq!(record.check_join(&token, &theirs, 1000), Err(TokenRefusal::Used));
        assert_eq!(record.check_join(&token, &ours, 2000), Err(TokenRefusal::Expired));
    }

    #[test]
    fn tokens_do_not_stand_in_for_each_other() {
        let (join, join_record) = made(TokenKind::Join);
        let (user, user_record) = made(TokenKind::User);
        assert_eq!(join_record.check_user(&join, 1000), Err(TokenRefusal::WrongKind));
        assert_eq!(user_record.check_join(&user, &String::new(), 1000), Err(TokenRefusal::WrongKind));
        assert_eq!(user_record.check_user(&join, 1000), Err(TokenRefusal::Unknown));
        let renamed = join.reveal().reveal().replace("dxpu-join", "dxpu-user");
        let renamed = BearerToken::parse(&renamed).unwrap();
        assert_eq!(join_record.check_user(&renamed, 1000), Err(TokenRefusal::Unknown));
        let (other, _) = made(TokenKind::User);
        assert_eq!(user_record.check_user(&other, 1000), Err(TokenRefusal::Unknown));
    }

    #[test]
    fn neither_token_nor_record_shows_the_secret() {
        let (token, record) = made(TokenKind::User);
        let text = token.reveal();
        assert_eq!(BearerToken::parse(text.reveal()), Some(token.clone()));
        let secret = text.reveal().rsplit('.').next().unwrap();
        assert!(!format!("{token:?} {record:?}").contains(secret));
        assert!(!serde_json::to_string(&record).unwrap().contains(secret));
    }

    proptest! {
        #[test]
        fn a_changed_token_is_another_token(at in 0usize..70, byte in 0x20u8..0x7f) {
            let (token, record) = made(TokenKind::User);
            let mut text = token.reveal().reveal().as_bytes().to_vec();
            prop_assume!(at < text.len() && text[at] != byte);
            text[at] = byte;
            if let Some(other) = BearerToken::parse(std::str::from_utf8(&text).unwrap()) {
                prop_assert_eq!(record.check_user(&other, 1000), Err(TokenRefusal::Unknown));
            }
        }
    }
}
