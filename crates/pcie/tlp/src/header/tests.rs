//! One test for each rule, on bytes.

use crate::{Bdf, Body, DecodeError, Header, Malformed, Status, Tlp};

fn refused(bytes: &[u8], expected: Malformed) {
    assert_eq!(Header::decode(bytes).map(|decoded| decoded.header), Err(DecodeError::Malformed(expected)));
}

const READ: [u8; 12] = [0x00, 0, 0, 1, 0x02, 0x00, 0x11, 0x0f, 0, 0, 0x10, 0];
const CONFIG: [u8; 12] = [0x04, 0, 0, 1, 0, 0, 1, 0x0f, 3, 0, 0, 0x10];
const COMPLETION: [u8; 12] = [0x4a, 0, 0, 1, 1, 0, 0, 4, 0x02, 0, 0x11, 0];

fn with(mut bytes: [u8; 12], changes: &[(usize, u8)]) -> [u8; 12] {
    for (at, value) in changes {
        bytes[*at] = *value;
    }
    bytes
}

#[test]
fn a_memory_read_reads_as_it_should() {
    let header = Header::decode(&READ).unwrap().header;
    let Body::Memory(memory) = header.body else { panic!("{header:?}") };
    assert_eq!((memory.address, memory.length_dw, memory.enables.first), (0x1000, 1, 0xf));
    assert_eq!((memory.id.requester, memory.id.tag.value()), (Bdf::new(2, 0, 0), 0x11));
    assert_eq!(Tlp::new(header, &[]).to_string(), "MRd 02:00.0 tag 0x11 at 0x1000, 1 DW");
}

#[test]
fn tags_have_ten_bits() {
    for (byte_1, tag) in [(0x00, 0x011), (0x08, 0x111), (0x80, 0x211), (0x88, 0x311)] {
        assert_eq!(Header::decode(&with(READ, &[(1, byte_1)])).unwrap().header.tag().value(), tag);
        assert_eq!(Header::decode(&with(COMPLETION, &[(1, byte_1)])).unwrap().header.tag().value(), tag);
    }
}

#[test]
fn a_length_of_zero_is_1024() {
    let header = Header::decode(&with(READ, &[(3, 0), (7, 0xff)])).unwrap().header;
    assert_eq!(header.length_dw(), 1024);
}

#[test]
fn each_malformed_request_is_told_apart() {
    refused(&[0x1f; 16], Malformed::UnknownType { byte: 0x1f });
    refused(&[0x36; 16], Malformed::UnknownType { byte: 0x36 });
    refused(&with(READ, &[(2, 0x0c)]), Malformed::ReservedAddressType);
    refused(&with(READ, &[(11, 1)]), Malformed::ReservedBits { byte: 11 });
    refused(&with(READ, &[(7, 0x1f)]), Malformed::LastEnableOfOneDw { last: 1 });
    refused(&with(READ, &[(3, 2), (7, 0xf0)]), Malformed::NoFirstEnable);
    refused(&with(READ, &[(3, 2), (7, 0x0f)]), Malformed::NoLastEnable);
    refused(&with(READ, &[(3, 3), (7, 0xf5)]), Malformed::GapsInEnables { first: 5, last: 0xf });
    refused(
        &with(READ, &[(3, 2), (7, 0xff), (10, 0x1f), (11, 0xfc)]),
        Malformed::CrossesPage { address: 0x1ffc, length_dw: 2 },
    );
    let low = [0x20, 0, 0, 1, 0, 0, 0, 0x0f, 0, 0, 0, 0, 0, 0, 0x10, 0];
    refused(&low, Malformed::LowAddressIn4Dw { address: 0x1000 });
}

#[test]
fn each_malformed_io_or_configuration_request_is_told_apart() {
    refused(&with(CONFIG, &[(3, 2)]), Malformed::NotOneDw(2));
    refused(&with(CONFIG, &[(3, 0)]), Malformed::NotOneDw(1024));
    refused(&with(CONFIG, &[(1, 0x10)]), Malformed::PlainOnly);
    refused(&with(CONFIG, &[(2, 0x20)]), Malformed::PlainOnly);
    refused(&with(CONFIG, &[(2, 0x04)]), Malformed::ReservedBits { byte: 2 });
    refused(&with(CONFIG, &[(1, 0x01)]), Malformed::ReservedBits { byte: 1 });
    refused(&with(CONFIG, &[(7, 0xff)]), Malformed::LastEnableOfOneDw { last: 0xf });
    refused(&with(CONFIG, &[(10, 0x10)]), Malformed::ReservedBits { byte: 10 });
    refused(&with(CONFIG, &[(11, 0x11)]), Malformed::ReservedBits { byte: 11 });
}

#[test]
fn each_malformed_completion_is_told_apart() {
    refused(&with(COMPLETION, &[(6, 0x60)]), Malformed::ReservedStatus(3));
    refused(&with(COMPLETION, &[(6, 0x20)]), Malformed::DataWithoutSuccess { status: 1 });
    refused(&with(COMPLETION, &[(11, 0x80)]), Malformed::ReservedBits { byte: 11 });
    refused(&with(COMPLETION, &[(3, 2)]), Malformed::MoreDataThanCount { length_dw: 2, byte_count: 4 });
    refused(&with(COMPLETION, &[(0, 0x0a)]), Malformed::ReservedBits { byte: 3 });
    let whole = Header::decode(&with(COMPLETION, &[(3, 0), (7, 0)])).unwrap().header;
    let Body::Completion(completion) = whole.body else { panic!("{whole:?}") };
    assert_eq!(
        (completion.byte_count, completion.length_dw, completion.status),
        (4096, 1024, Status::Success)
    );
    assert!(completion.is_last());
}

#[test]
fn each_malformed_atomic_is_told_apart() {
    let add = with(READ, &[(0, 0x4c), (7, 0)]);
    refused(&with(add, &[(7, 0x0f)]), Malformed::ReservedBits { byte: 7 });
    refused(&with(add, &[(3, 3)]), Malformed::OperandLength { mnemonic: "FetchAdd", length_dw: 3 });
    refused(&with(add, &[(3, 4)]), Malformed::OperandLength { mnemonic: "FetchAdd", length_dw: 4 });
    let unaligned = with(add, &[(3, 2), (11, 4)]);
    refused(&unaligned, Malformed::UnalignedOperand { address: 0x1004, operand_bytes: 8 });
    let cas = with(add, &[(0, 0x4e)]);
    refused(&cas, Malformed::OperandLength { mnemonic: "CAS", length_dw: 1 });
    assert!(Header::decode(&with(cas, &[(3, 8)])).is_ok());
}

#[test]
fn hints_take_the_place_of_what_they_imply() {
    let read = Header::decode(&with(READ, &[(1, 1), (3, 4), (7, 0xab), (11, 2)])).unwrap().header;
    let Body::Memory(memory) = read.body else { panic!("{read:?}") };
    assert_eq!(memory.hint.map(|hint| (hint.processing, hint.steering)), Some((2, 0xab)));
    assert_eq!(memory.enables.to_byte(), 0xff);
    let write = Header::decode(&with(READ, &[(0, 0x40), (1, 1)])).unwrap().header;
    let Body::Memory(memory) = write.body else { panic!("{write:?}") };
    assert_eq!((memory.hint.map(|hint| hint.steering), memory.id.tag.value()), (Some(0x11), 0));
    refused(&with(READ, &[(0, 0x40), (1, 0x09)]), Malformed::ReservedBits { byte: 1 });
}

#[test]
fn what_ends_early_or_late_is_told_apart() {
    assert_eq!(Tlp::decode(&[]), Err(DecodeError::Truncated { need: 12, have: 0 }));
    assert_eq!(Tlp::decode(&READ[..11]), Err(DecodeError::Truncated { need: 12, have: 11 }));
    let write = with(READ, &[(0, 0x40), (2, 0x80)]);
    assert_eq!(Tlp::decode(&write), Err(DecodeError::Truncated { need: 20, have: 12 }));
    assert_eq!(Tlp::decode(&[READ.as_slice(), &[0]].concat()), Err(DecodeError::Trailing { extra: 1 }));
    let prefix = [0x91, 0, 0, 0];
    assert_eq!(Tlp::decode(&prefix), Err(DecodeError::Truncated { need: 20, have: 4 }));
    assert_eq!(
        Tlp::decode(&[prefix.as_slice(), &READ[..4]].concat()),
        Err(DecodeError::Truncated { need: 16, have: 8 })
    );
}
