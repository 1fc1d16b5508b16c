//! The identity that a certificate names, and by what it is told from others.

use serde::{Deserialize, Serialize};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::hash::{Digest, digest};
use crate::identity::Identity;

/// Why a certificate names no identity of the pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// Not a certificate.
    #[error("this is not a certificate")]
    Damaged,
    /// None, or several, or not ours: then it names no identity.
    #[error("the certificate must carry exactly one name of the form spiffe://dxpu/...")]
    Unnamed,
}

/// What a certificate says that counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certified {
    /// The identity that it names.
    pub identity: Identity,
    /// Its number among all of the authority's, in hexadecimal.
    pub serial: String,
    /// Tells its key from others, as [`CertificateRequest::key_digest`](crate::CertificateRequest::key_digest) does.
    pub key: Digest,
    /// The last moment at which it holds, in milliseconds since 1970.
    pub not_after_ms: u64,
}

/// Reads a certificate in DER.
///
/// It only reads: that the authority has signed it, and when, was for the TLS handshake to check.
pub fn certified(certificate_der: &[u8]) -> Result<Certified, CertificateError> {
    let (rest, certificate) =
        X509Certificate::from_der(certificate_der).map_err(|_| CertificateError::Damaged)?;
    if !rest.is_empty() {
        return Err(CertificateError::Damaged);
    }
    let names = certificate
        .subject_alternative_name()
        .map_err(|_| CertificateError::Damaged)?
        .ok_or(CertificateError::Unnamed)?;
    let mut uris = names.value.general_names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    });
    let identity = match (uris.next(), uris.next()) {
        (Some(uri), None) => uri.parse().map_err(|_| CertificateError::Unnamed)?,
        _ => return Err(CertificateError::Unnamed),
    };
    let serial = certificate.raw_serial().iter().map(|byte| format!("{byte:02x}")).collect();
    let key = digest([&*certificate.public_key().subject_public_key.data]);
    let not_after_s = u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or(0);
    Ok(Certified {
        identity,
        serial,
        key,
        not_after_ms: not_after_s.saturating_mul(1000).saturating_add(999),
    })
}

/// Reads only the identity.
pub fn identity_of(certificate_der: &[u8]) -> Result<Identity, CertificateError> {
    certified(certificate_der).map(|certified| certified.identity)
}
