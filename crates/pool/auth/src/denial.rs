//! What was revoked: the deny list.
//!
//! ```text
//!   revoke ──▶ one entry, durable at once ──▶ refused from then on: the subject, and what descends from it
//!                        └──▶ what it names is ended piece by piece; after a crash, what is left
//!   until_ms ─▶ the entry goes: everything it denies would have ended by itself
//! ```
//!
//! One entry is one write, however much it denies. So a revocation happens whole or not at all, also where a store
//! takes only so many writes at once.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::bearer::TokenRecord;
use crate::identity::{Identity, NameError, check_name};

/// What can be revoked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Subject {
    /// A token, and what was made with it.
    Token(String),
    /// Whatever was given to an identity so far.
    Identity(Identity),
    /// Whatever was given to users of a tenant so far.
    Tenant(String),
    /// One certificate, by its serial number.
    Serial(String),
    /// The tokens of a lease.
    Lease(String),
}

/// Hex digits of a serial number: 20 bytes are the most that certificates allow.
const SERIAL_DIGITS_MAX: usize = 40;

/// Hex digits of a token's identifier.
const TOKEN_DIGITS: usize = 16;

/// Not something that can be revoked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} cannot be revoked: write token/ID, tenant/NAME, lease/ID, serial/HEX or an identity such as spiffe://dxpu/box/NAME"
)]
pub struct SubjectError(String);

impl From<NameError> for SubjectError {
    fn from(error: NameError) -> Self {
        Self(error.to_string())
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token(id) => write!(f, "token/{id}"),
            Self::Identity(identity) => write!(f, "{identity}"),
            Self::Tenant(name) => write!(f, "tenant/{name}"),
            Self::Serial(serial) => write!(f, "serial/{serial}"),
            Self::Lease(id) => write!(f, "lease/{id}"),
        }
    }
}

impl FromStr for Subject {
    type Err = SubjectError;

    fn from_str(text: &str) -> Result<Self, SubjectError> {
        let wrong = || SubjectError(text.chars().take(160).collect());
        let is_hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if text.contains("://") {
            return text.parse().map(Self::Identity).map_err(|_| wrong());
        }
        match text.split_once('/') {
            Some(("token", id)) if id.len() == TOKEN_DIGITS && is_hex(id) => Ok(Self::Token(id.to_owned())),
            Some(("tenant", name)) if check_name(name).is_ok() => Ok(Self::Tenant(name.to_owned())),
            Some(("serial", serial)) if (1..=SERIAL_DIGITS_MAX).contains(&serial.len()) && is_hex(serial) => {
                Ok(Self::Serial(serial.to_owned()))
            }
            Some(("lease", id))
                if id.strip_prefix("l-").is_some_and(|hex| hex.len() == 16 && is_hex(hex)) =>
            {
                Ok(Self::Lease(id.to_owned()))
            }
            _ => Err(wrong()),
        }
    }
}

impl TryFrom<String> for Subject {
    type Error = SubjectError;

    fn try_from(text: String) -> Result<Self, SubjectError> {
        text.parse()
    }
}

impl From<Subject> for String {
    fn from(subject: Subject) -> Self {
        subject.to_string()
    }
}

/// One entry of the deny list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial {
    /// What is denied.
    pub subject: Subject,
    /// What was given up to this moment is denied; what is given later is not.
    pub since_ms: u64,
    /// From this moment on everything it denies would have ended by itself.
    pub until_ms: u64,
    /// The identity that revoked it.
    pub by: String,
    /// Why.
    #[serde(default)]
    pub reason: String,
    /// Of a token: what was made with it stays.
    #[serde(default)]
    pub alone: bool,
    /// Leases that were made with what is denied go on.
    #[serde(default)]
    pub keeps_leases: bool,
    /// Of a lease: the boxes that know it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub boxes: Vec<String>,
}

/// Everything that was revoked and would still count otherwise.
#[derive(Clone, Debug, Default)]
pub struct DenyList {
    entries: BTreeMap<Subject, Denial>,
}

impl DenyList {
    /// Adds an entry. One that is there already is never weakened: it lasts as long as the longer of both, and spares
    /// what both spare. Returns it as it is now.
    pub fn deny(&mut self, denial: Denial) -> &Denial {
        let entry = self.entries.entry(denial.subject.clone()).or_insert_with(|| denial.clone());
        entry.since_ms = entry.since_ms.max(denial.since_ms);
        entry.until_ms = entry.until_ms.max(denial.until_ms);
        entry.alone &= denial.alone;
        entry.keeps_leases &= denial.keeps_leases;
        for name in denial.boxes {
            if !entry.boxes.contains(&name) {
                entry.boxes.push(name);
            }
        }
        (entry.by, entry.reason) = (denial.by, denial.reason);
        entry
    }

    /// The entry for exactly this.
    pub fn get(&self, subject: &Subject) -> Option<&Denial> {
        self.entries.get(subject)
    }

    /// All entries, by subject.
    pub fn iter(&self) -> impl Iterator<Item = &Denial> {
        self.entries.values()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is denied.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Why a token of this record is refused, if it is.
    pub fn of_token(&self, record: &TokenRecord) -> Option<&Denial> {
        self.of_lineage(&record.id, &record.lineage)
            .or_else(|| self.of_identity(&record.identity, record.created_ms))
    }

    /// Why whatever was made with this token is refused, if it is: the token itself is denied, or one it descends from.
    pub fn of_lineage(&self, token: &str, lineage: &[String]) -> Option<&Denial> {
        self.entries.get(&Subject::Token(token.to_owned())).or_else(|| self.of_ancestors(lineage))
    }

    /// Why whatever descends from these tokens is refused, if it is.
    pub fn of_ancestors<'a>(&self, tokens: impl IntoIterator<Item = &'a String>) -> Option<&Denial> {
        let mut denials = tokens.into_iter().filter_map(|id| self.entries.get(&Subject::Token(id.clone())));
        denials.find(|denial| !denial.alone)
    }

    /// Why what was given to an identity at a moment is refused, if it is.
    pub fn of_identity(&self, identity: &Identity, given_ms: u64) -> Option<&Denial> {
        let itself = self.entries.get(&Subject::Identity(identity.clone()));
        let tenant = identity.tenant().and_then(|name| self.entries.get(&Subject::Tenant(name.to_owned())));
        itself.into_iter().chain(tenant).find(|denial| given_ms <= denial.since_ms)
    }

    /// The first moment at which something given to this identity is not denied already: clocks of managers differ.
    pub fn first_ms_for(&self, identity: &Identity, now_ms: u64) -> u64 {
        let itself = self.entries.get(&Subject::Identity(identity.clone()));
        let tenant = identity.tenant().and_then(|name| self.entries.get(&Subject::Tenant(name.to_owned())));
        itself.into_iter().chain(tenant).fold(now_ms, |first, denial| first.max(denial.since_ms + 1))
    }

    /// Leases whose tokens a box must refuse.
    pub fn leases_of<'a>(&'a self, box_name: &'a str) -> impl Iterator<Item = (&'a str, &'a Denial)> {
        self.entries.values().filter_map(move |denial| match &denial.subject {
            Subject::Lease(id) if denial.boxes.iter().any(|name| name == box_name) => {
                Some((id.as_str(), denial))
            }
            _ => None,
        })
    }

    /// Takes out what has nothing left to deny; tells what it was.
    pub fn expire(&mut self, now_ms: u64, at_most: usize) -> Vec<Subject> {
        let over = self.entries.values().filter(|denial| denial.until_ms <= now_ms).take(at_most);
        let over: Vec<Subject> = over.map(|denial| denial.subject.clone()).collect();
        over.iter().for_each(|subject| drop(self.entries.remove(subject)));
        over
    }

    /// The entry that would end first.
    pub fn soonest(&self) -> Option<&Denial> {
        self.entries.values().min_by_key(|denial| denial.until_ms)
    }

    /// Takes one out.
    pub fn remove(&mut self, subject: &Subject) {
        self.entries.remove(subject);
    }
}

#[cfg(test)]
mod tests;
