//! Connecting, listening, refusing: everything before the first byte of a connection.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use support::*;
use transport::*;

fn preamble() -> Preamble {
    Preamble::new(ConnectionKind::Command, 0, SESSION)
}

/// An error with everything that caused it, as a person sees it.
fn whole(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text += &format!(": {error}");
        source = error.source();
    }
    text
}

/// Connects to a server that runs `serve`, and returns both results.
fn meet(
    bound: &Address,
    dialled: impl FnOnce(&Address) -> Address,
    client: &ClientSecurity,
    server: &ServerSecurity,
) -> (Result<Connection, ConnectError>, Result<Connection, ServeError>) {
    let listener = Listener::bind(bound).unwrap();
    let address = dialled(listener.address());
    std::thread::scope(|scope| {
        let served = scope.spawn(|| listener.accept().unwrap().unwrap().serve(server, soon()));
        let connected = connect(&address, client, preamble(), SOON);
        (connected, served.join().unwrap())
    })
}

on_every_transport! {
    fn nobody_there_is_said_so(scheme) {
        let address = match fresh_address(scheme) {
            // A port that was free a moment ago.
            Address::Tcp(at) | Address::Tls(at) => {
                let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
                let at = HostPort { port, ..at };
                if scheme == Scheme::Tcp { Address::Tcp(at) } else { Address::Tls(at) }
            }
            other => other,
        };
        let error = connect(&address, &client_security(scheme), preamble(), SOON).unwrap_err();
        assert!(matches!(error, ConnectError::Connect { .. }), "{error:?}");
        assert!(error.to_string().contains(&address.to_string()));
    }

    fn a_server_that_says_nothing_does_not_hold_a_client_for_ever(scheme) {
        let listener = Listener::bind(&fresh_address(scheme)).unwrap();
        let started = Instant::now();
        let error =
            connect(listener.address(), &client_security(scheme), preamble(), Duration::from_millis(60)).unwrap_err();
        assert!(matches!(&error, ConnectError::SetUp { source, .. } if source.kind() == ErrorKind::TimedOut), "{error:?}");
        assert!(started.elapsed() >= Duration::from_millis(60));
        assert!(started.elapsed() < Duration::from_secs(5));
    }

    fn a_client_that_says_nothing_does_not_hold_a_server_for_ever(scheme) {
        let listener = Listener::bind(&fresh_address(scheme)).unwrap();
        let _silent = Stranger::connect(listener.address());
        let mut raw = listener.accept().unwrap().unwrap();
        let error = raw.read_preamble(Instant::now() + Duration::from_millis(30)).unwrap_err();
        assert!(matches!(&error, ServeError::SetUp { source, .. } if source.kind() == ErrorKind::TimedOut), "{error:?}");
        // Nor one that stops in the middle, and the listener goes on.
        let mut slow = Stranger::connect(listener.address());
        slow.write(&preamble().encode()[..40]);
        let mut raw = listener.accept().unwrap().unwrap();
        assert!(raw.read_preamble(Instant::now() + Duration::from_millis(30)).is_err());
    }

    fn a_client_that_stops_after_the_preamble_does_not_hold_a_server_for_ever(scheme) {
        if matches!(scheme, Scheme::Tcp | Scheme::Unix) {
            return; // Nothing more is expected of it.
        }
        let listener = Listener::bind(&fresh_address(scheme)).unwrap();
        let mut silent = Stranger::connect(listener.address());
        silent.write(&Preamble { scheme, ..preamble() }.encode());
        let raw = listener.accept().unwrap().unwrap();
        let error = raw.serve(&server_security(), Instant::now() + Duration::from_millis(60)).unwrap_err();
        assert!(matches!(&error, ServeError::SetUp { source, .. } if source.kind() == ErrorKind::TimedOut), "{error:?}");
    }

    fn garbage_and_aborted_clients_are_survived(scheme) {
        let listener = Listener::bind(&fresh_address(scheme)).unwrap();
        drop(Stranger::connect(listener.address()));
        let mut http = Stranger::connect(listener.address());
        http.write(&[b"GET / HTTP/1.1\r\nHost: box\r\n".as_slice(), &[b'x'; 80]].concat());
        let gone = listener.accept().unwrap().unwrap().read_preamble(soon()).unwrap_err();
        assert!(matches!(gone, ServeError::SetUp { .. }), "{gone:?}");
        let stranger = listener.accept().unwrap().unwrap().read_preamble(soon()).unwrap_err();
        assert!(whole(&stranger).contains("does not speak dxpu"), "{}", whole(&stranger));
        let address = listener.address().clone();
        let client = std::thread::spawn(move || connect(&address, &client_security(scheme), preamble(), SOON).is_ok());
        assert!(listener.accept().unwrap().unwrap().serve(&server_security(), soon()).is_ok());
        assert!(client.join().unwrap());
    }

    fn a_refusal_reaches_the_client_with_its_reason(scheme) {
        let listener = Listener::bind(&fresh_address(scheme)).unwrap();
        let address = listener.address().clone();
        let client = std::thread::spawn(move || connect(&address, &client_security(scheme), preamble(), SOON));
        let mut raw = listener.accept().unwrap().unwrap();
        raw.read_preamble(soon()).unwrap();
        raw.refuse("no such session");
        let error = client.join().unwrap().unwrap_err();
        assert!(error.to_string().ends_with("refused the connection: no such session"), "{error}");
    }

    fn a_connection_can_be_handed_to_another_owner_before_its_set_up(scheme) {
        let (a, b) = transport::fd::socket_pair().unwrap();
        let listener = Listener::bind(&fresh_address(scheme)).unwrap();
        let address = listener.address().clone();
        let client = std::thread::spawn(move || connect(&address, &client_security(scheme), preamble(), SOON).unwrap());
        let mut raw = listener.accept().unwrap().unwrap();
        let read = raw.read_preamble(soon()).unwrap();
        let peer = raw.peer().to_owned();
        raw.hand_over(a.as_fd()).unwrap();
        let taken = RawConnection::take_over(b.as_fd()).unwrap();
        assert_eq!((taken.preamble(), taken.scheme(), taken.peer()), (Some(&read), scheme, peer.as_str()));
        let mut server = taken.serve(&server_security(), soon()).unwrap();
        let mut client = client.join().unwrap();
        client.tx.send(&[b"still the same"]).unwrap();
        let mut text = [0; 14];
        server.rx.recv_exact(&mut text).unwrap();
        assert_eq!(&text, b"still the same");
    }

    fn a_stopper_wakes_the_listener(scheme) {
        let listener = Listener::bind(&fresh_address(scheme)).unwrap();
        let stopper = listener.stopper();
        let waiting = std::thread::spawn(move || listener.accept().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(20));
        stopper.stop();
        assert!(waiting.join().unwrap());
    }
}

/// A client that speaks no dxpu.
enum Stranger {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stranger {
    fn connect(address: &Address) -> Self {
        match address {
            Address::Tcp(at) | Address::Tls(at) => Self::Tcp(TcpStream::connect(at.to_string()).unwrap()),
            Address::Unix(path) | Address::Shm(path) => Self::Unix(UnixStream::connect(path).unwrap()),
            Address::Pcie(_) => unreachable!("nobody listens there"),
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        match self {
            Self::Tcp(stream) => stream.write_all(bytes).unwrap(),
            Self::Unix(stream) => stream.write_all(bytes).unwrap(),
        }
    }
}

#[test]
fn the_wrong_fingerprint_is_refused_and_both_are_named() {
    let wrong = ClientSecurity::Fingerprint([7; 32]);
    let (client, server) = meet(&fresh_address(Scheme::Tls), Address::clone, &wrong, &server_security());
    let text = whole(&client.unwrap_err());
    assert!(text.contains(&IDENTITY.fingerprint().to_string()) && text.contains(&"07".repeat(32)), "{text}");
    assert!(matches!(server.unwrap_err(), ServeError::Tls { .. }));
}

fn authority(name: &str) -> (rcgen::Certificate, rcgen::Issuer<'static, rcgen::KeyPair>) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    let certificate = params.self_signed(&key).unwrap();
    (certificate, rcgen::Issuer::new(params, key))
}

fn signed_by(issuer: &rcgen::Issuer<'static, rcgen::KeyPair>, name: &str) -> ServerSecurity {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
    let leaf = params.signed_by(&key, issuer).unwrap();
    ServerSecurity::Tls(ServerIdentity::from_pem(&leaf.pem(), &key.serialize_pem()).unwrap())
}

#[test]
fn a_certificate_counts_only_from_the_right_authority_and_for_the_right_host() {
    let (ca, issuer) = authority("ours");
    let (other_ca, _) = authority("theirs");
    let address = fresh_address(Scheme::Tls);
    let attempt = |ca: &rcgen::Certificate, name: &str| {
        meet(&address, Address::clone, &ClientSecurity::Ca(ca.pem()), &signed_by(&issuer, name)).0
    };
    assert!(attempt(&ca, "127.0.0.1").is_ok());
    let wrong_ca = whole(&attempt(&other_ca, "127.0.0.1").unwrap_err());
    assert!(wrong_ca.contains("UnknownIssuer") || wrong_ca.contains("BadSignature"), "{wrong_ca}");
    let wrong_host = whole(&attempt(&ca, "other-box").unwrap_err());
    assert!(wrong_host.contains("not valid for name"), "{wrong_host}");
    let no_pem = connect(&address, &ClientSecurity::Ca("nothing".to_owned()), preamble(), SOON);
    assert!(matches!(no_pem.unwrap_err(), ConnectError::Ca(_)));
}

#[test]
fn plain_and_tls_that_meet_say_so() {
    let as_tcp = |address: &Address| match address {
        Address::Tls(at) | Address::Tcp(at) => Address::Tcp(at.clone()),
        other => other.clone(),
    };
    let as_tls = |address: &Address| match address {
        Address::Tls(at) | Address::Tcp(at) => Address::Tls(at.clone()),
        other => other.clone(),
    };
    let (client, server) =
        meet(&fresh_address(Scheme::Tls), as_tcp, &ClientSecurity::Plain, &server_security());
    assert!(client.unwrap_err().to_string().contains("client speaks tcp, this address tls"));
    assert!(server.unwrap_err().to_string().contains("speaks tcp, but this address speaks tls"));
    let pinned = client_security(Scheme::Tls);
    let (client, server) = meet(&fresh_address(Scheme::Tcp), as_tls, &pinned, &ServerSecurity::Plain);
    assert!(client.unwrap_err().to_string().contains("client speaks tls, this address tcp"));
    assert!(server.unwrap_err().to_string().contains("speaks tls, but this address speaks tcp"));
    // And without any server: the address and what the client knows must fit.
    let nowhere: Address = "127.0.0.1:1".parse().unwrap();
    let error = connect(&nowhere, &ClientSecurity::Plain, preamble(), SOON).unwrap_err();
    assert!(error.to_string().contains("needs a fingerprint"), "{error}");
    let (_, server) = meet(&fresh_address(Scheme::Tls), Address::clone, &pinned, &ServerSecurity::Plain);
    assert!(matches!(server.unwrap_err(), ServeError::NoIdentity));
}

#[test]
fn a_server_of_another_protocol_is_recognised() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = HostPort { host: "127.0.0.1".to_owned(), port: listener.local_addr().unwrap().port() };
    let web = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1000]);
            stream
                .write_all(&[b"HTTP/1.1 400 Bad Request\r\n\r\n".as_slice(), &[b' '; 64]].concat())
                .unwrap();
        }
    });
    for (address, security) in [
        (Address::Tcp(at.clone()), ClientSecurity::Plain),
        (Address::Tls(at.clone()), client_security(Scheme::Tls)),
    ] {
        let error = connect(&address, &security, preamble(), SOON).unwrap_err();
        assert!(whole(&error).contains("does not speak dxpu"), "{}", whole(&error));
    }
    web.join().unwrap();
}

#[test]
fn a_live_socket_file_is_never_stolen_and_a_stale_one_is_replaced() {
    for scheme in [Scheme::Unix, Scheme::Shm] {
        let address = fresh_address(scheme);
        let (Address::Unix(path) | Address::Shm(path)) = &address else { unreachable!() };
        let live = Listener::bind(&address).unwrap();
        let error = Listener::bind(&address).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        assert!(error.to_string().contains("running"), "{error}");
        drop(live);
        assert!(!path.exists(), "the socket file goes with its listener");
        // What a killed server leaves behind.
        drop(UnixListener::bind(path).unwrap());
        assert!(path.exists());
        let again = Listener::bind(&address).unwrap();
        // A listener whose file is not its own any more leaves it alone.
        std::fs::remove_file(path).unwrap();
        let _other = UnixListener::bind(path).unwrap();
        drop(again);
        assert!(path.exists());
    }
    let file = socket_path();
    std::fs::write(&file, "precious").unwrap();
    let error = Listener::bind(&Address::Unix(file.clone())).unwrap_err();
    assert!(error.to_string().contains("not a socket"), "{error}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
}

#[test]
fn memory_passes_beside_the_bytes_of_a_shared_memory_command_connection_alone() {
    for scheme in Scheme::LISTENING {
        let (mut client, mut server) = pair(scheme);
        let (Some(courier), Some(inbox)) = (client.courier(), server.inbox()) else {
            assert_ne!(scheme, Scheme::Shm);
            continue;
        };
        assert_eq!(scheme, Scheme::Shm);
        assert!(client.inbox().is_none() && server.courier().is_none());
        let file = tempfile::tempfile().unwrap();
        courier.pass(file.as_fd()).unwrap();
        client.tx.send(&[b"it is yours"]).unwrap();
        let mut text = [0; 11];
        server.rx.recv_exact(&mut text).unwrap();
        let taken = std::fs::File::from(inbox.take().unwrap().unwrap());
        let inode = |file: &std::fs::File| std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap());
        assert_eq!(inode(&taken), inode(&file));
        client.closer.close();
        drop(client);
        assert!(courier.pass(file.as_fd()).is_err());
        drop(server);
        assert!(inbox.take().is_err());
    }
}

#[test]
fn words_count_even_if_the_client_has_closed_its_side_behind_them() {
    let listener = Listener::bind(&fresh_address(Scheme::Tcp)).unwrap();
    let Address::Tcp(at) = listener.address() else { panic!("{:?}", listener.address()) };
    let mut client = TcpStream::connect((at.host.as_str(), at.port)).unwrap();
    client.write_all(&Preamble::new(ConnectionKind::Door, 0, SESSION).encode()).unwrap();
    client.write_all(b"a question").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut newcomer = Newcomer::new(listener.accept().unwrap().unwrap());
    let deadline = Instant::now() + SOON;
    while newcomer.read_preamble().unwrap().is_none() {
        assert!(Instant::now() < deadline);
    }
    newcomer.open(&ServerSecurity::Plain).unwrap();
    while newcomer.words() != b"a question" {
        assert!(Instant::now() < deadline);
        newcomer.listen(1000).unwrap();
    }
    let error = newcomer.listen(1000).unwrap_err();
    assert!(whole(&error).contains("did not finish the set-up of a connection"), "{}", whole(&error));
}
