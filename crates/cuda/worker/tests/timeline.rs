//! Sessions whose client wished for a timeline, on soft GPUs.

mod support;

use cuda_wire::*;
use cuda_worker::{EndKind, Grant};
use std::sync::Arc;
use support::client::{Client, Told};
use support::protected::*;
use support::worker::Worker;

/// Not a test: the session processes of the tests below run this, with their control socket as standard input.
#[test]
#[ignore = "the entry of session processes"]
fn session_process() {
    serve_guarded();
}

fn worker() -> Worker {
    Worker::start("unix", |config| config.grant = Arc::new(|| Ok(Grant::plain("soft".into()))))
}

/// A client with a timeline, which the worker says that it keeps before anything else.
fn attach(worker: &Worker) -> Client {
    let client = Client::attach_with(&worker.target, 1, |hello| hello.wish.timeline = true);
    assert!(matches!(client.heard(), Told::TimelineClock(0, _)));
    client
}

#[derive(Debug, Default)]
struct Timeline {
    streams: Vec<TimedStream>,
    works: Vec<TimedWork>,
    answers: Vec<TimedAnswer>,
    missed: u64,
    worker_ns: u64,
}

/// Everything that has run.
fn flush(client: &Client) -> Timeline {
    let mut all = Timeline::default();
    client.say(&Notice::TimelineAsk { nonce: 77, flush: true });
    loop {
        match client.heard() {
            Told::TimelineClock(77, worker_ns) => return Timeline { worker_ns, ..all },
            Told::Timed(timed) => {
                let Notice::Timed { streams, works, answers, missed, .. } = *timed else { unreachable!() };
                all.streams.extend(streams);
                all.works.extend(works);
                all.answers.extend(answers);
                all.missed += missed;
            }
            other => panic!("{other:?}"),
        }
    }
}

fn fill(client: &mut Client, stream: StreamId, bytes: u64) {
    let op =
        Op::Fill { target: Plane::line(client.base), shape: Shape::line(bytes), element_bytes: 1, value: 3 };
    client.one_way(&Command::Enqueue { stream, op });
}

#[test]
fn work_is_told_with_its_stream_its_size_and_its_time() {
    let worker = worker();
    let mut client = attach(&worker);
    client.make(1 << 20);
    for _ in 0..100 {
        fill(&mut client, STREAM, 1 << 20);
    }
    client.write(OTHER, 0, &[1; 5000]);
    assert_eq!(client.read(OTHER, 2000), [1; 2000]);
    client.must(&Command::StreamSynchronize { stream: STREAM });
    let told = flush(&client);
    assert_eq!(told.missed, 0);
    assert_eq!(told.streams.iter().map(|stream| stream.stream).collect::<Vec<_>>(), [STREAM, OTHER]);
    let of = |stream: StreamId| told.works.iter().filter(move |work| work.stream == stream);
    assert!(of(STREAM).all(|work| (work.kind, work.bytes) == (timed::FILL, 1 << 20)));
    assert_eq!(of(STREAM).count(), 100);
    let other: Vec<_> = of(OTHER).map(|work| (work.kind, work.bytes)).collect();
    assert_eq!(other, [(timed::COPY_IN, 5000), (timed::COPY_OUT, 2000)]);
    for stream in [STREAM, OTHER] {
        let spans: Vec<Span> = of(stream).map(|work| work.span).collect();
        assert!(spans.iter().all(|span| span.start_ns <= span.end_ns && span.end_ns <= told.worker_ns));
        assert!(spans.windows(2).all(|pair| pair[0].end_ns <= pair[1].start_ns), "{spans:?}");
    }
    // 1 MiB is not filled in no time.
    let filled: u64 = of(STREAM).map(|work| work.span.end_ns - work.span.start_ns).sum();
    assert!(filled > 100_000, "{filled} ns for 100 MiB");
    assert_eq!(told.answers.len(), 2, "the read and the wait: {:?}", told.answers);
    assert!(told.answers.iter().all(|answer| answer.span.start_ns <= answer.span.end_ns));
    client.must(&Command::Goodbye {});
    assert_eq!(worker.end().kind, EndKind::Finished);
}

/// A context that is emptied takes the timeline's own events and stream with it.
#[test]
fn a_context_can_be_emptied_and_used_again() {
    let worker = worker();
    let mut client = attach(&worker);
    for round in 0..3 {
        client.make(4096);
        fill(&mut client, STREAM, 4096);
        client.must(&Command::StreamSynchronize { stream: STREAM });
        client.must(&Command::ContextReset { context: CONTEXT });
        let told = flush(&client);
        assert_eq!((told.works.len(), told.missed), (1, 0), "round {round}");
    }
    client.must(&Command::Goodbye {});
    assert_eq!(worker.end().kind, EndKind::Finished);
}

/// The timeline must not hide or add errors: what is refused is refused as without one.
#[test]
fn work_that_is_refused_is_not_told() {
    let worker = worker();
    let mut client = attach(&worker);
    client.make(4096);
    fill(&mut client, StreamId(99), 4096);
    fill(&mut client, STREAM, 1 << 40);
    fill(&mut client, STREAM, 16);
    let (header, _) = client.call(&Command::StreamSynchronize { stream: STREAM });
    assert_ne!(header.deferred, 0);
    let told = flush(&client);
    assert_eq!(told.works.iter().map(|work| work.bytes).collect::<Vec<_>>(), [16]);
}

#[test]
fn a_client_without_the_wish_has_no_timeline_to_ask_for() {
    let worker = worker();
    let client = Client::attach(&worker.target, 1);
    client.say(&Notice::TimelineAsk { nonce: 1, flush: false });
    assert!(matches!(client.heard(), Told::Closing(words) if words.contains("did not wish")));
    assert_eq!(worker.end().kind, EndKind::Protocol);
}
