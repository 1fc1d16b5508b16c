//! What both sides insist on: TLS 1.3, no resumption, AES-128-GCM first.

use std::path::Path;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::renewed::Renewed;
use super::verify::PinnedCertificate;
use crate::connect::ConnectError;
use crate::security::ClientSecurity;

/// Bulk data is what a lane carries, so the fastest suite stands first; all three are sound.
fn provider() -> Arc<CryptoProvider> {
    let mut provider = rustls::crypto::ring::default_provider();
    provider.cipher_suites =
        vec![TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256];
    Arc::new(provider)
}

/// SHA-256, by the same library that does the rest of the cryptography.
pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let suite = TLS13_AES_128_GCM_SHA256.tls13().expect("a TLS 1.3 suite is one");
    let digest = suite.common.hash_provider.hash(bytes);
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

pub(crate) fn server_config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    renewed_at: Option<(&Path, &Path)>,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let builder = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth();
    let mut config = match renewed_at {
        None => builder.with_single_cert(chain, key)?,
        Some((certificate_file, key_file)) => {
            builder.with_cert_resolver(Arc::new(Renewed::new(certificate_file, key_file, chain, key)?))
        }
    };
    // Connections live as long as a session; a ticket would only be one more secret to keep.
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// `None` for those that are no TLS.
pub(crate) fn client_config(security: &ClientSecurity) -> Result<Option<Arc<ClientConfig>>, ConnectError> {
    let provider = provider();
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(ConnectError::Tls)?;
    let mut config = match security {
        ClientSecurity::Plain | ClientSecurity::Users(_) => return Ok(None),
        ClientSecurity::Fingerprint(fingerprint) => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(PinnedCertificate::new(*fingerprint, &provider)))
            .with_no_client_auth(),
        ClientSecurity::Ca(pem) | ClientSecurity::CaNamed { ca: pem, .. } => {
            let mut roots = RootCertStore::empty();
            for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
                let certificate = certificate.map_err(ConnectError::Ca)?;
                roots.add(certificate).map_err(ConnectError::Tls)?;
            }
            if roots.is_empty() {
                return Err(ConnectError::Ca(rustls::pki_types::pem::Error::NoItemsFound));
            }
            builder.with_root_certificates(roots).with_no_client_auth()
        }
    };
    config.resumption = Resumption::disabled();
    Ok(Some(Arc::new(config)))
}
