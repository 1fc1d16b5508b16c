//! What a client needs to speak to a pool, in one file that only its owner can read.

use serde::{Deserialize, Serialize};

use crate::identity::Identity;
use crate::secret::Secret;

/// Where the managers are, which authority to trust there, and the client's own proof: a token, or a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Credential {
    /// Addresses of managers, such as `https://10.0.0.7:7500`. Any of them will do.
    pub managers: Vec<String>,
    /// The pool's authority, PEM.
    pub authority: String,
    /// The identity that it proves.
    pub identity: Identity,
    /// A bearer token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Secret>,
    /// A certificate, PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// Its key, PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Secret>,
}

/// Why a credential cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialError {
    /// Nowhere to go.
    #[error("the credential names no manager")]
    NoManager,
    /// Nothing to show.
    #[error("the credential holds neither a token nor a certificate with its key")]
    NoProof,
}

impl Credential {
    /// Whether there is somewhere to go and something to show.
    pub fn check(&self) -> Result<(), CredentialError> {
        if self.managers.is_empty() {
            return Err(CredentialError::NoManager);
        }
        match (&self.token, &self.certificate, &self.key) {
            (Some(_), _, _) | (None, Some(_), Some(_)) => Ok(()),
            _ => Err(CredentialError::NoProof),
        }
    }
}
