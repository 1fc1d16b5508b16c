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

/// Accepts the certificate with this fingerprint and no other, whatever its names and dates say: the user that pins it
/// has decided. The server must still prove that it has the key, by its signature of the handshake.
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
        // Both are public, so the comparison need not take constant time.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::ClientSecurity;
    use rustls::pki_types::PrivatePkcs8KeyDer;
    use rustls::sign::{CertifiedKey, SingleCertAndKey};
    use rustls::{ClientConnection, ServerConfig, ServerConnection};

    /// What the client says of a server that shows `certificate` and signs with `key`.
    fn judged(certificate: &CertificateDer<'static>, key: &rcgen::KeyPair) -> Result<(), Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        let key = provider.key_provider.load_private_key(key).unwrap();
        // Unlike the usual way, this does not check that the two belong together.
        let resolver = SingleCertAndKey::from(CertifiedKey::new(vec![certificate.clone()], key));
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(resolver));
        let mut server = ServerConnection::new(Arc::new(config)).unwrap();
        let pin = ClientSecurity::Fingerprint(Fingerprint::of(certificate).0);
        let config = crate::tls::client_config(&pin).unwrap().unwrap();
        let mut client = ClientConnection::new(config, ServerName::try_from("box").unwrap()).unwrap();
        let (mut hello, mut reply) = (Vec::new(), Vec::new());
        client.write_tls(&mut hello).unwrap();
        server.read_tls(&mut hello.as_slice()).unwrap();
        server.process_new_packets().unwrap();
        while server.wants_write() {
            server.write_tls(&mut reply).unwrap();
        }
        let mut reply = reply.as_slice();
        while !reply.is_empty() {
            client.read_tls(&mut reply).unwrap();
            client.process_new_packets()?;
        }
        assert!(!client.is_handshaking());
        Ok(())
    }

    #[test]
    fn the_pinned_certificate_is_worth_nothing_without_its_key() {
        let made = rcgen::generate_simple_self_signed(vec!["box".to_owned()]).unwrap();
        let thief = rcgen::KeyPair::generate().unwrap();
        assert_eq!(judged(made.cert.der(), &made.signing_key), Ok(()));
        let error = judged(made.cert.der(), &thief).unwrap_err();
        assert_eq!(error, Error::InvalidCertificate(CertificateError::BadSignature));
    }
}
