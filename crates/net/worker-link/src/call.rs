//! Calling a worker: connect, show the token, hear whether it serves us.

use crate::{Config, Failure};
use cuda_abi::CudaError;
use cuda_wire::{AppendedWish, Handshake, Hello, Knock, PROTOCOL_VERSION, VaRange};
use std::time::{Duration, SystemTime};
use transport::{Address, ConnectError, Connection, ConnectionKind, Preamble, Rx};

/// How long a worker may take for each connection.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// Words of a worker that has too much to do for the moment.
const TRY_AGAIN: &str = "try again";

/// Opens the connections of one client to one worker.
pub struct Caller<'a> {
    address: &'a Address,
    config: &'a Config,
    session: [u8; 16],
}

impl<'a> Caller<'a> {
    /// Knocks at the worker's door: shows our token and says what we want (one of [`cuda_wire::purpose`]). Returns when the
    /// worker has set aside what we want.
    pub fn knock(
        address: &'a Address,
        config: &'a Config,
        purpose: u8,
        timeout: Duration,
    ) -> Result<Self, Failure> {
        let caller = Self { address, config, session: random_name() };
        let mut door = caller.open(ConnectionKind::Door, 0, timeout)?;
        let knock = Knock { protocol: PROTOCOL_VERSION, token: config.token(), purpose };
        match converse(&mut door, &Handshake::Knock(knock), timeout) {
            Ok(Handshake::Ticket(ticket)) => Ok(Self { session: ticket.session, ..caller }),
            Ok(_) => Err(caller.unreachable(
                "its answer to the knock is no ticket; install the same dxpu on both machines".to_owned(),
            )),
            Err(Unheard::Refused { code, text }) => Err(caller.refused(code, text)),
            // A crowded door may close a waiting connection at any moment: come again.
            Err(Unheard::Closed(error)) => Err(caller.busy(error)),
            Err(Unheard::Broken(error)) => Err(caller.unreachable(error)),
        }
    }

    /// One connection. Waits for it at most `timeout`; the error says why there is none.
    pub fn open(&self, kind: ConnectionKind, lane: u16, timeout: Duration) -> Result<Connection, Failure> {
        let preamble = Preamble::new(kind, lane, self.session);
        let security = self.config.security_for(self.address);
        let connection = transport::connect(self.address, &security, preamble, timeout);
        let connection = connection.map_err(|error| match &error {
            ConnectError::Refused { reason, .. } if reason.contains(TRY_AGAIN) => self.busy(chain(&error)),
            ConnectError::SetUp { source, .. } if is_closed(source) => self.busy(chain(&error)),
            _ => self.unreachable(chain(&error)),
        })?;
        match self.config.delay {
            Some(rtt) => connection.delayed(rtt).map_err(|error| self.unreachable(error.to_string())),
            None => Ok(connection),
        }
    }

    /// Says hello. Returns the worker's welcome, or why there is none.
    pub fn greet(
        &self,
        connection: &mut Connection,
        hello: Hello,
        timeout: Duration,
    ) -> Result<Handshake, Failure> {
        match converse(connection, &Handshake::Hello(hello), timeout) {
            Ok(welcome) => Ok(welcome),
            Err(Unheard::Refused { code, text }) => Err(self.refused(code, text)),
            // The process that was to serve us ended before it heard us: another one may.
            Err(Unheard::Closed(why)) => Err(self.busy(why)),
            Err(Unheard::Broken(why)) => Err(self.unreachable(why)),
        }
    }

    fn refused(&self, code: CudaError, text: String) -> Failure {
        Failure::Refused { address: self.address.clone(), code, text }
    }

    /// The error for a worker that is too busy at the moment.
    fn busy(&self, why: String) -> Failure {
        Failure::Busy { address: self.address.clone(), why }
    }

    /// The error for a worker that cannot be used, whatever the reason.
    pub fn unreachable(&self, why: String) -> Failure {
        Failure::Unusable { address: self.address.clone(), why }
    }
}

impl Config {
    /// What to show the worker. Without a token of our own, the pass that a PCI function brings along.
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
            wish: AppendedWish { class: self.class, ..AppendedWish::default() },
        }
    }
}

/// Why there is no answer that we could use.
enum Unheard {
    /// The worker said no, in its words.
    Refused {
        code: CudaError,
        text: String,
    },
    /// The other side closed before it answered.
    Closed(String),
    Broken(String),
}

impl From<std::io::Error> for Unheard {
    fn from(error: std::io::Error) -> Self {
        match is_closed(&error) {
            true => Self::Closed(format!("it closed the connection during the handshake ({error})")),
            false => Self::Broken(error.to_string()),
        }
    }
}

fn is_closed(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe | ConnectionAborted)
}

/// Says something and hears the answer.
fn converse(connection: &mut Connection, words: &Handshake, timeout: Duration) -> Result<Handshake, Unheard> {
    connection.tx.send(&[&words.to_frame()])?;
    match read_handshake(&mut connection.rx, timeout)? {
        Handshake::Refusal(refusal) => {
            let code = CudaError::from_code(refusal.code).unwrap_or(CudaError::DEVICE_UNAVAILABLE);
            Err(Unheard::Refused { code, text: refusal.text })
        }
        Handshake::Hello(_) | Handshake::Join(_) | Handshake::Knock(_) => {
            Err(Unheard::Broken("it sent a message that only clients send".to_owned()))
        }
        answer => Ok(answer),
    }
}

fn read_handshake(rx: &mut Rx, timeout: Duration) -> Result<Handshake, Unheard> {
    let malformed = |error: cuda_wire::DecodeError| Unheard::Broken(error.to_string());
    if !rx.wait(Some(timeout))? {
        return Err(Unheard::Broken(format!("it did not answer within {timeout:?}")));
    }
    let mut prefix = [0; 4];
    rx.recv_exact(&mut prefix)?;
    let length = Handshake::body_length(prefix).map_err(malformed)?;
    let mut body = vec![0; length];
    rx.recv_exact(&mut body)?;
    Handshake::from_body(&body).map_err(malformed)
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

/// Bytes that nobody can guess, from the operating system. `None`: it has none.
pub fn random<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let got = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    (got == Ok(N)).then_some(bytes)
}

/// A name that no other client uses; it is no secret.
fn random_name() -> [u8; 16] {
    random().unwrap_or_else(|| {
        // Without a random source, the process and the clock are still unique on one host.
        let now =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        (now ^ (u128::from(std::process::id()) << 96)).to_le_bytes()
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use cuda_wire::{Refusal, StatusWelcome};
    use std::{thread, time::Instant};
    use transport::{ClientSecurity, Listener, ServerSecurity};

    const PATIENCE: Duration = Duration::from_secs(10);

    pub(crate) fn config(address: &Address) -> Config {
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
            patience: PATIENCE,
            users: Vec::new(),
            survive: None,
            accept: false,
            cut_every: None,
            standbys: Vec::new(),
            keeper: None,
            class: 0,
            timeline: None,
            content: false,
        }
    }

    /// Greets a worker that answers each hello with `answer`, or closes the connection.
    fn greeted(answer: Option<Handshake>) -> Result<Handshake, Failure> {
        let listener = Listener::bind(&"tcp:127.0.0.1:0".parse::<Address>().unwrap()).unwrap();
        let address = listener.address().clone();
        let worker = thread::spawn(move || {
            let deadline = Instant::now() + PATIENCE;
            let mut raw = listener.accept().unwrap().unwrap();
            raw.read_preamble(deadline).unwrap();
            let mut connection = raw.serve(&ServerSecurity::Plain, deadline).unwrap();
            let Ok(hello) = read_handshake(&mut connection.rx, PATIENCE) else { panic!("no hello") };
            if let Some(answer) = answer {
                connection.tx.send(&[&answer.to_frame()]).unwrap();
            }
            hello
        });
        let config = config(&address);
        let caller = Caller { address: &address, config: &config, session: random_name() };
        let mut connection = caller.open(ConnectionKind::Status, 0, PATIENCE).unwrap();
        let heard = caller.greet(&mut connection, config.hello(Vec::new(), 0), PATIENCE);
        let Handshake::Hello(hello) = worker.join().unwrap() else { panic!("no hello") };
        assert_eq!((hello.token.as_str(), hello.pid), ("secret", std::process::id()));
        heard
    }

    #[test]
    fn a_welcome_is_handed_on_and_a_refusal_keeps_its_words() {
        let welcome = Handshake::StatusWelcome(StatusWelcome { protocol: 1, devices: 2 });
        assert_eq!(greeted(Some(welcome.clone())), Ok(welcome));
        let refusal = Refusal { code: CudaError::NOT_PERMITTED.code(), text: "no lease".to_owned() };
        let refused = greeted(Some(Handshake::Refusal(refusal))).unwrap_err();
        assert_eq!(refused.code(), CudaError::NOT_PERMITTED);
        assert!(matches!(&refused, Failure::Refused { text, .. } if text == "no lease"), "{refused:?}");
    }

    #[test]
    fn a_server_that_answers_like_a_client_is_no_worker() {
        let join = Handshake::Join(cuda_wire::Join { session_secret: [1; 32] });
        let failure = greeted(Some(join)).unwrap_err();
        assert!(matches!(&failure, Failure::Unusable { .. }), "{failure:?}");
        assert_eq!(failure.code(), CudaError::DEVICE_UNAVAILABLE);
    }

    #[test]
    fn a_worker_whose_session_ended_before_it_answered_is_asked_again() {
        assert_eq!(greeted(None).unwrap_err().code(), CudaError::SYSTEM_NOT_READY);
    }

    #[test]
    fn names_differ() {
        assert_ne!(random_name(), random_name());
    }
}
