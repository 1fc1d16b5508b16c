//! Thousands of connections that never authenticate: a client that does is answered all the same.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pool_api::WhoAmI;
use pool_auth::Identity;
use pool_client::{Client, Patience};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::bed::Bed;

/// How many of each kind, as many as the manager of the bed has places in all.
const CROWD: usize = 1000;

/// What is asked of the manager is an answer within a second. A machine that builds something else at the same time may
/// take longer; without places for strangers there is no answer at all.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

pub(crate) type Tls = StreamOwned<ClientConnection, TcpStream>;

/// A client of TLS without a certificate.
fn tls(bed: &Bed, protocols: &[&[u8]]) -> Arc<ClientConfig> {
    let authority = &bed.admin.credential().authority;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    Arc::new(config)
}

/// Connects and finishes the handshake. Says what it is given, and nothing more.
fn connect(address: SocketAddr, config: &Arc<ClientConfig>, first_words: &[u8]) -> Option<Tls> {
    let stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(30))).ok()?;
    let name = ServerName::try_from(Identity::ANY_MANAGER).unwrap();
    let mut stream = StreamOwned::new(ClientConnection::new(config.clone(), name).unwrap(), stream);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock).ok()?;
    }
    stream.write_all(first_words).ok()?;
    stream.flush().ok()?;
    Some(stream)
}

/// A connection over which anything can be said.
pub(crate) fn plain(bed: &Bed) -> Tls {
    connect(bed.manager.address(), &tls(bed, &[]), b"").unwrap()
}

/// HTTP/2 as it begins, and requests whose bodies never come.
fn endless_streams() -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    // :method POST, :scheme https, :path /v1/join, :authority m
    let head = b"\x83\x87\x44\x08/v1/join\x41\x01m";
    for stream in (1..100u32).step_by(2) {
        bytes.extend([0, 0, head.len() as u8, 1, 0x4]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend(head);
    }
    bytes
}

/// How long a client with a token waits that connects now.
fn honest(bed: &Bed, crowd: &str) -> Duration {
    let client = Client::new(bed.admin.credential().clone(), Patience::ONCE).unwrap();
    let began = Instant::now();
    let who = client.get::<WhoAmI>("/v1/whoami", Duration::ZERO);
    let took = began.elapsed();
    println!("{crowd}: an honest request took {took:?}");
    assert_eq!(who.unwrap().role, "admin", "{crowd}");
    assert!(took < ANSWER_WITHIN, "{crowd}: {took:?}");
    took
}

#[test]
fn a_thousand_strangers_of_each_kind_keep_nobody_out() {
    let bed = Bed::make();
    let address = bed.manager.address();
    let (http1, http2) = (tls(&bed, &[b"http/1.1"]), tls(&bed, &[b"h2"]));
    // A client that was connected before them.
    let early = Client::new(bed.admin.credential().clone(), Patience::ONCE).unwrap();
    early.get::<WhoAmI>("/v1/whoami", Duration::ZERO).unwrap();

    let silent: Vec<TcpStream> = (0..CROWD).filter_map(|_| TcpStream::connect(address).ok()).collect();
    honest(&bed, "silent sockets");
    let encrypted: Vec<Tls> = (0..CROWD).filter_map(|_| connect(address, &http1, b"")).collect();
    honest(&bed, "handshakes, then silence");
    let head = b"GET /v1/whoami HTTP/1.1\r\nHost: m";
    let slow: Vec<Tls> = (0..CROWD).filter_map(|_| connect(address, &http1, head)).collect();
    honest(&bed, "heads that never end");
    let endless = endless_streams();
    let streams: Vec<Tls> = (0..CROWD / 4).filter_map(|_| connect(address, &http2, &endless)).collect();
    honest(&bed, "streams that never end");
    assert!(silent.len() + encrypted.len() + slow.len() + streams.len() > CROWD * 3, "they did come");

    early.get::<WhoAmI>("/v1/whoami", Duration::ZERO).unwrap();
    let metrics: String = metrics(&bed);
    let value = |name: &str| -> f64 {
        let line = metrics.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{metrics}"));
        line.rsplit_once(' ').unwrap().1.parse().unwrap()
    };
    assert!(value("dxpu_connections{kind=\"stranger\"}") <= 125.0, "half of a quarter of its places");
    assert!(value("dxpu_connections_ended_total{reason=\"displaced\"}") > 2000.0);
}

fn metrics(bed: &Bed) -> String {
    let token = bed.admin.credential().token.clone().unwrap();
    let request = format!(
        "GET /metrics HTTP/1.1\r\nHost: m\r\nAuthorization: Bearer {}\r\nConnection: close\r\n\r\n",
        token.reveal()
    );
    let config = tls(bed, &[]);
    let mut stream = connect(bed.manager.address(), &config, request.as_bytes()).unwrap();
    let mut text = Vec::new();
    let _ = stream.read_to_end(&mut text);
    String::from_utf8(text).unwrap()
}

/// Connections that were closed come again, as fast as they can.
#[test]
fn strangers_who_come_again_and_again_keep_nobody_out() {
    let bed = Bed::make();
    let address = bed.manager.address();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut held = std::collections::VecDeque::new();
                while !is_over.load(Ordering::Relaxed) {
                    held.extend(TcpStream::connect(address));
                    if held.len() > CROWD {
                        held.pop_front();
                    }
                    // Some thousand a second.
                    std::thread::sleep(Duration::from_micros(300));
                }
            });
        }
        std::thread::sleep(Duration::from_millis(500));
        for _ in 0..10 {
            honest(&bed, "a stream of strangers");
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

/// A silent connection is closed after a time, also when no other one needs its place.
#[test]
fn a_stranger_has_ten_seconds() {
    let bed = Bed::make();
    let began = Instant::now();
    let mut stream = connect(bed.manager.address(), &tls(&bed, &[b"http/1.1"]), b"").unwrap();
    let mut silent = TcpStream::connect(bed.manager.address()).unwrap();
    silent.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    assert!(matches!(silent.read(&mut [0]), Ok(0) | Err(_)), "no handshake");
    let handshake = began.elapsed();
    assert!(matches!(stream.read(&mut [0]), Ok(0) | Err(_)), "no request");
    let request = began.elapsed();
    println!("sent away after {handshake:?} without a handshake, {request:?} without a request");
    assert!(handshake < Duration::from_secs(20) && request < Duration::from_secs(25));
}

/// The handshake settles which HTTP is spoken.
#[test]
fn both_kinds_of_http_are_spoken_as_the_handshake_says() {
    let bed = Bed::make();
    for (protocols, expected) in [
        (&[b"h2".as_slice(), b"http/1.1"][..], Some(b"h2".as_slice())),
        (&[b"http/1.1"], Some(b"http/1.1")),
        (&[], None),
    ] {
        let stream = connect(bed.manager.address(), &tls(&bed, protocols), b"").unwrap();
        assert_eq!(stream.conn.alpn_protocol(), expected);
    }
    assert!(connect(bed.manager.address(), &tls(&bed, &[b"spdy/3"]), b"").is_none());
    // A setting frame comes first from a server of HTTP/2.
    let hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let mut stream = connect(bed.manager.address(), &tls(&bed, &[b"h2"]), hello).unwrap();
    let mut frame = [0; 9];
    stream.read_exact(&mut frame).unwrap();
    assert_eq!(frame[3], 4, "{frame:?}");
}

/// With places for two strangers, and for one of each address, the second connection displaces the first. TLS must tell
/// the first that its manager closed it: else a client takes it for a connection that was cut.
#[test]
fn a_connection_that_the_manager_closes_ends_with_close_notify() {
    let bed = Bed::with(|settings| settings.connections_max = 8);
    let mut first = plain(&bed);
    // The answer shows that the manager has read everything: one that closes with unread bytes resets the connection.
    first.write_all(b"GET /healthz HTTP/1.1\r\nHost: manager\r\n\r\n").unwrap();
    assert_eq!(first.read(&mut [0; 4]).unwrap(), 4);
    let _second = plain(&bed);
    let mut rest = Vec::new();
    first.read_to_end(&mut rest).expect("a clean end, not one without close_notify");
}
