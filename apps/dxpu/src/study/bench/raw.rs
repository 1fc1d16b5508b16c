//! The bare transport: ping-pong and one-way throughput without anything of dxpu above it.

use crate::support::exit::{Exit, Outcome};
use anyhow::{Context, bail};
use bench_harness::bare;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use transport::{
    Address, ClientSecurity, Connection, ConnectionKind, Listener, Preamble, RawConnection, ServerIdentity,
    ServerSecurity,
};

/// Bytes of a ping-pong message: those of a reply, the larger of the two messages of a synchronise.
const MESSAGE_BYTES: usize = 64;
const TIMEOUT: Duration = Duration::from_secs(10);

/// What one run found.
pub(super) struct Bare {
    pub(super) rtt_us_p50: f64,
    pub(super) gbps: f64,
}

#[derive(clap::Args)]
pub(super) struct RawServer {
    #[arg(long)]
    identity: PathBuf,
    #[arg(required = true)]
    addresses: Vec<Address>,
}

/// Starts the server as a process, so that both ends are scheduled as client and worker are.
pub(super) fn spawn<'a>(
    addresses: impl Iterator<Item = &'a Address>,
    identity: &Path,
) -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("cannot find this executable")?;
    let mut command = Command::new(program);
    command.args(["bench", "raw-server", "--identity"]).arg(identity);
    command.args(addresses.map(ToString::to_string)).stdin(Stdio::null());
    command.spawn().context("cannot start the bare server")
}

impl RawServer {
    pub(super) fn run(self) -> Outcome {
        let pem = std::fs::read_to_string(&self.identity).context("cannot read the identity")?;
        let security = ServerSecurity::Tls(ServerIdentity::from_pem(&pem, &pem)?);
        let mut threads = Vec::new();
        for address in &self.addresses {
            let listener = Listener::bind(address).with_context(|| format!("cannot listen at {address}"))?;
            let security = security.clone();
            threads.push(thread::spawn(move || accept(&listener, &security)));
        }
        for thread in threads {
            let _ = thread.join();
        }
        Ok(Exit::Success)
    }
}

fn accept(listener: &Listener, security: &ServerSecurity) {
    while let Ok(Some(connection)) = listener.accept() {
        let security = security.clone();
        thread::spawn(move || serve(connection, &security));
    }
}

fn serve(mut raw: RawConnection, security: &ServerSecurity) {
    let deadline = Instant::now() + TIMEOUT;
    let Ok(preamble) = raw.read_preamble(deadline) else { return };
    let Ok(mut connection) = raw.serve(security, deadline) else { return };
    // A client that ends the connection ends the measurement.
    let _ = match preamble.kind {
        ConnectionKind::Lane => bare::serve_throughput(&mut connection),
        _ => bare::serve_ping_pong(&mut connection, MESSAGE_BYTES),
    };
}

/// Measures the bare transport at `address`.
pub(super) fn measure(
    address: &Address,
    security: &ClientSecurity,
    rounds: usize,
    bytes: u64,
    lanes: usize,
) -> anyhow::Result<Bare> {
    let mut one = connect(address, security, ConnectionKind::Command, 0)?;
    bare::ping_pong(&mut one, MESSAGE_BYTES, rounds / 10)?;
    let latencies = bare::ping_pong(&mut one, MESSAGE_BYTES, rounds)?;
    let mut all = (0..lanes as u16)
        .map(|lane| connect(address, security, ConnectionKind::Lane, lane))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut speeds = [0.0; 3];
    for speed in &mut speeds {
        *speed = bare::throughput(&mut all, bytes / lanes as u64)? / 1e9;
    }
    speeds.sort_by(f64::total_cmp);
    Ok(Bare { rtt_us_p50: latencies.p50().as_secs_f64() * 1e6, gbps: speeds[1] })
}

/// The server process may still be on its way up.
fn connect(
    address: &Address,
    security: &ClientSecurity,
    kind: ConnectionKind,
    lane: u16,
) -> anyhow::Result<Connection> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match transport::connect(address, security, Preamble::new(kind, lane, [0; 16]), TIMEOUT) {
            Ok(connection) => return Ok(connection),
            Err(_) if Instant::now() < deadline => thread::sleep(Duration::from_millis(20)),
            Err(error) => bail!("cannot reach the bare server at {address}: {error}"),
        }
    }
}
