//! The secret that all links of the PCIe plane have in common, and what each of them gets of it.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hkdf::{HKDF_SHA256, KeyType, Salt};

use crate::secret::Secret;

/// What no other use of the secret has in common with this one.
const PURPOSE: &[u8] = b"dxpu pcie link v1";

/// The pool's secret for links. Managers keep it and never send it.
///
/// A link belongs to one grant: a GPU, an epoch of it, a lease. What its two proxies are given is made of these and the
/// pool's secret, by HKDF-SHA256, so nothing has to be stored per grant, and the secret of one link tells
/// nothing of another's.
#[derive(Clone, Debug)]
pub struct FabricSecret(Secret);

/// What is stored is no such secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the secret of the PCIe plane is not 32 bytes in base64url")]
pub struct FabricSecretError;

struct Bytes32;

impl KeyType for Bytes32 {
    fn len(&self) -> usize {
        32
    }
}

impl FabricSecret {
    /// A new one.
    pub fn make() -> Self {
        Self(Secret::random(32))
    }

    /// As it was stored.
    pub fn from_secret(secret: Secret) -> Result<Self, FabricSecretError> {
        let bytes = URL_SAFE_NO_PAD.decode(secret.reveal()).map_err(|_| FabricSecretError)?;
        if bytes.len() == 32 { Ok(Self(secret)) } else { Err(FabricSecretError) }
    }

    /// To be stored.
    pub fn secret(&self) -> &Secret {
        &self.0
    }

    /// What the two proxies of one grant are given.
    pub fn link(&self, gpu: &str, epoch: u64, lease: &str) -> [u8; 32] {
        let bytes = URL_SAFE_NO_PAD.decode(self.0.reveal()).expect("it was checked when it was made");
        let key = Salt::new(HKDF_SHA256, PURPOSE).extract(&bytes);
        // Each part with its length in front, so that no two lists of parts look the same.
        let lengths = [(gpu.len() as u64).to_be_bytes(), (lease.len() as u64).to_be_bytes()];
        let epoch = epoch.to_be_bytes();
        let info = [&lengths[0][..], gpu.as_bytes(), &epoch, &lengths[1], lease.as_bytes()];
        let mut link = [0; 32];
        let filled = key.expand(&info, Bytes32).and_then(|okm| okm.fill(&mut link));
        filled.expect("32 bytes are fewer than HKDF can give");
        link
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_grant_has_its_own_and_the_same_each_time() {
        let secret = FabricSecret::from_secret(Secret::new(URL_SAFE_NO_PAD.encode([7; 32]))).unwrap();
        let link = secret.link("a/0", 1, "l-0000000000000001");
        // From an independent HKDF-SHA256 (RFC 5869), written out with HMAC.
        assert_eq!(&URL_SAFE_NO_PAD.encode(link), EXPECTED);
        for other in [
            secret.link("a/1", 1, "l-0000000000000001"),
            secret.link("a/0", 2, "l-0000000000000001"),
            secret.link("a/0", 1, "l-0000000000000002"),
            FabricSecret::make().link("a/0", 1, "l-0000000000000001"),
        ] {
            assert_ne!(link, other);
        }
    }

    const EXPECTED: &str = "sRt_5NsSCSr-TUDrQbrD91xH2b3Z_nvkwEPQcMR0bYI";

    #[test]
    fn what_is_too_short_is_refused() {
        assert_eq!(FabricSecret::from_secret(Secret::new("AAAA")).unwrap_err(), FabricSecretError);
        assert!(FabricSecret::from_secret(FabricSecret::make().secret().clone()).is_ok());
    }
}
