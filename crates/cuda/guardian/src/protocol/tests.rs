use super::*;
use cuda_wire::ImageName;
use proptest::prelude::*;
use snapshot::Seal;
use zeroize::Zeroizing;

fn a_block() -> impl Strategy<Value = Block> {
    (0u64..1 << 60, 1u32..=65536).prop_map(|(address, bytes)| Block { address, bytes })
}

fn an_entry() -> impl Strategy<Value = BlockDigest> {
    (a_block(), any::<u128>()).prop_map(|(block, digest)| BlockDigest { block, digest: Digest(digest) })
}

fn an_age() -> impl Strategy<Value = EventAge> {
    any::<(u32, u64)>().prop_map(|(event, age_ns)| EventAge { event, age_ns })
}

fn an_open() -> impl Strategy<Value = Request> {
    let mode = prop_oneof![
        Just(Mode::Write),
        Just(Mode::Read),
        Just(Mode::Fetch),
        Just(Mode::Copy),
        Just(Mode::Help),
        Just(Mode::Ahead)
    ];
    (mode, any::<([u8; 16], [u8; 32])>(), 1u64.., ".{0,40}", ".{0,40}").prop_map(
        |(mode, (name, secret), incarnation, from, lease)| {
            let (name, secret) = (ImageName { bytes: name }, Zeroizing::new(secret));
            Request::Open(Box::new(Open { mode, name, secret, incarnation, from, lease }))
        },
    )
}

fn a_request() -> impl Strategy<Value = Request> {
    prop_oneof![
        Just(Request::Hello),
        an_open(),
        any::<(u64, u64)>().prop_map(|(base, number)| Request::Begin { base, number }),
        an_entry().prop_map(Request::Put),
        prop::collection::vec(any::<u64>(), 0..100).prop_map(Request::Bury),
        prop::collection::vec(an_age(), 0..100).prop_map(Request::Ages),
        any::<(u64, u64, u128)>().prop_map(|(number, blocks, sum)| Request::Commit {
            number,
            seal: Seal::from_parts(blocks, sum)
        }),
        any::<u64>().prop_map(|number| Request::Abandon { number }),
        Just(Request::State),
        any::<u64>().prop_map(|number| Request::List { number }),
        (any::<u64>(), prop::collection::vec(a_block(), 0..100))
            .prop_map(|(number, blocks)| Request::Read { number, blocks }),
        Just(Request::End),
        Just(Request::Leave),
        Just(Request::Park),
        ".{0,40}".prop_map(Request::EndLease),
        Just(Request::Census),
    ]
}

fn an_answer() -> impl Strategy<Value = Answer> {
    prop_oneof![
        (any::<u64>(), ".{0,40}", ".{0,40}").prop_map(|(bytes_max, address, copy_at)| Answer::Welcome {
            bytes_max,
            address,
            copy_at
        }),
        any::<(u64, u64)>().prop_map(|(bytes_max, committed)| Answer::Opened { bytes_max, committed }),
        Just(Answer::Done),
        ".{0,40}".prop_map(Answer::Refused),
        (any::<u64>(), ".{0,40}").prop_map(|(number, text)| Answer::DeltaFailed { number, text }),
        any::<(u8, u64)>().prop_map(|(level, image_bytes)| Answer::Committed { level, image_bytes }),
        any::<(u64, u64, u64)>().prop_map(|(committed, copied, image_bytes)| Answer::State {
            committed,
            copied,
            image_bytes
        }),
        prop::collection::vec(an_entry(), 0..100).prop_map(Answer::Entries),
        prop::collection::vec(an_age(), 0..100).prop_map(Answer::Ages),
        any::<u64>().prop_map(|entries| Answer::ListEnd { entries }),
        a_block().prop_map(Answer::Block),
    ]
}

proptest! {
    #[test]
    fn requests_come_back_as_they_were(request in a_request()) {
        let (head, body) = request.encode();
        prop_assert_eq!(Head::decode(&head.encode()), Ok(head));
        prop_assert_eq!(Request::decode(&head, &body), Ok(request));
    }

    #[test]
    fn answers_come_back_as_they_were(answer in an_answer()) {
        let (head, body) = answer.encode();
        prop_assert_eq!(Head::decode(&head.encode()), Ok(head));
        prop_assert_eq!(Answer::decode(&head, &body), Ok(answer));
    }

    /// Never a panic; no body longer than a block is asked for; what is read is written back to the same bytes, so no
    /// two frames mean the same.
    #[test]
    fn arbitrary_bytes_are_refused_or_mean_one_thing(
        kind in prop_oneof![0u8..20, 0x80u8..0x90, any::<u8>()],
        mut fields in any::<[u8; HEAD_BYTES]>(),
        zeros in any::<[bool; 5]>(),
        body in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        // Mostly heads that are nearly right: others end at the first check.
        fields[0] = kind;
        for (range, is_zero) in [(1..4, true), (6..8, zeros[0]), (8..16, zeros[1]), (16..24, zeros[2]), (24..40, zeros[3])] {
            if is_zero {
                fields[range].fill(0);
            }
        }
        if zeros[4] {
            fields[4..8].copy_from_slice(&(body.len() as u32).to_le_bytes());
        }
        if let Ok(head) = Head::decode(&fields) {
            prop_assert!(head.body_bytes as usize <= BODY_BYTES_MAX);
            let mut body = body;
            body.resize(head.body_bytes as usize, 7);
            if let Ok(request) = Request::decode(&head, &body) {
                let (again, bytes) = request.encode();
                prop_assert_eq!(again, head);
                prop_assert!(Request::carries_block(kind) || *bytes == body);
            }
            if let Ok(answer) = Answer::decode(&head, &body) {
                let (again, bytes) = answer.encode();
                prop_assert_eq!(again, head);
                prop_assert!(Answer::carries_block(kind) || bytes == body);
            }
        }
    }
}

#[test]
fn a_frame_that_breaks_a_rule_is_refused() {
    let head = |kind| Head { kind, ..Head::default() };
    let long = Head { body_bytes: BODY_BYTES_MAX as u32 + 1, ..head(4) };
    assert_eq!(Head::decode(&long.encode()), Err(ProtocolError::TooLong(long.body_bytes)));
    let mut padded = head(9).encode();
    padded[2] = 1;
    assert_eq!(Head::decode(&padded), Err(ProtocolError::Malformed(9)));
    assert_eq!(
        Request::decode(&Head { a: 1, ..head(9) }, &[]),
        Err(ProtocolError::Malformed(9)),
        "State has no number"
    );
    assert_eq!(Request::decode(&Head { a: 3, ..head(1) }, &[]), Err(ProtocolError::Version { theirs: 3 }));
    let end = Head { a: u64::MAX, body_bytes: 2, ..head(4) };
    assert_eq!(Request::decode(&end, &[]), Err(ProtocolError::Malformed(4)), "beyond the last address");
    let secretless = Head { a: 1, body_bytes: 20, ..head(2) };
    assert_eq!(Request::decode(&secretless, &[0; 20]), Err(ProtocolError::Malformed(2)));
    assert_eq!(Request::decode(&head(0), &[]), Err(ProtocolError::Kind(0)));
    assert_eq!(Answer::decode(&head(0), &[]), Err(ProtocolError::Kind(0)));
}

#[test]
fn a_secret_is_not_printed() {
    let open = Open {
        mode: Mode::Write,
        name: ImageName { bytes: [0xab; 16] },
        secret: Zeroizing::new([0xcd; 32]),
        incarnation: 1,
        from: String::new(),
        lease: String::new(),
    };
    let text = format!("{open:?}");
    assert!(!text.contains("205") && !text.contains("171"), "{text}");
}

#[test]
fn a_text_is_cut_between_characters() {
    assert_eq!(cut_text("äöü", 3), "ä");
    assert_eq!(cut_text("abc", 10), "abc");
    assert_eq!(cut_text("ä", 1), "");
}
