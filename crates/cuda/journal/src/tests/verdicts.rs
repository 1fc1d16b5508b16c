//! What a replay says about single things that come again.

use crate::{
    Awaited, DeferredVerdict, Difference, Digest, HostCallHeard, HostCallVerdict, Journal, Landing,
    Observation, PullVerdict, Replay, Step, Verdict, manifest::frame,
};
use cuda_abi::CudaError;
use cuda_wire::*;

const NOT_READY: u32 = 600;
const STREAM: StreamId = StreamId(1);

/// The opcodes and calls of the frames up to the first step that is none.
fn sent(replay: &mut Replay) -> Vec<(u16, u32)> {
    let mut found = Vec::new();
    while let Step::Send(mut bytes) = replay.step().unwrap() {
        while !bytes.is_empty() {
            let head: CommandHeader = header(&bytes[..CommandHeader::BYTES]).unwrap();
            found.push((head.opcode, head.call));
            bytes = &bytes[CommandHeader::BYTES + head.bytes as usize..];
        }
    }
    found
}

fn answered(journal: &mut Journal, command: &Command<'_>, call: u32, status: u32, body: &[u8]) {
    journal.sent(frame(command, call));
    journal.observed(Observation::reply(call, command.opcode(), status, body));
}

fn read() -> Command<'static> {
    Command::ReadBack { stream: STREAM, source: Plane::line(0), shape: Shape::line(4) }
}

#[test]
fn questions_about_the_moment_are_left_out_and_yes_becomes_a_wait() {
    let mut journal = Journal::new(u64::MAX);
    let (query, event) = (Command::StreamQuery { stream: STREAM }, EventId(1));
    answered(&mut journal, &query, 1, NOT_READY, &[]);
    answered(&mut journal, &Command::MemoryInfo { device: 0 }, 2, 0, &[1; 16]);
    answered(&mut journal, &Command::EventElapsed { start: event, end: event }, 3, 0, &[0; 4]);
    answered(&mut journal, &query, 4, 0, &[]);
    answered(&mut journal, &Command::EventQuery { event }, 5, 0, &[]);
    // Nothing has answered this one: it is asked as it was.
    journal.sent(frame(&query, 6));
    let mut replay = journal.replay();
    assert_eq!(sent(&mut replay), [(0x32, 4)]);
    assert!(matches!(replay.step().unwrap(), Step::Await(Awaited::Reply { call: 4 })));
    assert_eq!(replay.reply_came(4, 0, &[]), Verdict::Same);
    assert_eq!(sent(&mut replay), [(0x42, 5)]);
    assert_eq!(replay.reply_came(5, 0, &[]), Verdict::Same);
    assert_eq!(sent(&mut replay), [(0x33, 6)]);
    assert!(matches!(replay.step().unwrap(), Step::Done));
    assert_eq!(replay.reply_came(6, NOT_READY, &[]), Verdict::New);
}

#[test]
fn what_was_refused_is_not_tried_again() {
    let mut journal = Journal::new(u64::MAX);
    let allocate = Command::MemoryAllocate { context: ContextId(0), address: 0x1000, bytes: 64 };
    answered(&mut journal, &allocate, 1, 2, b"out of memory");
    assert!(matches!(journal.replay().step().unwrap(), Step::Done));
}

#[test]
fn a_read_that_failed_fails_again() {
    let mut journal = Journal::new(u64::MAX);
    answered(&mut journal, &read(), 1, 700, b"illegal address");
    let mut replay = journal.replay();
    assert_eq!(sent(&mut replay), [(0x35, 1)]);
    assert_eq!(replay.reply_came(1, 700, b"illegal address"), Verdict::Same);
}

#[test]
fn other_bytes_and_other_codes_are_told_apart() {
    let mut journal = Journal::new(u64::MAX);
    answered(&mut journal, &read(), 1, 0, b"1234");
    let verdict = |status, body: &[u8]| {
        let mut replay = journal.replay();
        sent(&mut replay);
        replay.reply_came(1, status, body)
    };
    assert_eq!(verdict(0, b"1234"), Verdict::Same);
    assert_eq!(verdict(0, b"1235"), Verdict::Differs(Difference::Body { call: 1 }));
    assert_eq!(verdict(0, b""), Verdict::Differs(Difference::Body { call: 1 }));
    let Verdict::Differs(difference) = verdict(719, b"") else { panic!("the code differs") };
    assert_eq!(difference.to_string(), "call 1 returned 0 before the loss and returns 719 now");
}

#[test]
fn what_the_program_has_not_looked_at_may_differ() {
    let (transfer, digest) = (TransferId(9), Digest::of(b"bytes"));
    let mut journal = Journal::new(u64::MAX);
    let op = Op::CopyOut { source: Plane::line(0), shape: Shape::line(5), transfer };
    journal.sent(frame(&Command::Enqueue { stream: STREAM, op }, 0));
    journal.observed(Observation::Landed { transfer, digest });
    let mut replay = journal.replay();
    assert_eq!(sent(&mut replay).len(), 1);
    assert!(matches!(replay.step().unwrap(), Step::Done), "bytes that nothing depends on hold nothing back");
    assert_eq!(replay.landing(transfer), Landing::Write);
    // The caller has written the other bytes, so it does not mind.
    let differs = Verdict::Differs(Difference::Bytes { transfer });
    assert_eq!(replay.landed_again(transfer, Digest::of(b"other")), differs);
    assert_eq!(replay.landed_again(TransferId(10), digest), Verdict::New);
    // A reply behind it, and the program may have looked.
    answered(&mut journal, &Command::StreamSynchronize { stream: STREAM }, 1, 0, &[]);
    let mut replay = journal.replay();
    assert_eq!(sent(&mut replay).len(), 1);
    assert!(matches!(replay.step().unwrap(), Step::Await(Awaited::Landed { .. })));
    assert_eq!(replay.landing(transfer), Landing::Compare);
    assert_eq!(replay.landed_again(transfer, Digest::of(b"other")), differs);
    assert_eq!(journal.replay().landed_again(transfer, digest), Verdict::Same);
}

#[test]
fn text_is_dropped_by_count_and_compared() {
    let mut journal = Journal::new(u64::MAX);
    journal.printed(b"one ");
    journal.printed(b"two ");
    let mut replay = journal.replay();
    assert!(!replay.is_spent());
    // In other pieces than before.
    assert_eq!(replay.printed(b"one t").drop, 5);
    let last = replay.printed(b"wo three");
    assert_eq!((last.drop, last.differs), (3, false));
    assert!(replay.is_spent());
    assert_eq!(replay.printed(b"four").drop, 0);
    assert!(journal.replay().printed(b"one TWO three").differs);
}

#[test]
fn text_before_a_cut_is_not_waited_for() {
    let mut journal = Journal::new(u64::MAX);
    journal.printed(b"before");
    journal.cut_sent(1);
    journal.printed(b"still before");
    journal.cut_taken(1);
    journal.printed(b"behind");
    journal.cut_safe(1).unwrap();
    assert_eq!(journal.replay().printed(b"behind and more").drop, 6);
}

#[test]
fn host_functions_run_once_each_time_a_graph_asks() {
    let mut journal = Journal::new(u64::MAX);
    let token = 4;
    for _ in 0..2 {
        journal.observed(Observation::HostCallBegan { token, may_send: true });
        journal.observed(Observation::HostCallRan { token });
    }
    journal.observed(Observation::HostCallBegan { token, may_send: true });
    let mut replay = journal.replay();
    let awaited = |replay: &mut Replay| match replay.step().unwrap() {
        Step::Await(Awaited::HostCall { run, .. } | Awaited::HostCallBegan { run, .. }) => run,
        _ => 0,
    };
    assert_eq!(awaited(&mut replay), 1);
    assert_eq!(replay.host_call_asked(token), HostCallVerdict::AlreadyRan);
    assert_eq!(awaited(&mut replay), 2);
    assert_eq!(replay.host_call_asked(token), HostCallVerdict::AlreadyRan);
    // Commands that follow the third's begin may come of what it does.
    assert_eq!(awaited(&mut replay), 3);
    assert!(!replay.is_spent());
    assert_eq!(replay.host_call_asked(token), HostCallVerdict::StillRunning);
    assert_eq!(awaited(&mut replay), 0);
    assert!(replay.is_spent());
    assert_eq!(replay.host_call_asked(token), HostCallVerdict::Run);
}

#[test]
fn a_host_function_that_ran_is_answered_though_another_one_runs() {
    let mut journal = Journal::new(u64::MAX);
    journal.observed(Observation::HostCallBegan { token: 1, may_send: true });
    journal.observed(Observation::HostCallRan { token: 1 });
    journal.observed(Observation::HostCallBegan { token: 2, may_send: true });
    let mut replay = journal.replay();
    assert!(matches!(replay.step().unwrap(), Step::Await(Awaited::HostCallBegan { token: 1, run: 1 })));
    assert_eq!(replay.host_call_heard(1), HostCallHeard::Owed, "the replay answers");
    assert!(matches!(replay.step().unwrap(), Step::Returned(1)));
    assert!(matches!(replay.step().unwrap(), Step::Await(Awaited::HostCallBegan { token: 2, run: 1 })));
    assert_eq!(replay.host_call_heard(2), HostCallHeard::Queue, "it is answered when it returns");
    assert!(matches!(replay.step().unwrap(), Step::Done), "what it waits for is sent meanwhile");
    assert_eq!(replay.host_call_asked(2), HostCallVerdict::StillRunning);
    assert!(replay.is_spent());
    assert_eq!(replay.host_call_heard(1), HostCallHeard::Queue, "a new run");
    assert_eq!(replay.host_call_asked(1), HostCallVerdict::Run);
}

#[test]
fn a_host_function_without_managed_memory_is_answered_at_once() {
    // A wait for the whole context may wait for a function that was launched behind it, if the worker is quick now.
    let mut journal = Journal::new(u64::MAX);
    answered(&mut journal, &Command::ContextSynchronize { context: ContextId(1) }, 7, 0, &[]);
    journal.observed(Observation::HostCallBegan { token: 1, may_send: false });
    journal.observed(Observation::HostCallRan { token: 1 });
    let mut replay = journal.replay();
    assert!(matches!(replay.step().unwrap(), Step::Send(_)));
    assert!(matches!(replay.step().unwrap(), Step::Await(Awaited::Reply { call: 7 })));
    assert_eq!(replay.host_call_heard(1), HostCallHeard::Answer);
}

#[test]
fn a_pull_gets_the_bytes_of_its_turn() {
    let mut journal = Journal::new(u64::MAX);
    let transfer = TransferId(3);
    let first = journal.serving_began(transfer);
    let second = journal.serving_began(transfer);
    let third = journal.serving_began(transfer);
    journal.host_data(first, b"first".as_slice().into());
    journal.serving_refused(second);
    assert_eq!((journal.bytes_held(), third.transfer()), (5, transfer));
    let mut replay = journal.replay();
    assert_eq!(replay.pull_asked(transfer), PullVerdict::Kept(b"first".as_slice().into()));
    assert_eq!(replay.pull_asked(transfer), PullVerdict::Refused);
    assert_eq!(replay.pull_asked(transfer), PullVerdict::Again(third));
    assert!(replay.is_spent());
    assert_eq!(replay.pull_asked(transfer), PullVerdict::New);
}

#[test]
fn an_error_that_was_delivered_is_not_delivered_again() {
    let mut journal = Journal::new(u64::MAX);
    let (context, status) = (ContextId(0), 1);
    journal.observed(Observation::Deferred { context, status });
    let mut replay = journal.replay();
    assert_eq!(
        replay.deferred(context, status),
        DeferredVerdict::Known,
        "the program is not told of the manifest's"
    );
    assert!(matches!(replay.step().unwrap(), Step::Done));
    assert_eq!(replay.deferred(context, status), DeferredVerdict::Known);
    assert_eq!(replay.deferred(context, status), DeferredVerdict::New, "a second one is new");
    assert!(journal.replay().step().is_ok());
}

#[test]
fn memory_that_is_missing_is_never_passed_over() {
    let (context, no_memory) = (ContextId(0), CudaError::OUT_OF_MEMORY.code());
    let mut replay = Journal::new(u64::MAX).replay();
    assert_eq!(replay.deferred(context, no_memory), DeferredVerdict::NoMemory, "in the manifest");
    assert!(matches!(replay.step().unwrap(), Step::Done));
    assert_eq!(replay.deferred(context, no_memory), DeferredVerdict::NoMemory, "in the frames");
    assert!(Difference::Memory.lacks_memory());
    assert!(Difference::Status { call: 1, was: 0, is: no_memory }.lacks_memory());
    assert!(!Difference::Status { call: 1, was: 0, is: 1 }.lacks_memory());
}

#[test]
fn a_program_that_was_told_of_missing_memory_goes_on() {
    let mut journal = Journal::new(u64::MAX);
    let (context, status) = (ContextId(0), CudaError::OUT_OF_MEMORY.code());
    journal.observed(Observation::Deferred { context, status });
    let mut replay = journal.replay();
    assert!(matches!(replay.step().unwrap(), Step::Done));
    assert_eq!(replay.deferred(context, status), DeferredVerdict::Known);
}

#[test]
fn a_push_whose_command_was_not_sent_is_made_again() {
    let mut journal = Journal::new(u64::MAX);
    let transfer = TransferId(5);
    journal.pushed(transfer, b"bytes".as_slice().into());
    let mut replay = journal.replay();
    let is_pushed = matches!(replay.step().unwrap(), Step::Push(name, Some(_)) if name == transfer);
    assert!(is_pushed, "its command is still with the client");
    assert!(matches!(replay.step().unwrap(), Step::Done));
}

#[test]
fn what_comes_during_a_write_comes_behind_its_frames() {
    let mut journal = Journal::new(u64::MAX);
    let wait = Command::StreamSynchronize { stream: STREAM };
    let frames = [frame(&wait, 1), frame(&Command::StreamDestroy { stream: STREAM }, 0)].concat();
    journal.announce(frames.len());
    journal.observed(Observation::reply(1, wait.opcode(), 0, &[]));
    let early = journal.replay().step().is_ok_and(|step| matches!(step, Step::Await(_)));
    assert!(early, "the frames are not there, and their mark is not forgotten");
    journal.sent(frames);
    assert_eq!(journal.position(), 16 + 4 + 16 + 4);
    let mut replay = journal.replay();
    assert_eq!(sent(&mut replay), [(0x32, 1), (0x31, 0)]);
    assert!(matches!(replay.step().unwrap(), Step::Await(Awaited::Reply { call: 1 })));
}

#[test]
fn cuts_and_goodbyes_are_not_told_to_another_session() {
    let mut journal = Journal::new(u64::MAX);
    let mut cut = frame(&Command::Goodbye {}, 0);
    journal.sent(cut.clone());
    cut[4] = 0x70;
    journal.sent(cut);
    journal.cut_sent(1);
    journal.cut_abandoned(1);
    assert!(matches!(journal.replay().step().unwrap(), Step::Done));
}
