//! Headers into bytes.

use super::{AddressType, Body, Header, Hint, MemoryOp};
use crate::error::Malformed;
use crate::kind::FOUR_DW;
use crate::{Tag, TransactionId};

impl Header {
    /// Writes the header into the front of `out`; gives its length, 12 or 16. `has_digest` sets TD.
    #[inline]
    pub fn encode(&self, has_digest: bool, out: &mut [u8; 16]) -> Result<usize, Malformed> {
        self.check()?;
        let kind = self.kind();
        let header_bytes = self.header_bytes();
        let (address_type, has_hint) = match &self.body {
            Body::Memory(it) => (it.address_type, it.hint.is_some()),
            Body::Atomic(it) => (it.address_type, it.hint.is_some()),
            _ => (AddressType::Untranslated, false),
        };
        let tag = self.id().tag.value();
        let length = self.length_dw() & 0x3ff;
        let attributes = self.attributes;

        *out = [0; 16];
        out[0] = kind.to_byte() | if header_bytes == 16 { FOUR_DW } else { 0 };
        out[1] = ((tag >> 2) as u8 & 0x80)
            | self.traffic_class << 4
            | ((tag >> 5) as u8 & 0x08)
            | u8::from(attributes.id_ordering) << 2
            | u8::from(attributes.lightweight_notification) << 1
            | u8::from(has_hint);
        out[2] = u8::from(has_digest) << 7
            | u8::from(self.is_poisoned) << 6
            | u8::from(attributes.relaxed_ordering) << 5
            | u8::from(attributes.no_snoop) << 4
            | (address_type as u8) << 2
            | (length >> 8) as u8;
        out[3] = length as u8;
        self.encode_body(header_bytes == 16, out);
        Ok(header_bytes)
    }

    fn encode_body(&self, is_4dw: bool, out: &mut [u8; 16]) {
        match &self.body {
            Body::Memory(it) => {
                let mut id = it.id;
                let mut byte_7 = it.enables.to_byte();
                match it.hint {
                    Some(hint) if it.op == MemoryOp::Write => id.tag = Tag::truncated(hint.steering.into()),
                    Some(hint) => byte_7 = hint.steering,
                    None => {}
                }
                put_request(id, byte_7, out);
                put_address(it.address, it.hint, is_4dw, out);
            }
            Body::Atomic(it) => {
                put_request(it.id, it.hint.map_or(0, |hint| hint.steering), out);
                put_address(it.address, it.hint, is_4dw, out);
            }
            Body::Io(it) => {
                put_request(it.id, it.first_enable, out);
                put_address(it.address.into(), None, is_4dw, out);
            }
            Body::Config(it) => {
                put_request(it.id, it.first_enable, out);
                out[8..10].copy_from_slice(&it.target.0.to_be_bytes());
                out[10..12].copy_from_slice(&it.register.to_be_bytes());
            }
            Body::Completion(it) => {
                out[4..6].copy_from_slice(&it.completer.0.to_be_bytes());
                let count = (it.status as u16) << 13
                    | u16::from(it.byte_count_modified) << 12
                    | (it.byte_count & 0xfff);
                out[6..8].copy_from_slice(&count.to_be_bytes());
                out[8..10].copy_from_slice(&it.id.requester.0.to_be_bytes());
                out[10] = it.id.tag.value() as u8;
                out[11] = it.lower_address;
            }
            Body::Message(it) => {
                put_request(it.id, it.code, out);
                out[8..16].copy_from_slice(&it.fields);
            }
        }
    }
}

/// DW 1 of a request.
fn put_request(id: TransactionId, byte_7: u8, out: &mut [u8; 16]) {
    out[4..6].copy_from_slice(&id.requester.0.to_be_bytes());
    out[6] = id.tag.value() as u8;
    out[7] = byte_7;
}

fn put_address(address: u64, hint: Option<Hint>, is_4dw: bool, out: &mut [u8; 16]) {
    let address = address | u64::from(hint.map_or(0, |hint| hint.processing));
    if is_4dw {
        out[8..16].copy_from_slice(&address.to_be_bytes());
    } else {
        out[8..12].copy_from_slice(&(address as u32).to_be_bytes());
    }
}
