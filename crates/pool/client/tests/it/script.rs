//! A manager that answers as a test says: real TCP and TLS on loopback, HTTP/1.1 read and written by hand, so that it can be
//! wrong in every way.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use pool_api::{ErrorAnswer, ErrorCode};
use pool_auth::{Authority, Credential, Identity, Lifetime, Secret};
use pool_client::{Client, Patience};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// What a manager does with one request.
pub(crate) enum Step {
    /// Answers with a status and a body.
    Answer(u16, Vec<u8>),
    /// The same, and closes the connection after it.
    AnswerAndClose(u16, Vec<u8>),
    /// Sends these bytes and closes.
    Raw(Vec<u8>),
    /// Says nothing until the client has gone.
    Silence,
}

/// A request as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) path: String,
    /// Names in small letters.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

/// A pool's authority.
pub(crate) struct Pool(Authority);

fn now_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as u64
}

impl Pool {
    pub(crate) fn new() -> Self {
        Self(Authority::make(now_ms()).unwrap())
    }

    /// A manager that does with each request what `script` says.
    pub(crate) fn manager(&self, script: impl FnMut(&Asked) -> Step + Send + 'static) -> Scripted {
        self.server(&Identity::Manager("m".to_owned()), script)
    }

    /// The same with another identity's certificate.
    pub(crate) fn server(
        &self,
        identity: &Identity,
        script: impl FnMut(&Asked) -> Step + Send + 'static,
    ) -> Scripted {
        let issued = self.0.issue(identity, &[], Lifetime::starting(now_ms(), Duration::from_secs(3600)));
        let issued = issued.unwrap();
        let certificate = CertificateDer::from_pem_slice(issued.certificate_pem.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(issued.key_pem.reveal().as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        Scripted::start(tls, script)
    }

    pub(crate) fn client(&self, managers: &[&str], patience: Patience) -> Client {
        let credential = Credential {
            managers: managers.iter().map(|&address| address.to_owned()).collect(),
            authority: self.0.certificate_pem().to_owned(),
            identity: Identity::Viewer("tester".to_owned()),
            token: Some(Secret::new("its-token".to_owned())),
            certificate: None,
            key: None,
        };
        Client::new(credential, patience).unwrap()
    }
}

type Script = Box<dyn FnMut(&Asked) -> Step + Send>;

struct Shared {
    tls: Arc<ServerConfig>,
    script: Mutex<Script>,
    asked: Mutex<Vec<Asked>>,
    connections: Mutex<Vec<TcpStream>>,
    is_over: AtomicBool,
    /// Connections that this side has closed.
    closed: Mutex<usize>,
    closing: Condvar,
}

/// A manager that runs.
pub(crate) struct Scripted {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepts: Option<JoinHandle<()>>,
}

impl Scripted {
    fn start(tls: ServerConfig, script: impl FnMut(&Asked) -> Step + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            tls: Arc::new(tls),
            script: Mutex::new(Box::new(script)),
            asked: Mutex::default(),
            connections: Mutex::default(),
            is_over: AtomicBool::new(false),
            closed: Mutex::new(0),
            closing: Condvar::new(),
        });
        let accepts = std::thread::spawn({
            let shared = shared.clone();
            move || accept(&listener, &shared)
        });
        Self { address, shared, accepts: Some(accepts) }
    }

    /// Where it is.
    pub(crate) fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Waits until it has closed so many connections.
    pub(crate) fn wait_until_closed(&self, count: usize) {
        let closed = self.shared.closed.lock().unwrap();
        drop(self.shared.closing.wait_while(closed, |closed| *closed < count).unwrap());
    }

    /// What it was asked until now.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.shared.asked.lock().unwrap().clone()
    }
}

impl Drop for Scripted {
    /// Ends the threads of its connections by closing them.
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
        for connection in self.shared.connections.lock().unwrap().iter() {
            let _ = connection.shutdown(Shutdown::Both);
        }
        if let Some(accepts) = self.accepts.take() {
            let _ = accepts.join();
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for connection in listener.incoming() {
        if shared.is_over.load(Ordering::SeqCst) {
            return;
        }
        let Ok(connection) = connection else { continue };
        shared.connections.lock().unwrap().push(connection.try_clone().unwrap());
        let shared = shared.clone();
        std::thread::spawn(move || {
            // A client that goes away, or does not believe the certificate, ends this connection and no test.
            let _ = serve(&connection, &shared);
            let _ = connection.shutdown(Shutdown::Both);
            *shared.closed.lock().unwrap() += 1;
            shared.closing.notify_all();
        });
    }
}

fn serve(connection: &TcpStream, shared: &Shared) -> std::io::Result<()> {
    let session = ServerConnection::new(shared.tls.clone()).expect("the settings of TLS are good");
    let mut stream = BufReader::new(StreamOwned::new(session, connection.try_clone()?));
    while let Some(asked) = read_request(&mut stream)? {
        shared.asked.lock().unwrap().push(asked.clone());
        let step = (shared.script.lock().unwrap())(&asked);
        let (answer, closes) = match step {
            Step::Answer(status, body) => (http(status, &body), false),
            Step::AnswerAndClose(status, body) => (http(status, &body), true),
            Step::Raw(bytes) => (bytes, true),
            Step::Silence => {
                let _ = stream.read(&mut [0]);
                return Ok(());
            }
        };
        stream.get_mut().write_all(&answer)?;
        stream.get_mut().flush()?;
        if closes {
            stream.get_mut().conn.send_close_notify();
            stream.get_mut().flush()?;
            return Ok(());
        }
    }
    Ok(())
}

fn read_request(stream: &mut impl BufRead) -> std::io::Result<Option<Asked>> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").map_or(0, |text| text.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(Some(Asked { method, path, headers, body }))
}

/// An answer as it travels.
pub(crate) fn http(status: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!(
        "HTTP/1.1 {status} Scripted\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// A good answer: the number.
pub(crate) fn number(number: u64) -> Step {
    Step::Answer(200, number.to_string().into_bytes())
}

/// A manager says no.
pub(crate) fn refusal(code: ErrorCode, hint: &str) -> Step {
    let answer = ErrorAnswer::new(code, format!("{code:?} by script"), hint);
    Step::Answer(code.status(), serde_json::to_vec(&answer).unwrap())
}
