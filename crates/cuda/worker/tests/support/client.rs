//! A client for tests: cuda-wire over transport, no CUDA semantics.

use bulk::{Lanes, LanesConfig};
use cuda_wire::{
    AppendedWish, ChunkHeader, Command, CommandHeader, Handshake, Hello, Join, Knock, Notice, NoticeHeader,
    PROTOCOL_VERSION, ReplyHeader, TransferId, VaRange, Welcome, Wire, begin_command, finish_command, header,
    purpose,
};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use transport::{Address, ClientSecurity, Connection, ConnectionKind, Preamble, Rx, Tx, connect};

pub const TIMEOUT: Duration = Duration::from_secs(10);

/// Ranges in which a test's device memory may lie.
pub fn candidates() -> Vec<VaRange> {
    (0..16).map(|at| VaRange { base: 0x6000_0000_0000 + (at << 40), bytes: 1 << 40 }).collect()
}

pub fn session_name() -> [u8; 16] {
    use std::io::Read;
    let mut name = [0; 16];
    std::fs::File::open("/dev/urandom").unwrap().read_exact(&mut name).unwrap();
    name
}

#[derive(Clone)]
pub struct Target {
    pub address: Address,
    pub security: ClientSecurity,
    pub token: String,
}

impl Target {
    pub fn open(
        &self,
        kind: ConnectionKind,
        lane: u16,
        name: [u8; 16],
    ) -> Result<Connection, transport::ConnectError> {
        connect(&self.address, &self.security, Preamble::new(kind, lane, name), TIMEOUT)
    }
}

pub fn read_handshake(rx: &mut Rx) -> std::io::Result<Handshake> {
    let mut prefix = [0; 4];
    rx.recv_exact(&mut prefix)?;
    let mut body = vec![0; Handshake::body_length(prefix).unwrap()];
    rx.recv_exact(&mut body)?;
    Ok(Handshake::from_body(&body).unwrap())
}

pub fn hello(token: &str, lanes: u8) -> Hello {
    Hello {
        protocol: PROTOCOL_VERSION,
        token: token.to_owned(),
        program: "test".to_owned(),
        pid: std::process::id(),
        va_candidates: candidates(),
        lanes,
        wish: AppendedWish::default(),
    }
}

impl Target {
    /// Shows a token at the door.
    pub fn knock(&self, knock: Knock) -> Handshake {
        let mut door = self.open(ConnectionKind::Door, 0, session_name()).unwrap();
        door.tx.send(&[&Handshake::Knock(knock).to_frame()]).unwrap();
        read_handshake(&mut door.rx).unwrap()
    }

    /// The ticket for the right token.
    pub fn ticket(&self, purpose: u8) -> [u8; 16] {
        match self.knock(Knock { protocol: PROTOCOL_VERSION, token: self.token.clone(), purpose }) {
            Handshake::Ticket(ticket) => ticket.session,
            other => panic!("{other:?}"),
        }
    }
}

/// The handshake of a command connection, for a client that has a ticket.
pub fn greet(target: &Target, name: [u8; 16], hello: Hello) -> (Connection, std::io::Result<Handshake>) {
    let mut connection = target.open(ConnectionKind::Command, 0, name).unwrap();
    connection.tx.send(&[&Handshake::Hello(hello).to_frame()]).unwrap();
    let answer = read_handshake(&mut connection.rx);
    (connection, answer)
}

/// Notices from the worker that a test looks at.
#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    HostCall(u64),
    Pull(TransferId),
    Print(Vec<u8>),
    PushConsumed(u64),
    Ping(u64),
    Pong(u64),
    Closing(String),
    CutTaken(u64),
    CutSafe(u64),
    CutAbandoned(u64, String),
    DeviceLost(u32),
    GuardianLost(String),
    Rested,
    TimelineClock(u64, u64),
    Timed(Box<Notice<'static>>),
    ContentKept([u8; 32], u64),
    ContentLacks(TransferId, u32, u32, Vec<u32>),
    End,
}

pub struct Client {
    pub welcome: Welcome,
    pub tx: Tx,
    pub rx: Rx,
    pub events: Arc<Mutex<Tx>>,
    pub told: Receiver<Told>,
    pub lanes: Arc<Lanes>,
    pub base: u64,
    /// The way for memory, if the transport has one.
    pub courier: Option<transport::Courier>,
    next_call: u32,
}

impl Client {
    /// Attaches with all connections.
    pub fn attach(target: &Target, lanes: u8) -> Self {
        Self::attach_with(target, lanes, |_| {})
    }

    /// The same with another hello.
    pub fn attach_with(target: &Target, lanes: u8, change: impl FnOnce(&mut Hello)) -> Self {
        let name = target.ticket(purpose::SESSION);
        let mut hello = hello(&target.token, lanes);
        change(&mut hello);
        let (connection, answer) = greet(target, name, hello);
        let Handshake::Welcome(welcome) = answer.unwrap() else { panic!("not welcome") };
        let join = Handshake::Join(Join { session_secret: welcome.session_secret }).to_frame();
        let joined = |kind, lane| {
            let mut connection = target.open(kind, lane, name).unwrap();
            connection.tx.send(&[&join]).unwrap();
            connection
        };
        let events = joined(ConnectionKind::Events, 0);
        let lanes = (0..lanes).map(|lane| joined(ConnectionKind::Lane, lane.into())).collect();
        let (events_tx, mut events_rx, _) = events.split();
        let (sender, told) = channel();
        std::thread::spawn(move || {
            while let Some(notice) = read_told(&mut events_rx) {
                if sender.send(notice).is_err() {
                    return;
                }
            }
            let _ = sender.send(Told::End);
        });
        let courier = connection.courier();
        let (tx, rx, _) = connection.split();
        let lanes = Arc::new(Lanes::new(lanes, LanesConfig::default(), |_| {}));
        let base = welcome.va.base;
        Self {
            welcome: *welcome,
            tx,
            rx,
            events: Arc::new(Mutex::new(events_tx)),
            told,
            lanes,
            base,
            courier,
            next_call: 0,
        }
    }

    pub fn post(&mut self, command: &Command<'_>, call: u32) {
        let mut out = Vec::new();
        put(&mut out, command, call);
        self.tx.send(&[&out]).unwrap();
    }

    /// Asks, if the session still takes commands.
    pub fn try_ask(&mut self, command: &Command<'_>) -> bool {
        self.next_call += 1;
        let mut out = Vec::new();
        put(&mut out, command, self.next_call);
        self.tx.send(&[&out]).is_ok()
    }

    /// Sends commands in one piece and returns the names of their replies.
    pub fn ask_together<const N: usize>(&mut self, commands: [&Command<'_>; N]) -> [u32; N] {
        let mut out = Vec::new();
        let calls = commands.map(|command| {
            self.next_call += 1;
            put(&mut out, command, self.next_call);
            self.next_call
        });
        self.tx.send(&[&out]).unwrap();
        calls
    }

    /// Sends a command that asks for no reply.
    pub fn one_way(&mut self, command: &Command<'_>) {
        self.post(command, 0);
    }

    /// Sends a command and returns the name of its reply.
    pub fn ask(&mut self, command: &Command<'_>) -> u32 {
        self.next_call += 1;
        self.post(command, self.next_call);
        self.next_call
    }

    pub fn reply(&mut self) -> (ReplyHeader, Vec<u8>) {
        let mut bytes = [0; ReplyHeader::BYTES];
        self.rx.recv_exact(&mut bytes).unwrap();
        let header: ReplyHeader = header(&bytes).unwrap();
        let mut body = vec![0; header.bytes as usize];
        self.rx.recv_exact(&mut body).unwrap();
        self.lanes.wait_landed(&header.chunks, None).unwrap();
        (header, body)
    }

    /// Sends a command and waits for its reply.
    pub fn call(&mut self, command: &Command<'_>) -> (ReplyHeader, Vec<u8>) {
        let call = self.ask(command);
        let (header, body) = self.reply();
        assert_eq!(header.call, call, "replies of one thread come in order");
        (header, body)
    }

    /// As [`Self::call`], and it must succeed.
    pub fn must(&mut self, command: &Command<'_>) -> Vec<u8> {
        let (header, body) = self.call(command);
        assert_eq!(header.status, 0, "{}", command.name());
        body
    }

    pub fn say(&self, notice: &Notice<'_>) {
        self.events.lock().unwrap().send(&[&notice.to_frame()]).unwrap();
    }

    /// The loss of a guardian comes beside the end of a cut, and is waited for by [`Client::heard_of_guardian`].
    pub fn heard(&self) -> Told {
        loop {
            match self.told.recv_timeout(TIMEOUT).unwrap() {
                Told::GuardianLost(_) => {}
                told => return told,
            }
        }
    }

    /// Whether the worker says, now or soon, that all work has ended well after a replay.
    pub fn has_rested(&self) -> bool {
        let soon = Instant::now() + Duration::from_millis(200);
        while let Ok(told) = self.told.recv_timeout(soon.saturating_duration_since(Instant::now())) {
            if told == Told::Rested {
                return true;
            }
        }
        false
    }

    /// Waits until the worker says that its guardian is lost, and why.
    pub fn heard_of_guardian(&self) -> String {
        match self.told.recv_timeout(TIMEOUT).unwrap() {
            Told::GuardianLost(words) => words,
            other => panic!("{other:?}"),
        }
    }
}

fn put(out: &mut Vec<u8>, command: &Command<'_>, call: u32) {
    let start = begin_command(out, command.opcode(), call);
    command.put_body(out);
    finish_command(out, start);
}

fn read_told(rx: &mut Rx) -> Option<Told> {
    let mut bytes = [0; NoticeHeader::BYTES];
    rx.recv_exact(&mut bytes).ok()?;
    let head: NoticeHeader = header(&bytes).unwrap();
    let mut body = vec![0; head.bytes as usize];
    rx.recv_exact(&mut body).ok()?;
    Some(match Notice::from_bytes(&body).unwrap() {
        Notice::HostCall { token, .. } => Told::HostCall(token),
        Notice::Pull { transfer, .. } => Told::Pull(transfer),
        Notice::Print { text } => Told::Print(text.0.to_vec()),
        Notice::PushConsumed { bytes } => Told::PushConsumed(bytes),
        Notice::Ping { nonce } => Told::Ping(nonce),
        Notice::Pong { nonce } => Told::Pong(nonce),
        Notice::Closing { text } => Told::Closing(String::from_utf8_lossy(text.0).into_owned()),
        Notice::CutTaken { number, .. } => Told::CutTaken(number),
        Notice::CutSafe { number, .. } => Told::CutSafe(number),
        Notice::CutAbandoned { number, text } => {
            Told::CutAbandoned(number, String::from_utf8(text.0.to_vec()).unwrap())
        }
        Notice::DeviceLost { code, .. } => Told::DeviceLost(code),
        Notice::GuardianLost { text } => Told::GuardianLost(String::from_utf8(text.0.to_vec()).unwrap()),
        Notice::Rested {} => Told::Rested,
        Notice::TimelineTold { nonce, worker_ns } => Told::TimelineClock(nonce, worker_ns),
        Notice::Timed { streams, kernels, works, answers, missed } => {
            Told::Timed(Box::new(Notice::Timed { streams, kernels, works, answers, missed }))
        }
        Notice::ContentKept { key, blocks } => Told::ContentKept(key, blocks),
        Notice::ContentLacks { transfer, first, count, lacking } => {
            Told::ContentLacks(transfer, first, count, lacking)
        }
        other => panic!("a worker never says {other:?}"),
    })
}

/// Bytes that differ from place to place and from seed to seed.
pub fn pattern(seed: u64, offset: u64, target: &mut [u8]) {
    for (at, byte) in target.iter_mut().enumerate() {
        let place = offset + at as u64;
        *byte = (place ^ (place >> 9) ^ seed.wrapping_mul(0x9e37)) as u8;
    }
}

pub fn patterned(seed: u64, bytes: usize) -> Vec<u8> {
    let mut data = vec![0; bytes];
    pattern(seed, 0, &mut data);
    data
}

const _: () = assert!(CommandHeader::BYTES == 16 && ChunkHeader::BYTES == 24);
