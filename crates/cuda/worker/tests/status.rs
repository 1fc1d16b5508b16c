//! Clients that only look at the devices: no session, no driver, one process for all of them.

mod support;

use cuda_abi::CudaError;
use cuda_wire::*;
use cuda_worker::*;
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use support::client::{Client, Target, hello, read_handshake};
use support::toy::{Toy, ToyStatus};
use transport::{ClientSecurity, Connection, ConnectionKind};

/// Not a test: the processes of the tests below run this, with their control socket as standard input.
#[test]
#[ignore = "the entry of session processes"]
fn session_process() {
    let control = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let end =
        run_session_process(control, &|_, _| Ok(Box::new(Toy::default())), &|_, _| Ok(Box::new(ToyStatus)));
    std::process::exit(end.kind.exit_code().into());
}

struct Worker {
    front: FrontHandle,
    events: Receiver<SessionEvent>,
    target: Target,
    _directory: tempfile::TempDir,
}

fn worker(scheme: &str, sessions_max: usize) -> Worker {
    let directory = tempfile::tempdir().unwrap();
    let address = match scheme {
        "tcp" => "tcp:127.0.0.1:0".to_owned(),
        scheme => format!("{scheme}:{}/socket", directory.path().display()),
    };
    let arguments = ["--exact", "session_process", "--ignored", "--nocapture"].map(str::to_owned).to_vec();
    let config = FrontConfig {
        addresses: vec![address.parse().unwrap()],
        spawn: SessionSpawn { program: std::env::current_exe().unwrap(), arguments },
        session: SessionConfig::new("secret".to_owned()),
        grant: std::sync::Arc::new(|| Ok(Grant::plain(serde_json::Value::Null))),
        sessions_max,
        unauthenticated_max: 16,
        preamble_timeout: Duration::from_secs(2),
        hold: Duration::from_secs(2),
        spares: 1,
        executes_ptx_only: false,
    };
    let (sender, events) = channel();
    let sender = std::sync::Mutex::new(sender);
    let front = serve_listener(config, move |event| drop(sender.lock().unwrap().send(event))).unwrap();
    let address = front.addresses()[0].clone();
    let target = Target { address, security: ClientSecurity::Plain, token: "secret".to_owned() };
    Worker { front, events, target, _directory: directory }
}

struct Watcher(Connection);

impl Watcher {
    fn greet(target: &Target, token: &str) -> (Self, Handshake) {
        let mut connection = target.open(ConnectionKind::Status, 0, target.ticket(purpose::STATUS)).unwrap();
        let hello = Hello { va_candidates: Vec::new(), ..hello(token, 0) };
        connection.tx.send(&[&Handshake::Hello(hello).to_frame()]).unwrap();
        let answer = read_handshake(&mut connection.rx).unwrap();
        (Self(connection), answer)
    }

    fn attach(target: &Target) -> Self {
        let (watcher, answer) = Self::greet(target, &target.token);
        assert_eq!(
            answer,
            Handshake::StatusWelcome(StatusWelcome { protocol: PROTOCOL_VERSION, devices: 2 })
        );
        watcher
    }

    fn send(&mut self, command: &Command<'_>, call: u32) {
        let mut out = Vec::new();
        let start = begin_command(&mut out, command.opcode(), call);
        command.put_body(&mut out);
        finish_command(&mut out, start);
        self.0.tx.send(&[&out]).unwrap();
    }

    fn call(&mut self, command: &Command<'_>) -> (u32, Vec<u8>) {
        self.send(command, 7);
        let mut bytes = [0; ReplyHeader::BYTES];
        self.0.rx.recv_exact(&mut bytes).unwrap();
        let head: ReplyHeader = header(&bytes).unwrap();
        assert_eq!(head.call, 7);
        let mut body = vec![0; head.bytes as usize];
        self.0.rx.recv_exact(&mut body).unwrap();
        (head.status, body)
    }

    fn name_of(&mut self, device: u32) -> String {
        let (status, body) = self.call(&Command::DeviceStatus { device });
        assert_eq!(status, 0);
        DeviceStatus::from_bytes(&body).unwrap().name
    }

    /// Whether the worker has closed the connection.
    fn is_over(&mut self) -> bool {
        self.0.rx.wait(Some(Duration::from_secs(5))).unwrap() && !matches!(self.0.rx.recv(&mut [0]), Ok(1))
    }
}

#[test]
fn each_device_answers_for_itself_and_nothing_else_is_done() {
    for scheme in ["tcp", "unix", "shm"] {
        let worker = worker(scheme, 4);
        let mut watcher = Watcher::attach(&worker.target);
        assert_eq!(watcher.name_of(0), "toy 0");
        assert_eq!(watcher.name_of(1), "toy 1");
        let (status, body) = watcher.call(&Command::DeviceStatus { device: 2 });
        assert_eq!((status, body), (CudaError::INVALID_DEVICE.code(), Vec::new()));
        let (status, _) = watcher.call(&Command::MemoryInfo { device: 0 });
        assert_eq!(status, CudaError::NOT_PERMITTED.code(), "that needs a session");
        watcher.send(&Command::DeviceStatus { device: 0 }, 0);
        assert_eq!(watcher.name_of(1), "toy 1", "who wants no reply gets none");
        watcher.send(&Command::Goodbye {}, 0);
        assert!(watcher.is_over());
        worker.front.stop();
    }
}

#[test]
fn a_wrong_token_is_refused_and_a_malformed_question_ends_the_connection_alone() {
    let worker = worker("unix", 4);
    let (_, answer) = Watcher::greet(&worker.target, "wrong");
    let Handshake::Refusal(refusal) = answer else { panic!("{answer:?}") };
    assert_eq!(refusal.code, CudaError::NOT_PERMITTED.code());
    let (mut hostile, mut good) = (Watcher::attach(&worker.target), Watcher::attach(&worker.target));
    let long = CommandHeader { bytes: 1 << 20, opcode: 0x18, reserved: 0, call: 1, reserved2: 0 };
    hostile.0.tx.send(&[&long.to_bytes()]).unwrap();
    assert!(hostile.is_over());
    assert_eq!(good.name_of(0), "toy 0");
    worker.front.stop();
}

#[test]
fn who_looks_takes_no_place_of_a_session() {
    let worker = worker("unix", 1);
    let mut watchers: Vec<_> = (0..5).map(|_| Watcher::attach(&worker.target)).collect();
    assert!(worker.front.session_pids().is_empty());
    let mut client = Client::attach(&worker.target, 1);
    client.must(&Command::MemoryInfo { device: 0 });
    assert_eq!(worker.front.session_pids().len(), 1);
    // All sessions are in use, and one can still look.
    watchers.push(Watcher::attach(&worker.target));
    for watcher in &mut watchers {
        assert_eq!(watcher.name_of(0), "toy 0");
    }
    drop(client);
    worker.front.stop();
    for watcher in &mut watchers {
        assert!(watcher.is_over(), "the worker took its watchers with it");
    }
}

#[test]
fn the_process_leaves_when_nobody_looks_and_comes_back() {
    let worker = worker("unix", 4);
    let reaped = |within: Duration| {
        let deadline = Instant::now() + within;
        std::iter::from_fn(|| {
            worker.events.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()
        })
        .any(|event| matches!(event, SessionEvent::Reaped { .. }))
    };
    let mut watcher = Watcher::attach(&worker.target);
    assert!(!reaped(Duration::from_secs(12)), "somebody still looks");
    assert_eq!(watcher.name_of(0), "toy 0");
    drop(watcher);
    assert!(reaped(Duration::from_secs(25)));
    assert_eq!(Watcher::attach(&worker.target).name_of(1), "toy 1");
    worker.front.stop();
}
