//! PCI Express transaction layer packets: bytes in, typed values out, and back.
//!
//! ```text
//!   prefixes (4 B each) │ header (3 or 4 DW) │ payload (0 to 4096 B) │ digest (4 B, the ECRC)
//!   └── Prefixes ──────┘ └── Header ───────┘ └── borrowed ─────────┘ └── Option<u32> ──────┘
//! ```
//!
//! Layouts follow the PCI Express Base Specification, chapter 2, without flit mode. Everything here is a pure function
//! of its arguments: no socket, no clock, no allocation. Decoding borrows from the input; encoding writes into a
//! buffer of the caller.
//!
//! The codec is strict where the specification lets receivers look away: reserved bits must be zero, and a 64-bit
//! header below 4 GiB is refused. So no two encodings mean the same packet, and whatever was decoded encodes to the
//! bytes it came from. Each rule that can be broken has an error of its own ([`Malformed`]).

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![forbid(unsafe_code)]

mod ecrc;
mod enables;
mod error;
mod header;
mod id;
mod kind;
mod message;
mod packet;
mod prefix;
mod split;

pub use ecrc::{ecrc, ecrc_of_parts};
pub use enables::{ByteEnables, Span};
pub use error::{DecodeError, EncodeError, Malformed};
pub use header::{
    AddressType, Atomic, AtomicOp, Attributes, Body, Completion, Config, DecodedHeader, Header, Hint, Io,
    Memory, MemoryOp, Message, Routing, Status,
};
pub use id::{Bdf, Tag, TagSpace, TransactionId};
pub use kind::{Class, Kind};
pub use message::{MessageRouting, code};
pub use packet::{HEADER_BYTES_MAX, PAYLOAD_BYTES_MAX, TLP_BYTES_MAX, Tlp};
pub use prefix::{PREFIX_BYTES_MAX, PrefixKind, Prefixes};
pub use split::{
    CompletionPiece, CompletionPieces, MAX_PAYLOAD_BYTES_RESET, MAX_READ_BYTES_RESET, PAGE_BYTES, Pieces,
    ReadCompletionBoundary, SizeLimit, SizeLimitError, split_completion, split_request,
};
