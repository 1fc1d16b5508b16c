//! The keys that sign leases. Several are valid at a time: boxes learn of a new one before anything is signed with it.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::rand::SystemRandom;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use serde::{Deserialize, Serialize};

use crate::secret::Secret;

/// The beginning of the hash of a public key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseKeyId(pub [u8; 8]);

impl LeaseKeyId {
    fn of(public: &[u8; 32]) -> Self {
        let hash = ring::digest::digest(&ring::digest::SHA256, public);
        Self(*hash.as_ref().first_chunk().expect("a hash has 32 bytes"))
    }
}

impl fmt::Display for LeaseKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for LeaseKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseKeyId({self})")
    }
}

/// A key that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an Ed25519 key as the pool writes it")]
pub struct LeaseKeyError;

/// Verifies. Written as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LeasePublicKey([u8; 32]);

impl LeasePublicKey {
    /// Which one it is.
    pub fn id(&self) -> LeaseKeyId {
        LeaseKeyId::of(&self.0)
    }

    pub(super) fn has_signed(&self, message: &[u8], signature: &[u8; 64]) -> bool {
        UnparsedPublicKey::new(&ED25519, &self.0).verify(message, signature).is_ok()
    }
}

impl fmt::Debug for LeasePublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeasePublicKey({})", self.id())
    }
}

impl fmt::Display for LeasePublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::str::FromStr for LeasePublicKey {
    type Err = LeaseKeyError;

    fn from_str(text: &str) -> Result<Self, LeaseKeyError> {
        let digits = text.as_bytes();
        let is_digit = |digit: &u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
        if digits.len() != 64 || !digits.iter().all(is_digit) {
            return Err(LeaseKeyError);
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            let pair = std::str::from_utf8(pair).expect("digits");
            *byte = u8::from_str_radix(pair, 16).expect("two hexadecimal digits");
        }
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for LeasePublicKey {
    type Error = LeaseKeyError;

    fn try_from(text: String) -> Result<Self, LeaseKeyError> {
        text.parse()
    }
}

impl From<LeasePublicKey> for String {
    fn from(key: LeasePublicKey) -> Self {
        key.to_string()
    }
}

/// Signs.
pub struct LeaseKey {
    pair: Ed25519KeyPair,
    pkcs8: Secret,
}

impl LeaseKey {
    /// A new key.
    pub fn make() -> Self {
        let document =
            Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("the system has randomness");
        Self::from_secret(&Secret::new(STANDARD.encode(document.as_ref()))).expect("made by the same library")
    }

    /// The key that was kept, as [`LeaseKey::secret`] wrote it.
    pub fn from_secret(secret: &Secret) -> Result<Self, LeaseKeyError> {
        let bytes = zeroize::Zeroizing::new(STANDARD.decode(secret.reveal()).map_err(|_| LeaseKeyError)?);
        let pair = Ed25519KeyPair::from_pkcs8(&bytes).map_err(|_| LeaseKeyError)?;
        Ok(Self { pair, pkcs8: secret.clone() })
    }

    /// For the store.
    pub fn secret(&self) -> &Secret {
        &self.pkcs8
    }

    /// For the boxes.
    pub fn public(&self) -> LeasePublicKey {
        let bytes = self.pair.public_key().as_ref();
        LeasePublicKey(bytes.try_into().expect("an Ed25519 key has 32 bytes"))
    }

    /// Which one it is.
    pub fn id(&self) -> LeaseKeyId {
        self.public().id()
    }

    pub(super) fn sign(&self, message: &[u8]) -> [u8; 64] {
        self.pair.sign(message).as_ref().try_into().expect("an Ed25519 signature has 64 bytes")
    }
}

impl fmt::Debug for LeaseKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseKey({})", self.id())
    }
}
