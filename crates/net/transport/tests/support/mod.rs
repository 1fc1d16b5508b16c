//! A connected pair over any transport, for the tests of all of them.

#![allow(dead_code)]

use std::path::PathBuf;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use transport::*;

pub(crate) const SESSION: [u8; 16] = *b"session of tests";
/// Generous: the machine may be busy.
pub(crate) const SOON: Duration = Duration::from_secs(10);

pub(crate) static IDENTITY: LazyLock<ServerIdentity> =
    LazyLock::new(|| ServerIdentity::generate(&["localhost".to_owned()]).unwrap());

pub(crate) fn soon() -> Instant {
    Instant::now() + SOON
}

/// A directory that is removed at the end of the process, and a new name in it.
pub(crate) fn socket_path() -> PathBuf {
    static DIRECTORY: LazyLock<tempfile::TempDir> = LazyLock::new(|| tempfile::tempdir().unwrap());
    static COUNT: AtomicU32 = AtomicU32::new(0);
    DIRECTORY.path().join(format!("{}.sock", COUNT.fetch_add(1, Ordering::Relaxed)))
}

pub(crate) fn fresh_address(scheme: Scheme) -> Address {
    let loopback = HostPort { host: "127.0.0.1".to_owned(), port: 0 };
    match scheme {
        Scheme::Tcp => Address::Tcp(loopback),
        Scheme::Tls => Address::Tls(loopback),
        Scheme::Unix => Address::Unix(socket_path()),
        Scheme::Shm => Address::Shm(socket_path()),
        Scheme::Pcie => unreachable!("nobody listens there"),
    }
}

pub(crate) fn client_security(scheme: Scheme) -> ClientSecurity {
    match scheme {
        Scheme::Tls => ClientSecurity::Fingerprint(IDENTITY.fingerprint().0),
        _ => ClientSecurity::Plain,
    }
}

pub(crate) fn server_security() -> ServerSecurity {
    ServerSecurity::Tls(IDENTITY.clone())
}

/// Client and server ends of one connection.
pub(crate) fn pair_of(scheme: Scheme, kind: ConnectionKind) -> (Connection, Connection) {
    let listener = Listener::bind(&fresh_address(scheme)).unwrap();
    let address = listener.address().clone();
    let client = std::thread::spawn(move || {
        connect(&address, &client_security(scheme), Preamble::new(kind, 3, SESSION), SOON).unwrap()
    });
    let mut raw = listener.accept().unwrap().unwrap();
    let preamble = raw.read_preamble(soon()).unwrap();
    assert_eq!(preamble, Preamble { kind, scheme, lane: 3, session: SESSION });
    let server = raw.serve(&server_security(), soon()).unwrap();
    (client.join().unwrap(), server)
}

pub(crate) fn pair(scheme: Scheme) -> (Connection, Connection) {
    pair_of(scheme, ConnectionKind::Command)
}

/// Bytes that differ at every place and repeat late.
pub(crate) fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at as u32).wrapping_mul(0x9e37_79b1).to_be_bytes()[0] ^ seed).collect()
}

/// Sends everything back until the end, then ends its own direction.
pub(crate) fn echo(mut connection: Connection) {
    let mut buf = vec![0; 100_000];
    while let Ok(count @ 1..) = connection.rx.recv(&mut buf) {
        if connection.tx.send(&[&buf[..count]]).is_err() {
            return;
        }
    }
    let _ = connection.tx.finish();
}

/// One test per transport from one body.
#[macro_export]
macro_rules! on_every_transport {
    ($($(#[$meta:meta])* fn $name:ident($scheme:ident) $body:block)*) => {
        $(mod $name {
            use super::*;
            fn check($scheme: Scheme) $body
            $(#[$meta])* #[test] fn tcp() { check(Scheme::Tcp) }
            $(#[$meta])* #[test] fn tls() { check(Scheme::Tls) }
            $(#[$meta])* #[test] fn unix() { check(Scheme::Unix) }
            $(#[$meta])* #[test] fn shm() { check(Scheme::Shm) }
        })*
    };
}
