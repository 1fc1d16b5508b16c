//! Headers: what a packet says about itself, without its payload.
//!
//! ```text
//! byte  0          1                  2                     3
//!     | fmt type | T9 TC T8 IDO LN TH | TD EP RO NS AT len98 | len70     |  DW 0, all kinds
//!     | requester                     | tag | last BE, first BE          |  DW 1, requests
//!     | address[63:32], absent below 4 GiB                               |  DW 2, by address
//!     | address[31:2]                                        | PH        |  DW 2 or 3
//!     | target                        | 0 ext. register | register | 00  |  DW 2, configuration
//!     | completer                     | status BCM byte count            |  DW 1, completions
//!     | requester                     | tag | 0 lower address            |  DW 2, completions
//!     | requester                     | tag | code                       |  DW 1, messages
//!     | eight bytes, by routing and code                                 |  DW 2 and 3, messages
//! ```
//!
//! Whether a header has 3 or 4 DW is derived from the address, never stored. TD is not stored either: it says whether
//! the packet around the header has a digest.

mod check;
mod decode;
mod encode;
mod make;
#[cfg(test)]
mod tests;

pub use decode::DecodedHeader;

use crate::{Bdf, ByteEnables, Class, Kind, MessageRouting, Span, Tag, TransactionId};

/// The header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// 0 to 7.
    pub traffic_class: u8,
    /// How it may be ordered and cached.
    pub attributes: Attributes,
    /// The payload is known to be bad (EP).
    pub is_poisoned: bool,
    /// What it is.
    pub body: Body,
}

/// Hints about order and caches that every hop passes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// RO: it may pass posted packets.
    pub relaxed_ordering: bool,
    /// NS: caches need not be asked.
    pub no_snoop: bool,
    /// IDO: it may pass posted packets of other requesters.
    pub id_ordering: bool,
    /// LN: the requester wants to hear of changes to the line. Given up by later versions of the specification.
    pub lightweight_notification: bool,
}

/// Whether an address was translated by an address translation service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressType {
    /// As a driver gave it.
    #[default]
    Untranslated,
    /// A question for the translation.
    TranslationRequest,
    /// The translation's answer.
    Translated,
}

/// A processing hint (TH): which cache the data is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hint {
    /// PH, two bits.
    pub processing: u8,
    /// The lower eight bits of the steering tag; the others travel in a prefix.
    pub steering: u8,
}

/// What a packet is, with what only its kind has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// MRd, MRdLk, MWr, DMWr.
    Memory(Memory),
    /// IORd, IOWr.
    Io(Io),
    /// CfgRd0, CfgWr0, CfgRd1, CfgWr1.
    Config(Config),
    /// FetchAdd, Swap, CAS.
    Atomic(Atomic),
    /// Cpl, CplD, CplLk, CplDLk.
    Completion(Completion),
    /// Msg, MsgD.
    Message(Message),
}

/// What a memory request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryOp {
    /// MRd.
    Read,
    /// MRdLk.
    ReadLocked,
    /// MWr.
    Write,
    /// DMWr.
    DeferrableWrite,
}

/// A memory request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// What it does.
    pub op: MemoryOp,
    /// The requester. A posted write's tag means nothing, but is kept.
    pub id: TransactionId,
    /// A multiple of 4.
    pub address: u64,
    /// In `1..=1024`.
    pub length_dw: u16,
    /// Which bytes of the outer DWs.
    pub enables: ByteEnables,
    /// Whether the address was translated.
    pub address_type: AddressType,
    /// With a hint, a write has tag 0 and the others mean all bytes: the steering tag takes that place in the header.
    pub hint: Option<Hint>,
}

impl Memory {
    /// The bytes it means.
    pub const fn span(&self) -> Span {
        Span { address: self.address, length_dw: self.length_dw, enables: self.enables }
    }
}

/// An I/O request: one DW.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Io {
    /// IOWr or IORd.
    pub is_write: bool,
    /// The requester and its tag.
    pub id: TransactionId,
    /// A multiple of 4.
    pub address: u32,
    /// Which bytes.
    pub first_enable: u8,
}

/// A configuration request: one DW.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// CfgWr or CfgRd.
    pub is_write: bool,
    /// Type 1: still on its way through bridges. Type 0: for the device on this link.
    pub is_type_1: bool,
    /// The requester and its tag.
    pub id: TransactionId,
    /// The function that has the registers.
    pub target: Bdf,
    /// Byte offset of the register: a multiple of 4 below 4096.
    pub register: u16,
    /// Which bytes.
    pub first_enable: u8,
}

/// What an atomic operation does to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Adds one operand.
    FetchAdd,
    /// Puts one operand in place.
    Swap,
    /// Puts the second operand in place if the first one is there.
    CompareAndSwap,
}

/// An atomic operation; its payload is one operand, or two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atomic {
    /// What it does.
    pub op: AtomicOp,
    /// The requester and its tag.
    pub id: TransactionId,
    /// A multiple of the operand's size.
    pub address: u64,
    /// Operands are 4 or 8 bytes, those of a compare-and-swap also 16.
    pub operand_bytes: u8,
    /// Whether the address was translated.
    pub address_type: AddressType,
    /// Which cache.
    pub hint: Option<Hint>,
}

impl Atomic {
    /// How many DW of operands it brings.
    #[inline]
    pub const fn length_dw(&self) -> u16 {
        let operands = if matches!(self.op, AtomicOp::CompareAndSwap) { 2 } else { 1 };
        self.operand_bytes as u16 / 4 * operands
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// SC.
    Success = 0,
    /// UR: no function is there, or it does not support the request.
    UnsupportedRequest = 1,
    /// RRS (CRS of old): ask again later.
    RetryRequest = 2,
    /// CA: the completer gave up.
    CompleterAbort = 4,
}

impl Status {
    /// Of its three bits.
    pub const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            0 => Self::Success,
            1 => Self::UnsupportedRequest,
            2 => Self::RetryRequest,
            4 => Self::CompleterAbort,
            _ => return None,
        })
    }
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// To a locked read.
    pub is_locked: bool,
    /// The function that answers.
    pub completer: Bdf,
    /// The request that it answers.
    pub id: TransactionId,
    /// How it ended.
    pub status: Status,
    /// BCM: a PCI-X completer counted this packet's bytes only.
    pub byte_count_modified: bool,
    /// In `1..=4096`: the bytes still owed, this packet's included. 4 where there is no data.
    pub byte_count: u16,
    /// The lower seven bits of the address of the first byte in this packet.
    pub lower_address: u8,
    /// DWs of data in this packet; 0 for a completion without data.
    pub length_dw: u16,
}

impl Completion {
    /// How many of its payload's bytes were asked for, and where in the payload they begin.
    pub const fn data(&self) -> (usize, usize) {
        let skipped = self.lower_address as usize & 3;
        let room = (self.length_dw as usize * 4).saturating_sub(skipped);
        let owed = self.byte_count as usize;
        (skipped, if owed < room { owed } else { room })
    }

    /// Whether nothing follows it.
    pub const fn is_last(&self) -> bool {
        !matches!(self.status, Status::Success)
            || self.length_dw == 0
            || self.data().1 == self.byte_count as usize
    }
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// How it finds its way.
    pub routing: MessageRouting,
    /// The sender.
    pub id: TransactionId,
    /// What it says: see [`crate::code`].
    pub code: u8,
    /// Bytes 8 to 15.
    pub fields: [u8; 8],
    /// DWs of data; 0 for a message without.
    pub length_dw: u16,
}

/// Where a packet wants to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// To the function that decodes this memory address.
    Memory(u64),
    /// To the function that decodes this I/O address.
    Io(u32),
    /// To this function.
    Id(Bdf),
    /// Where the message's routing says; never by address or ID.
    Implicit(MessageRouting),
}

impl Header {
    /// A header with no traffic class, no attributes, no poison.
    pub const fn new(body: Body) -> Self {
        let attributes = Attributes {
            relaxed_ordering: false,
            no_snoop: false,
            id_ordering: false,
            lightweight_notification: false,
        };
        Self { traffic_class: 0, attributes, is_poisoned: false, body }
    }

    /// What it is.
    #[inline]
    pub const fn kind(&self) -> Kind {
        match &self.body {
            Body::Memory(it) => match it.op {
                MemoryOp::Read => Kind::MemoryRead,
                MemoryOp::ReadLocked => Kind::MemoryReadLocked,
                MemoryOp::Write => Kind::MemoryWrite,
                MemoryOp::DeferrableWrite => Kind::DeferrableWrite,
            },
            Body::Io(it) if it.is_write => Kind::IoWrite,
            Body::Io(_) => Kind::IoRead,
            Body::Config(it) => match (it.is_write, it.is_type_1) {
                (false, false) => Kind::ConfigRead0,
                (true, false) => Kind::ConfigWrite0,
                (false, true) => Kind::ConfigRead1,
                (true, true) => Kind::ConfigWrite1,
            },
            Body::Atomic(it) => match it.op {
                AtomicOp::FetchAdd => Kind::FetchAdd,
                AtomicOp::Swap => Kind::Swap,
                AtomicOp::CompareAndSwap => Kind::CompareAndSwap,
            },
            Body::Completion(it) => match (it.length_dw > 0, it.is_locked) {
                (false, false) => Kind::Completion,
                (true, false) => Kind::CompletionData,
                (false, true) => Kind::CompletionLocked,
                (true, true) => Kind::CompletionDataLocked,
            },
            Body::Message(it) if it.length_dw > 0 => Kind::MessageData(it.routing),
            Body::Message(it) => Kind::Message(it.routing),
        }
    }

    /// Which flow it belongs to.
    #[inline]
    pub const fn class(&self) -> Class {
        match &self.body {
            Body::Memory(Memory { op: MemoryOp::Write, .. }) | Body::Message(_) => Class::Posted,
            Body::Completion(_) => Class::Completion,
            _ => Class::NonPosted,
        }
    }

    /// Where it wants to go.
    #[inline]
    pub const fn routing(&self) -> Routing {
        match &self.body {
            Body::Memory(it) => Routing::Memory(it.address),
            Body::Atomic(it) => Routing::Memory(it.address),
            Body::Io(it) => Routing::Io(it.address),
            Body::Config(it) => Routing::Id(it.target),
            Body::Completion(it) => Routing::Id(it.id.requester),
            Body::Message(it) => match it.routing {
                MessageRouting::Address => Routing::Memory(u64::from_be_bytes(it.fields) & !3),
                MessageRouting::Id => Routing::Id(Bdf((it.fields[0] as u16) << 8 | it.fields[1] as u16)),
                other => Routing::Implicit(other),
            },
        }
    }

    /// The transaction it opens or answers, or its sender.
    #[inline]
    pub const fn id(&self) -> TransactionId {
        match &self.body {
            Body::Memory(it) => it.id,
            Body::Io(it) => it.id,
            Body::Config(it) => it.id,
            Body::Atomic(it) => it.id,
            Body::Completion(it) => it.id,
            Body::Message(it) => it.id,
        }
    }

    /// Puts another transaction in the place of [`Header::id`], as a proxy does that translates requesters.
    #[inline]
    pub const fn set_id(&mut self, id: TransactionId) {
        match &mut self.body {
            Body::Memory(it) => it.id = id,
            Body::Io(it) => it.id = id,
            Body::Config(it) => it.id = id,
            Body::Atomic(it) => it.id = id,
            Body::Completion(it) => it.id = id,
            Body::Message(it) => it.id = id,
        }
    }

    /// The value of the length field: DWs of payload, or DWs a read asks for.
    #[inline]
    pub const fn length_dw(&self) -> u16 {
        match &self.body {
            Body::Memory(it) => it.length_dw,
            Body::Io(_) | Body::Config(_) => 1,
            Body::Atomic(it) => it.length_dw(),
            Body::Completion(it) => it.length_dw,
            Body::Message(it) => it.length_dw,
        }
    }

    /// How many bytes of payload follow it.
    #[inline]
    pub const fn payload_bytes(&self) -> usize {
        // By its body and not by its kind: this is asked several times for each packet.
        let has_data = match &self.body {
            Body::Memory(it) => matches!(it.op, MemoryOp::Write | MemoryOp::DeferrableWrite),
            Body::Io(it) => it.is_write,
            Body::Config(it) => it.is_write,
            Body::Atomic(_) | Body::Completion(_) | Body::Message(_) => true,
        };
        if has_data { self.length_dw() as usize * 4 } else { 0 }
    }

    /// Its own length: 12 or 16.
    #[inline]
    pub const fn header_bytes(&self) -> usize {
        let is_4dw = match &self.body {
            Body::Memory(it) => it.address > u32::MAX as u64,
            Body::Atomic(it) => it.address > u32::MAX as u64,
            Body::Message(_) => true,
            Body::Io(_) | Body::Config(_) | Body::Completion(_) => false,
        };
        if is_4dw { 16 } else { 12 }
    }

    /// With these attributes.
    pub const fn with_attributes(mut self, attributes: Attributes) -> Self {
        self.attributes = attributes;
        self
    }

    /// The tag of the transaction.
    #[inline]
    pub const fn tag(&self) -> Tag {
        self.id().tag
    }
}
