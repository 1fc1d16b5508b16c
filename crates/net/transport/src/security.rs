//! What each side knows about the other before it trusts it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::tls;

/// How a client decides whether it talks to the right server.
#[derive(Clone, Debug)]
pub enum ClientSecurity {
    /// Nothing is checked: for `tcp:`, `unix:`, `shm:` and `pcie:` addresses.
    Plain,
    /// A `unix:` or `shm:` address where one of these users listens. The kernel tells, before anything is sent.
    Users(Vec<u32>),
    /// TLS with exactly the certificate of this fingerprint, whatever names it has.
    Fingerprint([u8; 32]),
    /// TLS with a certificate for the host of the address, signed by one of these authorities (PEM).
    Ca(String),
    /// The same for a server that has a name of its own, wherever it is.
    CaNamed {
        /// The authorities (PEM).
        ca: String,
        /// The name that its certificate must have.
        name: String,
    },
}

/// What a server shows its clients.
#[derive(Clone, Debug)]
pub enum ServerSecurity {
    /// Serves `tcp:`, `unix:` and `shm:` connections only.
    Plain,
    /// Also serves `tls:` connections, with this identity.
    Tls(ServerIdentity),
}

/// A certificate chain and its key, ready to serve. Cheap to clone.
#[derive(Clone)]
pub struct ServerIdentity {
    pub(crate) config: Arc<rustls::ServerConfig>,
    fingerprint: Fingerprint,
}

/// SHA-256 of a certificate in DER form. Prints as 64 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

/// An identity that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The text is no PEM, or lacks a certificate or a key.
    #[error("the {what} is no valid PEM")]
    Pem {
        /// Certificate or key.
        what: &'static str,
        /// What the parser says.
        source: rustls::pki_types::pem::Error,
    },
    /// The names cannot stand in a certificate, or no key could be made.
    #[error("cannot make a certificate")]
    Generate(#[source] rcgen::Error),
    /// Key and certificate do not belong together, or the key is of a kind we cannot use.
    #[error("the certificate and its key cannot be used")]
    Unusable(#[source] rustls::Error),
}

impl ServerIdentity {
    /// Makes a new key and a certificate signed by itself, for these host names or IP addresses. Clients pin its
    /// fingerprint.
    pub fn generate(names: &[String]) -> Result<Self, IdentityError> {
        let made = rcgen::generate_simple_self_signed(names).map_err(IdentityError::Generate)?;
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        Self::new(vec![made.cert.der().clone()], key.into(), None)
    }

    /// The same as two PEM texts, certificate and private key, for a server that must keep its fingerprint: store
    /// them where only it can read, and load them with [`Self::from_pem`].
    pub fn generate_pem(names: &[String]) -> Result<(String, String), IdentityError> {
        let made = rcgen::generate_simple_self_signed(names).map_err(IdentityError::Generate)?;
        Ok((made.cert.pem(), made.signing_key.serialize_pem()))
    }

    /// Reads a certificate chain, leaf first, and its private key.
    pub fn from_pem(certificate: &str, key: &str) -> Result<Self, IdentityError> {
        Self::renewed_at(certificate, key, None)
    }

    /// The same for a certificate that is renewed while it is used: whenever these files have changed, certificate first,
    /// what is in them is served instead.
    pub fn renewed_at(
        certificate: &str,
        key: &str,
        files: Option<(&Path, &Path)>,
    ) -> Result<Self, IdentityError> {
        let chain: Vec<_> = CertificateDer::pem_slice_iter(certificate.as_bytes())
            .collect::<Result<_, _>>()
            .map_err(|source| IdentityError::Pem { what: "certificate", source })?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
            .map_err(|source| IdentityError::Pem { what: "key", source })?;
        Self::new(chain, key, files)
    }

    fn new(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        files: Option<(&Path, &Path)>,
    ) -> Result<Self, IdentityError> {
        let source = rustls::pki_types::pem::Error::NoItemsFound;
        let leaf = chain.first().ok_or(IdentityError::Pem { what: "certificate", source })?;
        let fingerprint = Fingerprint::of(leaf);
        let config = tls::server_config(chain, key, files).map_err(IdentityError::Unusable)?;
        Ok(Self { config, fingerprint })
    }

    /// What clients pin.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

/// Never the key.
impl fmt::Debug for ServerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerIdentity({})", self.fingerprint)
    }
}

/// A text that is not a fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a fingerprint is the SHA-256 of a certificate: 64 hex digits, colons between them allowed")]
pub struct FingerprintError;

impl Fingerprint {
    /// The fingerprint of a certificate in DER form.
    pub fn of(der: &[u8]) -> Self {
        Self(tls::sha256(der))
    }
}

impl std::str::FromStr for Fingerprint {
    type Err = FingerprintError;

    fn from_str(text: &str) -> Result<Self, FingerprintError> {
        let digits: Vec<u8> = text
            .chars()
            .filter(|c| *c != ':')
            .map(|c| c.to_digit(16).map(|digit| digit as u8))
            .collect::<Option<_>>()
            .ok_or(FingerprintError)?;
        if digits.len() != 64 {
            return Err(FingerprintError);
        }
        Ok(Self(std::array::from_fn(|at| digits[2 * at] << 4 | digits[2 * at + 1])))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_prints_and_parses() {
        // The SHA-256 of nothing, as every table has it.
        let hex = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Fingerprint::of(b"").to_string(), hex);
        assert_eq!(hex.parse(), Ok(Fingerprint::of(b"")));
        let with_colons: String =
            hex.as_bytes().chunks(2).map(|c| format!("{}:", str::from_utf8(c).unwrap())).collect();
        assert_eq!(with_colons.to_uppercase().trim_end_matches(':').parse(), Ok(Fingerprint::of(b"")));
        assert_eq!("abc".parse::<Fingerprint>(), Err(FingerprintError));
        assert_eq!("é".repeat(64).parse::<Fingerprint>(), Err(FingerprintError));
    }

    #[test]
    fn an_identity_from_pem_has_the_fingerprint_of_its_leaf_and_never_prints_its_key() {
        let (certificate, key) = ServerIdentity::generate_pem(&["box".to_owned()]).unwrap();
        let identity = ServerIdentity::from_pem(&certificate, &key).unwrap();
        let der = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
        assert_eq!(identity.fingerprint(), Fingerprint::of(&der));
        assert_eq!(format!("{identity:?}"), format!("ServerIdentity({})", identity.fingerprint()));

        let other = rcgen::generate_simple_self_signed(vec!["box".to_owned()]).unwrap();
        let mixed = ServerIdentity::from_pem(&other.cert.pem(), &key).unwrap_err();
        assert!(matches!(mixed, IdentityError::Unusable(_)), "{mixed:?}");
        assert!(matches!(ServerIdentity::from_pem("", &key), Err(IdentityError::Pem { .. })));
    }
}
