//! The worker as clients see it: a front in this process, sessions in processes of their own.

mod support;

use cuda_abi::CudaError;
use cuda_wire::*;
use cuda_worker::*;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use support::client::{Client, Told, greet, hello, patterned, session_name};
use support::toy::{Toy, ToyStatus};
use support::worker::Worker;
use transport::ConnectionKind;

/// Not a test: the session processes of the tests below run this, with their control socket as standard input.
#[test]
#[ignore = "the entry of session processes"]
fn session_process() {
    let control = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let end =
        run_session_process(control, &|_, _| Ok(Box::new(Toy::default())), &|_, _| Ok(Box::new(ToyStatus)));
    std::process::exit(end.kind.exit_code().into());
}

const STREAM: StreamId = StreamId(1);
const CONTEXT: ContextId = ContextId(0);

fn ready(client: &mut Client, bytes: u64) {
    client.one_way(&Command::StreamCreate { stream: STREAM, context: CONTEXT, kind: 1, priority: 0 });
    client.one_way(&Command::MemoryAllocate { context: CONTEXT, address: client.base, bytes });
}

fn copy_in(client: &Client, bytes: u64, data: HostData<'static>) -> Command<'static> {
    let op = Op::CopyIn { target: Plane::line(client.base), shape: Shape::line(bytes), data };
    Command::Enqueue { stream: STREAM, op }
}

fn read_back(client: &Client, bytes: u64) -> Command<'static> {
    Command::ReadBack { stream: STREAM, source: Plane::line(client.base), shape: Shape::line(bytes) }
}

fn copies_both_ways(scheme: &str) {
    let worker = Worker::start(scheme, |_| {});
    let mut client = worker.attach();
    assert_eq!(client.welcome.devices[0].name, "toy");
    ready(&mut client, 32 << 20);

    let small = patterned(1, 5000);
    let data = HostData::Inline { bytes: Bytes(&small) };
    let op = Op::CopyIn { target: Plane::line(client.base), shape: Shape::line(5000), data };
    client.one_way(&Command::Enqueue { stream: STREAM, op });
    let body = client.must(&read_back(&client, 5000));
    assert_eq!(Blob::from_bytes(&body).unwrap().0, small);

    let large = patterned(2, 20 << 20);
    let bytes = large.len() as u64;
    client.one_way(&copy_in(&client, bytes, HostData::Pushed { transfer: TransferId(7) }));
    let source = |offset: u64, target: &mut [u8]| {
        target.copy_from_slice(&large[offset as usize..][..target.len()]);
    };
    client.lanes.send(TransferId(7), bytes, &source).unwrap();
    let back = client.lanes.expect(TransferId(8), bytes).unwrap();
    let op =
        Op::CopyOut { source: Plane::line(client.base), shape: Shape::line(bytes), transfer: TransferId(8) };
    client.one_way(&Command::Enqueue { stream: STREAM, op });
    let received = std::sync::Mutex::new(vec![0; large.len()]);
    let sink = |offset: u64, piece: &[u8]| {
        received.lock().unwrap()[offset as usize..][..piece.len()].copy_from_slice(piece);
    };
    back.wait(&sink).unwrap();
    client.must(&Command::StreamSynchronize { stream: STREAM });
    assert!(received.into_inner().unwrap() == large);
    assert_eq!(client.heard(), Told::PushConsumed(bytes));
    client.must(&Command::Goodbye {});
    assert_eq!(worker.end().kind, EndKind::Finished);
}

#[test]
fn copies_both_ways_over_tcp() {
    copies_both_ways("tcp");
}

#[test]
fn copies_both_ways_over_a_unix_socket() {
    copies_both_ways("unix");
}

#[test]
fn copies_both_ways_over_shared_memory() {
    copies_both_ways("shm");
}

/// Longer than any test: with it, the command loop does nothing but poll until something comes.
const FOR_EVER: Duration = Duration::from_secs(3600);

#[test]
fn a_blocked_wait_blocks_nobody_else_and_host_functions_hold_their_stream() {
    // Handed to a thread at once, after some polling, or when the next command comes.
    for (scheme, spin) in
        [("unix", Duration::ZERO), ("tcp", Duration::from_millis(1)), ("shm", FOR_EVER), ("unix", FOR_EVER)]
    {
        blocked_wait(scheme, spin);
    }
}

fn blocked_wait(scheme: &str, spin: Duration) {
    let worker = Worker::start(scheme, |config| config.session.wait_spin = Some(spin));
    let mut client = worker.attach();
    ready(&mut client, 100);
    client.one_way(&Command::Enqueue { stream: STREAM, op: Op::HostCall { token: 5 } });
    let base = client.base;
    let fill =
        |value| Op::Fill { target: Plane::line(base), shape: Shape::line(100), element_bytes: 1, value };
    client.one_way(&Command::Enqueue { stream: STREAM, op: fill(9) });
    let waiting = client.ask(&Command::StreamSynchronize { stream: STREAM });
    let reading = client.ask(&read_back(&client, 100));
    // Behind the read: must not show in it, though it is sent before the stream gets there.
    client.one_way(&Command::Enqueue { stream: STREAM, op: fill(10) });
    assert_eq!(client.heard(), Told::HostCall(5));
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let query = client.ask(&Command::StreamQuery { stream: STREAM });
        let (header, _) = client.reply();
        assert_eq!((header.call, header.status), (query, CudaError::NOT_READY.code()));
        // The notice is counted when its send has returned, which may be after we have heard it.
        if header.notices >= 1 {
            break;
        }
        assert!(Instant::now() < deadline, "the host call was sent before");
    }

    client.say(&Notice::HostCallDone { token: 5 });
    let mut replies = [client.reply(), client.reply()];
    replies.sort_by_key(|(header, _)| header.call);
    let [(waited, _), (read, body)] = replies;
    assert_eq!((waited.call, waited.status), (waiting, 0));
    assert_eq!((read.call, read.status), (reading, 0));
    assert_eq!(Blob::from_bytes(&body).unwrap().0, [9; 100]);
    let body = client.must(&read_back(&client, 100));
    assert_eq!(Blob::from_bytes(&body).unwrap().0, [10; 100]);
}

#[test]
fn what_is_waited_for_is_answered_without_another_command() {
    for spin in [Duration::ZERO, FOR_EVER] {
        let worker = Worker::start("unix", |config| config.session.wait_spin = Some(spin));
        let mut client = worker.attach();
        ready(&mut client, 100);
        for round in 1..10 {
            client.one_way(&Command::Enqueue { stream: STREAM, op: Op::HostCall { token: round } });
            let asked = match round % 2 {
                0 => client.ask(&Command::StreamSynchronize { stream: STREAM }),
                _ => client.ask(&read_back(&client, 100)),
            };
            assert_eq!(client.heard(), Told::HostCall(round));
            assert!(!client.rx.wait(Some(Duration::from_millis(10))).unwrap(), "answered too early");
            client.say(&Notice::HostCallDone { token: round });
            let (header, _) = client.reply();
            assert_eq!((header.call, header.status), (asked, 0));
        }
        // A client that leaves while the loop polls is noticed.
        client.one_way(&Command::Enqueue { stream: STREAM, op: Op::HostCall { token: 99 } });
        client.ask(&Command::StreamSynchronize { stream: STREAM });
        assert_eq!(client.heard(), Told::HostCall(99));
        drop(client);
        assert_eq!(worker.end().kind, EndKind::PeerLost);
    }
}

#[test]
fn a_reply_does_not_wait_for_the_commands_behind_it() {
    let worker = Worker::start("unix", |_| {});
    let mut client = worker.attach();
    let image = patterned(4, 1000);
    let (hash, transfer) = (*blake3::hash(&image).as_bytes(), TransferId(1));
    let source = ImageSource::Pushed { transfer, bytes: 1000 };
    let load =
        Command::ModuleLoad { module: ModuleId(1), context: CONTEXT, hash, image: source, options: vec![] };
    // Both arrive together, and the second cannot be executed before we push its bytes.
    let [asked, loading] = client.ask_together([&Command::MemoryInfo { device: 0 }, &load]);
    assert!(client.rx.wait(Some(Duration::from_secs(10))).unwrap(), "the first reply waits for the second");
    assert_eq!(client.reply().0.call, asked);
    client
        .lanes
        .send(transfer, 1000, &|offset: u64, target: &mut [u8]| {
            target.copy_from_slice(&image[offset as usize..][..target.len()]);
        })
        .unwrap();
    let (header, _) = client.reply();
    assert_eq!((header.call, header.status), (loading, 0));
}

#[test]
fn errors_of_one_way_commands_surface_in_the_next_reply() {
    for spin in [Duration::ZERO, FOR_EVER] {
        one_way_errors(spin);
    }
}

fn one_way_errors(spin: Duration) {
    let worker = Worker::start("unix", |config| config.session.wait_spin = Some(spin));
    let mut client = worker.attach();
    ready(&mut client, 100);
    client.one_way(&Command::ContextSetLimit { context: ContextId(3), limit: 1, value: 1 });
    client.one_way(&Command::MemoryAllocate { context: ContextId(3), address: 1, bytes: 1 << 40 });
    let (header, _) = client.call(&Command::MemoryInfo { device: 0 });
    assert_eq!((header.status, header.deferred_context), (0, 3));
    assert_eq!(header.deferred, CudaError::UNSUPPORTED_LIMIT.code(), "the first error of a context counts");
    assert_eq!(client.call(&Command::MemoryInfo { device: 0 }).0.deferred, 0);

    // The device fails: the wait says so, and so does a read that never gets its turn.
    let kernel = KernelRef { module: ModuleId(1), index: 0 };
    let op = Op::Launch {
        kernel,
        grid: [1; 3],
        block: [1; 3],
        shared_bytes: 0,
        cooperative: false,
        attributes: vec![],
        parameters: Bytes(&[]),
    };
    client.one_way(&Command::Enqueue { stream: STREAM, op: Op::HostCall { token: 1 } });
    client.one_way(&Command::Enqueue { stream: STREAM, op });
    let reading = client.ask(&read_back(&client, 10));
    assert_eq!(client.heard(), Told::HostCall(1));
    client.say(&Notice::HostCallDone { token: 1 });
    let (header, body) = client.reply();
    assert_eq!((header.call, header.status, body.len()), (reading, CudaError::ILLEGAL_ADDRESS.code(), 0));
}

#[test]
fn memory_credit_is_given_when_it_runs_low() {
    let worker = Worker::start("unix", |_| {});
    let mut client = worker.attach();
    assert_eq!(client.welcome.memory_credit_bytes, 1000);
    assert_eq!(client.call(&Command::MemoryInfo { device: 0 }).0.memory_credit_bytes, 0);
    client.one_way(&Command::MemoryAllocate { context: CONTEXT, address: client.base, bytes: 600 });
    assert_eq!(client.call(&Command::MemoryInfo { device: 0 }).0.memory_credit_bytes, 1000);
    assert_eq!(client.call(&Command::MemoryInfo { device: 0 }).0.memory_credit_bytes, 0);
}

#[test]
fn pings_are_answered_pulls_are_pulled_and_text_is_printed() {
    let worker = Worker::start("tcp", |_| {});
    let mut client = worker.attach();
    ready(&mut client, 1 << 20);
    client.say(&Notice::Ping { nonce: 77 });
    assert_eq!(client.heard(), Told::Pong(77));

    client.one_way(&copy_in(&client, 1 << 20, HostData::Pulled { transfer: TransferId(3) }));
    assert_eq!(client.heard(), Told::Pull(TransferId(3)));
    let data = patterned(5, 1 << 20);
    client
        .lanes
        .send(TransferId(3), 1 << 20, &|offset: u64, target: &mut [u8]| {
            target.copy_from_slice(&data[offset as usize..][..target.len()]);
        })
        .unwrap();
    let body = client.must(&read_back(&client, 1 << 20));
    assert!(Blob::from_bytes(&body).unwrap().0 == data);

    let text = vec![b'x'; 100_000];
    let kernel = KernelRef { module: ModuleId(1), index: 0 };
    let op = Op::Launch {
        kernel,
        grid: [1; 3],
        block: [1; 3],
        shared_bytes: 0,
        cooperative: false,
        attributes: vec![],
        parameters: Bytes(&text),
    };
    client.one_way(&Command::Enqueue { stream: STREAM, op });
    let (Told::Print(first), Told::Print(second)) = (client.heard(), client.heard()) else { panic!() };
    assert_eq!(first.len() + second.len(), text.len());

    // A pull that the client cannot serve fails the copy, not the session.
    client.one_way(&copy_in(&client, 100, HostData::Pulled { transfer: TransferId(4) }));
    assert_eq!(client.heard(), Told::Pull(TransferId(4)));
    client.say(&Notice::PullFailed { transfer: TransferId(4) });
    let (header, _) = client.call(&Command::StreamSynchronize { stream: STREAM });
    assert_eq!(header.status, CudaError::DEVICE_UNAVAILABLE.code());
    client.must(&Command::MemoryInfo { device: 0 });
}

#[test]
fn what_was_pushed_for_a_copy_that_fails_leaves_the_window() {
    let worker = Worker::start("unix", |config| config.session.push_window_bytes = 1 << 20);
    let mut client = worker.attach();
    ready(&mut client, 100);
    for transfer in 0..5 {
        // Beyond the allocation: refused at once, while its bytes are on their way.
        client.one_way(&copy_in(&client, 1 << 20, HostData::Pushed { transfer: TransferId(transfer) }));
        client.lanes.send(TransferId(transfer), 1 << 20, &|_: u64, _: &mut [u8]| {}).unwrap();
        assert_eq!(client.heard(), Told::PushConsumed(1 << 20));
    }
    let (header, _) = client.call(&Command::MemoryInfo { device: 0 });
    assert_eq!((header.status, header.deferred), (0, CudaError::INVALID_VALUE.code()));
}

#[test]
fn a_module_travels_once_for_all_sessions() {
    let worker = Worker::start("unix", |_| {});
    let mut client = worker.attach();
    let image = patterned(3, 300_000);
    let hash = *blake3::hash(&image).as_bytes();
    let load =
        |image| Command::ModuleLoad { module: ModuleId(1), context: CONTEXT, hash, image, options: vec![] };
    assert_eq!(client.call(&load(ImageSource::Known {})).0.status, CudaError::NOT_FOUND.code());
    let wrong = ImageSource::Inline { bytes: Bytes(&image[1..]) };
    assert_eq!(client.call(&load(wrong)).0.status, CudaError::INVALID_IMAGE.code());
    let transfer = TransferId(9);
    let asked = client.ask(&load(ImageSource::Pushed { transfer, bytes: 300_000 }));
    client
        .lanes
        .send(transfer, 300_000, &|offset: u64, target: &mut [u8]| {
            target.copy_from_slice(&image[offset as usize..][..target.len()]);
        })
        .unwrap();
    let (header, body) = client.reply();
    assert_eq!((header.call, header.status), (asked, 0));
    assert_eq!(ModuleInfo::from_bytes(&body).unwrap().info_log, "image 1 has 300000 bytes");

    let mut other = worker.attach();
    let body = other.must(&load(ImageSource::Known {}));
    assert_eq!(ModuleInfo::from_bytes(&body).unwrap().info_log, "image 1 has 300000 bytes");
    assert_eq!(std::fs::read_dir(worker.directory.path().join("images")).unwrap().count(), 1);
}

#[test]
fn strangers_are_told_why_they_are_not_served() {
    let worker = Worker::start("unix", |config| config.sessions_max = 1);
    let knock = |token: &str| Knock {
        protocol: PROTOCOL_VERSION,
        token: token.to_owned(),
        purpose: purpose::SESSION,
    };
    let refusal = |knock| match worker.target.knock(knock) {
        Handshake::Refusal(refusal) => refusal,
        other => panic!("{other:?}"),
    };
    let refused = refusal(knock("wrong"));
    assert_eq!(refused.code, CudaError::NOT_PERMITTED.code());
    assert!(refused.text.contains("token"), "{}", refused.text);
    assert!(refusal(knock("")).text.contains("--token-file"));
    assert!(refusal(Knock { protocol: 99, ..knock("secret") }).text.contains("version 99"));
    let error = worker.target.open(ConnectionKind::Command, 0, session_name()).unwrap_err();
    assert!(error.to_string().contains("no such ticket"), "{error}");
    let error = worker.target.open(ConnectionKind::Status, 0, session_name()).unwrap_err();
    assert!(error.to_string().contains("no such ticket"), "{error}");
    assert!(worker.front.as_ref().unwrap().session_pids().is_empty(), "none of them cost a process");

    // Nor does a client come in on the ticket of a process that has ended; it is told to come again.
    let ticket = worker.target.ticket(purpose::SESSION);
    let next = || worker.events.recv_timeout(Duration::from_secs(15)).unwrap();
    let pid = loop {
        if let SessionEvent::Ready { pid } = next() {
            break pid;
        }
    };
    let process = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    while !matches!(next(), SessionEvent::Reaped { pid: reaped } if reaped == pid) {}
    let error = worker.target.open(ConnectionKind::Command, 0, ticket).unwrap_err();
    assert!(error.to_string().contains("try again"), "{error}");

    // The process trusts no ticket: it looks at the token again.
    let ticket = worker.target.ticket(purpose::SESSION);
    let (_connection, answer) = greet(&worker.target, ticket, hello("wrong", 1));
    assert!(matches!(answer, Ok(Handshake::Refusal(_))), "{answer:?}");
    assert_eq!(worker.end().kind, EndKind::Refused);

    let mut client = worker.attach();
    // Served, and not just looking.
    client.must(&Command::MemoryInfo { device: 0 });
    let busy = refusal(knock("secret"));
    assert_eq!(busy.code, CudaError::SYSTEM_NOT_READY.code(), "it is to come again");
    assert!(busy.text.contains("in use"), "{}", busy.text);
    let error = worker.target.open(ConnectionKind::Lane, 0, session_name()).unwrap_err();
    assert!(error.to_string().contains("no such session"), "{error}");
    drop(client);
    assert_eq!(worker.end().kind, EndKind::PeerLost);
    let counted = worker.front.as_ref().unwrap().turned_away();
    let expected = [(Reason::Token, 3), (Reason::NoTicket, 3), (Reason::NoSession, 1), (Reason::Busy, 1)];
    assert_eq!(counted, expected);
}

#[test]
fn a_client_that_only_looks_is_no_fault() {
    let worker = Worker::start("unix", |_| {});
    let ticket = worker.target.ticket(purpose::SESSION);
    let (connection, answer) = greet(&worker.target, ticket, hello("secret", 1));
    assert!(matches!(answer, Ok(Handshake::Welcome(_))));
    drop(connection);
    assert_eq!(worker.end().kind, EndKind::Finished);
    // The better way to look takes no session at all.
    assert_eq!(worker.target.ticket(purpose::LOOK), [0; 16]);
    assert!(worker.front.as_ref().unwrap().session_pids().is_empty());
}

#[test]
fn hostile_frames_end_their_session_and_no_other() {
    let worker = Worker::start("unix", |_| {});
    let mut bystander = worker.attach();
    let header = |bytes: u32, opcode: u16, reserved: u16| {
        CommandHeader { bytes, opcode, reserved, call: 1, reserved2: 0 }.to_bytes()
    };
    let mut truncated = header(3, 0x0012, 0);
    truncated.extend([0; 3]);
    for frame in [header(u32::MAX, 1, 0), header(0, 0xffff, 0), header(0, 0x60, 1), truncated] {
        let mut client = worker.attach();
        client.tx.send(&[&frame]).unwrap();
        let Told::Closing(reason) = client.heard() else { panic!() };
        assert!(reason.contains("malformed command"), "{reason}");
        assert_eq!(worker.end().kind, EndKind::Protocol);
    }
    let bad_notice = NoticeHeader { bytes: u32::MAX, reserved: 0 }.to_bytes();
    for notice in [
        bad_notice,
        Notice::HostCallDone { token: 1 }.to_frame(),
        Notice::HostCall { token: 1, chunks: Default::default() }.to_frame(),
    ] {
        let client = worker.attach();
        client.events.lock().unwrap().send(&[&notice]).unwrap();
        assert!(matches!(client.heard(), Told::Closing(_)));
        assert_eq!(worker.end().kind, EndKind::Protocol);
    }
    // More than the window, pushed without a command that uses it.
    let client = worker.attach();
    let _ = client.lanes.send(TransferId(1), 1 << 30, &|_: u64, _: &mut [u8]| {});
    assert_eq!(worker.end().kind, EndKind::Protocol);

    // A driver that panics ends its session too.
    let mut client = worker.attach();
    client.one_way(&Command::ContextDestroy { context: CONTEXT });
    assert!(matches!(client.heard(), Told::Closing(_)));
    assert_eq!(worker.end().kind, EndKind::Internal);
    bystander.must(&Command::MemoryInfo { device: 0 });
}

#[test]
fn a_silent_client_is_given_up() {
    let worker = Worker::start("unix", |config| config.session.stall_timeout = Duration::from_millis(600));
    let client = worker.attach();
    for nonce in 0..10 {
        client.say(&Notice::Ping { nonce });
        assert_eq!(client.heard(), Told::Pong(nonce));
        std::thread::sleep(Duration::from_millis(100));
    }
    // It is asked whether it is there, and does not answer.
    let mut asked = 0;
    while let Told::Ping(_) = client.heard() {
        asked += 1;
    }
    assert!(asked > 0);
    assert_eq!(worker.end().kind, EndKind::Stalled);
}

#[test]
fn a_client_with_nothing_to_say_is_asked_and_kept() {
    let worker = Worker::start("unix", |config| config.session.stall_timeout = Duration::from_millis(600));
    let mut client = worker.attach();
    let start = std::time::Instant::now();
    while start.elapsed() < Duration::from_secs(2) {
        if let Ok(told) = client.told.recv_timeout(Duration::from_millis(100)) {
            let Told::Ping(nonce) = told else { panic!("it said {told:?}") };
            client.say(&Notice::Pong { nonce });
        }
    }
    client.must(&Command::MemoryInfo { device: 0 });
}

#[test]
fn stopping_the_worker_ends_its_sessions() {
    let worker = Worker::start("unix", |_| {});
    let mut client = worker.attach();
    client.must(&Command::MemoryInfo { device: 0 });
    let socket = worker.directory.path().join("socket");
    assert!(socket.exists());
    let pids = worker.front.as_ref().unwrap().session_pids();
    assert_eq!(pids.len(), 1);
    let directory = worker.directory.path().to_owned();
    drop(worker);
    assert!(!std::path::Path::new(&format!("/proc/{}", pids[0])).exists());
    assert!(!directory.exists());
    assert!(matches!(client.heard(), Told::Closing(_) | Told::End));
}

#[test]
fn what_a_client_makes_is_bounded_in_memory() {
    let worker = Worker::start("unix", |config| config.session.host_bytes_max = 8 << 20);
    let mut client = worker.attach();
    let data = vec![7; 1 << 20];
    let inline = || {
        let data = HostData::Inline { bytes: Bytes(&data) };
        Op::CopyIn { target: Plane::line(client.base), shape: Shape::line(1 << 20), data }
    };
    let node = || GraphNode { op: inline(), after: Vec::new(), enabled: true };
    let nodes: Vec<_> = (0..12).map(|_| node()).collect();
    let graph =
        |exec| Command::GraphInstantiate { exec: ExecId(exec), context: CONTEXT, nodes: vec![node()] };
    let graphs: Vec<_> = (0..20).map(graph).collect();
    let set = Command::GraphSetNode { exec: ExecId(3), index: 0, op: inline(), enabled: true };
    let whole = Command::GraphInstantiate { exec: ExecId(99), context: CONTEXT, nodes };

    let out_of_memory = CudaError::OUT_OF_MEMORY.code();
    assert_eq!(client.call(&whole).0.status, out_of_memory);
    let kept: Vec<_> = graphs.iter().map(|graph| client.call(graph).0.status).collect();
    assert_eq!(kept[..7], [0; 7], "seven of a megabyte and what they cost beside it");
    assert_eq!(kept[7..], [out_of_memory; 13]);
    // The same node anew takes no more room.
    for _ in 0..20 {
        client.must(&set);
    }
    client.must(&Command::GraphDestroy { exec: ExecId(3) });
    client.must(&graphs[19]);
    // A client that sends without waiting for answers hears of it at the next answer.
    client.one_way(&graphs[18]);
    let (header, _) = client.call(&Command::MemoryInfo { device: 0 });
    assert_eq!((header.status, header.deferred), (0, out_of_memory));
}

#[test]
fn a_thousand_waits_at_once_take_few_threads() {
    let worker = Worker::start("unix", |_| {});
    let mut client = worker.attach();
    ready(&mut client, 1 << 20);
    client.one_way(&Command::Enqueue { stream: STREAM, op: Op::HostCall { token: 5 } });
    let wait = Command::StreamSynchronize { stream: STREAM };
    let mut asked: Vec<u32> = (0..1000).map(|_| client.ask(&wait)).collect();
    assert_eq!(client.heard(), Told::HostCall(5));
    // It is answered behind all the waits, so those have their threads by now.
    let last = client.ask(&Command::MemoryInfo { device: 0 });
    assert_eq!(client.reply().0.call, last);
    let pid = worker.front.as_ref().unwrap().session_pids()[0];
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().count();
    assert!(threads < 100, "{threads} threads");
    client.say(&Notice::HostCallDone { token: 5 });
    let mut answered: Vec<u32> = (0..1000).map(|_| client.reply().0.call).collect();
    answered.sort_unstable();
    asked.sort_unstable();
    assert_eq!(answered, asked);
}

#[test]
fn a_wait_without_a_reply_is_none() {
    let worker = Worker::start("unix", |_| {});
    let mut client = worker.attach();
    ready(&mut client, 100);
    client.one_way(&Command::Enqueue { stream: STREAM, op: Op::HostCall { token: 5 } });
    // None of these may keep the loop from what follows, though the stream stands still.
    for wait in [Command::StreamSynchronize { stream: STREAM }, read_back(&client, 100)] {
        client.one_way(&wait);
    }
    client.one_way(&Command::ContextSynchronize { context: CONTEXT });
    // A toy has no events. The error of a wait without an answer is not reported.
    client.one_way(&Command::EventSynchronize { event: EventId(1) });
    let (header, _) = client.call(&Command::MemoryInfo { device: 0 });
    assert_eq!((header.status, header.deferred), (0, 0));
    let (header, _) = client.call(&Command::EventSynchronize { event: EventId(1) });
    assert_eq!(header.status, CudaError::INVALID_HANDLE.code());
    client.one_way(&Command::Goodbye {});
    assert_eq!(worker.end().kind, EndKind::Finished);
}

#[test]
fn a_read_that_no_reply_could_carry_is_refused() {
    let worker = Worker::start("unix", |_| {});
    let mut client = worker.attach();
    ready(&mut client, 100);
    let read = read_back(&client, u64::from(COMMAND_BYTES_MAX) + 1);
    assert_eq!(client.call(&read).0.status, CudaError::INVALID_VALUE.code());
    client.must(&read_back(&client, 100));
}
