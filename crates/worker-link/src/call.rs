//! Calling a worker: connect, prove who we are, hear whether it serves us.

use crate::Config;
use cuda_abi::CudaError;
use cuda_wire::{Handshake, Hello, PROTOCOL_VERSION, VaRange};
use std::time::{Duration, SystemTime};
use transport::{Address, Connection, ConnectionKind, Preamble, Rx};

/// How long a worker may take for each connection.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// Why a worker does not serve us: the code for cuInit and a sentence for the user.
pub type Failure = (CudaError, String);

/// Opens the connections of one client to one worker.
pub struct Caller<'a> {
    address: &'a Address,
    config: &'a Config,
    session: [u8; 16],
}

impl<'a> Caller<'a> {
    /// A client under a name of its own.
    pub fn new(address: &'a Address, config: &'a Config) -> Self {
        Self { address, config, session: random_name() }
    }

    /// One connection. Waits for it at most `timeout`; the error says why there is none.
    pub fn open(&self, kind: ConnectionKind, lane: u16, timeout: Duration) -> Result<Connection, String> {
        let preamble = Preamble::new(kind, lane, self.session);
        let security = self.config.security_for(self.address);
        let connection =
            transport::connect(self.address, &security, preamble, timeout).map_err(|error| chain(&error))?;
        match self.config.delay {
            Some(rtt) => connection.delayed(rtt).map_err(|error| error.to_string()),
            None => Ok(connection),
        }
    }

    /// The error for a worker that cannot be used, whatever the reason.
    pub fn unreachable(&self, error: String) -> Failure {
        (CudaError::DEVICE_UNAVAILABLE, format!("cannot use worker {}: {error}", self.address))
    }
}

impl Config {
    /// What to show the worker. A PCI function brings along what opens it, for who has nothing else.
    fn token(&self) -> String {
        let ours = self.tokens.current();
        match self.workers.first() {
            Some(address) if ours.is_empty() => transport::pass_of(address).unwrap_or_default(),
            _ => ours,
        }
    }

    /// What this program says first.
    pub fn hello(&self, va_candidates: Vec<VaRange>, lanes: usize) -> Hello {
        Hello {
            protocol: PROTOCOL_VERSION,
            token: self.token(),
            program: program_name(),
            pid: std::process::id(),
            va_candidates,
            lanes: lanes as u8,
        }
    }
}

/// Says hello. Returns the worker's welcome, or why there is none.
pub fn greet(connection: &mut Connection, hello: Hello, timeout: Duration) -> Result<Handshake, Failure> {
    let broken = |error: String| (CudaError::DEVICE_UNAVAILABLE, error);
    let hello = Handshake::Hello(hello).to_frame();
    connection.tx.send(&[&hello]).map_err(|error| broken(error.to_string()))?;
    match read_handshake(&mut connection.rx, timeout).map_err(broken)? {
        Handshake::Refusal(refusal) => {
            Err((CudaError::from_code(refusal.code).unwrap_or(CudaError::DEVICE_UNAVAILABLE), refusal.text))
        }
        Handshake::Hello(_) | Handshake::Join(_) => Err(broken("it answered like a client".to_owned())),
        welcome => Ok(welcome),
    }
}

/// How long a GPU is waited for that is still being cleaned after somebody else, or whose worker is being replaced.
const READY_WITHIN: Duration = Duration::from_secs(15);
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Tries again for a while when the worker says that it is not ready yet. A worker of a pool's box may also be away for
/// a moment: the box puts another in its place. Everything else is final.
pub fn patiently<T>(config: &Config, mut attempt: impl FnMut() -> Result<T, Failure>) -> Result<T, Failure> {
    let deadline = std::time::Instant::now() + READY_WITHIN;
    let passes = |code| match code {
        CudaError::SYSTEM_NOT_READY => true,
        CudaError::DEVICE_UNAVAILABLE => config.is_leased(),
        _ => false,
    };
    loop {
        match attempt() {
            Err((code, _)) if passes(code) && std::time::Instant::now() < deadline => {
                std::thread::sleep(TRY_AGAIN_AFTER);
            }
            other => return other,
        }
    }
}

fn read_handshake(rx: &mut Rx, timeout: Duration) -> Result<Handshake, String> {
    let ready = rx.wait(Some(timeout)).map_err(|error| error.to_string())?;
    if !ready {
        return Err(format!("it did not answer within {timeout:?}"));
    }
    let mut prefix = [0; 4];
    rx.recv_exact(&mut prefix)
        .map_err(|error| format!("it closed the connection during the handshake ({error})"))?;
    let length = Handshake::body_length(prefix).map_err(|error| error.to_string())?;
    let mut body = vec![0; length];
    rx.recv_exact(&mut body).map_err(|error| error.to_string())?;
    Handshake::from_body(&body).map_err(|error| error.to_string())
}

/// An error with everything behind it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}

fn program_name() -> String {
    std::env::args_os().next().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// A name nobody else uses; it is no secret.
fn random_name() -> [u8; 16] {
    let mut name = [0u8; 16];
    let got = rustix::rand::getrandom(&mut name[..], rustix::rand::GetRandomFlags::empty());
    if got != Ok(name.len()) {
        // Without a random source, the process and the clock are still unique on one host.
        let now =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        name = (now ^ (u128::from(std::process::id()) << 96)).to_le_bytes();
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuda_wire::{Refusal, StatusWelcome};
    use std::{thread, time::Instant};
    use transport::{ClientSecurity, Listener, ServerSecurity};

    const PATIENCE: Duration = Duration::from_secs(10);

    fn config(address: &Address) -> Config {
        Config {
            workers: vec![address.clone()],
            names: Vec::new(),
            security: ClientSecurity::Plain,
            tokens: crate::Tokens::one("secret"),
            delay: None,
            lanes: Some(1),
            stall_timeout: PATIENCE,
            await_all: false,
            spin: None,
        }
    }

    /// Greets somebody who answers each hello with `answer`.
    fn greeted(answer: Handshake) -> Result<Handshake, Failure> {
        let listener = Listener::bind(&"tcp:127.0.0.1:0".parse::<Address>().unwrap()).unwrap();
        let address = listener.address().clone();
        let worker = thread::spawn(move || {
            let deadline = Instant::now() + PATIENCE;
            let mut raw = listener.accept().unwrap().unwrap();
            raw.read_preamble(deadline).unwrap();
            let mut connection = raw.serve(&ServerSecurity::Plain, deadline).unwrap();
            let hello = read_handshake(&mut connection.rx, PATIENCE).unwrap();
            connection.tx.send(&[&answer.to_frame()]).unwrap();
            hello
        });
        let config = config(&address);
        let caller = Caller::new(&address, &config);
        let mut connection = caller.open(ConnectionKind::Status, 0, PATIENCE).unwrap();
        let heard = greet(&mut connection, config.hello(Vec::new(), 0), PATIENCE);
        let Handshake::Hello(hello) = worker.join().unwrap() else { panic!("no hello") };
        assert_eq!((hello.token.as_str(), hello.pid), ("secret", std::process::id()));
        heard
    }

    #[test]
    fn a_welcome_is_handed_on_and_a_refusal_keeps_its_words() {
        let welcome = Handshake::StatusWelcome(StatusWelcome { protocol: 1, devices: 2 });
        assert_eq!(greeted(welcome.clone()), Ok(welcome));
        let refusal = Refusal { code: CudaError::NOT_PERMITTED.code(), text: "no lease".to_owned() };
        let refused = greeted(Handshake::Refusal(refusal));
        assert_eq!(refused, Err((CudaError::NOT_PERMITTED, "no lease".to_owned())));
    }

    #[test]
    fn somebody_who_answers_like_a_client_is_no_worker() {
        let join = Handshake::Join(cuda_wire::Join { session_secret: [1; 32] });
        assert_eq!(greeted(join).unwrap_err().0, CudaError::DEVICE_UNAVAILABLE);
    }

    #[test]
    fn who_is_not_ready_yet_is_asked_again_and_who_refuses_is_not() {
        let alone = config(&"tcp:127.0.0.1:1".parse().unwrap());
        let leased = Config { names: vec!["a.box.dxpu".to_owned()], ..alone.clone() };
        // How often somebody is asked who answers so, the third time well.
        let asked = |config: &Config, code| {
            let mut asked = 0;
            let answer = patiently(config, || {
                asked += 1;
                if asked < 3 { Err((code, String::new())) } else { Ok(()) }
            });
            (asked, answer.is_ok())
        };
        assert_eq!(asked(&alone, CudaError::SYSTEM_NOT_READY), (3, true));
        assert_eq!(asked(&leased, CudaError::DEVICE_UNAVAILABLE), (3, true));
        assert_eq!(asked(&alone, CudaError::DEVICE_UNAVAILABLE), (1, false));
        assert_eq!(asked(&leased, CudaError::NOT_PERMITTED), (1, false));
    }

    #[test]
    fn names_differ() {
        assert_ne!(random_name(), random_name());
    }
}
