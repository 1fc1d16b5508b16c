//! What holds for every packet and for all bytes.

mod generate;

use generate::{header, packet};
use proptest::prelude::*;
use tlp::{
    DecodeError, Header, Malformed, PAGE_BYTES, ReadCompletionBoundary, SizeLimit, Span, Tlp,
    split_completion, split_request,
};

fn size() -> impl Strategy<Value = SizeLimit> {
    (0..6u8).prop_map(|bits| SizeLimit::from_bits(bits).unwrap())
}

/// Mostly bytes of a real packet with a few of them changed: random ones seldom get past the first.
fn nearly_a_packet() -> impl Strategy<Value = Vec<u8>> {
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    (packet(), changes, any::<prop::sample::Index>(), any::<bool>()).prop_map(
        |(packet, changes, length, is_cut)| {
            let mut bytes = packet.bytes();
            for (at, value) in changes {
                // The first 24 bytes decide; the payload only rides along.
                let front = bytes.len().min(24);
                bytes[at.index(front)] = value;
            }
            if is_cut {
                bytes.truncate(length.index(bytes.len()));
            }
            bytes
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn what_is_encoded_decodes_to_the_same(packet in packet()) {
        let bytes = packet.bytes();
        let tlp = packet.tlp();
        prop_assert_eq!(tlp.encoded_bytes(), bytes.len());
        prop_assert_eq!(Tlp::decode(&bytes), Ok(tlp));
        prop_assert!(tlp.digest_is_right());
        prop_assert_eq!(tlp.header.kind().class(), tlp.class());
    }

    #[test]
    fn a_header_alone_does_the_same(header in header(), has_digest in any::<bool>()) {
        let mut raw = [0; 16];
        let bytes = header.encode(has_digest, &mut raw).unwrap();
        prop_assert_eq!(bytes, header.header_bytes());
        let decoded = Header::decode(&raw[..bytes]).unwrap();
        prop_assert_eq!((decoded.header, decoded.has_digest), (header, has_digest));
    }

    #[test]
    fn no_bytes_panic_and_no_two_encodings_mean_the_same(
        bytes in prop_oneof![nearly_a_packet(), prop::collection::vec(any::<u8>(), 0..64)],
    ) {
        match Tlp::decode(&bytes) {
            Ok(tlp) => {
                let mut again = vec![0; tlp::TLP_BYTES_MAX];
                let length = tlp.encode(&mut again).unwrap();
                prop_assert_eq!(&again[..length], &bytes[..]);
            }
            Err(DecodeError::Truncated { need, have }) => {
                prop_assert_eq!(have, bytes.len());
                prop_assert!(need > have);
            }
            Err(_) => {}
        }
    }

    #[test]
    fn a_changed_bit_makes_the_digest_wrong(packet in packet(), at in any::<prop::sample::Index>(), bit in 0..8u8) {
        let packet = generate::Owned { prefixes: Vec::new(), has_digest: true, ..packet };
        let mut bytes = packet.bytes();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        // Type[0] and EP may change on the way; TD says whether there is a digest at all.
        let is_covered = !(at == 0 && bit == 0 || at == 2 && bit >= 6);
        if let Ok(tlp) = Tlp::decode(&bytes) && is_covered {
            prop_assert!(!tlp.digest_is_right());
        }
    }

    #[test]
    fn enables_lead_back_to_the_bytes(address in any::<u64>(), bytes in 1..=4096u32) {
        match Span::of_bytes(address, bytes) {
            Some(span) => {
                prop_assert_eq!(span.first_byte(), address);
                prop_assert_eq!(u32::from(span.byte_count()), bytes);
            }
            None => prop_assert!(
                address.checked_add(u64::from(bytes) - 1).is_none_or(|last| (last >> 2) - (address >> 2) >= 1024)
            ),
        }
    }

    #[test]
    fn requests_cover_exactly_their_bytes(address in 0..u64::MAX - (1 << 20), bytes in 0..100_000u64, limit in size()) {
        let mut next = address;
        for (at, count) in split_request(address, bytes, limit) {
            prop_assert_eq!(at, next);
            prop_assert!(count > 0);
            prop_assert!(at % PAGE_BYTES + u64::from(count) <= PAGE_BYTES);
            let span = Span::of_bytes(at, count).unwrap();
            prop_assert!(u32::from(span.length_dw) * 4 <= limit.bytes());
            next += u64::from(count);
        }
        prop_assert_eq!(next - address, bytes);
    }

    #[test]
    fn completions_cover_exactly_their_bytes(
        address in any::<u64>(), count in 1..=4096u16, limit in size(), is_64 in any::<bool>(),
    ) {
        let boundary =
            if is_64 { ReadCompletionBoundary::Bytes64 } else { ReadCompletionBoundary::Bytes128 };
        // A read never crosses a page, so its answer does not either.
        let address = (address & !0xfff) | (address % (PAGE_BYTES - u64::from(count) + 1));
        let request = Header::memory_read(Default::default(), Span::of_bytes(address, u32::from(count)).unwrap());
        let mut done = 0;
        for piece in split_completion(address, count, limit, boundary) {
            prop_assert_eq!(piece.offset, done);
            prop_assert_eq!(usize::from(piece.byte_count), usize::from(count) - done);
            prop_assert!(u32::from(piece.length_dw) * 4 <= limit.bytes());
            let first = address + done as u64;
            prop_assert_eq!(u64::from(piece.lower_address), first & 0x7f);
            done += piece.bytes;
            let end = first + piece.bytes as u64;
            prop_assert!(end.is_multiple_of(boundary.bytes()) || done == usize::from(count));
            let header = request.completion_data(tlp::Bdf(1), &piece);
            prop_assert_eq!(header.check(), Ok(()));
            let tlp::Body::Completion(completion) = header.body else { unreachable!() };
            prop_assert_eq!(completion.data(), (piece.skipped, piece.bytes));
            prop_assert_eq!(completion.is_last(), done == usize::from(count));
        }
        prop_assert_eq!(done, usize::from(count));
    }
}

#[test]
fn encoding_refuses_what_decoding_would() {
    let span = Span { address: 0x1ffc, length_dw: 2, enables: tlp::ByteEnables::all(2) };
    let header = Header::memory_write(tlp::Bdf(0), span);
    let refused = Tlp::new(header, &[0; 8]).encode(&mut [0; 64]);
    let crosses = Malformed::CrossesPage { address: 0x1ffc, length_dw: 2 };
    assert_eq!(refused, Err(tlp::EncodeError::Malformed(crosses)));
    let short = Tlp::new(header, &[0; 4]).encode(&mut [0; 64]);
    assert_eq!(short, Err(tlp::EncodeError::PayloadLength { announced: 8, given: 4 }));
    let one = Header::memory_write(tlp::Bdf(0), Span::of_bytes(0x1000, 4).unwrap());
    let no_room = Tlp::new(one, &[0; 4]).encode(&mut [0; 15]);
    assert_eq!(no_room, Err(tlp::EncodeError::NoRoom { need: 16, have: 15 }));
}
