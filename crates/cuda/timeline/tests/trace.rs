//! Whatever happens in whatever order, the file is JSON and its slices make sense.

use cuda_wire::{KernelRef, ModuleId, Span, StreamId, TimedAnswer, TimedKernel, TimedStream, TimedWork};
use proptest::prelude::*;
use serde_json::Value;
use std::collections::BTreeMap;
use timeline::{CLOSE, Call, HEAD, Push, Timed, Trace};

/// The events of a file that was closed.
fn events(lines: &str) -> Vec<Value> {
    let text = format!("{HEAD}{lines}{CLOSE}");
    match serde_json::from_str::<Value>(&text).unwrap_or_else(|error| panic!("{error}: {text}")) {
        Value::Array(events) => events,
        other => panic!("{other}"),
    }
}

fn ns(value: &Value) -> u64 {
    (value.as_f64().unwrap() * 1000.0).round() as u64
}

fn named<'a>(events: &'a [Value], name: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["name"] == name).collect()
}

/// Every slice has a length, and slices of a row lie beside each other or within each other.
fn check_rows(events: &[Value]) {
    let mut rows: BTreeMap<(u64, u64), Vec<(u64, u64)>> = BTreeMap::new();
    for event in events {
        match event["ph"].as_str().unwrap() {
            "X" => {
                let (start, length) = (ns(&event["ts"]), ns(&event["dur"]));
                let row = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
                rows.entry(row).or_default().push((start, start + length));
            }
            "i" => assert!(event["ts"].is_number() && event["s"] == "p"),
            phase => assert_eq!(phase, "M"),
        }
    }
    for slices in rows.values_mut() {
        slices.sort_by_key(|(start, end)| (*start, u64::MAX - end));
        let mut open: Vec<u64> = Vec::new();
        for (start, end) in slices.iter() {
            while open.last().is_some_and(|around| around <= start) {
                open.pop();
            }
            assert!(open.last().is_none_or(|around| end <= around), "{slices:?} overlap");
            open.push(*end);
        }
    }
}

fn kernel(stream: u32, index: u32, start_ns: u64, end_ns: u64) -> TimedKernel {
    let kernel = KernelRef { module: ModuleId(7), index };
    let span = Span { start_ns, end_ns };
    TimedKernel {
        stream: StreamId(stream),
        kernel,
        grid: [4, 2, 1],
        block: [64, 1, 1],
        shared_bytes: 16,
        span,
    }
}

#[test]
fn a_story() {
    let mut out = String::new();
    let mut trace = Trace::new(42, "a \"quoted\"\n program\\", &mut out);
    trace.session(0, "tcp:box:7400", &mut out);
    trace.module(ModuleId(7), vec!["_ZN3foo3barEPf".into(), "plain".into()]);
    trace.thread(43, "main", &mut out);
    let stream = TimedStream { stream: StreamId(5), device: 1, kind: 0 };
    let work =
        TimedWork { stream: StreamId(5), kind: 1, bytes: 4096, span: Span { start_ns: 100, end_ns: 900 } };
    let early = Timed {
        streams: vec![stream],
        kernels: vec![kernel(5, 0, 1000, 3000), kernel(5, 9, 3000, 4000)],
        works: vec![work],
        answers: vec![TimedAnswer { call: 3, span: Span { start_ns: 2_000, end_ns: 5_000 } }],
        missed: 2,
    };
    // It is held until the clocks are aligned: ours is 1,000,000 ahead.
    trace.timed(0, early, 1_000_000, &mut out);
    assert!(named(&events(&out), "foo::bar").is_empty());
    let span = Span { start_ns: 1_001_000, end_ns: 1_007_000 };
    trace.call(Call { link: 0, thread: 43, name: "StreamSynchronize", call: 3, span }, &mut out);
    for nonce in 1..=4 {
        assert!(named(&events(&out), "foo::bar").is_empty(), "the first samples are not trusted");
        trace.asked(0, nonce, 1_000_000);
        trace.told(0, nonce, 500, 1_001_000, &mut out);
    }
    trace.push(
        Push { thread: 43, bytes: 77, span: Span { start_ns: 2_000_000, end_ns: 2_000_500 } },
        &mut out,
    );
    trace.dropped(9, 3_000_000, &mut out);
    let events = events(&out);
    check_rows(&events);

    assert_eq!(named(&events, "process_name")[0]["args"]["name"], "a \"quoted\"\n program\\");
    let bar = named(&events, "foo::bar")[0];
    assert_eq!((ns(&bar["ts"]), ns(&bar["dur"]), bar["tid"].as_u64()), (1_001_000, 2_000, Some(5)));
    assert_eq!(bar["args"]["grid"], serde_json::json!([4, 2, 1]));
    assert_eq!(bar["args"]["symbol"], "_ZN3foo3barEPf");
    assert_eq!(named(&events, "unknown kernel").len(), 1);
    let copy = named(&events, "copy to the GPU")[0];
    assert_eq!((copy["args"]["bytes"].as_u64(), ns(&copy["args"]["gpu_us"])), (Some(4096), 800));
    assert_eq!(named(&events, "work that was not timed")[0]["args"]["count"], 2);
    // 6 us in all, 3 of them on the worker; the clocks say that 1 us passed before.
    let lengths = ["to the worker", "on the worker", "from the worker"]
        .map(|name| named(&events, name).iter().map(|part| ns(&part["dur"])).sum::<u64>());
    assert_eq!(lengths, [1_000, 3_000, 2_000]);
    let label = &named(&events, "process_labels")[0]["args"]["labels"];
    assert_eq!(label, "times on this GPU are right within 1 us");
}

#[test]
fn what_a_killed_program_leaves_lacks_only_the_bracket() {
    let mut out = String::new();
    let mut trace = Trace::new(1, "p", &mut out);
    trace.thread(1, "t", &mut out);
    let file = format!("{HEAD}{out}");
    assert!(serde_json::from_str::<Value>(&file).is_err());
    assert!(serde_json::from_str::<Value>(&format!("{file}]")).is_ok());
    // A line that was cut in the middle: the lines before it are whole.
    let torn = &file[..file.len() - 3];
    let whole = &torn[..torn.rfind(",\n").unwrap()];
    assert!(serde_json::from_str::<Value>(&format!("{whole}]")).is_ok());
}

#[derive(Clone, Debug)]
enum Step {
    Session,
    Asked { nonce: u64 },
    Told { nonce: u64, worker_ns: u64 },
    Call { call: u32, thread: u64, takes: u64 },
    Timed { kernels: Vec<(u32, u64, u64)>, works: Vec<(u32, u8, u64, u64)>, answers: Vec<(u32, u64, u64)> },
    Name { text: String },
}

fn step() -> impl Strategy<Value = Step> {
    let nonce = 0u64..6;
    let kernels = prop::collection::vec((0u32..3, 0u64..500, 0u64..500), 0..6);
    let works = prop::collection::vec((0u32..3, 0u8..9, 0u64..500, 0u64..500), 0..6);
    let answers = prop::collection::vec((0u32..20, any::<u64>(), any::<u64>()), 0..4);
    prop_oneof![
        Just(Step::Session),
        nonce.clone().prop_map(|nonce| Step::Asked { nonce }),
        (nonce, 0u64..1_000_000_000_000).prop_map(|(nonce, worker_ns)| Step::Told { nonce, worker_ns }),
        (0u32..20, 0u64..3, 0u64..5_000).prop_map(|(call, thread, takes)| Step::Call { call, thread, takes }),
        (kernels, works, answers).prop_map(|(kernels, works, answers)| Step::Timed {
            kernels,
            works,
            answers
        }),
        any::<String>().prop_map(|text| Step::Name { text }),
    ]
}

proptest! {
    /// A worker may say anything, in any order: what it says may be wrong, but the file stays a trace.
    #[test]
    fn slices_never_overlap_wrongly_and_the_file_is_json(steps in prop::collection::vec(step(), 0..60)) {
        let mut out = String::new();
        let mut trace = Trace::new(9, "p", &mut out);
        let (mut now, mut worker_now) = (1_000_000_000u64, 0u64);
        for step in steps {
            now += 10_000;
            match step {
                Step::Session => trace.session(0, "w", &mut out),
                Step::Asked { nonce } => trace.asked(0, nonce, now),
                Step::Told { nonce, worker_ns } => trace.told(0, nonce, worker_ns, now, &mut out),
                Step::Name { text } => {
                    trace.thread(1, &text, &mut out);
                    trace.module(ModuleId(7), vec![text]);
                }
                Step::Call { call, thread, takes } => {
                    let span = Span { start_ns: now, end_ns: now + takes };
                    trace.call(Call { link: 0, thread, name: "Call", call, span }, &mut out);
                }
                Step::Timed { kernels, works, answers } => {
                    // Of each stream in order, as the worker promises; the gaps may be anything.
                    let mut span = |gap: u64, length: u64| {
                        let start_ns = worker_now + gap;
                        worker_now = start_ns + length;
                        Span { start_ns, end_ns: worker_now }
                    };
                    let kernels = kernels.into_iter().map(|(stream, gap, length)| {
                        TimedKernel { span: span(gap, length), ..kernel(stream, 0, 0, 0) }
                    }).collect();
                    let works = works.into_iter().map(|(stream, kind, gap, length)| {
                        TimedWork { stream: StreamId(stream), kind, bytes: gap, span: span(gap, length) }
                    }).collect();
                    let answers = answers.into_iter().map(|(call, start_ns, end_ns)| {
                        TimedAnswer { call, span: Span { start_ns, end_ns } }
                    }).collect();
                    trace.timed(0, Timed { streams: vec![], kernels, works, answers, missed: 1 }, now, &mut out);
                }
            }
        }
        trace.finish(now, &mut out);
        check_rows(&events(&out));
    }
}
