//! What both ends say about themselves when they agree on a version: JSON, by the protocol.

use serde::{Deserialize, Serialize};

/// Limits of one end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Capabilities {
    /// File descriptors it takes with one message.
    pub max_msg_fds: u32,
    /// Bytes it takes in one region or DMA access.
    pub max_data_xfer_size: u64,
    /// Page sizes DMA ranges are multiples of, as a mask.
    pub pgsizes: u64,
    /// DMA ranges it keeps.
    pub max_dma_maps: u32,
    /// It understands many writes in one message.
    pub write_multiple: bool,
}

impl Default for Capabilities {
    /// What the protocol says holds for an end that does not mention it.
    fn default() -> Self {
        Self {
            max_msg_fds: 1,
            max_data_xfer_size: 1 << 20,
            pgsizes: 4096,
            max_dma_maps: 65_535,
            write_multiple: false,
        }
    }
}

/// Why capabilities cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("the peer's capabilities are not the JSON we know")]
pub struct CapabilitiesError(#[source] serde_json::Error);

#[derive(Serialize, Deserialize)]
struct Envelope {
    #[serde(default)]
    capabilities: Capabilities,
}

impl Capabilities {
    /// Reads them; nothing at all means the defaults.
    pub fn decode(json: &[u8]) -> Result<Self, CapabilitiesError> {
        if json.is_empty() {
            return Ok(Self::default());
        }
        let envelope: Envelope = serde_json::from_slice(json).map_err(CapabilitiesError)?;
        Ok(envelope.capabilities)
    }

    /// Writes them.
    pub fn encode(&self) -> Vec<u8> {
        let envelope = Envelope { capabilities: self.clone() };
        serde_json::to_vec(&envelope).expect("numbers and booleans always serialise")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_says_little_gets_the_defaults() {
        assert_eq!(Capabilities::decode(b"").unwrap(), Capabilities::default());
        assert_eq!(Capabilities::decode(b"{}").unwrap(), Capabilities::default());
        let some = Capabilities::decode(br#"{"capabilities":{"max_msg_fds":8,"migration":{"pgsize":4096}}}"#);
        assert_eq!(some.unwrap(), Capabilities { max_msg_fds: 8, ..Capabilities::default() });
        assert!(Capabilities::decode(b"{\"capabilities\":7}").is_err());
    }

    #[test]
    fn they_survive_their_json() {
        let ours = Capabilities { max_msg_fds: 16, write_multiple: true, ..Capabilities::default() };
        assert_eq!(Capabilities::decode(&ours.encode()).unwrap(), ours);
    }
}
