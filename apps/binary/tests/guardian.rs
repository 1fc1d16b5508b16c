//! The real `dxpu worker --guard-memory` with the soft driver: its guardian is a process that outlives sessions.

#![allow(missing_docs, reason = "tests")]

#[path = "../../../crates/cuda/worker/tests/support/client.rs"]
#[allow(dead_code, unreachable_pub, reason = "other tests use the rest")]
mod client;

use client::{Client, Target, Told, patterned};
use cuda_wire::*;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command as Process, Stdio};
use std::time::{Duration, Instant};
use transport::ClientSecurity;

const TOKEN: &str = "a token that is long enough";
const STREAM: StreamId = StreamId(1);
const CONTEXT: ContextId = ContextId(0);
const BYTES: u64 = 2 << 20;
/// Longer than any test.
const PATIENT: u32 = 60_000_000;

struct Worker {
    process: Child,
    directory: tempfile::TempDir,
    target: Target,
}

impl Worker {
    fn start(more: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listen = format!("unix:{}", directory.path().join("w").display());
        let mut process = Process::new(env!("CARGO_BIN_EXE_dxpu"))
            .args(["worker", "--memory", "64MiB", "--listen", &listen])
            .args(more)
            .env("XDG_STATE_HOME", directory.path().join("state"))
            .env("XDG_CACHE_HOME", directory.path().join("cache"))
            .env("DXPU_TOKEN", TOKEN)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
        let address = lines.find_map(|line| Some(line.strip_prefix("listening at ")?.parse().unwrap()));
        let target =
            Target { address: address.unwrap(), security: ClientSecurity::Plain, token: TOKEN.to_owned() };
        Self { process, directory, target }
    }

    /// Children whose first argument is this word.
    fn children(&self, word: &str) -> Vec<u32> {
        let mut children = Vec::new();
        for task in
            std::fs::read_dir(format!("/proc/{}/task", self.process.id())).into_iter().flatten().flatten()
        {
            let list = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            children.extend(list.split_whitespace().map(|pid| pid.parse::<u32>().unwrap()));
        }
        children.retain(|pid| {
            let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            words.split(|byte| *byte == 0).nth(1) == Some(word.as_bytes())
        });
        children
    }

    fn guardian(&self) -> u32 {
        let mut found = Vec::new();
        until("the worker has one guardian", || {
            found = self.children("guardian");
            found.len() == 1
        });
        found[0]
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join(format!("state/dxpu/guardian-{}", self.process.id()))
    }

    fn attach(&self) -> Client {
        let mut client = Client::attach(&self.target, 1);
        client.one_way(&Command::StreamCreate { stream: STREAM, context: CONTEXT, kind: 1, priority: 0 });
        client
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn kill(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.starts_with(" Z"))
}

fn guard(incarnation: u64) -> Command<'static> {
    Command::Guard { image: ImageName { bytes: [9; 16] }, secret: [4; 32], incarnation }
}

fn allocate(client: &mut Client) {
    let address = client.base;
    client.must(&Command::MemoryAllocate { context: CONTEXT, address, bytes: BYTES });
}

fn write(client: &mut Client, offset: u64, bytes: &[u8]) {
    let target = Plane::line(client.base + offset);
    let data = HostData::Inline { bytes: Bytes(bytes) };
    let op = Op::CopyIn { target, shape: Shape::line(bytes.len() as u64), data };
    client.one_way(&Command::Enqueue { stream: STREAM, op });
}

fn read(client: &mut Client, offset: u64, bytes: u64) -> Vec<u8> {
    let source = Plane::line(client.base + offset);
    let body = client.must(&Command::ReadBack { stream: STREAM, source, shape: Shape::line(bytes) });
    Blob::from_bytes(&body).unwrap().0
}

fn cut(client: &mut Client, number: u64) -> Told {
    client.one_way(&Command::Cut { number, dead: vec![], patience_us: PATIENT });
    assert_eq!(client.heard(), Told::CutTaken(number));
    client.heard()
}

#[test]
fn a_session_that_is_killed_leaves_its_image_and_the_next_goes_on_from_it() {
    let worker = Worker::start(&["--guard-memory", "32MiB"]);
    let mut client = worker.attach();
    let info = GuardInfo::from_bytes(&client.must(&guard(1))).unwrap();
    assert!((16 << 20..=32 << 20).contains(&info.bytes_max), "{info:?}");
    allocate(&mut client);
    let (first, second) = (patterned(1, 3000), patterned(2, 3000));
    write(&mut client, 100, &first);
    assert_eq!(cut(&mut client, 1), Told::CutSafe(1));
    write(&mut client, 1 << 20, &second);
    assert_eq!(cut(&mut client, 2), Told::CutSafe(2));
    write(&mut client, 100, &patterned(3, 3000));
    assert_eq!(read(&mut client, 100, 3000), patterned(3, 3000));
    let base = client.base;
    // The guardian is a child of the worker, not of the session. All session processes are killed.
    let guardian = worker.guardian();
    let killed = worker.children("worker-session");
    killed.iter().for_each(|pid| kill(*pid, rustix::process::Signal::KILL));
    drop(client);
    // The worker had spare sessions ready, which are gone too. It starts others.
    until("other sessions are there", || {
        let sessions = worker.children("worker-session");
        sessions.len() >= 2 && sessions.iter().all(|pid| !killed.contains(pid))
    });
    let mut client = worker.attach();
    assert_eq!(client.base, base);
    client.must(&guard(2));
    allocate(&mut client);
    let restored = client.must(&Command::ImageRestore { number: 2, from: String::new() });
    assert!(ImageRestored::from_bytes(&restored).unwrap().bytes >= BYTES);
    assert_eq!(read(&mut client, 100, 3000), first, "as it was at the cut");
    assert_eq!(read(&mut client, 1 << 20, 3000), second);
    assert_eq!(cut(&mut client, 3), Told::CutSafe(3));
    assert_eq!(worker.guardian(), guardian, "still the same process");
}

#[test]
fn a_guardian_that_dies_is_started_again_and_protection_begins_anew() {
    let worker = Worker::start(&["--guard-memory", "32MiB"]);
    let mut client = worker.attach();
    client.must(&guard(1));
    allocate(&mut client);
    assert_eq!(cut(&mut client, 1), Told::CutSafe(1));
    let first = worker.guardian();
    kill(first, rustix::process::Signal::KILL);
    until("another guardian is there", || worker.children("guardian").iter().any(|pid| *pid != first));
    until("and listens", || std::os::unix::net::UnixStream::connect(worker.socket()).is_ok());
    // The session may not have seen the loss yet: then a cut is given up with words, and a later one is safe, a whole image.
    let mut number = 1;
    until("a cut is safe", || {
        number += 1;
        match cut(&mut client, number) {
            Told::CutAbandoned(_, words) => assert!(words.contains("guardian"), "{words}"),
            told => return told == Told::CutSafe(number),
        }
        false
    });
}

#[test]
fn a_guardian_ends_with_its_worker_however_that_ends() {
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::KILL] {
        let mut worker = Worker::start(&["--guard-memory", "8MiB"]);
        let guardian = worker.guardian();
        assert!(worker.socket().exists());
        kill(worker.process.id(), signal);
        let status = worker.process.wait().unwrap();
        assert_eq!(status.success(), signal == rustix::process::Signal::TERM);
        until("the guardian has ended", || !is_alive(guardian));
        until("its socket is removed", || !worker.socket().exists());
    }
}

#[test]
fn without_guard_memory_there_is_no_guardian_and_a_guard_is_refused() {
    let worker = Worker::start(&[]);
    let mut client = worker.attach();
    let (header, _) = client.call(&guard(1));
    assert_ne!(header.status, 0);
    assert!(worker.children("guardian").is_empty());
}
