//! TLS of the manager: its own certificate, and those it accepts.

use std::sync::{Arc, RwLock};
use std::time::Duration;

use pool_auth::{Authority, AuthorityError, Identity, Lifetime};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;

/// Why there can be no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Certificates could not be made.
    #[error("cannot make the manager's certificate")]
    Authority(#[from] AuthorityError),
    /// TLS itself refuses them.
    #[error("the manager's certificate cannot be used")]
    Rustls(#[from] rustls::Error),
    /// PEM that is none.
    #[error("the manager's certificate cannot be read")]
    Pem(#[from] rustls::pki_types::pem::Error),
    /// The authority's certificate is not one.
    #[error("the pool's authority cannot check certificates")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

/// The manager's own certificate lasts so long, and is made anew at every start and every [`OWN_RENEWAL`]. Its key is
/// never on a disk. Clients ask no deny list, so this is how long a copy of it would pass for a manager.
const OWN_LIFE: Duration = Duration::from_secs(3 * 24 * 3600);
pub(crate) const OWN_RENEWAL: Duration = Duration::from_secs(8 * 3600);

/// The manager's own certificate, which changes while it runs.
#[derive(Debug)]
pub(crate) struct OwnCertificate {
    current: RwLock<Arc<CertifiedKey>>,
    authority: Arc<Authority>,
    identity: Identity,
    hosts: Vec<String>,
}

impl OwnCertificate {
    pub(crate) fn make(
        authority: Arc<Authority>,
        name: &str,
        hosts: Vec<String>,
        now_ms: u64,
    ) -> Result<Arc<Self>, TlsError> {
        let identity = Identity::Manager(name.to_owned());
        let first = certify(&authority, &identity, &hosts, now_ms)?;
        Ok(Arc::new(Self { current: RwLock::new(Arc::new(first)), authority, identity, hosts }))
    }

    pub(crate) fn renew(&self, now_ms: u64) -> Result<(), TlsError> {
        let next = certify(&self.authority, &self.identity, &self.hosts, now_ms)?;
        *self.current.write().unwrap_or_else(std::sync::PoisonError::into_inner) = Arc::new(next);
        Ok(())
    }
}

impl ResolvesServerCert for OwnCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone())
    }
}

fn certify(
    authority: &Authority,
    identity: &Identity,
    hosts: &[String],
    now_ms: u64,
) -> Result<CertifiedKey, TlsError> {
    let issued = authority.issue(identity, hosts, Lifetime::starting(now_ms, OWN_LIFE))?;
    let certificate = CertificateDer::from_pem_slice(issued.certificate_pem.as_bytes())?;
    let key = PrivateKeyDer::from_pem_slice(issued.key_pem.reveal().as_bytes())?;
    let key = rustls::crypto::ring::sign::any_supported_type(&key)?;
    Ok(CertifiedKey::new(vec![certificate], key))
}

/// Accepts certificates of the pool's authority, and clients without one: those show a token.
pub(crate) fn server_config(
    authority: &Authority,
    own: Arc<OwnCertificate>,
) -> Result<rustls::ServerConfig, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.certificate_pem().as_bytes())?)?;
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .allow_unauthenticated()
        .build()?;
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(own);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
