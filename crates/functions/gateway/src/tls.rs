//! TLS for clients: a certificate chain and its key, as files.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

/// What a service shows to its clients, PEM.
#[derive(Clone)]
pub struct TlsFiles {
    /// Its certificate, and those between it and an authority.
    pub certificate: Vec<u8>,
    /// The certificate's key.
    pub key: Vec<u8>,
}

/// Why there can be no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// PEM that is none.
    #[error("{what} cannot be read")]
    Pem {
        /// Which file.
        what: &'static str,
        /// Why.
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// TLS itself refuses them.
    #[error("the certificate and its key cannot be used together")]
    Rustls(#[from] rustls::Error),
}

/// What takes connections.
pub(crate) fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, TlsError> {
    let pem = |what| move |source| TlsError::Pem { what, source };
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&files.certificate)
        .collect::<Result<_, _>>()
        .map_err(pem("the certificate"))?;
    let key = PrivateKeyDer::from_pem_slice(&files.key).map_err(pem("the key"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
