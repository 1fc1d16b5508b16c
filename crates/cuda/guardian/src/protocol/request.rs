//! What a store says.

use super::{
    AGE_BYTES, BLOCK_BYTES, Head, ProtocolError, TEXT_BYTES_MAX, VERSION, age, block, items, put_age,
    put_block, text, u64_of,
};
use cuda_wire::ImageName;
use snapshot::{Block, BlockDigest, Digest, EventAge, Seal};
use std::fmt;
use zeroize::Zeroizing;

/// What an image is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Mode {
    /// A session writes its cuts. Only over the Unix socket.
    Write = 0,
    /// Reads beside the writer.
    Read = 1,
    /// Another guardian takes the image over: the writer before is shut out, then the image is read.
    Fetch = 2,
    /// Another guardian keeps a second copy here.
    Copy = 3,
    /// Brings blocks beside the connection that writes. Only over the Unix socket.
    Help = 4,
    /// A worker has an image brought here from another guardian, beside its writer there. Only over the Unix socket.
    Ahead = 5,
}

/// Opens an image.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Open {
    pub(crate) mode: Mode,
    pub(crate) name: ImageName,
    pub(crate) secret: Zeroizing<[u8; 32]>,
    pub(crate) incarnation: u64,
    /// A guardian that may have the image; empty: none.
    pub(crate) from: String,
    /// The lease that the image belongs to; empty: none.
    pub(crate) lease: String,
}

/// Without the secret.
impl fmt::Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Open")
            .field("mode", &self.mode)
            .field("incarnation", &self.incarnation)
            .field("from", &self.from)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

/// A request. A block's bytes are not part of it: they are the body of its frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Which guardian is this?
    Hello,
    Open(Box<Open>),
    Begin {
        base: u64,
        number: u64,
    },
    /// A block of the delta; the body has its bytes.
    Put(BlockDigest),
    Bury(Vec<u64>),
    Ages(Vec<EventAge>),
    Commit {
        number: u64,
        seal: Seal,
    },
    Abandon {
        number: u64,
    },
    State,
    List {
        number: u64,
    },
    Read {
        number: u64,
        blocks: Vec<Block>,
    },
    End,
    Leave,
    /// Writes the image to disk and lets go of its memory.
    Park,
    /// The lease has ended: all its images end. The first message of a connection.
    EndLease(String),
    /// Which leases have images here, and what memory they take? The first message of a connection.
    Census,
}

const HELLO: u8 = 1;
const OPEN: u8 = 2;
const BEGIN: u8 = 3;
const PUT: u8 = 4;
const BURY: u8 = 5;
const AGES: u8 = 6;
const COMMIT: u8 = 7;
const ABANDON: u8 = 8;
const STATE: u8 = 9;
const LIST: u8 = 10;
const READ: u8 = 11;
const END: u8 = 12;
const LEAVE: u8 = 13;
const PARK: u8 = 14;
const END_LEASE: u8 = 15;
const CENSUS: u8 = 16;

impl Request {
    /// The head and, for all but a block, the body. The body may hold a secret.
    pub(crate) fn encode(&self) -> (Head, Zeroizing<Vec<u8>>) {
        let mut body = Zeroizing::new(Vec::new());
        let mut head = Head::default();
        match self {
            Self::Hello => (head.kind, head.a) = (HELLO, VERSION.into()),
            Self::Open(open) => {
                (head.kind, head.a, head.b) = (OPEN, open.incarnation, open.mode as u64);
                // As long as it gets: a vector that grows leaves a copy of the secret behind.
                body.reserve_exact(48 + 2 + open.from.len() + open.lease.len());
                body.extend(open.name.bytes);
                body.extend(open.secret.iter());
                body.extend((open.from.len() as u16).to_le_bytes());
                body.extend(open.from.bytes().chain(open.lease.bytes()));
            }
            Self::Begin { base, number } => (head.kind, head.a, head.b) = (BEGIN, *base, *number),
            Self::Put(entry) => {
                (head.kind, head.a, head.c) = (PUT, entry.block.address, entry.digest.0);
                head.body_bytes = entry.block.bytes;
                return (head, body);
            }
            Self::Bury(dead) => {
                head.kind = BURY;
                body.extend(dead.iter().flat_map(|address| address.to_le_bytes()));
            }
            Self::Ages(ages) => {
                head.kind = AGES;
                ages.iter().for_each(|age| put_age(&mut body, age));
            }
            Self::Commit { number, seal } => {
                let (blocks, sum) = seal.to_parts();
                (head.kind, head.a, head.b, head.c) = (COMMIT, *number, blocks, sum);
            }
            Self::Abandon { number } => (head.kind, head.a) = (ABANDON, *number),
            Self::State => head.kind = STATE,
            Self::List { number } => (head.kind, head.a) = (LIST, *number),
            Self::Read { number, blocks } => {
                (head.kind, head.a) = (READ, *number);
                blocks.iter().for_each(|block| put_block(&mut body, *block));
            }
            Self::End => head.kind = END,
            Self::Leave => head.kind = LEAVE,
            Self::Park => head.kind = PARK,
            Self::EndLease(lease) => {
                head.kind = END_LEASE;
                body.extend(lease.bytes());
            }
            Self::Census => head.kind = CENSUS,
        }
        head.body_bytes = body.len() as u32;
        (head, body)
    }

    /// Whether the body of such a frame is a block's bytes.
    pub(crate) fn carries_block(kind: u8) -> bool {
        kind == PUT
    }

    /// Reads a request. `body` has as many bytes as the head says; for a block it is not looked at.
    pub(crate) fn decode(head: &Head, body: &[u8]) -> Result<Self, ProtocolError> {
        let malformed = ProtocolError::Malformed(head.kind);
        let (none, number) = ((false, false, false, false), (true, false, false, false));
        let only = |(a, b, c, body)| head.only(a, b, c, body);
        match head.kind {
            HELLO => {
                only(number)?;
                let theirs = u32::try_from(head.a).unwrap_or(u32::MAX);
                if theirs != VERSION {
                    return Err(ProtocolError::Version { theirs });
                }
                Ok(Self::Hello)
            }
            OPEN => only((true, true, false, true)).and_then(|()| open(head, body)),
            BEGIN => only((true, true, false, false)).map(|()| Self::Begin { base: head.a, number: head.b }),
            PUT => {
                only((true, false, true, true))?;
                let (address, bytes) = (head.a, head.body_bytes);
                if bytes == 0 || address.checked_add(u64::from(bytes) - 1).is_none() {
                    return Err(malformed);
                }
                Ok(Self::Put(BlockDigest { block: Block { address, bytes }, digest: Digest(head.c) }))
            }
            BURY => {
                only((false, false, false, true)).and_then(|()| items(head, body, 8, u64_of)).map(Self::Bury)
            }
            AGES => only((false, false, false, true))
                .and_then(|()| items(head, body, AGE_BYTES, age))
                .map(Self::Ages),
            COMMIT => {
                only((true, true, true, false))?;
                Ok(Self::Commit { number: head.a, seal: Seal::from_parts(head.b, head.c) })
            }
            ABANDON => only(number).map(|()| Self::Abandon { number: head.a }),
            STATE => only(none).map(|()| Self::State),
            LIST => only(number).map(|()| Self::List { number: head.a }),
            READ => {
                only((true, false, false, true))?;
                let blocks = items(head, body, BLOCK_BYTES, block)?;
                if blocks.len() > super::READS_MAX {
                    return Err(malformed);
                }
                Ok(Self::Read { number: head.a, blocks })
            }
            END => only(none).map(|()| Self::End),
            LEAVE => only(none).map(|()| Self::Leave),
            PARK => only(none).map(|()| Self::Park),
            END_LEASE => {
                only((false, false, false, true))?;
                text(head, body, TEXT_BYTES_MAX).map(Self::EndLease)
            }
            CENSUS => only(none).map(|()| Self::Census),
            kind => Err(ProtocolError::Kind(kind)),
        }
    }
}

fn open(head: &Head, body: &[u8]) -> Result<Request, ProtocolError> {
    let malformed = || ProtocolError::Malformed(head.kind);
    let mode = [Mode::Write, Mode::Read, Mode::Fetch, Mode::Copy, Mode::Help, Mode::Ahead];
    let mode = mode.into_iter().find(|mode| *mode as u64 == head.b).ok_or_else(malformed)?;
    let (name, rest) = body.split_first_chunk::<16>().ok_or_else(malformed)?;
    let (secret, rest) = rest.split_first_chunk::<32>().ok_or_else(malformed)?;
    let (from_bytes, rest) = rest.split_first_chunk::<2>().ok_or_else(malformed)?;
    let from_bytes = usize::from(u16::from_le_bytes(*from_bytes));
    let (from, lease) = rest.split_at_checked(from_bytes).ok_or_else(malformed)?;
    if head.a == 0 {
        return Err(malformed());
    }
    let mut opened = Box::new(Open {
        mode,
        name: ImageName { bytes: *name },
        secret: Zeroizing::new([0; 32]),
        incarnation: head.a,
        from: text(head, from, TEXT_BYTES_MAX)?,
        lease: text(head, lease, TEXT_BYTES_MAX)?,
    });
    // Into the box, so that no copy of the secret stays on the stack.
    opened.secret.copy_from_slice(secret);
    Ok(Request::Open(opened))
}
