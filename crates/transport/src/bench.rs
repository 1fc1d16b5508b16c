//! The bare cost of a transport, to hold the product's numbers against.
//!
//! Each measurement has a client function and a server loop; they run over any [`Connection`], in two threads or in two
//! processes. A server loop ends when its client ends the connection.

use std::io;
use std::time::{Duration, Instant};

use crate::connection::{Connection, Rx, Tx};

/// Round trips of one size, sorted.
#[derive(Clone, Debug)]
pub struct Latencies {
    sorted: Vec<Duration>,
}

impl Latencies {
    /// The latency that `share` of the rounds (0 to 1) did not exceed.
    pub fn quantile(&self, share: f64) -> Duration {
        let last = self.sorted.len().saturating_sub(1);
        let at = (share.clamp(0.0, 1.0) * last as f64).round() as usize;
        self.sorted.get(at).copied().unwrap_or_default()
    }

    /// The median.
    pub fn p50(&self) -> Duration {
        self.quantile(0.5)
    }

    /// All of them, sorted.
    pub fn sorted(&self) -> &[Duration] {
        &self.sorted
    }
}

/// Client: sends `message_bytes` and waits for as many back, `rounds` times. The server runs [`serve_ping_pong`] with
/// the same size.
pub fn ping_pong(connection: &mut Connection, message_bytes: usize, rounds: usize) -> io::Result<Latencies> {
    let message = vec![0x5a; message_bytes];
    let mut back = vec![0; message_bytes];
    let mut sorted = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let started = Instant::now();
        connection.tx.send(&[&message])?;
        connection.rx.recv_exact(&mut back)?;
        sorted.push(started.elapsed());
    }
    sorted.sort_unstable();
    Ok(Latencies { sorted })
}

/// Server: sends every message back until the client ends.
pub fn serve_ping_pong(connection: &mut Connection, message_bytes: usize) -> io::Result<()> {
    let mut message = vec![0; message_bytes];
    loop {
        match connection.rx.recv_exact(&mut message) {
            Ok(()) => connection.tx.send(&[&message])?,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// What one send of a throughput measurement carries, and what one receive has room for.
const BLOCK_BYTES: usize = 1 << 20;

/// Client: sends `bytes` over each connection, all of them at the same time, and waits until the server has all. Returns
/// bytes per second over all connections. The server runs [`serve_throughput`] on each connection.
pub fn throughput(connections: &mut [Connection], bytes: u64) -> io::Result<f64> {
    let started = Instant::now();
    std::thread::scope(|scope| {
        let senders: Vec<_> = connections
            .iter_mut()
            .map(|connection| scope.spawn(move || send_and_confirm(connection, bytes)))
            .collect();
        senders.into_iter().try_for_each(|sender| sender.join().expect("a sender never panics"))
    })?;
    Ok(bytes as f64 * connections.len() as f64 / started.elapsed().as_secs_f64())
}

fn send_and_confirm(connection: &mut Connection, bytes: u64) -> io::Result<()> {
    let Connection { tx, rx, .. } = connection;
    send_bytes(tx, bytes)?;
    rx.recv_exact(&mut [0; 1])
}

fn send_bytes(tx: &mut Tx, bytes: u64) -> io::Result<()> {
    let block = vec![0x5a; BLOCK_BYTES];
    tx.send(&[&bytes.to_le_bytes()])?;
    let mut left = bytes;
    while left > 0 {
        let count = left.min(BLOCK_BYTES as u64);
        tx.send(&[&block[..count as usize]])?;
        left -= count;
    }
    Ok(())
}

/// Server: receives and forgets, and confirms each batch with a byte, until the client ends.
pub fn serve_throughput(connection: &mut Connection) -> io::Result<()> {
    let mut block = vec![0; BLOCK_BYTES];
    let Connection { tx, rx, .. } = connection;
    while let Some(bytes) = receive_length(rx)? {
        let mut left = bytes;
        while left > 0 {
            let want = left.min(BLOCK_BYTES as u64) as usize;
            match rx.recv(&mut block[..want])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => left -= count as u64,
            }
        }
        tx.send(&[&[1]])?;
    }
    Ok(())
}

fn receive_length(rx: &mut Rx) -> io::Result<Option<u64>> {
    let mut length = [0; 8];
    match rx.recv_exact(&mut length) {
        Ok(()) => Ok(Some(u64::from_le_bytes(length))),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}
