//! A key of one's own, and the request to certify it. The key never leaves the machine that made it.

use rcgen::{CertificateParams, CertificateSigningRequestParams, KeyPair, PublicKeyData};

use crate::authority::AuthorityError;
use crate::hash::{Digest, digest};
use crate::secret::Secret;

/// A key pair and the request that asks the authority to certify it.
#[derive(Clone, Debug)]
pub struct NewKey {
    /// The private key, PEM.
    pub key_pem: Secret,
    /// The request, PEM. It has no name in it: the authority decides which identity the certificate gets.
    pub request_pem: String,
}

impl NewKey {
    /// Makes a key.
    pub fn make() -> Result<Self, AuthorityError> {
        Self::request_for(KeyPair::generate()?)
    }

    /// A request for a key that is there already, to have it certified again.
    pub fn again(key_pem: &Secret) -> Result<Self, AuthorityError> {
        Self::request_for(KeyPair::from_pem(key_pem.reveal())?)
    }

    fn request_for(key: KeyPair) -> Result<Self, AuthorityError> {
        let request_pem = CertificateParams::default().serialize_request(&key)?.pem()?;
        Ok(Self { key_pem: Secret::new(key.serialize_pem()), request_pem })
    }
}

/// A certificate request whose signature holds: its sender has the key.
pub struct CertificateRequest {
    pub(crate) public_key: rcgen::PublicKey,
}

impl CertificateRequest {
    /// Longer ones are not requests for the keys we take.
    const PEM_BYTES_MAX: usize = 16 << 10;

    /// Reads and verifies a request. All that counts in it is the public key.
    pub fn from_pem(pem: &str) -> Result<Self, AuthorityError> {
        if pem.len() > Self::PEM_BYTES_MAX {
            return Err(AuthorityError::Request);
        }
        let request = CertificateSigningRequestParams::from_pem(pem).map_err(|_| AuthorityError::Request)?;
        Ok(Self { public_key: request.public_key })
    }

    /// Tells one key from another.
    pub fn key_digest(&self) -> Digest {
        digest([self.public_key.der_bytes()])
    }
}
