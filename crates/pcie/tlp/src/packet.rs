//! A whole packet: prefixes, header, payload, digest.

use crate::ecrc::ecrc;
use crate::error::{DecodeError, EncodeError};
use crate::prefix::PREFIX_BYTES_MAX;
use crate::{Class, Header, Prefixes};
use std::fmt;

/// The longest header.
pub const HEADER_BYTES_MAX: usize = 16;
/// The longest payload: 1024 DW.
pub const PAYLOAD_BYTES_MAX: usize = 4096;
/// The longest packet.
pub const TLP_BYTES_MAX: usize = PREFIX_BYTES_MAX + HEADER_BYTES_MAX + PAYLOAD_BYTES_MAX + DIGEST_BYTES;
const DIGEST_BYTES: usize = 4;

/// A packet that borrows its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tlp<'a> {
    /// What stands before the header.
    pub prefixes: Prefixes<'a>,
    /// What it is.
    pub header: Header,
    /// Whole DWs, in the order of addresses.
    pub payload: &'a [u8],
    /// The ECRC as it came. No switch between the ends may change it, not even where it is wrong.
    pub digest: Option<u32>,
}

impl<'a> Tlp<'a> {
    /// A packet without prefixes and digest.
    pub const fn new(header: Header, payload: &'a [u8]) -> Self {
        Self { prefixes: Prefixes::NONE, header, payload, digest: None }
    }

    /// Reads one packet that fills `bytes`.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let (tlp, rest) = Self::decode_front(bytes)?;
        match rest.len() {
            0 => Ok(tlp),
            extra => Err(DecodeError::Trailing { extra }),
        }
    }

    /// Reads one packet off the front of `bytes`; gives the rest.
    pub fn decode_front(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), DecodeError> {
        let (prefixes, rest) = Prefixes::split(bytes)?;
        let before = prefixes.as_bytes().len();
        let decoded = Header::decode(rest).map_err(|error| match error {
            DecodeError::Truncated { need, .. } => {
                DecodeError::Truncated { need: need + before, have: bytes.len() }
            }
            other => other,
        })?;
        let header = decoded.header;
        let (from, payload_bytes) = (header.header_bytes(), header.payload_bytes());
        let digest_bytes = if decoded.has_digest { DIGEST_BYTES } else { 0 };
        let need = from + payload_bytes + digest_bytes;
        if rest.len() < need {
            return Err(DecodeError::Truncated { need: need + before, have: bytes.len() });
        }
        let (packet, rest) = rest.split_at(need);
        let (payload, digest) = packet[from..].split_at(payload_bytes);
        let digest = digest.first_chunk().map(|digest| u32::from_be_bytes(*digest));
        Ok((Self { prefixes, header, payload, digest }, rest))
    }

    /// How many bytes it takes.
    pub const fn encoded_bytes(&self) -> usize {
        let digest_bytes = if self.digest.is_some() { DIGEST_BYTES } else { 0 };
        self.prefixes.as_bytes().len() + self.header.header_bytes() + self.payload.len() + digest_bytes
    }

    /// Writes it into the front of `out`; gives its length.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let (announced, given) = (self.header.payload_bytes(), self.payload.len());
        if announced != given {
            return Err(EncodeError::PayloadLength { announced, given });
        }
        let (need, have) = (self.encoded_bytes(), out.len());
        if have < need {
            return Err(EncodeError::NoRoom { need, have });
        }
        let mut raw = [0; HEADER_BYTES_MAX];
        let header_bytes = self.header.encode(self.digest.is_some(), &mut raw)?;
        let digest = self.digest.unwrap_or_default().to_be_bytes();
        let digest = if self.digest.is_some() { &digest[..] } else { &[] };
        let mut at = 0;
        for part in [self.prefixes.as_bytes(), &raw[..header_bytes], self.payload, digest] {
            out[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        Ok(need)
    }

    /// Which flow it belongs to.
    pub const fn class(&self) -> Class {
        self.header.class()
    }

    /// The ECRC it should have, were it to have one. A header that cannot be written has none.
    pub fn expected_digest(&self) -> Result<u32, EncodeError> {
        let mut raw = [0; HEADER_BYTES_MAX];
        let header_bytes = self.header.encode(true, &mut raw)?;
        Ok(ecrc(self.prefixes.end_to_end(), &raw[..header_bytes], self.payload))
    }

    /// The same packet with its ECRC: what the first sender does.
    pub fn with_digest(mut self) -> Result<Self, EncodeError> {
        self.digest = Some(self.expected_digest()?);
        Ok(self)
    }

    /// Whether the digest is right: what the last receiver asks. A packet without one has nothing that could be wrong.
    pub fn digest_is_right(&self) -> bool {
        self.digest.is_none_or(|digest| self.expected_digest() == Ok(digest))
    }
}

/// One line for logs: `MRd 02:00.0 tag 0x11 at 0x1000, 4 DW`.
impl fmt::Display for Tlp<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use crate::Body;
        let header = &self.header;
        write!(f, "{} {}", header.kind(), header.id())?;
        match &header.body {
            Body::Memory(it) => write!(f, " at {:#x}", it.address)?,
            Body::Atomic(it) => write!(f, " at {:#x}", it.address)?,
            Body::Io(it) => write!(f, " at {:#x}", it.address)?,
            Body::Config(it) => write!(f, " to {} register {:#x}", it.target, it.register)?,
            Body::Completion(it) => {
                write!(f, " from {} {:?} with {} to come", it.completer, it.status, it.byte_count)?;
            }
            Body::Message(it) => write!(f, " {:?} code {:#04x}", it.routing, it.code)?,
        }
        write!(f, ", {} DW", header.length_dw())
    }
}
