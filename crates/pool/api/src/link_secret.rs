//! What the keys of a link between two proxies are made of, and what opens the worker behind a slot.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// 32 bytes that one host, one box and the manager know, for one grant. Written as base64url without padding; empty
/// until the manager has filled it in.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
pub struct LinkSecret(String);

impl LinkSecret {
    /// These bytes.
    pub fn from_bytes(bytes: &[u8; 32]) -> Self {
        Self(BASE64.encode(bytes))
    }

    /// The bytes, if these are 32.
    pub fn to_bytes(&self) -> Option<[u8; 32]> {
        BASE64.decode(&self.0).ok()?.try_into().ok()
    }

    /// As it is written.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

/// A secret must not appear in a log.
impl std::fmt::Debug for LinkSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_empty() { "LinkSecret(unset)" } else { "LinkSecret(…)" })
    }
}

/// The lease token that a box keeps for whoever its slot is plugged into: programs of the guest show it to the worker.
/// Empty until the manager has filled it in.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
pub struct SlotPass(String);

impl SlotPass {
    /// This token.
    pub fn new(token: impl Into<String>) -> Self {
        Self(token.into())
    }

    /// As it is written.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

/// A token must not appear in a log.
impl std::fmt::Debug for SlotPass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_empty() { "SlotPass(unset)" } else { "SlotPass(…)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_32_bytes_and_stays_out_of_logs() {
        let secret = LinkSecret::from_bytes(&[0xfb; 32]);
        assert_eq!(secret.to_bytes(), Some([0xfb; 32]));
        let text = serde_json::to_string(&secret).unwrap();
        assert_eq!(serde_json::from_str::<LinkSecret>(&text).unwrap(), secret);
        assert!(!format!("{secret:?}").contains(secret.reveal()));
        assert!(!format!("{:?}", SlotPass::new("hush")).contains("hush"));
        assert_eq!(LinkSecret::default().to_bytes(), None);
        assert_eq!(serde_json::from_str::<LinkSecret>("\"AAAA\"").unwrap().to_bytes(), None);
    }
}
