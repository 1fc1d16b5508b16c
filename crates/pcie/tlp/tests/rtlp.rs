//! `rtlp-lib`, which others wrote, reads what we write and says the same about it.
//!
//! It takes packets without prefixes, and reads the lower eight bits of tags from the body and the upper two as T9 and
//! T8 of DW 0.

#[allow(dead_code)]
mod generate;

use generate::packet;
use proptest::prelude::*;
use rtlp_lib::{TlpFmt, TlpMode, TlpPacket, TlpType, new_cmpl_req, new_conf_req, new_mem_req, new_msg_req};
use tlp::{Body, Header, Kind};

fn their_type(kind: Kind) -> TlpType {
    match kind {
        Kind::MemoryRead => TlpType::MemReadReq,
        Kind::MemoryReadLocked => TlpType::MemReadLockReq,
        Kind::MemoryWrite => TlpType::MemWriteReq,
        Kind::DeferrableWrite => TlpType::DeferrableMemWriteReq,
        Kind::IoRead => TlpType::IOReadReq,
        Kind::IoWrite => TlpType::IOWriteReq,
        Kind::ConfigRead0 => TlpType::ConfType0ReadReq,
        Kind::ConfigWrite0 => TlpType::ConfType0WriteReq,
        Kind::ConfigRead1 => TlpType::ConfType1ReadReq,
        Kind::ConfigWrite1 => TlpType::ConfType1WriteReq,
        Kind::Completion => TlpType::Cpl,
        Kind::CompletionData => TlpType::CplData,
        Kind::CompletionLocked => TlpType::CplLocked,
        Kind::CompletionDataLocked => TlpType::CplDataLocked,
        Kind::FetchAdd => TlpType::FetchAddAtomicOpReq,
        Kind::Swap => TlpType::SwapAtomicOpReq,
        Kind::CompareAndSwap => TlpType::CompareSwapAtomicOpReq,
        Kind::Message(_) => TlpType::MsgReq,
        Kind::MessageData(_) => TlpType::MsgReqData,
    }
}

/// DW 0 as their `Debug` shows it: most of its fields have no other way out.
fn dw_0(header: &Header, has_digest: bool) -> Vec<String> {
    let tag = header.tag().value();
    let (address_type, has_hint) = match &header.body {
        Body::Memory(it) => (it.address_type as u8, it.hint.is_some()),
        Body::Atomic(it) => (it.address_type as u8, it.hint.is_some()),
        _ => (0, false),
    };
    let attributes = header.attributes;
    let flag = |name: &str, value: bool| format!("{name}: {}", u8::from(value));
    vec![
        format!("tc: {}", header.traffic_class),
        flag("t9", tag & 0x200 != 0),
        flag("t8", tag & 0x100 != 0),
        flag("attr_b2", attributes.id_ordering),
        flag("ln", attributes.lightweight_notification),
        flag("th", has_hint),
        flag("td", has_digest),
        flag("ep", header.is_poisoned),
        format!("attr: {}", u8::from(attributes.relaxed_ordering) << 1 | u8::from(attributes.no_snoop)),
        format!("at: {address_type}"),
        format!("length: {}", header.length_dw() & 0x3ff),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn they_read_what_we_write(packet in packet()) {
        let packet = generate::Owned { prefixes: Vec::new(), ..packet };
        let header = packet.header;
        let theirs = TlpPacket::new(packet.bytes(), TlpMode::NonFlit).unwrap();
        prop_assert_eq!(theirs.tlp_type().unwrap(), their_type(header.kind()));
        let shown = format!("{:?},", theirs.header());
        for field in dw_0(&header, packet.has_digest) {
            prop_assert!(shown.contains(&format!(" {field}")), "{} is not in {}", field, shown);
        }
        let id = header.id();
        let tag = id.tag.value() as u8;
        let body = theirs.data().to_vec();
        let format: TlpFmt = theirs.tlp_format().unwrap();
        match header.body {
            Body::Memory(it) => {
                let request = new_mem_req(body, &format).unwrap();
                let (mut byte_6, mut byte_7, mut address) = (tag, it.enables.to_byte(), it.address);
                if let Some(hint) = it.hint {
                    address |= u64::from(hint.processing);
                    let place = if header.kind() == Kind::MemoryWrite { &mut byte_6 } else { &mut byte_7 };
                    *place = hint.steering;
                }
                prop_assert_eq!(request.req_id(), id.requester.0);
                prop_assert_eq!(request.address(), address);
                prop_assert_eq!((request.tag(), request.ldwbe() << 4 | request.fdwbe()), (byte_6, byte_7));
            }
            Body::Io(it) => {
                let request = new_mem_req(body, &format).unwrap();
                prop_assert_eq!((request.req_id(), request.tag()), (id.requester.0, tag));
                prop_assert_eq!((request.address(), request.fdwbe()), (u64::from(it.address), it.first_enable));
            }
            Body::Atomic(it) => {
                let request = new_mem_req(body, &format).unwrap();
                let processing = it.hint.map_or(0, |hint| hint.processing);
                prop_assert_eq!((request.req_id(), request.tag()), (id.requester.0, tag));
                prop_assert_eq!(request.address(), it.address | u64::from(processing));
            }
            Body::Config(it) => {
                let request = new_conf_req(body).unwrap();
                prop_assert_eq!((request.req_id(), request.tag()), (id.requester.0, tag));
                let target = (request.bus_nr(), request.dev_nr(), request.func_nr());
                prop_assert_eq!(target, (it.target.bus(), it.target.device(), it.target.function()));
                let register = u16::from(request.ext_reg_nr()) << 8 | u16::from(request.reg_nr()) << 2;
                prop_assert_eq!(register, it.register);
            }
            Body::Completion(it) => {
                let answer = new_cmpl_req(body).unwrap();
                prop_assert_eq!((answer.req_id(), answer.tag()), (id.requester.0, tag));
                prop_assert_eq!((answer.cmpl_id(), answer.cmpl_stat()), (it.completer.0, it.status as u8));
                prop_assert_eq!(answer.byte_cnt(), it.byte_count & 0xfff);
                prop_assert_eq!((answer.laddr(), answer.bcm()), (it.lower_address, u8::from(it.byte_count_modified)));
            }
            Body::Message(it) => {
                let message = new_msg_req(body).unwrap();
                prop_assert_eq!((message.req_id(), message.tag(), message.msg_code()), (id.requester.0, tag, it.code));
                let fields = u64::from(message.dw3()) << 32 | u64::from(message.dw4());
                prop_assert_eq!(fields, u64::from_be_bytes(it.fields));
            }
        }
    }
}

/// The other direction: whatever byte 0 they know, we know as the same, and the other way round.
#[test]
fn the_kinds_we_know_are_theirs() {
    for byte in 0..=255u8 {
        let theirs = TlpPacket::new(vec![byte, 0, 0, 0], TlpMode::NonFlit).unwrap().tlp_type();
        let ours = Kind::from_byte(byte).map(|(kind, _)| their_type(kind));
        match theirs {
            Ok(TlpType::LocalTlpPrefix | TlpType::EndToEndTlpPrefix) => assert_eq!(ours, None),
            // They take messages with 3 DW headers and an I/O request's type for more than the specification does.
            Ok(_) if ours.is_none() => assert!(matches!(byte, 0x10..=0x15 | 0x50..=0x55), "{byte:#x}"),
            Ok(theirs) => assert_eq!(ours, Some(theirs), "{byte:#x}"),
            Err(_) => assert_eq!(ours, None, "{byte:#x}"),
        }
    }
}
