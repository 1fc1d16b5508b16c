//! The common headers, made in one line.

use super::{
    AddressType, Atomic, AtomicOp, Body, Completion, Config, Header, Io, Memory, MemoryOp, Message, Status,
};
use crate::{Bdf, CompletionPiece, Kind, MessageRouting, Span, TransactionId};

impl Header {
    /// MRd of a span.
    pub const fn memory_read(id: TransactionId, span: Span) -> Self {
        Self::memory(MemoryOp::Read, id, span)
    }

    /// MWr of a span; the payload is whole DWs, those left out by the enables included.
    pub const fn memory_write(requester: Bdf, span: Span) -> Self {
        Self::memory(MemoryOp::Write, TransactionId::new(requester, crate::Tag::truncated(0)), span)
    }

    /// Any memory request.
    pub const fn memory(op: MemoryOp, id: TransactionId, span: Span) -> Self {
        Self::new(Body::Memory(Memory {
            op,
            id,
            address: span.address,
            length_dw: span.length_dw,
            enables: span.enables,
            address_type: AddressType::Untranslated,
            hint: None,
        }))
    }

    /// IORd or IOWr.
    pub const fn io(is_write: bool, id: TransactionId, address: u32, first_enable: u8) -> Self {
        Self::new(Body::Io(Io { is_write, id, address, first_enable }))
    }

    /// CfgRd0 or CfgRd1.
    pub const fn config_read(id: TransactionId, is_type_1: bool, target: Bdf, register: u16) -> Self {
        Self::new(Body::Config(Config {
            is_write: false,
            is_type_1,
            id,
            target,
            register,
            first_enable: 0xf,
        }))
    }

    /// CfgWr0 or CfgWr1.
    pub const fn config_write(
        id: TransactionId,
        is_type_1: bool,
        target: Bdf,
        register: u16,
        first_enable: u8,
    ) -> Self {
        Self::new(Body::Config(Config { is_write: true, is_type_1, id, target, register, first_enable }))
    }

    /// FetchAdd, Swap or CAS.
    pub const fn atomic(op: AtomicOp, id: TransactionId, address: u64, operand_bytes: u8) -> Self {
        let address_type = AddressType::Untranslated;
        Self::new(Body::Atomic(Atomic { op, id, address, operand_bytes, address_type, hint: None }))
    }

    /// Msg with nothing in bytes 8 to 15.
    pub const fn message(requester: Bdf, routing: MessageRouting, code: u8) -> Self {
        let id = TransactionId::new(requester, crate::Tag::truncated(0));
        Self::new(Body::Message(Message { routing, id, code, fields: [0; 8], length_dw: 0 }))
    }

    /// The completion that ends `self`, without data: of a write, or of anything that failed.
    pub const fn completion(&self, completer: Bdf, status: Status) -> Self {
        self.answer(completer, status, 4, 0, 0)
    }

    /// CplD with one piece of what `self` asked for, as [`crate::split_completion`] cut it.
    pub const fn completion_data(&self, completer: Bdf, piece: &CompletionPiece) -> Self {
        self.answer(completer, Status::Success, piece.byte_count, piece.lower_address, piece.length_dw)
    }

    const fn answer(
        &self,
        completer: Bdf,
        status: Status,
        byte_count: u16,
        lower_address: u8,
        length_dw: u16,
    ) -> Self {
        let is_locked = matches!(self.kind(), Kind::MemoryReadLocked);
        let body = Body::Completion(Completion {
            is_locked,
            completer,
            id: self.id(),
            status,
            byte_count_modified: false,
            byte_count,
            lower_address,
            length_dw,
        });
        // A completion has its request's traffic class and attributes.
        Self { traffic_class: self.traffic_class, attributes: self.attributes, is_poisoned: false, body }
    }
}
