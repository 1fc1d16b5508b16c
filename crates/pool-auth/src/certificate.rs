//! Whom a certificate names.

use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::identity::Identity;

/// Why a certificate names nobody of the pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// Not a certificate.
    #[error("this is not a certificate")]
    Damaged,
    /// None, or several, or not ours: then it is nobody's.
    #[error("the certificate must carry exactly one name of the form spiffe://dxpu/...")]
    Unnamed,
}

/// Reads the identity out of a certificate in DER.
///
/// It only reads: that the authority has signed it, and when, was for the TLS handshake to check.
pub fn identity_of(certificate_der: &[u8]) -> Result<Identity, CertificateError> {
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
    match (uris.next(), uris.next()) {
        (Some(uri), None) => uri.parse().map_err(|_| CertificateError::Unnamed),
        _ => Err(CertificateError::Unnamed),
    }
}
