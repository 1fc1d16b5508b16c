//! The rules that every header keeps, decoded or built.

use super::{
    Atomic, AtomicOp, Attributes, Body, Completion, Config, Header, Hint, Io, Memory, MemoryOp, Status,
};
use crate::error::Malformed;
use crate::{ByteEnables, split::PAGE_BYTES};

impl Header {
    /// Whether the header can stand for itself. Decoding checks it, and so does encoding.
    #[inline]
    pub fn check(&self) -> Result<(), Malformed> {
        if self.traffic_class > 7 {
            return Err(Malformed::TrafficClass(self.traffic_class));
        }
        match &self.body {
            Body::Memory(it) => it.check(),
            Body::Io(it) => self.check_plain().and(it.check()),
            Body::Config(it) => self.check_plain().and(it.check()),
            Body::Atomic(it) => it.check(),
            Body::Completion(it) => it.check(),
            Body::Message(it) => check_length(it.length_dw, 0),
        }
    }

    fn check_plain(&self) -> Result<(), Malformed> {
        if self.traffic_class != 0 || self.attributes != Attributes::default() {
            return Err(Malformed::PlainOnly);
        }
        Ok(())
    }
}

fn check_length(length_dw: u16, least: u16) -> Result<(), Malformed> {
    if length_dw < least || length_dw > 1024 { Err(Malformed::Length(length_dw)) } else { Ok(()) }
}

fn check_address(address: u64) -> Result<(), Malformed> {
    if address & 3 != 0 { Err(Malformed::UnalignedAddress { address }) } else { Ok(()) }
}

fn check_hint(hint: Option<Hint>) -> Result<(), Malformed> {
    match hint {
        Some(Hint { processing, .. }) if processing > 3 => Err(Malformed::ProcessingHint(processing)),
        _ => Ok(()),
    }
}

fn check_enable(first: u8) -> Result<(), Malformed> {
    if first > 0xf { Err(Malformed::ReservedBits { byte: 7 }) } else { Ok(()) }
}

impl Memory {
    #[inline]
    pub(super) fn check(&self) -> Result<(), Malformed> {
        let (address, length_dw) = (self.address, self.length_dw);
        check_address(address)?;
        check_length(length_dw, 1)?;
        if address % PAGE_BYTES + u64::from(length_dw) * 4 > PAGE_BYTES {
            return Err(Malformed::CrossesPage { address, length_dw });
        }
        check_hint(self.hint)?;
        check_enable(self.enables.first | self.enables.last)?;
        self.enables.check(address, length_dw)?;
        match (self.hint, self.op) {
            (Some(_), MemoryOp::Write) if self.id.tag.value() != 0 => Err(Malformed::TagWithHint),
            (Some(_), MemoryOp::Write) | (None, _) => Ok(()),
            (Some(_), _) if self.enables != ByteEnables::all(length_dw) => Err(Malformed::EnablesWithHint),
            (Some(_), _) => Ok(()),
        }
    }
}

impl Io {
    fn check(&self) -> Result<(), Malformed> {
        check_address(u64::from(self.address))?;
        check_enable(self.first_enable)
    }
}

impl Config {
    fn check(&self) -> Result<(), Malformed> {
        if self.register & 3 != 0 || self.register > 0xffc {
            return Err(Malformed::Register(self.register));
        }
        check_enable(self.first_enable)
    }
}

impl Atomic {
    fn check(&self) -> Result<(), Malformed> {
        let (address, operand_bytes) = (self.address, self.operand_bytes);
        let is_known = match self.op {
            AtomicOp::FetchAdd | AtomicOp::Swap => matches!(operand_bytes, 4 | 8),
            AtomicOp::CompareAndSwap => matches!(operand_bytes, 4 | 8 | 16),
        };
        if !is_known {
            let mnemonic = Header::new(Body::Atomic(*self)).kind().mnemonic();
            return Err(Malformed::OperandLength { mnemonic, length_dw: self.length_dw() });
        }
        check_address(address)?;
        if address % u64::from(operand_bytes) != 0 {
            return Err(Malformed::UnalignedOperand { address, operand_bytes });
        }
        check_hint(self.hint)
    }
}

impl Completion {
    fn check(&self) -> Result<(), Malformed> {
        if !(1..=4096).contains(&self.byte_count) {
            return Err(Malformed::ByteCount(self.byte_count));
        }
        if self.lower_address > 0x7f {
            return Err(Malformed::LowerAddress(self.lower_address));
        }
        check_length(self.length_dw, 0)?;
        if self.length_dw == 0 {
            return Ok(());
        }
        if self.status != Status::Success {
            return Err(Malformed::DataWithoutSuccess { status: self.status as u8 });
        }
        let owed_dw = (u16::from(self.lower_address & 3) + self.byte_count).div_ceil(4);
        if self.length_dw > owed_dw {
            let (length_dw, byte_count) = (self.length_dw, self.byte_count);
            return Err(Malformed::MoreDataThanCount { length_dw, byte_count });
        }
        Ok(())
    }
}
