//! The profile file: what is written is read, and nothing else is.

use model::profile::{Action, Awaited, Direction, Profile, ProfileError, Record, encode, read, summarise};
use proptest::prelude::*;

fn small() -> Profile {
    let record = |at_us, call_us, action| Record { at_us, call_us, action };
    Profile {
        device: "NVIDIA H200".to_owned(),
        program: "python train.py".to_owned(),
        measured: None,
        kernels: vec!["gemm".to_owned(), "relu \"fast\"".to_owned()],
        records: vec![
            record(0.0, 0.0, Action::Step),
            record(0.5, 1.25, Action::Local { calls: 17 }),
            record(2.0, 3.1, Action::Launch { stream: 0, kernel: 0, kernels: 1, gpu_us: 102.3 }),
            record(6.0, 3.0, Action::Launch { stream: 7, kernel: 1, kernels: 218, gpu_us: 4.5 }),
            record(
                9.5,
                130.0,
                Action::Copy {
                    stream: 0,
                    direction: Direction::DeviceToHost,
                    bytes: 5000,
                    pinned: false,
                    waits: true,
                    gpu_us: 1.4,
                },
            ),
            record(140.0, 2.0, Action::Wait { target: Awaited::Everything }),
            record(142.0, 0.5, Action::Query { target: Awaited::Event(3), done: true }),
        ],
        wall_us: 145.25,
    }
}

#[test]
fn what_is_written_is_read() {
    assert_eq!(read(encode(&small()).as_bytes()), Ok(small()));
}

/// Version 1 as it was first written. A file like this must be readable for as long as the version is 1.
#[test]
fn version_1_stays_readable() {
    let golden = include_bytes!("../samples/profile-v1.jsonl");
    assert_eq!(read(golden), Ok(small()));
    assert_eq!(encode(&small()).as_bytes(), golden);
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let text = encode(&small());
    for length in 0..text.len() {
        let error = read(&text.as_bytes()[..length]).expect_err("a part is not the whole");
        assert!(error.line <= text[..length].lines().count() + 1, "{error}");
    }
}

#[test]
fn a_byte_changed_anywhere_is_noticed() {
    let text = encode(&small());
    for at in 0..text.len() {
        let mut changed = text.clone().into_bytes();
        changed[at] ^= 1;
        assert!(read(&changed).is_err(), "byte {at} can be changed unseen");
    }
}

/// A file whose lines are `lines`, with an honest checksum and record count, so that only the lines can be at fault.
fn sealed(lines: &[&str], records: u64) -> String {
    let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let body = format!("{body}{{\"op\":\"end\",\"at\":99,\"records\":{records},\"blake3\":\"");
    let hash = blake3::hash(body.as_bytes()).to_hex();
    format!("{body}{hash}\"}}\n")
}

#[test]
fn an_error_names_line_and_reason() {
    const HEADER: &str = r#"{"dxpu_profile":1,"device":"d","program":"p"}"#;
    const NAME: &str = r#"{"op":"kernel","id":0,"name":"k"}"#;
    const STEP: &str = r#"{"op":"step","at":5}"#;
    let check = |text: &str, line: usize, reason: &str| {
        let ProfileError { line: found, reason: said } = read(text.as_bytes()).unwrap_err();
        assert!(said.contains(reason), "`{said}` does not say `{reason}`");
        assert_eq!(found, line, "{said}");
    };
    check("", 1, "empty");
    check("not a profile\n", 1, "no profile");
    check("{\"hello\":1}\n", 1, "no `dxpu_profile` version");
    check(
        &sealed(&[r#"{"dxpu_profile":2,"device":"d","program":"p"}"#], 0),
        1,
        "version 2; this program reads 1",
    );
    check(&sealed(&[HEADER], 0), 2, "no record");
    check(&sealed(&[HEADER, STEP], 2), 3, "says it has 2 records, 1 are there");
    check(&sealed(&[HEADER, r#"{"op":"dance","at":1}"#], 1), 2, "unknown variant `dance`");
    check(&sealed(&[HEADER, r#"{"op":"step","at":1,"speed":2}"#], 1), 2, "unknown field `speed`");
    check(&sealed(&[HEADER, STEP, r#"{"op":"step","at":4}"#], 2), 3, "clock goes back from 5 to 4");
    check(&sealed(&[HEADER, r#"{"op":"local","at":1,"call":-1,"calls":1}"#], 1), 2, "negative");
    let launch = |kernel: u32, kernels: u32| {
        format!(
            r#"{{"op":"launch","at":1,"call":1,"stream":0,"kernel":{kernel},"kernels":{kernels},"gpu":1}}"#
        )
    };
    check(&sealed(&[HEADER, &launch(0, 1)], 1), 2, "launched before it is named");
    check(&sealed(&[HEADER, NAME, &launch(0, 0)], 1), 3, "no kernels");
    check(&sealed(&[HEADER, r#"{"op":"kernel","id":1,"name":"k"}"#], 0), 2, "the next number is 0");
    let both = r#"{"op":"wait","at":1,"call":1,"stream":0,"event":0}"#;
    check(&sealed(&[HEADER, both], 1), 2, "a stream and for an event");
    check(&format!("{}{STEP}\n", sealed(&[HEADER, STEP], 1)), 4, "after the `end` line");
}

#[test]
fn a_summary_counts_what_is_there() {
    let summary = summarise(&small());
    assert_eq!((summary.launches, summary.graph_launches, summary.short_launches), (2, 1, 1));
    assert_eq!((summary.steps, summary.waits, summary.queries, summary.local_calls), (1, 1, 1, 17));
    assert_eq!(
        (summary.copies.len(), summary.copies[0].bytes_from, summary.copies[0].bytes),
        (1, 4096, 5000)
    );
    // 4.5 us is in [4, 8), 102.3 us in [64, 128).
    assert_eq!(summary.duration_classes, [0, 0, 0, 1, 0, 0, 0, 1]);
    assert!((summary.mean_period_us() - 145.25 / 2.0).abs() < 1e-9);
}

fn action() -> impl Strategy<Value = Action> {
    let ns = || (0u32..10_000_000).prop_map(|ns| f64::from(ns) / 1e3);
    let target = prop_oneof![
        any::<u32>().prop_map(Awaited::Stream),
        any::<u32>().prop_map(Awaited::Event),
        Just(Awaited::Everything)
    ];
    let direction = prop_oneof![
        Just(Direction::HostToDevice),
        Just(Direction::DeviceToHost),
        Just(Direction::DeviceToDevice)
    ];
    prop_oneof![
        (any::<u32>(), 0u32..2, 1..u32::MAX, ns())
            .prop_map(|(stream, kernel, kernels, gpu_us)| Action::Launch { stream, kernel, kernels, gpu_us }),
        (any::<u32>(), direction, any::<u64>(), any::<bool>(), any::<bool>(), ns()).prop_map(
            |(stream, direction, bytes, pinned, waits, gpu_us)| Action::Copy {
                stream,
                direction,
                bytes,
                pinned,
                waits,
                gpu_us
            }
        ),
        (any::<u32>(), any::<u64>(), ns()).prop_map(|(stream, bytes, gpu_us)| Action::Memset {
            stream,
            bytes,
            gpu_us
        }),
        (any::<u32>(), any::<u32>()).prop_map(|(stream, event)| Action::RecordEvent { stream, event }),
        (any::<u32>(), any::<u32>()).prop_map(|(stream, event)| Action::StreamWait { stream, event }),
        target.clone().prop_map(|target| Action::Wait { target }),
        (target, any::<bool>()).prop_map(|(target, done)| Action::Query { target, done }),
        any::<u32>().prop_map(|calls| Action::Local { calls }),
        any::<bool>().prop_map(|awaited| Action::Other { awaited }),
        Just(Action::Step),
    ]
}

proptest! {
    #[test]
    fn every_profile_survives_the_file(actions in prop::collection::vec((0u32..1000, 0u32..1000, action()), 1..40)) {
        let mut at_ns = 0u64;
        let mut records = Vec::new();
        for (gap, call, action) in actions {
            at_ns += u64::from(gap);
            let call_us = if action == Action::Step { 0.0 } else { f64::from(call) / 1e3 };
            records.push(Record { at_us: at_ns as f64 / 1e3, call_us, action });
        }
        let kernels = vec!["a".to_owned(), "b".to_owned()];
        let profile = Profile {
            measured: None,
            device: "gpu".to_owned(), program: "λ \n x".to_owned(), kernels, records, wall_us: (at_ns + 1000) as f64 / 1e3,
        };
        prop_assert_eq!(read(encode(&profile).as_bytes()), Ok(profile));
    }
}
