//! Any packet that keeps the rules.

use proptest::prelude::*;
use tlp::{
    AddressType, Atomic, AtomicOp, Attributes, Bdf, Body, ByteEnables, Completion, Config, Header, Hint, Io,
    Memory, MemoryOp, Message, MessageRouting, Prefixes, Span, Status, Tag, Tlp, TransactionId,
};

/// A packet that owns its bytes, so that a strategy can make it.
#[derive(Clone, Debug)]
pub(crate) struct Owned {
    pub(crate) prefixes: Vec<u8>,
    pub(crate) header: Header,
    pub(crate) payload: Vec<u8>,
    pub(crate) has_digest: bool,
}

impl Owned {
    pub(crate) fn tlp(&self) -> Tlp<'_> {
        let prefixes = Prefixes::new(&self.prefixes).unwrap();
        let tlp = Tlp { prefixes, header: self.header, payload: &self.payload, digest: None };
        if self.has_digest { tlp.with_digest().unwrap() } else { tlp }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; tlp::TLP_BYTES_MAX];
        let length = self.tlp().encode(&mut bytes).unwrap();
        bytes.truncate(length);
        bytes
    }
}

fn id() -> impl Strategy<Value = TransactionId> {
    (any::<u16>(), 0..=Tag::MAX)
        .prop_map(|(requester, tag)| TransactionId::new(Bdf(requester), Tag::truncated(tag)))
}

/// Below and above 4 GiB, equally often.
fn address() -> impl Strategy<Value = u64> {
    prop_oneof![0..=u64::from(u32::MAX), (1u64 << 32)..=u64::MAX]
}

fn address_type() -> impl Strategy<Value = AddressType> {
    prop_oneof![
        Just(AddressType::Untranslated),
        Just(AddressType::TranslationRequest),
        Just(AddressType::Translated)
    ]
}

fn hint() -> impl Strategy<Value = Option<Hint>> {
    let hint = (0..4u8, any::<u8>()).prop_map(|(processing, steering)| Hint { processing, steering });
    prop_oneof![3 => Just(None), 1 => hint.prop_map(Some)]
}

/// Contiguous bytes, or gaps where they are allowed.
fn span() -> impl Strategy<Value = Span> {
    let contiguous = (address(), 0..=4096u32).prop_map(|(address, bytes)| {
        let room = 4096 - (address % 4096) as u32;
        Span::of_bytes(address, bytes.min(room)).unwrap()
    });
    let one = (address(), 0..16u8).prop_map(|(address, first)| Span {
        address: address & !3,
        length_dw: 1,
        enables: ByteEnables { first, last: 0 },
    });
    let pair = (address(), 1..16u8, 1..16u8).prop_map(|(address, first, last)| Span {
        address: address & !7,
        length_dw: 2,
        enables: ByteEnables { first, last },
    });
    prop_oneof![3 => contiguous, 1 => one, 1 => pair]
}

fn memory() -> impl Strategy<Value = Body> {
    let op = prop_oneof![
        Just(MemoryOp::Read),
        Just(MemoryOp::ReadLocked),
        Just(MemoryOp::Write),
        Just(MemoryOp::DeferrableWrite)
    ];
    (op, id(), span(), address_type(), hint()).prop_map(|(op, mut id, span, address_type, hint)| {
        let mut enables = span.enables;
        if hint.is_some() && op == MemoryOp::Write {
            id.tag = Tag::truncated(0);
        } else if hint.is_some() {
            enables = ByteEnables::all(span.length_dw);
        }
        let (address, length_dw) = (span.address, span.length_dw);
        Body::Memory(Memory { op, id, address, length_dw, enables, address_type, hint })
    })
}

fn io() -> impl Strategy<Value = Body> {
    (any::<bool>(), id(), any::<u32>(), 0..16u8).prop_map(|(is_write, id, address, first_enable)| {
        Body::Io(Io { is_write, id, address: address & !3, first_enable })
    })
}

fn config() -> impl Strategy<Value = Body> {
    (any::<(bool, bool, u16)>(), id(), 0..1024u16, 0..16u8).prop_map(
        |((is_write, is_type_1, target), id, register, first_enable)| {
            let (target, register) = (Bdf(target), register * 4);
            Body::Config(Config { is_write, is_type_1, id, target, register, first_enable })
        },
    )
}

fn atomic() -> impl Strategy<Value = Body> {
    let op = prop_oneof![Just(AtomicOp::FetchAdd), Just(AtomicOp::Swap), Just(AtomicOp::CompareAndSwap)];
    (op, id(), address(), 2..=4u32, address_type(), hint()).prop_map(
        |(op, id, address, log, address_type, hint)| {
            let log = if op == AtomicOp::CompareAndSwap { log } else { log.min(3) };
            let operand_bytes = 1 << log;
            let address = address & !(u64::from(operand_bytes) - 1);
            Body::Atomic(Atomic { op, id, address, operand_bytes, address_type, hint })
        },
    )
}

fn completion() -> impl Strategy<Value = Body> {
    let status = prop_oneof![
        3 => Just(Status::Success),
        1 => Just(Status::UnsupportedRequest),
        1 => Just(Status::RetryRequest),
        1 => Just(Status::CompleterAbort)
    ];
    (any::<(bool, bool, u16)>(), id(), status, 1..=4096u16, 0..128u8, 0..=1024u16).prop_map(
        |((is_locked, byte_count_modified, completer), id, status, byte_count, lower_address, length_dw)| {
            let owed = (u16::from(lower_address & 3) + byte_count).div_ceil(4).min(1024);
            let length_dw = if status == Status::Success { length_dw.min(owed) } else { 0 };
            let completer = Bdf(completer);
            Body::Completion(Completion {
                is_locked,
                completer,
                id,
                status,
                byte_count_modified,
                byte_count,
                lower_address,
                length_dw,
            })
        },
    )
}

fn message() -> impl Strategy<Value = Body> {
    let length = prop_oneof![Just(0u16), 1..=16u16, Just(1024u16)];
    (0..6u8, id(), any::<u8>(), any::<[u8; 8]>(), length).prop_map(
        |(routing, id, code, fields, length_dw)| {
            let routing = MessageRouting::from_bits(routing).unwrap();
            Body::Message(Message { routing, id, code, fields, length_dw })
        },
    )
}

fn attributes() -> impl Strategy<Value = Attributes> {
    any::<[bool; 4]>().prop_map(|[relaxed_ordering, no_snoop, id_ordering, lightweight_notification]| {
        Attributes { relaxed_ordering, no_snoop, id_ordering, lightweight_notification }
    })
}

pub(crate) fn header() -> impl Strategy<Value = Header> {
    let body = prop_oneof![memory(), io(), config(), atomic(), completion(), message()];
    (body, 0..8u8, attributes(), any::<bool>()).prop_map(|(body, traffic_class, attributes, is_poisoned)| {
        match body {
            Body::Io(_) | Body::Config(_) => Header { is_poisoned, ..Header::new(body) },
            _ => Header { traffic_class, attributes, is_poisoned, body },
        }
    })
}

fn prefixes() -> impl Strategy<Value = Vec<u8>> {
    let of = |base: u8| {
        let prefix =
            (0..16u8, any::<[u8; 3]>()).prop_map(move |(kind, [a, b, c])| vec![base | kind, a, b, c]);
        prop::collection::vec(prefix, 0..=4).prop_map(|prefixes| prefixes.concat())
    };
    prop_oneof![3 => Just(Vec::new()), 1 => (of(0x80), of(0x90)).prop_map(|(a, b)| [a, b].concat())]
}

pub(crate) fn packet() -> impl Strategy<Value = Owned> {
    (prefixes(), header(), any::<(u8, bool)>()).prop_map(|(prefixes, header, (seed, has_digest))| {
        let payload = (0..header.payload_bytes()).map(|at| (at as u8).wrapping_mul(31) ^ seed).collect();
        Owned { prefixes, header, payload, has_digest }
    })
}
