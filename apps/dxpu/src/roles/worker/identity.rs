//! What a worker shows (its certificate) and what it wants to see (its token), made once and kept.

use crate::support::exit::{Exit, Failure};
use anyhow::Context;
use machine::{files, host_name, random_hex};
use std::path::{Path, PathBuf};
use transport::{Fingerprint, ServerIdentity};

/// A certificate with its key.
pub(super) struct Identity {
    pub(super) certificate: String,
    pub(super) key: String,
    pub(super) fingerprint: Fingerprint,
    /// Made by us: clients pin it. Otherwise an authority signed it, and clients know which one they trust.
    pub(super) is_ours: bool,
}

impl Identity {
    /// The given files, or the kept identity, or a new one.
    pub(super) fn find(given: Option<(&Path, &Path)>, directory: &Path) -> anyhow::Result<Self> {
        if let Some((certificate, key)) = given {
            let text = std::fs::read_to_string(certificate)
                .with_context(|| format!("cannot read {}", certificate.display()))?;
            return Self::new(text, files::read_secret(key)?, false);
        }
        let path = directory.join("identity.pem");
        if !path.exists() {
            let names = vec![host_name(), "localhost".to_owned()];
            let made = rcgen::generate_simple_self_signed(names).context("cannot make a certificate")?;
            // One file, so that certificate and key always belong together.
            let both = format!("{}{}", made.cert.pem(), made.signing_key.serialize_pem());
            files::write_new(&path, 0o600, both.as_bytes())?;
        }
        let both = files::read_secret(&path)?;
        Self::new(both.clone(), both, true).map_err(|error| {
            let hint = format!(
                "remove {} to have a new one made; clients then need its fingerprint",
                path.display()
            );
            Failure::new(Exit::Failure, format!("{} is damaged: {error:#}", path.display()), hint).into()
        })
    }

    fn new(certificate: String, key: String, is_ours: bool) -> anyhow::Result<Self> {
        let identity = ServerIdentity::from_pem(&certificate, &key).context("the certificate and its key")?;
        Ok(Self { fingerprint: identity.fingerprint(), certificate, key, is_ours })
    }
}

/// What clients must show.
pub(super) struct Token {
    pub(super) secret: String,
    /// Where it is; none when the environment holds it.
    pub(super) file: Option<PathBuf>,
}

impl Token {
    /// The given file, or DXPU_TOKEN, or the kept token, or a new one.
    pub(super) fn find(given: Option<&Path>, directory: &Path) -> anyhow::Result<Self> {
        if given.is_none()
            && let Ok(secret) = std::env::var("DXPU_TOKEN")
        {
            return Self::new(secret, None);
        }
        let path = given.map_or_else(|| directory.join("token"), Path::to_owned);
        if given.is_none() && !path.exists() {
            files::write_new(&path, 0o600, format!("{}\n", random_hex(32)?).as_bytes())?;
        }
        Self::new(files::read_secret(&path)?, Some(path))
    }

    fn new(secret: String, file: Option<PathBuf>) -> anyhow::Result<Self> {
        /// Shorter ones can be guessed.
        const TOKEN_BYTES_MIN: usize = 16;
        let secret = secret.trim().to_owned();
        if secret.len() < TOKEN_BYTES_MIN {
            let hint = "make one with: head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \\n' > token; chmod 600 token";
            let what = format!("a token of {} characters can be guessed", secret.len());
            return Err(Failure::new(Exit::Usage, what, hint).into());
        }
        Ok(Self { secret, file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn identity_and_token_are_made_once_and_private() {
        let directory = tempfile::tempdir().unwrap();
        let (first, again) = (
            Identity::find(None, directory.path()).unwrap(),
            Identity::find(None, directory.path()).unwrap(),
        );
        assert_eq!(first.fingerprint, again.fingerprint);
        assert_eq!(Token::find(None, directory.path()).unwrap().secret.len(), 64);
        for name in ["identity.pem", "token"] {
            let mode = std::fs::metadata(directory.path().join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
    }
}
