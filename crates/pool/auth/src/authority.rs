//! The pool's certificate authority: every member of the pool trusts the certificates that it signs.
//!
//! Certificates name identities by URI, and machines also by DNS names that only the authority gives out:
//! `rack1-a.box.dxpu` for a box, `manager.dxpu` for every manager. Clients ask for those names whatever address they
//! dial, so a box can never pass for a manager, nor for another box, even at a stolen address.

use std::net::IpAddr;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PublicKeyData, SanType, SerialNumber,
};
use ring::rand::{SecureRandom, SystemRandom};
use time::OffsetDateTime;

use crate::identity::Identity;
use crate::key::CertificateRequest;
use crate::secret::Secret;

/// When a certificate holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// From then on, in milliseconds since 1970.
    pub not_before_ms: u64,
    /// Until then.
    pub not_after_ms: u64,
}

/// How much earlier than it was made a certificate begins: machines whose clocks are days behind can still use it.
const BACKDATE: Duration = Duration::from_secs(3 * 24 * 3600);

/// The authority's own certificate. A new one means that every machine joins again.
const AUTHORITY_LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

impl Lifetime {
    /// From (a little before) now for as long as is said.
    pub fn starting(now_ms: u64, lasting: Duration) -> Self {
        let ms = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        Self {
            not_before_ms: now_ms.saturating_sub(ms(BACKDATE)),
            not_after_ms: now_ms.saturating_add(ms(lasting)),
        }
    }

    fn write(self, params: &mut CertificateParams) -> Result<(), AuthorityError> {
        let date = |ms: u64| {
            let seconds = i64::try_from(ms / 1000).map_err(|_| AuthorityError::Date)?;
            OffsetDateTime::from_unix_timestamp(seconds).map_err(|_| AuthorityError::Date)
        };
        params.not_before = date(self.not_before_ms)?;
        params.not_after = date(self.not_after_ms)?;
        Ok(())
    }
}

/// Why a certificate could not be made.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// Not a certificate request, or its signature does not hold.
    #[error("not a certificate request in PEM with a signature that holds")]
    Request,
    /// A name that cannot stand in a certificate.
    #[error("{0} cannot be named in a certificate")]
    Name(String),
    /// A date beyond what certificates can say.
    #[error("no certificate can last until then")]
    Date,
    /// Broken keys or certificates.
    #[error("the key or certificate cannot be used")]
    Material(#[from] rcgen::Error),
}

/// A certificate with its key.
#[derive(Clone, Debug)]
pub struct Issued {
    /// PEM.
    pub certificate_pem: String,
    /// PEM.
    pub key_pem: Secret,
}

/// Makes certificates.
pub struct Authority {
    certificate_pem: String,
    key_pem: Secret,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// A new authority for a new pool.
    pub fn make(now_ms: u64) -> Result<Self, AuthorityError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = subject("dxpu pool authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.serial_number = Some(random_serial());
        Lifetime::starting(now_ms, AUTHORITY_LIFE).write(&mut params)?;
        let certificate_pem = params.self_signed(&key)?.pem();
        Self::from_pem(certificate_pem, Secret::new(key.serialize_pem()))
    }

    /// The authority that was made before.
    pub fn from_pem(certificate_pem: String, key_pem: Secret) -> Result<Self, AuthorityError> {
        let key = KeyPair::from_pem(key_pem.reveal())?;
        let issuer = Issuer::from_ca_cert_pem(&certificate_pem, key)?;
        Ok(Self { certificate_pem, key_pem, issuer })
    }

    /// The certificate that every member and client trusts.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// For the store.
    pub fn key_pem(&self) -> &Secret {
        &self.key_pem
    }

    /// Certifies the key of a request under an identity. What the request itself says about names is ignored.
    pub fn certify(
        &self,
        request: &CertificateRequest,
        identity: &Identity,
        lifetime: Lifetime,
    ) -> Result<String, AuthorityError> {
        self.sign(&request.public_key, identity, &[], lifetime)
    }

    /// Makes a key and certifies it, also under host names and addresses. For managers, which people reach by browser.
    pub fn issue(
        &self,
        identity: &Identity,
        hosts: &[String],
        lifetime: Lifetime,
    ) -> Result<Issued, AuthorityError> {
        let key = KeyPair::generate()?;
        let certificate_pem = self.sign(&key, identity, hosts, lifetime)?;
        Ok(Issued { certificate_pem, key_pem: Secret::new(key.serialize_pem()) })
    }

    fn sign(
        &self,
        key: &impl PublicKeyData,
        identity: &Identity,
        hosts: &[String],
        lifetime: Lifetime,
    ) -> Result<String, AuthorityError> {
        identity.check().map_err(|_| AuthorityError::Name(identity.to_string()))?;
        let mut params = CertificateParams::default();
        params.distinguished_name = subject(identity.short_name());
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.serial_number = Some(random_serial());
        params.subject_alt_names.push(SanType::URI(ascii(identity.to_string())?));
        for name in identity.server_names().into_iter().chain(hosts.iter().cloned()) {
            params.subject_alt_names.push(match name.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => dns_name(name)?,
            });
        }
        if params.subject_alt_names.len() > 1 {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        params.use_authority_key_identifier_extension = true;
        lifetime.write(&mut params)?;
        Ok(params.signed_by(key, &self.issuer)?.pem())
    }
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

impl Identity {
    /// The name that clients ask for when they mean any manager.
    pub const ANY_MANAGER: &'static str = "manager.dxpu";

    /// The name that clients ask for when they mean this box.
    pub fn box_server_name(box_name: &str) -> String {
        format!("{box_name}.box.dxpu")
    }

    /// The DNS names a machine serves under; people and programs serve nothing.
    fn server_names(&self) -> Vec<String> {
        match self {
            Self::Manager(name) => vec![Self::ANY_MANAGER.to_owned(), format!("{name}.manager.dxpu")],
            Self::Box(name) => vec![Self::box_server_name(name)],
            Self::Host(_) | Self::User { .. } | Self::Operator(_) | Self::Admin(_) | Self::Viewer(_) => {
                Vec::new()
            }
        }
    }
}

fn subject(name: &str) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    subject
}

fn ascii(text: String) -> Result<rcgen::string::Ia5String, AuthorityError> {
    text.clone().try_into().map_err(|_| AuthorityError::Name(text))
}

fn dns_name(name: String) -> Result<SanType, AuthorityError> {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    if name.split('.').all(is_label) && name.len() <= 253 {
        Ok(SanType::DnsName(ascii(name)?))
    } else {
        Err(AuthorityError::Name(name))
    }
}

fn random_serial() -> SerialNumber {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).expect("the system has randomness");
    // A positive number that does not begin with zeros, as the encoding wants it.
    bytes[0] = bytes[0] & 0x7f | 0x40;
    SerialNumber::from_slice(&bytes)
}
