//! What a guardian says.

use super::{
    AGE_BYTES, ENTRY_BYTES, Head, ProtocolError, REFUSAL_BYTES_MAX, TEXT_BYTES_MAX, VERSION, age, cut_text,
    entry, items, put_age, put_entry, text,
};
use snapshot::{Block, BlockDigest, EventAge};

/// An answer. A block's bytes are not part of it: they are the body of its frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// To `Hello`: where other guardians reach this one, which of them gets second copies, and the memory of all its images
    /// together.
    Welcome {
        bytes_max: u64,
        address: String,
        copy_at: String,
    },
    /// To `Open`.
    Opened {
        bytes_max: u64,
        committed: u64,
    },
    Done,
    /// To any request.
    Refused(String),
    /// Unasked: a part of the delta was refused, and the delta is thrown away.
    DeltaFailed {
        number: u64,
        text: String,
    },
    Committed {
        level: u8,
        image_bytes: u64,
    },
    /// `copied` is the last cut that another guardian has too.
    State {
        committed: u64,
        copied: u64,
        image_bytes: u64,
    },
    /// A part of a list.
    Entries(Vec<BlockDigest>),
    Ages(Vec<EventAge>),
    /// The list had so many entries.
    ListEnd {
        entries: u64,
    },
    /// The body has its bytes. Its digest was in the list.
    Block(Block),
    /// A part of a census: the memory that the images of a lease take.
    Lease {
        bytes: u64,
        lease: String,
    },
    /// The census is over: the memory of all images, and how much of it is taken.
    CensusEnd {
        bytes_max: u64,
        used: u64,
    },
}

const WELCOME: u8 = 0x81;
const OPENED: u8 = 0x82;
const DONE: u8 = 0x83;
const REFUSED: u8 = 0x84;
const DELTA_FAILED: u8 = 0x85;
const COMMITTED: u8 = 0x86;
const STATE: u8 = 0x87;
const ENTRIES: u8 = 0x88;
const AGES: u8 = 0x89;
const LIST_END: u8 = 0x8a;
const BLOCK: u8 = 0x8b;
const LEASE: u8 = 0x8c;
const CENSUS_END: u8 = 0x8d;

impl Answer {
    /// The head and, for all but a block, the body.
    pub(crate) fn encode(&self) -> (Head, Vec<u8>) {
        let mut body = Vec::new();
        let mut head = Head::default();
        match self {
            Self::Welcome { bytes_max, address, copy_at } => {
                let address = cut_text(address, TEXT_BYTES_MAX);
                (head.kind, head.a, head.b) = (WELCOME, *bytes_max, VERSION.into());
                head.c = address.len() as u128;
                body.extend(address.bytes().chain(cut_text(copy_at, TEXT_BYTES_MAX).bytes()));
            }
            Self::Opened { bytes_max, committed } => {
                (head.kind, head.a, head.b) = (OPENED, *bytes_max, *committed);
            }
            Self::Done => head.kind = DONE,
            Self::Refused(text) => {
                head.kind = REFUSED;
                body.extend(cut_text(text, REFUSAL_BYTES_MAX).bytes());
            }
            Self::DeltaFailed { number, text } => {
                (head.kind, head.a) = (DELTA_FAILED, *number);
                body.extend(cut_text(text, REFUSAL_BYTES_MAX).bytes());
            }
            Self::Committed { level, image_bytes } => {
                (head.kind, head.a, head.b) = (COMMITTED, *image_bytes, u64::from(*level));
            }
            Self::State { committed, copied, image_bytes } => {
                (head.kind, head.a, head.b, head.c) = (STATE, *committed, *copied, (*image_bytes).into());
            }
            Self::Entries(entries) => {
                head.kind = ENTRIES;
                body.reserve_exact(entries.len() * ENTRY_BYTES);
                entries.iter().for_each(|entry| put_entry(&mut body, entry));
            }
            Self::Ages(ages) => {
                head.kind = AGES;
                ages.iter().for_each(|age| put_age(&mut body, age));
            }
            Self::ListEnd { entries } => (head.kind, head.a) = (LIST_END, *entries),
            Self::Block(block) => {
                (head.kind, head.a) = (BLOCK, block.address);
                head.body_bytes = block.bytes;
                return (head, body);
            }
            Self::Lease { bytes, lease } => {
                (head.kind, head.a) = (LEASE, *bytes);
                body.extend(cut_text(lease, TEXT_BYTES_MAX).bytes());
            }
            Self::CensusEnd { bytes_max, used } => {
                (head.kind, head.a, head.b) = (CENSUS_END, *bytes_max, *used);
            }
        }
        head.body_bytes = body.len() as u32;
        (head, body)
    }

    /// Whether the body of such a frame is a block's bytes.
    pub(crate) fn carries_block(kind: u8) -> bool {
        kind == BLOCK
    }

    /// Reads an answer. `body` has as many bytes as the head says; for a block it is not looked at.
    pub(crate) fn decode(head: &Head, body: &[u8]) -> Result<Self, ProtocolError> {
        let malformed = ProtocolError::Malformed(head.kind);
        match head.kind {
            WELCOME => {
                head.only(true, true, true, true)?;
                if head.b != u64::from(VERSION) {
                    return Err(ProtocolError::Version { theirs: u32::try_from(head.b).unwrap_or(u32::MAX) });
                }
                let length = usize::try_from(head.c).map_err(|_| malformed)?;
                let (address, copy_at) = body.split_at_checked(length).ok_or(malformed)?;
                let address = text(head, address, TEXT_BYTES_MAX)?;
                Ok(Self::Welcome {
                    bytes_max: head.a,
                    address,
                    copy_at: text(head, copy_at, TEXT_BYTES_MAX)?,
                })
            }
            OPENED => {
                head.only(true, true, false, false)?;
                Ok(Self::Opened { bytes_max: head.a, committed: head.b })
            }
            DONE => head.only(false, false, false, false).map(|()| Self::Done),
            REFUSED => {
                head.only(false, false, false, true)?;
                text(head, body, REFUSAL_BYTES_MAX).map(Self::Refused)
            }
            DELTA_FAILED => {
                head.only(true, false, false, true)?;
                Ok(Self::DeltaFailed { number: head.a, text: text(head, body, REFUSAL_BYTES_MAX)? })
            }
            COMMITTED => {
                head.only(true, true, false, false)?;
                let level = u8::try_from(head.b).map_err(|_| malformed)?;
                Ok(Self::Committed { level, image_bytes: head.a })
            }
            STATE => {
                head.only(true, true, true, false)?;
                let image_bytes = u64::try_from(head.c).map_err(|_| malformed)?;
                Ok(Self::State { committed: head.a, copied: head.b, image_bytes })
            }
            ENTRIES => {
                head.only(false, false, false, true)?;
                items(head, body, ENTRY_BYTES, entry).map(Self::Entries)
            }
            AGES => {
                head.only(false, false, false, true)?;
                items(head, body, AGE_BYTES, age).map(Self::Ages)
            }
            LIST_END => head.only(true, false, false, false).map(|()| Self::ListEnd { entries: head.a }),
            BLOCK => {
                head.only(true, false, false, true)?;
                if head.body_bytes == 0 {
                    return Err(malformed);
                }
                Ok(Self::Block(Block { address: head.a, bytes: head.body_bytes }))
            }
            LEASE => {
                head.only(true, false, false, true)?;
                Ok(Self::Lease { bytes: head.a, lease: text(head, body, TEXT_BYTES_MAX)? })
            }
            CENSUS_END => {
                head.only(true, true, false, false)?;
                Ok(Self::CensusEnd { bytes_max: head.a, used: head.b })
            }
            kind => Err(ProtocolError::Kind(kind)),
        }
    }
}
