//! Trust in one certificate, known by its fingerprint.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, SignatureScheme};

use crate::security::Fingerprint;

/// Why a pinned certificate was refused.
#[derive(Debug, thiserror::Error)]
#[error("the server's certificate has the fingerprint {found}, not the pinned {expected}")]
struct WrongFingerprint {
    expected: Fingerprint,
    found: Fingerprint,
}

/// Accepts the certificate with this fingerprint and no other, whatever its names and dates say: whoever pins it has
/// decided. The server must still prove that it has the key, by its signature of the handshake.
#[derive(Debug)]
pub(crate) struct PinnedCertificate {
    fingerprint: [u8; 32],
    algorithms: WebPkiSupportedAlgorithms,
}

impl PinnedCertificate {
    pub(crate) fn new(fingerprint: [u8; 32], provider: &CryptoProvider) -> Self {
        Self { fingerprint, algorithms: provider.signature_verification_algorithms }
    }
}

impl ServerCertVerifier for PinnedCertificate {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        // Both are public, so the comparison may take as long as it likes.
        if Fingerprint::of(end_entity).0 == self.fingerprint {
            Ok(ServerCertVerified::assertion())
        } else {
            let expected = Fingerprint(self.fingerprint);
            let found = Fingerprint::of(end_entity);
            Err(CertificateError::Other(OtherError(Arc::new(WrongFingerprint { expected, found }))).into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
