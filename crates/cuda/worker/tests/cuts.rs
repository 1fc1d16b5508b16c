//! Cuts of a soft GPU's session, as a client and a guardian see them.

mod support;

use cuda_abi::CudaError;
use cuda_wire::*;
use cuda_worker::EndKind;
use support::client::{Client, Told, patterned};
use support::guardian::{BYTES_MAX, Failure, Spoilt, TestGuardian};
use support::protected::*;

/// Not a test: the session processes of the tests below run this, with their control socket as standard input.
#[test]
#[ignore = "the entry of session processes"]
fn session_process() {
    serve();
}

/// Several blocks, and all of what the driver maps for them: it maps steps of 512 bytes.
const BYTES: usize = 391 * 512;

fn say(worker_client: &mut Client, stream: StreamId, kernel: u32, value: u32) {
    let op = Op::Launch {
        kernel: KernelRef { module: ModuleId(1), index: kernel },
        grid: [1; 3],
        block: [1; 3],
        shared_bytes: 0,
        cooperative: false,
        attributes: vec![],
        parameters: Bytes(&value.to_le_bytes()),
    };
    worker_client.one_way(&Command::Enqueue { stream, op });
}

fn load_kernels(client: &mut Client) -> u32 {
    let image: &[u8] = include_bytes!("../../driver-soft/tests/samples/kernels.ptx");
    let body = client.must(&Command::ModuleLoad {
        module: ModuleId(1),
        context: CONTEXT,
        hash: *blake3::hash(image).as_bytes(),
        image: ImageSource::Inline { bytes: Bytes(image) },
        options: vec![],
    });
    let info = ModuleInfo::from_bytes(&body).unwrap();
    info.kernels.iter().position(|kernel| kernel.name == "say").unwrap() as u32
}

#[test]
fn a_killed_session_comes_back_from_its_image() {
    let (worker, guardian) = protected_worker("soft");
    let mut client = worker.attach();
    let (header, body) = client.guard(1);
    assert_eq!(header.status, 0);
    let info = GuardInfo::from_bytes(&body).unwrap();
    assert_eq!((info.bytes_max, info.guardian.as_str()), (BYTES_MAX, "elsewhere"));
    assert!(info.driver_build.starts_with("soft "), "{}", info.driver_build);
    client.make(BYTES as u64);
    client.write(STREAM, 0, &patterned(1, BYTES));
    client.safe_cut(1);
    client.write(STREAM, 70_000, &patterned(2, 1000));
    client.safe_cut(2);
    let mut expected = patterned(1, BYTES);
    expected[70_000..71_000].copy_from_slice(&patterned(2, 1000));
    // Not in any image.
    client.write(STREAM, 0, &[1; 100]);
    client.must(&Command::StreamSynchronize { stream: STREAM });
    let base = client.base;
    kill_session(&worker);
    assert!(guardian.saved(IMAGE, 2, base, BYTES) == expected);

    let mut second = worker.attach();
    assert_eq!(second.base, base);
    assert_eq!(second.guard(2).0.status, 0);
    second.make(BYTES as u64);
    let (header, body) = second.restore(2);
    assert_eq!((header.status, header.deferred), (0, 0));
    let restored = ImageRestored::from_bytes(&body).unwrap();
    assert_eq!(restored.bytes, BYTES as u64);
    assert!(second.read(STREAM, BYTES as u64) == expected);
    // The next delta is relative to what was restored.
    let puts = |guardian: &TestGuardian| {
        guardian.books(|books| books.calls.iter().filter(|call| *call == "put").count())
    };
    let before = puts(&guardian);
    second.write(STREAM, 5, &[7; 10]);
    second.safe_cut(3);
    assert_eq!(puts(&guardian) - before, 1);
    expected[5..15].fill(7);
    assert!(guardian.saved(IMAGE, 3, base, BYTES) == expected);
}

#[test]
fn a_session_goes_on_from_the_cut_before_the_last_and_is_protected_again() {
    let (worker, guardian) = protected_worker("soft");
    let mut client = worker.attach();
    client.guard(1);
    client.make(BYTES as u64);
    client.write(STREAM, 0, &patterned(1, BYTES));
    client.safe_cut(1);
    client.write(STREAM, 0, &patterned(2, BYTES));
    // The guardian has it, but the client dies before it hears so: its journal goes back to cut 1.
    client.safe_cut(2);
    kill_session(&worker);
    let mut second = worker.attach();
    second.guard(2);
    second.make(BYTES as u64);
    assert_eq!(second.restore(1).0.status, 0);
    assert!(second.read(STREAM, BYTES as u64) == patterned(1, BYTES));
    // A delta relative to cut 1 does not fit an image that has cut 2: the one after it is whole.
    let words = second.unsafe_cut(3);
    assert!(words.contains("send a whole image"), "{words}");
    second.write(STREAM, 0, &[5; 10]);
    second.safe_cut(4);
    let mut expected = patterned(1, BYTES);
    expected[..10].fill(5);
    assert!(guardian.saved(IMAGE, 4, second.base, BYTES) == expected);
}

#[test]
fn a_cut_divides_what_the_client_hears() {
    let (worker, _guardian) = protected_worker("soft");
    let mut client = worker.attach();
    client.guard(1);
    client.make(BYTES as u64);
    let kernel = load_kernels(&mut client);
    client.must(&Command::ContextSynchronize { context: CONTEXT });
    for round in 1..=20u64 {
        // Before the cut: a host function that holds its stream, and text behind it.
        let value = round as u32 * 10;
        client.one_way(&Command::Enqueue { stream: STREAM, op: Op::HostCall { token: round } });
        say(&mut client, STREAM, kernel, value);
        client.cut(round, PATIENT);
        // After it: the same in another stream, and in one that did not exist at the cut.
        let late = StreamId(100 + round as u32);
        client.one_way(&Command::StreamCreate { stream: late, context: CONTEXT, kind: 1, priority: 0 });
        say(&mut client, OTHER, kernel, value + 1);
        client.one_way(&Command::Enqueue { stream: late, op: Op::HostCall { token: 1000 + round } });
        let pulled = HostData::Pulled { transfer: TransferId(round) };
        let op = Op::CopyIn { target: Plane::line(client.base), shape: Shape::line(100), data: pulled };
        client.one_way(&Command::Enqueue { stream: STREAM, op });
        assert_eq!(client.heard(), Told::HostCall(round));
        // The worker goes on reading commands while its streams stand at the cut.
        client.must(&Command::MemoryInfo { device: 0 });
        assert!(client.told.try_recv().is_err(), "something went past the cut");
        client.say(&Notice::HostCallDone { token: round });
        let said = |value: u32| Told::Print(format!("thread 0 says {value} and text\n").into_bytes());
        assert_eq!(client.heard(), said(value));
        assert_eq!(client.heard(), Told::CutTaken(round));
        let mut after = Vec::new();
        while after.len() < 4 {
            let told = client.heard();
            match &told {
                Told::HostCall(token) => client.say(&Notice::HostCallDone { token: *token }),
                Told::Pull(transfer) => {
                    client.lanes.send(*transfer, 100, &|_: u64, target: &mut [u8]| target.fill(3)).unwrap();
                }
                _ => {}
            }
            after.push(told);
        }
        for expected in [
            said(value + 1),
            Told::HostCall(1000 + round),
            Told::Pull(TransferId(round)),
            Told::CutSafe(round),
        ] {
            assert!(after.contains(&expected), "{expected:?} is not in {after:?}");
        }
        client.must(&Command::ContextSynchronize { context: CONTEXT });
    }
}

#[test]
fn a_cut_that_work_cannot_reach_is_abandoned_and_hurts_nothing() {
    let (worker, guardian) = protected_worker("soft");
    let mut client = worker.attach();
    client.guard(1);
    client.make(BYTES as u64);
    client.one_way(&Command::Enqueue { stream: STREAM, op: Op::HostCall { token: 5 } });
    client.write(STREAM, 0, &[1; 100]);
    client.cut(1, 20_000);
    assert_eq!(client.heard(), Told::HostCall(5));
    client.write(OTHER, 100, &[2; 100]);
    let Told::CutAbandoned(1, words) = client.heard() else { panic!() };
    assert!(words.contains("did not meet in time"), "{words}");
    assert_eq!(client.read(OTHER, 200)[100..], [2; 100], "the work behind the cut went on");
    client.say(&Notice::HostCallDone { token: 5 });
    client.must(&Command::ContextSynchronize { context: CONTEXT });
    client.safe_cut(2);
    assert_eq!(guardian.saved(IMAGE, 2, client.base, BYTES)[..200], [[1; 100], [2; 100]].concat());
}

#[test]
fn a_guardian_that_fails_at_any_call_of_a_cut_costs_that_cut_alone() {
    let (worker, guardian) = protected_worker("soft");
    let mut client = worker.attach();
    client.guard(1);
    client.make(BYTES as u64);
    let mut number = 0;
    let mut next = || {
        number += 1;
        number
    };
    for failure in [Failure::BreaksOff, Failure::BreaksOffAfter, Failure::Dies, Failure::Refuses] {
        let mut nth = 0;
        loop {
            let seed = next();
            client.write(STREAM, 0, &patterned(seed, BYTES));
            client.safe_cut(next());
            // This cut has several blocks: begin, put, put, …, commit.
            let seed = next();
            client.write(STREAM, 1000, &patterned(seed, 150_000));
            guardian.fail(nth, failure);
            let cut = next();
            client.cut(cut, PATIENT);
            assert_eq!(client.heard(), Told::CutTaken(cut));
            match client.heard() {
                Told::CutSafe(safe) => {
                    assert_eq!(safe, cut);
                    assert!(guardian.takes_failure_back(), "{failure:?} {nth}: a failed cut was called safe");
                    break;
                }
                Told::CutAbandoned(abandoned, words) => {
                    assert_eq!(abandoned, cut);
                    // The client sees from the words whether its last safe image may be gone.
                    let is_lost = words.contains("the guardian is lost")
                        && words.contains("cannot be resumed from an image");
                    assert_eq!(is_lost, failure != Failure::Refuses, "{failure:?} {nth}: {words}");
                    assert!(is_lost || words.contains("the guardian will not"), "{nth}: {words}");
                }
                other => panic!("{other:?}"),
            }
            // The next one makes good for it.
            let (last, cut) = (next(), next());
            client.write(STREAM, 199_000, &patterned(last, 1000));
            client.safe_cut(cut);
            let memory = client.read(STREAM, BYTES as u64);
            assert!(guardian.saved(IMAGE, cut, client.base, BYTES) == memory, "{failure:?} {nth}");
            nth += 1;
        }
        assert!(nth >= 5, "{failure:?}: {nth} calls failed");
    }
    // The guardian is lost and does not come back: every cut says so.
    let path = guardian.path();
    guardian.fail(0, Failure::Dies);
    std::fs::rename(&path, path.with_extension("gone")).unwrap();
    for _ in 0..3 {
        client.write(STREAM, 0, &patterned(next(), 100));
        let words = client.unsafe_cut(next());
        assert!(words.contains("the guardian is lost"), "{words}");
    }
    std::fs::rename(path.with_extension("gone"), &path).unwrap();
    let cut = next();
    client.safe_cut(cut);
    let memory = client.read(STREAM, BYTES as u64);
    assert!(guardian.saved(IMAGE, cut, client.base, BYTES) == memory);
}

#[test]
fn a_guardian_that_fails_at_the_guard_or_a_restore_is_told_and_asked_again() {
    let (worker, guardian) = protected_worker("soft");
    let mut client = worker.attach();
    guardian.fail(0, Failure::BreaksOff);
    let (header, words) = client.guard(1);
    assert_eq!(header.status, CudaError::SYSTEM_NOT_READY.code());
    assert!(String::from_utf8(words).unwrap().contains("the guardian is lost"));
    assert_eq!(client.guard(1).0.status, 0);
    client.make(BYTES as u64);
    client.write(STREAM, 0, &patterned(1, BYTES));
    client.safe_cut(1);
    kill_session(&worker);
    // The image, then each block of it.
    for nth in 0..4 {
        let mut client = worker.attach();
        assert_eq!(client.guard(2).0.status, 0);
        client.make(BYTES as u64);
        guardian.fail(nth, Failure::BreaksOff);
        let (header, words) = client.restore(1);
        let words = String::from_utf8(words).unwrap();
        assert_eq!(header.status, CudaError::SYSTEM_NOT_READY.code(), "{words}");
        assert!(words.contains("guardian"), "{words}");
        // It is not the device that is lost.
        client.must(&Command::MemoryInfo { device: 0 });
        drop(client);
        assert_eq!(worker.end().kind, EndKind::PeerLost);
    }
}

#[test]
fn the_command_loop_waits_for_no_guardian() {
    let (worker, guardian) = protected_worker("soft");
    let mut client = worker.attach();
    guardian.hold("open");
    let guarding = client.ask(&guard(1));
    client.make(BYTES as u64);
    client.must(&Command::MemoryInfo { device: 0 });
    // There is no image to cut into yet.
    client.cut(1, PATIENT);
    let Told::CutAbandoned(1, words) = client.heard() else { panic!() };
    assert!(words.contains("has not answered yet"), "{words}");
    guardian.let_go();
    assert_eq!(client.reply().0.call, guarding);
    client.write(STREAM, 0, &patterned(1, BYTES));
    guardian.hold("commit");
    client.cut(2, PATIENT);
    assert_eq!(client.heard(), Told::CutTaken(2));
    guardian.wait_for("commit");
    client.write(STREAM, 0, &patterned(2, BYTES));
    assert!(client.read(STREAM, BYTES as u64) == patterned(2, BYTES), "the streams went on");
    guardian.let_go();
    assert_eq!(client.heard(), Told::CutSafe(2));
    assert!(guardian.saved(IMAGE, 2, client.base, BYTES) == patterned(1, BYTES));
    kill_session(&worker);

    // Commands behind a restore wait for it; pings do not.
    let mut second = worker.attach();
    second.guard(2);
    second.make(BYTES as u64);
    guardian.hold("read");
    let restoring = second.ask(&Command::ImageRestore { number: 2, from: String::new() });
    let source = Plane::line(second.base);
    let reading = second.ask(&Command::ReadBack { stream: STREAM, source, shape: Shape::line(1000) });
    guardian.wait_for("read");
    second.say(&Notice::Ping { nonce: 7 });
    assert_eq!(second.heard(), Told::Pong(7));
    guardian.let_go();
    let (header, _) = second.reply();
    assert_eq!((header.call, header.status), (restoring, 0));
    let (header, body) = second.reply();
    assert_eq!((header.call, header.status), (reading, 0));
    assert_eq!(Blob::from_bytes(&body).unwrap().0, patterned(1, BYTES)[..1000]);
}

#[test]
fn a_late_writer_is_shut_out() {
    let (worker, guardian) = protected_worker("soft");
    let mut old = worker.attach();
    assert_eq!(old.guard(1).0.status, 0);
    old.make(BYTES as u64);
    old.write(STREAM, 0, &patterned(1, BYTES));
    old.safe_cut(1);
    let mut new = worker.attach();
    assert_eq!(new.guard(2).0.status, 0);
    new.make(BYTES as u64);
    assert_eq!(new.restore(1).0.status, 0);
    old.write(STREAM, 0, &[0; 100]);
    for number in [2, 3] {
        let words = old.unsafe_cut(number);
        assert!(words.contains("incarnation 1 may not write"), "{words}");
    }
    new.write(STREAM, 0, &[6; 100]);
    new.safe_cut(2);
    assert_eq!(guardian.saved(IMAGE, 2, new.base, BYTES)[..100], [6; 100]);
    // Neither an older incarnation nor another secret opens the image.
    let mut late = worker.attach();
    let (header, words) = late.guard(1);
    assert_eq!(header.status, CudaError::NOT_PERMITTED.code());
    assert!(String::from_utf8(words).unwrap().contains("incarnation 1 may not write"));
    let (header, words) = late.call(&Command::Guard { image: IMAGE, secret: [5; 32], incarnation: 3 });
    assert_eq!(header.status, CudaError::NOT_PERMITTED.code());
    assert!(String::from_utf8(words).unwrap().contains("secret"));
    new.write(STREAM, 0, &[7; 100]);
    new.safe_cut(3);
}

#[test]
fn an_image_ends_with_a_goodbye_and_stays_otherwise() {
    let (worker, guardian) = protected_worker("soft");
    let images = |guardian: &TestGuardian| guardian.books(|books| books.images.len());
    let protected = |incarnation: u64, number: u64| {
        let mut client = worker.attach();
        assert_eq!(client.guard(incarnation).0.status, 0);
        client.make(BYTES as u64);
        client.safe_cut(number);
        client
    };
    let mut client = protected(1, 1);
    client.must(&Command::Leave {});
    assert_eq!(worker.end().kind, EndKind::Finished);
    assert_eq!(images(&guardian), 1, "it left");
    let client = protected(2, 2);
    drop(client);
    assert_eq!(worker.end().kind, EndKind::PeerLost);
    assert_eq!(images(&guardian), 1, "it broke off");
    let mut client = protected(3, 3);
    // A cut that can never be taken does not hold the end up.
    client.one_way(&Command::Enqueue { stream: STREAM, op: Op::HostCall { token: 5 } });
    client.cut(4, PATIENT);
    client.one_way(&Command::Goodbye {});
    assert_eq!(worker.end().kind, EndKind::Finished);
    assert_eq!(images(&guardian), 0, "it said goodbye");
}

#[test]
fn hostile_clients_are_answered_in_words() {
    let (worker, guardian) = protected_worker("soft");
    let mut client = worker.attach();
    let refused = |client: &mut Client, command: &Command<'_>, error: CudaError, part: &str| {
        let (header, words) = client.call(command);
        let words = String::from_utf8(words).unwrap();
        assert_eq!(header.status, error.code(), "{}: {words}", command.name());
        assert!(words.contains(part), "{words}");
        if let Command::Cut { number, .. } = command {
            assert_eq!(client.heard(), Told::CutAbandoned(*number, words));
        }
    };
    let cut = |number| Command::Cut { number, dead: vec![], patience_us: PATIENT };
    let restore = |number| Command::ImageRestore { number, from: String::new() };
    refused(&mut client, &cut(1), CudaError::NOT_INITIALIZED, "not protected");
    refused(&mut client, &restore(1), CudaError::NOT_INITIALIZED, "not protected");
    refused(&mut client, &guard(0), CudaError::INVALID_VALUE, "counted from 1");
    assert_eq!(client.guard(1).0.status, 0);
    refused(&mut client, &guard(1), CudaError::INVALID_VALUE, "protected already");
    refused(&mut client, &guard(2), CudaError::INVALID_VALUE, "protected already");
    refused(&mut client, &restore(0), CudaError::NOT_FOUND, "cut 0");
    refused(&mut client, &restore(77), CudaError::NOT_FOUND, "cut 77");
    refused(&mut client, &cut(0), CudaError::INVALID_VALUE, "");
    client.make(BYTES as u64);
    client.safe_cut(5);
    refused(&mut client, &cut(5), CudaError::INVALID_VALUE, "");

    let base = client.base;
    let tight = |dead| Command::Cut { number: 6, dead, patience_us: PATIENT };
    let range = |offset: u64, bytes: u64| VaRange { base: base + offset, bytes };
    let invalid = CudaError::INVALID_VALUE;
    refused(&mut client, &tight(vec![range(0, 100), range(50, 100)]), invalid, "overlap");
    refused(&mut client, &tight(vec![range(0, u64::MAX)]), invalid, "more than there are addresses");
    refused(&mut client, &tight(vec![VaRange { base: u64::MAX, bytes: 1 }]), invalid, "");
    let million = (0..1_000_000).map(|at| range(at * 4096, 1)).collect();
    refused(&mut client, &tight(million), invalid, "1000000 pieces");
    // One-way, a refusal is a notice.
    client.one_way(&tight(vec![range(0, 100), range(50, 100)]));
    assert!(matches!(client.heard(), Told::CutAbandoned(6, _)));

    // Two at once, and a restore while one is under way.
    guardian.hold("begin");
    client.cut(6, PATIENT);
    assert_eq!(client.heard(), Told::CutTaken(6));
    refused(&mut client, &cut(7), CudaError::NOT_READY, "cut 6 is still under way");
    refused(&mut client, &restore(5), CudaError::NOT_READY, "under way");
    guardian.let_go();
    assert_eq!(client.heard(), Told::CutSafe(6));
    // Nothing of all that has hurt it.
    client.safe_cut(8);
    // A restore into memory that is not there.
    kill_session(&worker);
    let mut second = worker.attach();
    second.guard(2);
    refused(&mut second, &restore(8), CudaError::INVALID_VALUE, "not allocated again");
    second.one_way(&restore(8));
    let (header, _) = second.call(&Command::MemoryInfo { device: 0 });
    assert_eq!((header.status, header.deferred), (0, CudaError::INVALID_VALUE.code()));
}

#[test]
fn memory_that_the_client_calls_dead_is_not_saved() {
    let (worker, guardian) = protected_worker("soft");
    let mut client = worker.attach();
    client.guard(1);
    client.make(BYTES as u64);
    client.write(STREAM, 0, &patterned(1, BYTES));
    let dead = vec![
        VaRange { base: client.base, bytes: 512 },
        VaRange { base: client.base + 1536, bytes: BYTES as u64 - 1536 },
    ];
    client.one_way(&Command::Cut { number: 1, dead, patience_us: PATIENT });
    assert_eq!((client.heard(), client.heard()), (Told::CutTaken(1), Told::CutSafe(1)));
    let saved = guardian.saved(IMAGE, 1, client.base, BYTES);
    assert_eq!(saved[512..1536], patterned(1, BYTES)[512..1536]);
    assert!(saved[1536..].iter().chain(&saved[..512]).all(|byte| *byte == 0));
}

#[test]
fn an_image_is_copied_into_a_session_beside_its_writer() {
    let (worker, guardian) = protected_worker("soft");
    let copy = |secret: [u8; 32], number: u64| Command::ImageCopy {
        image: IMAGE,
        secret,
        number,
        from: String::new(),
    };
    let mut writer = worker.attach();
    assert_eq!(writer.guard(1).0.status, 0);
    writer.make(BYTES as u64);
    writer.write(STREAM, 0, &patterned(1, BYTES));
    writer.safe_cut(1);
    let mut reader = worker.attach();
    reader.make(BYTES as u64);
    let (header, words) = reader.call(&copy([5; 32], 1));
    assert_eq!(header.status, CudaError::NOT_FOUND.code(), "{}", String::from_utf8_lossy(&words));
    assert_eq!(reader.call(&copy(SECRET, 1)).0.status, 0);
    assert_eq!(reader.read(STREAM, BYTES as u64), patterned(1, BYTES));
    // The writer goes on, and the reader's end is no end of the image.
    writer.write(STREAM, 0, &[6; 100]);
    writer.safe_cut(2);
    reader.must(&Command::Goodbye {});
    assert_eq!(guardian.saved(IMAGE, 2, writer.base, BYTES)[..100], [6; 100]);
    // A session with an image of its own takes no copy, and a damaged block is refused.
    let (header, words) = writer.call(&copy(SECRET, 1));
    assert_eq!(header.status, CudaError::INVALID_VALUE.code(), "{}", String::from_utf8_lossy(&words));
    guardian.books(|books| books.spoils_looks = Some(Spoilt::Bytes));
    let mut reader = worker.attach();
    reader.make(BYTES as u64);
    let (header, words) = reader.call(&copy(SECRET, 2));
    assert_eq!(header.status, CudaError::INVALID_VALUE.code());
    assert!(String::from_utf8(words).unwrap().contains("is not what the worker saved"));
}

#[test]
fn the_loss_of_a_guardian_is_told_without_a_cut_and_the_next_cut_is_a_whole_one() {
    let (worker, guardian) = protected_worker("soft");
    let mut client = worker.attach();
    assert_eq!(client.guard(1).0.status, 0);
    client.make(BYTES as u64);
    client.write(STREAM, 0, &patterned(1, BYTES));
    client.safe_cut(1);
    guardian.die();
    let words = client.heard_of_guardian();
    assert!(words.contains("the guardian is lost"), "{words}");
    client.safe_cut(2);
    assert_eq!(guardian.saved(IMAGE, 2, client.base, BYTES), patterned(1, BYTES));
}

#[test]
fn a_worker_without_a_guardian_says_so() {
    let worker = support::worker::Worker::start("unix", |config| {
        config.grant = std::sync::Arc::new(|| Ok(cuda_worker::Grant::plain("soft".into())));
    });
    let mut client = worker.attach();
    let (header, words) = client.guard(1);
    assert_eq!(header.status, CudaError::NOT_SUPPORTED.code());
    assert!(String::from_utf8(words).unwrap().contains("--guard-memory"));
    client.make(100);
    client.must(&Command::Leave {});
    assert_eq!(worker.end().kind, EndKind::Finished);
}
