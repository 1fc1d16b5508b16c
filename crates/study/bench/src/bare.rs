//! The bare cost of a transport, to hold the product's numbers against.
//!
//! Each measurement has a client function and a server loop; they run over any [`Connection`], in two threads or in two
//! processes. A server loop ends when its client ends the connection.

use std::io;
use std::time::{Duration, Instant};

use transport::{Connection, Rx};

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

/// What one send of a throughput measurement carries, and what one receive asks for.
const BLOCK_BYTES: usize = 1 << 20;

/// Client: moves `bytes` from memory to memory over each connection: every byte is read from a place of its own and
/// written to one of its own, as real data is. (Sending one block again and again from the cache shows how fast nothing
/// can be sent.) All connections work at the same time. Returns bytes per second over all of them, counted until the
/// server has everything. The server runs [`serve_throughput`] on each connection.
pub fn throughput(connections: &mut [Connection], bytes: u64) -> io::Result<f64> {
    // Touched before the clock starts: the first touch of memory costs more than moving it.
    let memory = vec![0x5a_u8; usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?];
    let sources: Vec<Vec<u8>> = connections.iter().map(|_| memory.clone()).collect();
    let started = Instant::now();
    std::thread::scope(|scope| {
        let senders: Vec<_> = connections
            .iter_mut()
            .zip(&sources)
            .map(|(connection, source)| scope.spawn(move || send_and_confirm(connection, source)))
            .collect();
        senders.into_iter().try_for_each(|sender| sender.join().expect("a sender never panics"))
    })?;
    Ok(bytes as f64 * connections.len() as f64 / started.elapsed().as_secs_f64())
}

fn send_and_confirm(connection: &mut Connection, source: &[u8]) -> io::Result<()> {
    let Connection { tx, rx, .. } = connection;
    tx.send(&[&(source.len() as u64).to_le_bytes()])?;
    source.chunks(BLOCK_BYTES).try_for_each(|block| tx.send(&[block]))?;
    rx.recv_exact(&mut [0; 1])
}

/// The most memory a batch is received into; a larger batch goes round in it.
const MEMORY_BYTES_MAX: u64 = 1 << 30;

/// Server: receives into memory and confirms each batch with a byte, until the client ends.
pub fn serve_throughput(connection: &mut Connection) -> io::Result<()> {
    let mut memory: Vec<u8> = Vec::new();
    let Connection { tx, rx, .. } = connection;
    while let Some(bytes) = receive_length(rx)? {
        let size = bytes.clamp(1, MEMORY_BYTES_MAX) as usize;
        if memory.len() < size {
            memory.resize(size, 0);
        }
        let mut at = 0;
        while at < bytes {
            let from = (at % size as u64) as usize;
            let room = (size - from).min(BLOCK_BYTES).min((bytes - at) as usize);
            match rx.recv(&mut memory[from..from + room])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => at += count as u64,
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
