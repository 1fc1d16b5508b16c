//! Text that must not appear in logs, errors or process lists.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;
use zeroize::Zeroize;

/// A secret text. It does not print, it is compared in constant time, and its memory is wiped when it goes.
///
/// It can be serialized, because keys are kept in the store and credentials in files that only their owner can read.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Takes a text as a secret.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// As many random bytes, as URL-safe text.
    pub fn random(bytes: usize) -> Self {
        let mut random = vec![0; bytes];
        SystemRandom::new().fill(&mut random).expect("the system has randomness");
        let text = Self(URL_SAFE_NO_PAD.encode(&random));
        random.zeroize();
        text
    }

    /// The text itself, for the one place that needs it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_bytes().ct_eq(other.0.as_bytes()).into()
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_does_not_print() {
        let secret = Secret::random(32);
        assert!(!format!("{secret:?}").contains(secret.reveal()));
        assert_eq!(secret.reveal().len(), 43);
        assert_ne!(secret, Secret::random(32));
    }
}
