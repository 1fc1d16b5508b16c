//! Two ends of connections over a real listener.

#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test file uses its part")]

use bulk::{Lanes, LanesConfig};
use std::time::{Duration, Instant};
use transport::{ClientSecurity, Connection, ConnectionKind, Listener, Preamble, ServerSecurity, connect};

/// `count` connections, both ends of each.
pub fn connections(scheme: &str, count: u16) -> (Vec<Connection>, Vec<Connection>) {
    let directory = tempfile::tempdir().unwrap();
    let address = match scheme {
        "tcp" => "tcp:127.0.0.1:0".to_owned(),
        scheme => format!("{scheme}:{}/socket", directory.path().display()),
    };
    let listener = Listener::bind(&address.parse().unwrap()).unwrap();
    let timeout = Duration::from_secs(10);
    std::thread::scope(|scope| {
        let servers = scope.spawn(|| {
            let serve = |_| {
                let raw = listener.accept().unwrap().unwrap();
                raw.serve(&ServerSecurity::Plain, Instant::now() + timeout).unwrap()
            };
            (0..count).map(serve).collect()
        });
        let open = |lane| {
            let preamble = Preamble::new(ConnectionKind::Lane, lane, [0; 16]);
            connect(listener.address(), &ClientSecurity::Plain, preamble, timeout).unwrap()
        };
        let clients = (0..count).map(open).collect();
        (servers.join().unwrap(), clients)
    })
}

pub fn lanes_pair(scheme: &str, count: u16, left: LanesConfig, right: LanesConfig) -> (Lanes, Lanes) {
    let (ours, theirs) = connections(scheme, count);
    (Lanes::new(ours, left, |_| {}), Lanes::new(theirs, right, |_| {}))
}
