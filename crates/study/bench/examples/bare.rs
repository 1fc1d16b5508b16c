//! Prints what each transport costs on this machine, without anything above it:
//! `cargo run --release -p bench-harness --example bare [tcp|tls|unix|shm]`.

use std::time::{Duration, Instant};

use bench_harness::bare;
use transport::*;

const ROUNDS: usize = 20_000;
const MESSAGE_BYTES: usize = 64;
const BULK_BYTES: u64 = 1 << 30;
const DELAY: Duration = Duration::from_millis(1);

fn main() {
    let directory = std::env::temp_dir();
    let identity = ServerIdentity::generate(&["localhost".to_owned()]).expect("a certificate");
    println!(
        "Round trips of {MESSAGE_BYTES} bytes; one way over one connection; a round trip with {DELAY:?} more."
    );
    println!("transport         p50         p99      one way   delayed p50");
    let only = std::env::args().nth(1);
    for scheme in
        Scheme::LISTENING.into_iter().filter(|scheme| only.as_ref().is_none_or(|only| only == scheme.word()))
    {
        let loopback = HostPort { host: "127.0.0.1".to_owned(), port: 0 };
        let path = directory.join(format!("dxpu-bare-{}-{scheme}", std::process::id()));
        let address = match scheme {
            Scheme::Tcp => Address::Tcp(loopback),
            Scheme::Tls => Address::Tls(loopback),
            Scheme::Unix => Address::Unix(path),
            Scheme::Shm | Scheme::Pcie => Address::Shm(path),
        };
        let (mut client, mut server) = pair(&address, ConnectionKind::Command, &identity);
        let echo = std::thread::spawn(move || bare::serve_ping_pong(&mut server, MESSAGE_BYTES));
        let latencies = bare::ping_pong(&mut client, MESSAGE_BYTES, ROUNDS).expect("a working echo");
        let mut delayed = client.delayed(DELAY).expect("two more threads");
        let longer = bare::ping_pong(&mut delayed, MESSAGE_BYTES, ROUNDS / 50).expect("a working echo");
        drop(delayed);
        echo.join().expect("the echo ends").expect("a clean end");

        let (client, mut server) = pair(&address, ConnectionKind::Lane, &identity);
        let sink = std::thread::spawn(move || bare::serve_throughput(&mut server));
        let mut clients = [client];
        let best = (0..3)
            .map(|_| bare::throughput(&mut clients, BULK_BYTES).expect("a working sink"))
            .fold(0.0, f64::max);
        drop(clients);
        sink.join().expect("the sink ends").expect("a clean end");
        println!(
            "{:<9} {:>8.1} us {:>8.1} us {:>9.2} GB/s {:>9.1} us",
            scheme.word(),
            latencies.p50().as_secs_f64() * 1e6,
            latencies.quantile(0.99).as_secs_f64() * 1e6,
            best / 1e9,
            longer.p50().as_secs_f64() * 1e6,
        );
    }
}

fn pair(address: &Address, kind: ConnectionKind, identity: &ServerIdentity) -> (Connection, Connection) {
    const SOON: Duration = Duration::from_secs(10);
    let listener = Listener::bind(address).expect("an address to listen at");
    let address = listener.address().clone();
    let security = match address.scheme() {
        Scheme::Tls => ClientSecurity::Fingerprint(identity.fingerprint().0),
        _ => ClientSecurity::Plain,
    };
    let client = std::thread::spawn(move || {
        connect(&address, &security, Preamble::new(kind, 0, [0; 16]), SOON).expect("a server that listens")
    });
    let raw = listener.accept().expect("a listener that works").expect("nobody stops it");
    let server = raw.serve(&ServerSecurity::Tls(identity.clone()), Instant::now() + SOON).expect("a client");
    (client.join().expect("the client connects"), server)
}
