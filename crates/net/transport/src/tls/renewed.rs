//! A certificate that is renewed while it is used: read again when its file has changed.
//!
//! A worker serves for longer than a certificate lasts. The box agent renews it and replaces the files; the next handshake finds
//! them. Files that cannot be read, or that do not belong together because one of them was replaced a moment before the
//! other, change nothing: what was read last goes on.

use locks::lock;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// Tells one content of a file from the next: files are replaced, never written into.
type Stamp = (u64, i64, i64);

#[derive(Debug)]
pub(crate) struct Renewed {
    certificate: PathBuf,
    key: PathBuf,
    held: Mutex<(Option<Stamp>, Arc<CertifiedKey>)>,
}

impl Renewed {
    pub(crate) fn new(
        certificate: &Path,
        key: &Path,
        chain: Vec<CertificateDer<'static>>,
        first_key: PrivateKeyDer<'static>,
    ) -> Result<Self, rustls::Error> {
        let first = usable(chain, first_key)?;
        Ok(Self {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            held: Mutex::new((None, Arc::new(first))),
        })
    }

    fn current(&self) -> Arc<CertifiedKey> {
        let mut held = lock(&self.held);
        let stamp = stamp_of(&self.certificate);
        if stamp.is_some()
            && stamp != held.0
            && let Some(read) = self.read()
        {
            *held = (stamp, Arc::new(read));
        }
        held.1.clone()
    }

    fn read(&self) -> Option<CertifiedKey> {
        let chain = CertificateDer::pem_file_iter(&self.certificate).ok()?.collect::<Result<_, _>>().ok()?;
        usable(chain, PrivateKeyDer::from_pem_file(&self.key).ok()?).ok()
    }
}

fn usable(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<CertifiedKey, rustls::Error> {
    let key = CertifiedKey::new(chain, rustls::crypto::ring::sign::any_supported_type(&key)?);
    key.keys_match()?;
    Ok(key)
}

fn stamp_of(path: &Path) -> Option<Stamp> {
    std::fs::metadata(path).ok().map(|file| (file.ino(), file.mtime(), file.mtime_nsec()))
}

impl ResolvesServerCert for Renewed {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replace(path: &Path, text: &str) {
        let beside = path.with_extension("new");
        std::fs::write(&beside, text).unwrap();
        std::fs::rename(beside, path).unwrap();
    }

    #[test]
    fn the_next_handshake_finds_what_was_renewed_and_never_halves() {
        let directory = tempfile::tempdir().unwrap();
        let (certificate, key) = (directory.path().join("c.pem"), directory.path().join("k.pem"));
        let make = || rcgen::generate_simple_self_signed(["box".to_owned()]).unwrap();
        let (first, second) = (make(), make());
        let put = |made: &rcgen::CertifiedKey<rcgen::KeyPair>| {
            replace(&key, &made.signing_key.serialize_pem());
            replace(&certificate, &made.cert.pem());
        };
        put(&first);
        let chain = vec![first.cert.der().clone()];
        let first_key = PrivateKeyDer::from_pem_file(&key).unwrap();
        let renewed = Renewed::new(&certificate, &key, chain, first_key).unwrap();
        let shown = || renewed.current().cert[0].clone();
        assert_eq!(shown(), *first.cert.der());
        // The certificate is there, its key is not yet.
        replace(&certificate, &second.cert.pem());
        assert_eq!(shown(), *first.cert.der());
        put(&second);
        assert_eq!(shown(), *second.cert.der());
        std::fs::remove_file(&certificate).unwrap();
        assert_eq!(shown(), *second.cert.der());
        replace(&certificate, "nonsense");
        assert_eq!(shown(), *second.cert.der());
    }
}
