//! The first 64 bytes of every connection, always in the clear, before TLS.
//!
//! A listener reads them to learn which session a connection belongs to, and can then hand the raw file
//! descriptor to the process that owns the session; TLS ends there, not in the listener.
//!
//! ```text
//! offset  0      8          10     11       12     14    16        32         60         64
//!         | magic | version | kind | scheme | lane | 0 0 | session | reserved | checksum |
//! ```
//!
//! Integers are little-endian. Reserved bytes are zero. The checksum is FNV-1a over the 60 bytes before it: it
//! recognises garbage and strangers, it protects nothing. Nothing in here is secret or trusted.

use crate::address::Scheme;

/// Length of an encoded preamble.
pub const PREAMBLE_BYTES: usize = 64;
/// The version of the preamble, the answer to it, and the set-up that follows. Not of the commands above.
pub const PROTOCOL_VERSION: u16 = 1;

/// Begins with a byte no TLS record and no HTTP request begins with; ends like PNG's, so that a path that
/// rewrites line ends is noticed.
const MAGIC: [u8; 8] = *b"\xd5dxpu\r\n\x1a";

const VERSION_AT: usize = 8;
const KIND_AT: usize = 10;
const SCHEME_AT: usize = 11;
const LANE_AT: usize = 12;
const SESSION_AT: usize = 16;
const RESERVED_AT: usize = 32;
const CHECKSUM_AT: usize = 60;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ConnectionKind {
    /// The one ordered stream of calls and their replies.
    Command = 0,
    /// What the worker says unasked.
    Events = 1,
    /// Bulk data; a session may have several.
    Lane = 2,
    /// Questions about the state of devices. It belongs to no session.
    Status = 3,
    /// Whether a client is let in at all: a question and an answer, before anything is set aside for it.
    Door = 4,
}

impl ConnectionKind {
    fn from_wire(number: u8) -> Option<Self> {
        let all = [Self::Command, Self::Events, Self::Lane, Self::Status, Self::Door];
        all.into_iter().find(|kind| *kind as u8 == number)
    }
}

/// What a client says first on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Preamble {
    /// What the connection is for.
    pub kind: ConnectionKind,
    /// How the client means to speak after this; [`crate::connect()`] fills it in from the address.
    pub scheme: Scheme,
    /// Which lane of the session; 0 for the other kinds.
    pub lane: u16,
    /// Which session. A name, not a proof: the process that serves the connection authenticates it above.
    pub session: [u8; 16],
}

/// Bytes that are not a preamble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PreambleError {
    /// Not 64 bytes.
    #[error("a preamble has {PREAMBLE_BYTES} bytes, not {have}")]
    Length {
        /// How many there were.
        have: usize,
    },
    /// Some other protocol: the first bytes are not ours.
    #[error("the peer does not speak dxpu: its first bytes are {first:02x?}")]
    Magic {
        /// What came instead.
        first: [u8; 8],
    },
    /// The checksum is wrong.
    #[error("the preamble is damaged: its checksum does not match")]
    Checksum,
    /// A well-formed preamble of another version.
    #[error("the peer speaks version {theirs} of the connection protocol, this side {PROTOCOL_VERSION}")]
    Version {
        /// The peer's version.
        theirs: u16,
    },
    /// A connection kind that this version does not have.
    #[error("connection kind {kind} is unknown")]
    Kind {
        /// The number on the wire.
        kind: u8,
    },
    /// A way to speak that this version does not have.
    #[error("transport scheme {scheme} is unknown")]
    Scheme {
        /// The number on the wire.
        scheme: u8,
    },
    /// A reserved byte that is not zero.
    #[error("a reserved byte of the preamble is not zero")]
    Reserved,
}

impl Preamble {
    /// A preamble for `kind`; [`crate::connect()`] sets the scheme.
    pub fn new(kind: ConnectionKind, lane: u16, session: [u8; 16]) -> Self {
        Self { kind, scheme: Scheme::Tcp, lane, session }
    }

    /// The 64 bytes.
    pub fn encode(&self) -> [u8; PREAMBLE_BYTES] {
        let mut bytes = [0; PREAMBLE_BYTES];
        bytes[..VERSION_AT].copy_from_slice(&MAGIC);
        bytes[VERSION_AT..KIND_AT].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
        bytes[KIND_AT] = self.kind as u8;
        bytes[SCHEME_AT] = self.scheme as u8;
        bytes[LANE_AT..LANE_AT + 2].copy_from_slice(&self.lane.to_le_bytes());
        bytes[SESSION_AT..RESERVED_AT].copy_from_slice(&self.session);
        let checksum = fnv1a(&bytes[..CHECKSUM_AT]);
        bytes[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads exactly 64 bytes. Names the first thing that is wrong; a wrong version is named before anything that a
    /// later version may have changed.
    pub fn decode(bytes: &[u8]) -> Result<Self, PreambleError> {
        let bytes: &[u8; PREAMBLE_BYTES] =
            bytes.try_into().map_err(|_| PreambleError::Length { have: bytes.len() })?;
        let first: [u8; 8] = std::array::from_fn(|at| bytes[at]);
        if first != MAGIC {
            return Err(PreambleError::Magic { first });
        }
        let checksum = u32::from_le_bytes(std::array::from_fn(|at| bytes[CHECKSUM_AT + at]));
        if checksum != fnv1a(&bytes[..CHECKSUM_AT]) {
            return Err(PreambleError::Checksum);
        }
        let theirs = u16::from_le_bytes([bytes[VERSION_AT], bytes[VERSION_AT + 1]]);
        if theirs != PROTOCOL_VERSION {
            return Err(PreambleError::Version { theirs });
        }
        let kind =
            ConnectionKind::from_wire(bytes[KIND_AT]).ok_or(PreambleError::Kind { kind: bytes[KIND_AT] })?;
        let scheme =
            Scheme::from_wire(bytes[SCHEME_AT]).ok_or(PreambleError::Scheme { scheme: bytes[SCHEME_AT] })?;
        let mut reserved = bytes[LANE_AT + 2..SESSION_AT].iter().chain(&bytes[RESERVED_AT..CHECKSUM_AT]);
        if reserved.any(|byte| *byte != 0) {
            return Err(PreambleError::Reserved);
        }
        let lane = u16::from_le_bytes([bytes[LANE_AT], bytes[LANE_AT + 1]]);
        let session = std::array::from_fn(|at| bytes[SESSION_AT + at]);
        Ok(Self { kind, scheme, lane, session })
    }
}

/// 32-bit FNV-1a.
pub(crate) fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Preamble {
        Preamble {
            kind: ConnectionKind::Lane,
            scheme: Scheme::Tls,
            lane: 0x0203,
            session: std::array::from_fn(|at| at as u8 + 1),
        }
    }

    fn resealed(change: impl FnOnce(&mut [u8; 64])) -> Result<Preamble, PreambleError> {
        let mut bytes = sample().encode();
        change(&mut bytes);
        let checksum = fnv1a(&bytes[..CHECKSUM_AT]);
        bytes[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        Preamble::decode(&bytes)
    }

    #[test]
    fn the_bytes_of_version_1_never_change() {
        let mut expected = Vec::from(*b"\xd5dxpu\r\n\x1a\x01\x00\x02\x01\x03\x02\x00\x00");
        expected.extend(1..=16u8);
        expected.extend([0; 28]);
        expected.extend([0x13, 0x4d, 0xb6, 0x80]);
        assert_eq!(sample().encode().as_slice(), expected);
    }

    #[test]
    fn each_fault_has_its_name() {
        assert_eq!(Preamble::decode(&[0; 63]), Err(PreambleError::Length { have: 63 }));
        assert_eq!(Preamble::decode(&[7; 64]), Err(PreambleError::Magic { first: [7; 8] }));
        assert_eq!(resealed(|b| b[VERSION_AT] = 9), Err(PreambleError::Version { theirs: 9 }));
        assert_eq!(resealed(|b| b[KIND_AT] = 5), Err(PreambleError::Kind { kind: 5 }));
        assert_eq!(resealed(|b| b[SCHEME_AT] = 5), Err(PreambleError::Scheme { scheme: 5 }));
        assert_eq!(resealed(|b| b[14] = 1), Err(PreambleError::Reserved));
        assert_eq!(resealed(|b| b[59] = 1), Err(PreambleError::Reserved));
        let mut bytes = sample().encode();
        bytes[40] ^= 1;
        assert_eq!(Preamble::decode(&bytes), Err(PreambleError::Checksum));
    }

    fn any_preamble() -> impl Strategy<Value = Preamble> {
        let kind = prop_oneof![
            Just(ConnectionKind::Command),
            Just(ConnectionKind::Events),
            Just(ConnectionKind::Lane),
            Just(ConnectionKind::Status),
            Just(ConnectionKind::Door)
        ];
        (kind, 0..5u8, any::<u16>(), any::<[u8; 16]>()).prop_map(|(kind, scheme, lane, session)| Preamble {
            kind,
            scheme: Scheme::from_wire(scheme).unwrap(),
            lane,
            session,
        })
    }

    proptest! {
        #[test]
        fn decode_undoes_encode(preamble in any_preamble()) {
            prop_assert_eq!(Preamble::decode(&preamble.encode()), Ok(preamble));
        }

        #[test]
        fn one_flipped_bit_is_always_noticed(preamble in any_preamble(), bit in 0..512usize) {
            let mut bytes = preamble.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Preamble::decode(&bytes).is_err());
        }

        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert!(Preamble::decode(&bytes).is_err());
        }
    }
}
