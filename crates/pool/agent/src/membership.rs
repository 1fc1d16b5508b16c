//! The identity of this box or host: made once, when it joins the pool, and kept.
//!
//! The key is on disk before a manager is asked to certify it: should the answer be lost, the same token works for the
//! same key again.

use crate::error::{AgentError, Role};
use anyhow::Context;
use machine::files;
use pool_api::{JoinAnswer, Name};
use pool_auth::{Credential, Identity, NewKey, Secret};
use pool_client::{Client, ClientError};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Where a member keeps its identity.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    pub(crate) identity: Identity,
    pub(crate) state: PathBuf,
}

impl Home {
    pub(crate) fn certificate_file(&self) -> PathBuf {
        self.state.join("certificate.pem")
    }

    pub(crate) fn key_file(&self) -> PathBuf {
        self.state.join("key.pem")
    }
}

/// What is kept of a membership.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Membership {
    pub(crate) credential: Credential,
    /// By the manager's clock.
    pub(crate) issued_ms: u64,
    pub(crate) expires_ms: u64,
}

/// The longest that a certificate is used before it is replaced.
const RENEW_AFTER_MS: u64 = 8 * 3600 * 1000;

/// What an agent is told of the pool that its machine belongs to, or should join.
#[derive(Clone, Debug, Default)]
pub struct Joining {
    /// Managers to ask, in place of those that the token or the kept identity names.
    pub managers: Vec<String>,
    /// What an admin made to join with: a credential (JSON), or a token alone. Needed once.
    pub token: Option<Secret>,
    /// A file with the certificate of the pool's authority (PEM), beside a token that does not bring it along.
    pub authority: Option<PathBuf>,
    /// The name of this machine in the pool; `None`: the one it joined with, what the token says, or the machine's own.
    pub name: Option<Name>,
}

impl Joining {
    /// Reads the token, if there is one.
    pub(crate) fn invitation(&self) -> anyhow::Result<Option<Invitation>> {
        self.token.as_ref().map(|token| self.read(token.reveal())).transpose()
    }

    /// Reads another token for the same pool.
    pub(crate) fn read(&self, token: &str) -> anyhow::Result<Invitation> {
        Invitation::read(token, self.authority.as_deref(), &self.managers)
    }

    /// The name of this machine in the pool.
    pub(crate) fn name(
        &self,
        role: Role,
        kept: Option<&Membership>,
        invited: Option<&Invitation>,
    ) -> anyhow::Result<Name> {
        if let Some(name) = &self.name {
            return Ok(name.clone());
        }
        let kept = kept.map(|kept| kept.credential.identity.short_name().to_owned());
        let name = kept.or_else(|| invited.and_then(|invited| invited.name.clone()));
        let name = name.unwrap_or_else(|| machine::host_name().to_lowercase());
        Name::new(&name).with_context(|| {
            format!("`{name}` cannot be the name of a {}; give one with --name", role.word())
        })
    }

    /// The kept membership, if it is for this name; otherwise joins.
    pub(crate) fn membership(
        &self,
        home: &Home,
        role: Role,
        kept: Option<Membership>,
        invitation: Option<Invitation>,
    ) -> anyhow::Result<Membership> {
        let name = home.identity.short_name();
        match (kept.filter(|kept| kept.credential.identity.short_name() == name), invitation) {
            (Some(mut kept), _) => {
                if !self.managers.is_empty() {
                    kept.credential.managers = self.managers.clone();
                }
                Ok(kept)
            }
            (None, Some(invitation)) => Membership::join(home, &invitation),
            (None, None) => Err(AgentError::NoMember { role, name: name.to_owned() }.into()),
        }
    }
}

/// What a machine that is not a member yet brings along.
pub(crate) struct Invitation {
    pub(crate) token: Secret,
    pub(crate) authority: String,
    pub(crate) managers: Vec<String>,
    /// The name that the token prescribes, if it says so.
    pub(crate) name: Option<String>,
}

/// Whether an agent with this state directory has joined a pool.
pub fn has_joined(state: &Path) -> bool {
    Membership::file(state).exists()
}

impl Membership {
    fn file(state: &Path) -> PathBuf {
        state.join("membership.json")
    }

    /// The membership of a box that has joined before.
    pub(crate) fn kept(state: &Path) -> anyhow::Result<Option<Self>> {
        let path = Self::file(state);
        if !path.exists() {
            return Ok(None);
        }
        let text = files::read_secret(&path)?;
        // The parser's error is dropped: it may quote the key.
        Ok(Some(serde_json::from_str(&text).map_err(|_| AgentError::Damaged(path))?))
    }

    /// Joins.
    pub(crate) fn join(home: &Home, invitation: &Invitation) -> anyhow::Result<Self> {
        let key_file = home.key_file();
        let key = match key_file.exists() {
            true => NewKey::again(&Secret::new(files::read_secret(&key_file)?))?,
            false => {
                let key = NewKey::make()?;
                files::write_new(&key_file, 0o600, key.key_pem.reveal().as_bytes())?;
                sync(&key_file)?;
                key
            }
        };
        let client = Client::to_join(invitation.managers.clone(), invitation.authority.clone())?;
        let name = Name::new(home.identity.short_name())?;
        let answer = client.join(&name, &invitation.token, &key.request_pem);
        let answer =
            answer.map_err(|source| AgentError::JoinRefused { name: name.as_str().to_owned(), source })?;
        let membership = Self::of(&home.identity, &invitation.managers, &key, answer);
        membership.keep(home)?;
        Ok(membership)
    }

    /// The same with a new certificate.
    pub(crate) fn renewed(&self, home: &Home, client: &Client) -> anyhow::Result<Self> {
        let key = NewKey::again(self.credential.key.as_ref().context("a member has a key")?)?;
        let answer = client.renew_certificate(&key.request_pem)?;
        let membership = Self::of(&home.identity, &self.credential.managers, &key, answer);
        membership.keep(home)?;
        Ok(membership)
    }

    /// Whether it is time for a new certificate: a third of the life of this one is over.
    ///
    /// Never later than after [`RENEW_AFTER_MS`], so that one of an earlier version, which lasts for a year, is replaced
    /// by one of a day.
    pub(crate) fn is_ageing(&self, now_ms: u64) -> bool {
        let third_ms = self.expires_ms.saturating_sub(self.issued_ms) / 3;
        now_ms.saturating_sub(self.issued_ms) >= third_ms.min(RENEW_AFTER_MS)
    }

    /// Asks for a certificate though the last one has ended, because this machine was off: the key is the proof.
    pub(crate) fn ask_to_return(&self) -> Result<(NewKey, JoinAnswer), ClientError> {
        let unusable = |error: &dyn std::fmt::Display| ClientError::Settings(format!("the key: {error}"));
        let key = self.credential.key.as_ref().ok_or_else(|| unusable(&"there is none"))?;
        let key = NewKey::again(key).map_err(|error| unusable(&error))?;
        let credential = &self.credential;
        let client = Client::to_join(credential.managers.clone(), credential.authority.clone())?;
        let answer = client.return_member(&credential.identity, &key.request_pem)?;
        Ok((key, answer))
    }

    /// What [`Membership::ask_to_return`] has brought, kept.
    pub(crate) fn returned(&self, home: &Home, key: &NewKey, answer: JoinAnswer) -> anyhow::Result<Self> {
        let membership = Self::of(&home.identity, &self.credential.managers, key, answer);
        membership.keep(home)?;
        Ok(membership)
    }

    /// This machine was revoked: its key opens nothing any more, and the next membership has a new one.
    pub(crate) fn forget(home: &Home) {
        for file in [Self::file(&home.state), home.certificate_file(), home.key_file()] {
            if let Err(error) = std::fs::remove_file(&file)
                && error.kind() != std::io::ErrorKind::NotFound
            {
                tracing::warn!(file = %file.display(), %error, "a key that was revoked cannot be removed");
            }
        }
    }

    fn of(identity: &Identity, managers: &[String], key: &NewKey, answer: JoinAnswer) -> Self {
        let credential = Credential {
            managers: managers.to_vec(),
            authority: answer.ca_certificate,
            identity: identity.clone(),
            token: None,
            certificate: Some(answer.certificate),
            key: Some(key.key_pem.clone()),
        };
        Self { credential, issued_ms: answer.now_ms, expires_ms: answer.expires_ms }
    }

    /// Writes it down, and the certificate and key as workers read them.
    pub(crate) fn keep(&self, home: &Home) -> anyhow::Result<()> {
        let certificate = self.credential.certificate.as_deref().unwrap_or_default();
        files::replace(&home.certificate_file(), 0o600, certificate.as_bytes())?;
        let key = self.credential.key.as_ref().map_or("", |key| key.reveal());
        files::replace(&home.key_file(), 0o600, key.as_bytes())?;
        let file = Self::file(&home.state);
        files::replace(&file, 0o600, &serde_json::to_vec(self)?)?;
        sync(&file)
    }
}

fn sync(path: &Path) -> anyhow::Result<()> {
    let sync = std::fs::File::open(path).and_then(|file| file.sync_all());
    sync.with_context(|| format!("cannot write {} to the disk", path.display()))
}

impl Invitation {
    /// Reads what an admin handed over: a credential with a join token in it, or the token alone beside the authority's
    /// certificate.
    pub(crate) fn read(text: &str, authority: Option<&Path>, managers: &[String]) -> anyhow::Result<Self> {
        if let Ok(credential) = serde_json::from_str::<Credential>(text) {
            let name = Some(credential.identity.short_name().to_owned());
            let token = credential.token.context("the file holds no token")?;
            let managers = if managers.is_empty() { credential.managers } else { managers.to_vec() };
            return Ok(Self { token, authority: credential.authority, managers, name });
        }
        let Some(authority) = authority else {
            return Err(AgentError::NoAuthority.into());
        };
        let read = std::fs::read_to_string(authority);
        let authority = read.with_context(|| format!("cannot read {}", authority.display()))?;
        Ok(Self { token: Secret::new(text.trim()), authority, managers: managers.to_vec(), name: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn membership(issued_ms: u64, life_ms: u64) -> Membership {
        let credential = Credential {
            managers: Vec::new(),
            authority: String::new(),
            identity: Identity::Box("a".into()),
            token: None,
            certificate: None,
            key: None,
        };
        Membership { credential, issued_ms, expires_ms: issued_ms + life_ms }
    }

    #[test]
    fn a_certificate_is_renewed_after_a_third_of_its_life_and_within_a_day() {
        const HOUR_MS: u64 = 3600 * 1000;
        assert!(!membership(1000, 60_000).is_ageing(20_999) && membership(1000, 60_000).is_ageing(21_000));
        let day = membership(1000, 24 * HOUR_MS);
        assert!(!day.is_ageing(8 * HOUR_MS) && day.is_ageing(1000 + 8 * HOUR_MS));
        let year = membership(1000, 365 * 24 * HOUR_MS);
        assert!(year.is_ageing(1000 + 8 * HOUR_MS), "one of an earlier version");
        assert!(!day.is_ageing(0), "another manager's clock is behind");
    }
}
