//! The real `dxpu worker` with the soft driver, and a client that speaks the wire.

#![allow(missing_docs, reason = "tests")]

#[path = "../../../crates/cuda/worker/tests/support/client.rs"]
#[allow(dead_code, unreachable_pub, reason = "other tests use the rest")]
mod client;

use client::{Client, Target, Told, greet, hello, patterned};
use cuda_wire::*;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command as Process, Stdio};
use std::time::{Duration, Instant};
use transport::{ClientSecurity, Fingerprint};

const TOKEN: &str = "a token that is long enough";
const MEMORY: u64 = 64 << 20;

/// A worker of its own for each test, with its state in a directory of its own.
struct Worker {
    process: Child,
    directory: tempfile::TempDir,
    target: Target,
}

impl Worker {
    fn start(listen: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listen = listen.replace("DIR", directory.path().to_str().unwrap());
        let mut process = Process::new(env!("CARGO_BIN_EXE_dxpu"))
            .args(["worker", "--plain", "--memory", "64MiB", "--listen", &listen])
            .env("XDG_STATE_HOME", directory.path().join("state"))
            .env("XDG_CACHE_HOME", directory.path().join("cache"))
            .env("DXPU_TOKEN", TOKEN)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
        let address =
            lines.find_map(|line| Some(line.strip_prefix("listening at ")?.parse().unwrap())).unwrap();
        let print = |line: String| line.split_once("--fingerprint ").map(|(_, rest)| rest[..64].to_owned());
        let security = match listen.starts_with("tls:") {
            true => {
                let hex = lines.find_map(print).unwrap();
                ClientSecurity::Fingerprint(hex.parse::<Fingerprint>().unwrap().0)
            }
            false => ClientSecurity::Plain,
        };
        let target = Target { address, security, token: TOKEN.to_owned() };
        Self { process, directory, target }
    }

    fn children(&self) -> Vec<u32> {
        let pid = self.process.id();
        let mut children = Vec::new();
        for task in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten() {
            let list = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            children.extend(list.split_whitespace().map(|pid| pid.parse::<u32>().unwrap()));
        }
        children
    }

    fn fds(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.process.id())).unwrap().count()
    }

    fn stop(mut self) {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.process.wait().unwrap().success(), "SIGTERM is a good end");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(15);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

const STREAM: StreamId = StreamId(1);
const CONTEXT: ContextId = ContextId(0);

fn free_bytes(client: &mut Client) -> u64 {
    let body = client.must(&Command::MemoryInfo { device: 0 });
    <(u64, u64)>::from_bytes(&body).unwrap().0
}

fn a_session(listen: &str) {
    let worker = Worker::start(listen);
    let mut client = Client::attach(&worker.target, 2);
    let base = client.base;
    assert_eq!(client.welcome.devices.len(), 1);
    client.one_way(&Command::StreamCreate { stream: STREAM, context: CONTEXT, kind: 1, priority: 0 });
    client.must(&Command::MemoryAllocate { context: CONTEXT, address: base, bytes: 16 << 20 });

    let small = patterned(1, 3000);
    let data = HostData::Inline { bytes: Bytes(&small) };
    let op = Op::CopyIn { target: Plane::line(base + 100), shape: Shape::line(3000), data };
    client.one_way(&Command::Enqueue { stream: STREAM, op });
    let read =
        Command::ReadBack { stream: STREAM, source: Plane::line(base + 100), shape: Shape::line(3000) };
    assert_eq!(Blob::from_bytes(&client.must(&read)).unwrap().0, small);

    let large = patterned(2, 10 << 20);
    let bytes = large.len() as u64;
    let source =
        |offset: u64, target: &mut [u8]| target.copy_from_slice(&large[offset as usize..][..target.len()]);
    for (transfer, data) in [
        (TransferId(7), HostData::Pushed { transfer: TransferId(7) }),
        (TransferId(8), HostData::Pulled { transfer: TransferId(8) }),
    ] {
        let is_pull = matches!(data, HostData::Pulled { .. });
        let op = Op::CopyIn { target: Plane::line(base), shape: Shape::line(bytes), data };
        client.one_way(&Command::Enqueue { stream: STREAM, op });
        if is_pull {
            assert_eq!(client.heard(), Told::Pull(transfer));
        }
        client.lanes.send(transfer, bytes, &source).unwrap();
        if !is_pull {
            assert_eq!(client.heard(), Told::PushConsumed(bytes));
        }
    }
    let back = client.lanes.expect(TransferId(9), bytes).unwrap();
    let op = Op::CopyOut { source: Plane::line(base), shape: Shape::line(bytes), transfer: TransferId(9) };
    client.one_way(&Command::Enqueue { stream: STREAM, op });
    let received = std::sync::Mutex::new(vec![0; large.len()]);
    back.wait(&|offset: u64, piece: &[u8]| {
        received.lock().unwrap()[offset as usize..][..piece.len()].copy_from_slice(piece);
    })
    .unwrap();
    client.must(&Command::StreamSynchronize { stream: STREAM });
    assert!(received.into_inner().unwrap() == large);

    client.one_way(&Command::Enqueue { stream: STREAM, op: Op::HostCall { token: 3 } });
    let waiting = client.ask(&Command::StreamSynchronize { stream: STREAM });
    assert_eq!(client.heard(), Told::HostCall(3));
    let asked = client.ask(&Command::MemoryInfo { device: 0 });
    assert_eq!(client.reply().0.call, asked, "a blocked wait blocks nobody else");
    client.say(&Notice::HostCallDone { token: 3 });
    assert_eq!(client.reply().0.call, waiting);
    client.must(&Command::Goodbye {});
    let socket = worker.directory.path().join("socket");
    let had_socket = socket.exists();
    let directory = worker.directory.path().to_owned();
    worker.stop();
    assert!(!had_socket || !Path::new(&directory).join("socket").exists(), "the socket file is removed");
}

#[test]
fn a_session_over_tls() {
    a_session("tls:127.0.0.1:0");
}

#[test]
fn a_session_over_tcp() {
    a_session("tcp:127.0.0.1:0");
}

#[test]
fn a_session_over_a_unix_socket() {
    a_session("unix:DIR/socket");
}

#[test]
fn a_session_over_shared_memory() {
    a_session("shm:DIR/socket");
}

/// Not a test: the client that the next one kills.
#[test]
#[ignore = "a client that is killed"]
fn client_process() {
    let Ok(address) = std::env::var("DXPU_TEST_WORKER") else { return };
    let target = Target {
        address: address.parse().unwrap(),
        security: ClientSecurity::Plain,
        token: TOKEN.to_owned(),
    };
    let mut client = Client::attach(&target, 1);
    client.must(&Command::MemoryAllocate { context: CONTEXT, address: client.base, bytes: 40 << 20 });
    client.must(&Command::StreamCreate { stream: STREAM, context: CONTEXT, kind: 1, priority: 0 });
    // Never answered: the stream waits for it when the client dies.
    client.one_way(&Command::Enqueue { stream: STREAM, op: Op::HostCall { token: 3 } });
    assert_eq!(client.heard(), Told::HostCall(3));
    println!("allocated");
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn a_killed_client_leaves_no_process_and_no_memory() {
    let worker = Worker::start("unix:DIR/socket");
    let mut bystander = Client::attach(&worker.target, 1);
    let before = free_bytes(&mut bystander);
    until("the spares are ready", || worker.children().len() == 3);
    let mut process = Process::new(std::env::current_exe().unwrap())
        .args(["--exact", "client_process", "--ignored", "--nocapture"])
        .env("DXPU_TEST_WORKER", worker.target.address.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("allocated")));
    assert!(free_bytes(&mut bystander) <= before - (40 << 20));
    until("a new spare", || worker.children().len() == 4);
    process.kill().unwrap();
    process.wait().unwrap();
    until("the session process is gone", || worker.children().len() == 3);
    until("its memory is back", || free_bytes(&mut bystander) == before);
    assert!(before <= MEMORY);
}

#[test]
fn fifty_sessions_in_a_row_leave_nothing_behind() {
    let worker = Worker::start("unix:DIR/socket");
    drop(Client::attach(&worker.target, 2));
    until("only spares are left", || worker.children().len() == 2);
    let fds = worker.fds();
    let start = Instant::now();
    for at in 0..50 {
        let mut client = Client::attach(&worker.target, 2);
        // Memory of the last one is back soon, and its process gone.
        let allocate = Command::MemoryAllocate { context: CONTEXT, address: client.base, bytes: 40 << 20 };
        until("there is memory", || client.call(&allocate).0.status == 0);
        // Half of them say goodbye, half just go.
        if at % 2 == 0 {
            client.must(&Command::Goodbye {});
        }
        drop(client);
    }
    println!("a session takes {:?}", start.elapsed() / 50);
    until("only spares are left", || worker.children().len() == 2);
    until("no descriptor is left", || worker.fds() == fds);
    worker.stop();
}

#[test]
fn hostile_clients_hurt_only_themselves() {
    let worker = Worker::start("unix:DIR/socket");
    let mut bystander = Client::attach(&worker.target, 1);
    let ticket = worker.target.ticket(purpose::SESSION);
    let (_, answer) = greet(&worker.target, ticket, hello("wrong", 1));
    assert!(matches!(answer, Ok(Handshake::Refusal(_))));
    for frame in [vec![0xff; 16], vec![0; 15], patterned(1, 5000)] {
        let mut client = Client::attach(&worker.target, 1);
        client.tx.send(&[&frame]).unwrap();
        drop(client);
    }
    until("their processes are gone", || worker.children().len() == 3);
    free_bytes(&mut bystander);
}

#[test]
fn sessions_end_with_a_worker_that_is_killed() {
    let mut worker = Worker::start("unix:DIR/socket");
    let _client = Client::attach(&worker.target, 1);
    until("all processes", || worker.children().len() == 3);
    let children = worker.children();
    worker.process.kill().unwrap();
    worker.process.wait().unwrap();
    for pid in children {
        let gone =
            || !std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
        until("a session process is gone", gone);
    }
}
