//! Bytes into headers.

use super::{
    AddressType, Atomic, AtomicOp, Attributes, Body, Completion, Config, Header, Hint, Io, Memory, MemoryOp,
    Message, Status,
};
use crate::error::{DecodeError, Malformed};
use crate::kind::FOUR_DW;
use crate::{Bdf, ByteEnables, Kind, MessageRouting, Tag, TransactionId};

/// What the front of some bytes says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodedHeader {
    /// The header.
    pub header: Header,
    /// TD: a digest follows the payload.
    pub has_digest: bool,
}

/// DW 0, taken apart.
struct First {
    kind: Kind,
    is_4dw: bool,
    tag_high: u16,
    address_type: AddressType,
    has_hint: bool,
    /// As the field says: 0 to 1023.
    length: u16,
}

impl First {
    /// Where zero means 1024.
    fn length_dw(&self) -> u16 {
        if self.length == 0 { 1024 } else { self.length }
    }

    /// For kinds without addresses, hints and address types are reserved.
    fn check_no_address(&self) -> Result<(), Malformed> {
        if self.has_hint {
            return Err(Malformed::ReservedBits { byte: 1 });
        }
        if self.address_type != AddressType::Untranslated {
            return Err(Malformed::ReservedBits { byte: 2 });
        }
        Ok(())
    }

    fn check_no_length(&self) -> Result<(), Malformed> {
        if self.length != 0 { Err(Malformed::ReservedBits { byte: 3 }) } else { Ok(()) }
    }
}

fn be16(bytes: &[u8; 16], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

impl Header {
    /// Reads the header at the front of `bytes`; what follows it is not looked at.
    pub fn decode(bytes: &[u8]) -> Result<DecodedHeader, DecodeError> {
        let Some(byte_0) = bytes.first() else { return Err(DecodeError::Truncated { need: 12, have: 0 }) };
        let Some((kind, _)) = Kind::from_byte(*byte_0) else {
            return Err(Malformed::UnknownType { byte: *byte_0 }.into());
        };
        let is_4dw = byte_0 & FOUR_DW != 0;
        let need = if is_4dw { 16 } else { 12 };
        if bytes.len() < need {
            return Err(DecodeError::Truncated { need, have: bytes.len() });
        }
        let mut raw = [0; 16];
        match bytes.first_chunk::<16>() {
            Some(bytes) if is_4dw => raw = *bytes,
            _ => raw[..12].copy_from_slice(&bytes[..12]),
        }

        let first = First {
            kind,
            is_4dw,
            tag_high: u16::from(raw[1] & 0x80) << 2 | u16::from(raw[1] & 0x08) << 5,
            address_type: match raw[2] >> 2 & 0b11 {
                0 => AddressType::Untranslated,
                1 => AddressType::TranslationRequest,
                2 => AddressType::Translated,
                _ => return Err(Malformed::ReservedAddressType.into()),
            },
            has_hint: raw[1] & 0x01 != 0,
            length: u16::from_be_bytes([raw[2] & 0b11, raw[3]]),
        };
        let header = Header {
            traffic_class: raw[1] >> 4 & 0b111,
            attributes: Attributes {
                relaxed_ordering: raw[2] & 0x20 != 0,
                no_snoop: raw[2] & 0x10 != 0,
                id_ordering: raw[1] & 0x04 != 0,
                lightweight_notification: raw[1] & 0x02 != 0,
            },
            is_poisoned: raw[2] & 0x40 != 0,
            body: body(&first, &raw)?,
        };
        // A memory request was checked where it was read: most of what could be wrong with it cannot be wrong there.
        if !matches!(header.body, Body::Memory(_)) {
            header.check()?;
        }
        Ok(DecodedHeader { header, has_digest: raw[2] & 0x80 != 0 })
    }
}

#[inline]
fn body(first: &First, raw: &[u8; 16]) -> Result<Body, Malformed> {
    Ok(match first.kind {
        Kind::MemoryRead => Body::Memory(memory(MemoryOp::Read, first, raw)?),
        Kind::MemoryReadLocked => Body::Memory(memory(MemoryOp::ReadLocked, first, raw)?),
        Kind::MemoryWrite => Body::Memory(memory(MemoryOp::Write, first, raw)?),
        Kind::DeferrableWrite => Body::Memory(memory(MemoryOp::DeferrableWrite, first, raw)?),
        Kind::FetchAdd => Body::Atomic(atomic(AtomicOp::FetchAdd, first, raw)?),
        Kind::Swap => Body::Atomic(atomic(AtomicOp::Swap, first, raw)?),
        Kind::CompareAndSwap => Body::Atomic(atomic(AtomicOp::CompareAndSwap, first, raw)?),
        Kind::IoRead => Body::Io(io(false, first, raw)?),
        Kind::IoWrite => Body::Io(io(true, first, raw)?),
        Kind::ConfigRead0 => Body::Config(config(false, false, first, raw)?),
        Kind::ConfigWrite0 => Body::Config(config(true, false, first, raw)?),
        Kind::ConfigRead1 => Body::Config(config(false, true, first, raw)?),
        Kind::ConfigWrite1 => Body::Config(config(true, true, first, raw)?),
        Kind::Completion => Body::Completion(completion(false, false, first, raw)?),
        Kind::CompletionData => Body::Completion(completion(true, false, first, raw)?),
        Kind::CompletionLocked => Body::Completion(completion(false, true, first, raw)?),
        Kind::CompletionDataLocked => Body::Completion(completion(true, true, first, raw)?),
        Kind::Message(routing) => {
            first.check_no_length()?;
            Body::Message(message(routing, 0, first, raw)?)
        }
        Kind::MessageData(routing) => Body::Message(message(routing, first.length_dw(), first, raw)?),
    })
}

/// The requester and its tag, of DW 1.
fn request_id(first: &First, raw: &[u8; 16]) -> TransactionId {
    TransactionId::new(Bdf(be16(raw, 4)), Tag::truncated(first.tag_high | u16::from(raw[6])))
}

/// The address and the processing hint in its lower bits.
fn address(first: &First, raw: &[u8; 16]) -> Result<(u64, u8), Malformed> {
    let (address, last) = if first.is_4dw {
        let [.., a, b, c, d, e, f, g, h] = *raw;
        (u64::from_be_bytes([a, b, c, d, e, f, g, h]), 15)
    } else {
        (u64::from(u32::from_be_bytes([raw[8], raw[9], raw[10], raw[11]])), 11)
    };
    let processing = address as u8 & 0b11;
    if processing != 0 && !first.has_hint {
        return Err(Malformed::ReservedBits { byte: last });
    }
    let address = address & !0b11;
    if first.is_4dw && address <= u64::from(u32::MAX) {
        return Err(Malformed::LowAddressIn4Dw { address });
    }
    Ok((address, processing))
}

/// Always in the place of its call: its result is most of the header, and would be moved there byte by byte.
#[inline(always)]
fn memory(op: MemoryOp, first: &First, raw: &[u8; 16]) -> Result<Memory, Malformed> {
    let length_dw = first.length_dw();
    let (address, processing) = address(first, raw)?;
    let mut id = request_id(first, raw);
    let mut enables = ByteEnables::from_byte(raw[7]);
    let mut hint = None;
    if first.has_hint && op == MemoryOp::Write {
        // The steering tag lies where the tag would; a posted write needs none.
        if first.tag_high != 0 {
            return Err(Malformed::ReservedBits { byte: 1 });
        }
        id.tag = Tag::truncated(0);
        hint = Some(Hint { processing, steering: raw[6] });
    } else if first.has_hint {
        enables = ByteEnables::all(length_dw);
        hint = Some(Hint { processing, steering: raw[7] });
    }
    let memory = Memory { op, id, address, length_dw, enables, address_type: first.address_type, hint };
    memory.check()?;
    Ok(memory)
}

fn atomic(op: AtomicOp, first: &First, raw: &[u8; 16]) -> Result<Atomic, Malformed> {
    let (address, processing) = address(first, raw)?;
    if raw[7] != 0 && !first.has_hint {
        return Err(Malformed::ReservedBits { byte: 7 });
    }
    let operands = if op == AtomicOp::CompareAndSwap { 2 } else { 1 };
    let operand_bytes = match first.length {
        length @ (1 | 2 | 4 | 8) if length % operands == 0 => (length / operands * 4) as u8,
        length_dw => return Err(Malformed::OperandLength { mnemonic: first.kind.mnemonic(), length_dw }),
    };
    let hint = first.has_hint.then_some(Hint { processing, steering: raw[7] });
    let id = request_id(first, raw);
    Ok(Atomic { op, id, address, operand_bytes, address_type: first.address_type, hint })
}

/// What I/O and configuration requests have in common: one DW, first enables only. Gives those.
fn one_dw(first: &First, raw: &[u8; 16]) -> Result<u8, Malformed> {
    first.check_no_address()?;
    if first.length != 1 {
        return Err(Malformed::NotOneDw(first.length_dw()));
    }
    let enables = ByteEnables::from_byte(raw[7]);
    if enables.last != 0 {
        return Err(Malformed::LastEnableOfOneDw { last: enables.last });
    }
    Ok(enables.first)
}

fn io(is_write: bool, first: &First, raw: &[u8; 16]) -> Result<Io, Malformed> {
    let first_enable = one_dw(first, raw)?;
    let (address, _) = address(first, raw)?;
    Ok(Io { is_write, id: request_id(first, raw), address: address as u32, first_enable })
}

fn config(is_write: bool, is_type_1: bool, first: &First, raw: &[u8; 16]) -> Result<Config, Malformed> {
    let first_enable = one_dw(first, raw)?;
    if raw[10] & 0xf0 != 0 {
        return Err(Malformed::ReservedBits { byte: 10 });
    }
    if raw[11] & 0b11 != 0 {
        return Err(Malformed::ReservedBits { byte: 11 });
    }
    let (id, target, register) = (request_id(first, raw), Bdf(be16(raw, 8)), be16(raw, 10));
    Ok(Config { is_write, is_type_1, id, target, register, first_enable })
}

fn completion(
    has_data: bool,
    is_locked: bool,
    first: &First,
    raw: &[u8; 16],
) -> Result<Completion, Malformed> {
    first.check_no_address()?;
    let length_dw = if has_data {
        first.length_dw()
    } else {
        first.check_no_length()?;
        0
    };
    if raw[11] & 0x80 != 0 {
        return Err(Malformed::ReservedBits { byte: 11 });
    }
    let status = raw[6] >> 5;
    let byte_count = be16(raw, 6) & 0xfff;
    Ok(Completion {
        is_locked,
        completer: Bdf(be16(raw, 4)),
        id: TransactionId::new(Bdf(be16(raw, 8)), Tag::truncated(first.tag_high | u16::from(raw[10]))),
        status: Status::from_bits(status).ok_or(Malformed::ReservedStatus(status))?,
        byte_count_modified: raw[6] & 0x10 != 0,
        byte_count: if byte_count == 0 { 4096 } else { byte_count },
        lower_address: raw[11],
        length_dw,
    })
}

fn message(
    routing: MessageRouting,
    length_dw: u16,
    first: &First,
    raw: &[u8; 16],
) -> Result<Message, Malformed> {
    first.check_no_address()?;
    let [.., a, b, c, d, e, f, g, h] = *raw;
    let fields = [a, b, c, d, e, f, g, h];
    Ok(Message { routing, id: request_id(first, raw), code: raw[7], fields, length_dw })
}
