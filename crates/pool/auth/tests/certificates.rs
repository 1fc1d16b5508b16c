//! Certificates as TLS libraries see them are tested over real connections by the manager; here is what they say.

use std::time::Duration;

use pool_auth::{
    Authority, AuthorityError, CertificateError, CertificateRequest, Identity, Lifetime, NewKey, Subject,
    certified as certified_as, identity_of,
};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

const NOW_MS: u64 = 1_790_000_000_000;
const DAY: Duration = Duration::from_secs(24 * 3600);

fn der(pem: &str) -> Vec<u8> {
    x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap().1.contents
}

fn certified(authority: &Authority, identity: &Identity) -> Vec<u8> {
    let key = NewKey::make().unwrap();
    let request = CertificateRequest::from_pem(&key.request_pem).unwrap();
    der(&authority.certify(&request, identity, Lifetime::starting(NOW_MS, DAY)).unwrap())
}

#[test]
fn a_certificate_names_whom_the_authority_chose() {
    let authority = Authority::make(NOW_MS).unwrap();
    for identity in [
        Identity::Box("rack1-a".into()),
        Identity::User { tenant: "vision".into(), user: "ada".into() },
        Identity::Operator("night".into()),
    ] {
        assert_eq!(identity_of(&certified(&authority, &identity)), Ok(identity));
    }
    assert_eq!(identity_of(&der(authority.certificate_pem())), Err(CertificateError::Unnamed));
    assert_eq!(identity_of(b"nonsense"), Err(CertificateError::Damaged));
}

/// A deny list names serials; a member is known by its key. Both are the same in the certificate and outside of it.
#[test]
fn a_certificate_is_told_from_others_by_serial_and_key() {
    let authority = Authority::make(NOW_MS).unwrap();
    let identity = Identity::Box("rack1-a".into());
    let request = CertificateRequest::from_pem(&NewKey::make().unwrap().request_pem).unwrap();
    let certify = || {
        let made = authority.certify(&request, &identity, Lifetime::starting(NOW_MS, DAY)).unwrap();
        certified_as(&der(&made)).unwrap()
    };
    let (one, other) = (certify(), certify());
    assert_eq!((&one.key, &one.key), (&request.key_digest(), &other.key));
    assert_ne!(one.serial, other.serial);
    assert_eq!(format!("serial/{}", one.serial).parse::<Subject>(), Ok(Subject::Serial(one.serial)));
}

#[test]
fn a_box_serves_under_its_own_name_only() {
    let authority = Authority::make(NOW_MS).unwrap();
    let bytes = certified(&authority, &Identity::Box("rack1-a".into()));
    let (_, certificate) = X509Certificate::from_der(&bytes).unwrap();
    let names = certificate.subject_alternative_name().unwrap().unwrap();
    let dns = names.value.general_names.iter().filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(*name),
        _ => None,
    });
    assert_eq!(dns.collect::<Vec<_>>(), ["rack1-a.box.dxpu"]);
    assert!(!certificate.is_ca());
    assert!(certificate.verify_signature(Some(authority_key(&authority).public_key())).is_ok());
}

fn authority_key(authority: &Authority) -> X509Certificate<'static> {
    let bytes: &'static [u8] = der(authority.certificate_pem()).leak();
    X509Certificate::from_der(bytes).unwrap().1
}

#[test]
fn an_authority_is_the_same_after_it_was_kept() {
    let authority = Authority::make(NOW_MS).unwrap();
    let again =
        Authority::from_pem(authority.certificate_pem().to_owned(), authority.key_pem().clone()).unwrap();
    let bytes = certified(&again, &Identity::Admin("first".into()));
    let (_, certificate) = X509Certificate::from_der(&bytes).unwrap();
    assert!(certificate.verify_signature(Some(authority_key(&authority).public_key())).is_ok());
    let other = Authority::make(NOW_MS).unwrap();
    assert!(certificate.verify_signature(Some(authority_key(&other).public_key())).is_err());
}

#[test]
fn a_request_must_be_signed_with_its_key() {
    let (mine, other) = (NewKey::make().unwrap(), NewKey::make().unwrap());
    assert!(CertificateRequest::from_pem(&mine.request_pem).is_ok());
    let again = NewKey::again(&mine.key_pem).unwrap();
    let digest = |key: &NewKey| CertificateRequest::from_pem(&key.request_pem).unwrap().key_digest();
    assert_eq!(digest(&mine), digest(&again));
    assert_ne!(digest(&mine), digest(&other));
    // Flip a bit in the public key inside the request.
    let mut lines: Vec<String> = mine.request_pem.lines().map(str::to_owned).collect();
    let line = &mut lines[2];
    let swapped = if line.starts_with('A') { "B" } else { "A" };
    line.replace_range(0..1, swapped);
    for bad in [lines.join("\n").as_str(), "", "-----BEGIN CERTIFICATE REQUEST-----", &"x".repeat(1 << 20)] {
        assert!(matches!(CertificateRequest::from_pem(bad), Err(AuthorityError::Request)));
    }
}

#[test]
fn a_manager_is_also_reached_by_its_addresses() {
    let authority = Authority::make(NOW_MS).unwrap();
    let hosts = ["127.0.0.1".to_owned(), "gpu-pool.example".to_owned()];
    let lifetime = Lifetime::starting(NOW_MS, DAY);
    let issued = authority.issue(&Identity::Manager("m1".into()), &hosts, lifetime).unwrap();
    let text = format!("{:?}", X509Certificate::from_der(&der(&issued.certificate_pem)).unwrap().1);
    for name in ["manager.dxpu", "m1.manager.dxpu", "gpu-pool.example", "[127, 0, 0, 1]"] {
        assert!(text.contains(name), "{name} in {text}");
    }
    let bad = authority.issue(&Identity::Manager("m1".into()), &["not a host".into()], lifetime);
    assert!(matches!(bad, Err(AuthorityError::Name(_))));
}
