//! A TLS connection whose two halves work at the same time.
//!
//! rustls keeps one state for both directions, so it stands behind a lock; but the lock is held only while bytes are
//! encrypted or decrypted, never during a system call on the socket. A second lock, `outbox`, makes "encrypt, then
//! write" one step, so that records leave in the order of their sequence numbers. The receiving half may have something
//! to send too (the reply to a key update, an alert). It uses `try_lock` on `outbox`; if that fails, the writer sends
//! it: it looks again after unlocking `outbox`. So a blocked send cannot block a receive.
//!
//! Order of locks: `outbox`, then `state`.

use locks::lock;
use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::connection::{Connection, Link, RxHalf, TxHalf};
use crate::fd;
use crate::socket::Socket;

/// How much is encrypted under the lock and sent with one system call: eight full records.
const SEND_CHUNK_BYTES: usize = 128 << 10;
/// How much is asked of the socket at once.
const INCOMING_BYTES: usize = 256 << 10;

/// What both halves share.
pub(crate) struct TlsLink {
    socket: Socket,
    state: Mutex<rustls::Connection>,
    /// Encrypted bytes that must leave before any others. Its lock is the right to write to the socket.
    outbox: Mutex<Vec<u8>>,
    closed: AtomicBool,
    abandoned: AtomicBool,
}

#[derive(Debug)]
pub(crate) struct TlsTx {
    link: Arc<TlsLink>,
    finished: bool,
}

#[derive(Debug)]
pub(crate) struct TlsRx {
    link: Arc<TlsLink>,
    incoming: Incoming,
    at_end: bool,
    spin: Duration,
}

/// Never the keys.
impl std::fmt::Debug for TlsLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsLink").field("socket", &self.socket).finish_non_exhaustive()
    }
}

pub(crate) fn connection(socket: Socket, mut state: rustls::Connection, incoming: Incoming) -> Connection {
    // We bound what we put in by ourselves.
    state.set_buffer_limit(None);
    let link = Arc::new(TlsLink {
        socket,
        state: Mutex::new(state),
        outbox: Mutex::new(Vec::new()),
        closed: AtomicBool::new(false),
        abandoned: AtomicBool::new(false),
    });
    let tx = TlsTx { link: link.clone(), finished: false };
    let rx = TlsRx { link: link.clone(), incoming, at_end: false, spin: Duration::ZERO };
    Connection::new(TxHalf::Tls(tx), RxHalf::Tls(rx), &link)
}

/// Appends everything rustls has to send.
pub(crate) fn extract(tls: &mut rustls::Connection, out: &mut Vec<u8>) {
    while tls.wants_write() {
        tls.write_tls(out).expect("a vector takes every byte");
    }
}

impl TlsLink {
    fn state(&self) -> MutexGuard<'_, rustls::Connection> {
        lock(&self.state)
    }

    /// Sends what the receiving half, or a close, left to be sent, if no thread is writing. Never blocks.
    fn flush_leftovers(&self) {
        while self.state().wants_write() {
            // The thread that holds the outbox comes here when done.
            let Ok(mut outbox) = self.outbox.try_lock() else { return };
            extract(&mut self.state(), &mut outbox);
            let sent = self.socket.send_now(&outbox).unwrap_or(0);
            outbox.drain(..sent);
        }
    }

    /// Encrypts `slices` and sends them.
    fn seal_and_send(&self, slices: &[IoSlice<'_>]) -> io::Result<()> {
        let mut outbox = lock(&self.outbox);
        {
            let mut state = self.state();
            let _all = state.writer().write_vectored(slices)?;
            extract(&mut state, &mut outbox);
        }
        let result = self.socket.send_all(&[&outbox]);
        outbox.clear();
        result
    }

    /// In a forked child the locks may be held by threads that do not exist there, so they are not even tried.
    fn check_abandoned(&self) -> io::Result<()> {
        if self.abandoned.load(Ordering::Relaxed) { Err(io::ErrorKind::NotConnected.into()) } else { Ok(()) }
    }
}

impl Link for TlsLink {
    fn close(&self) {
        if !self.abandoned.load(Ordering::Relaxed) && !self.closed.swap(true, Ordering::Relaxed) {
            self.state().send_close_notify();
            // If a blocked sender is in the way, the peer sees an unclean end, which is true.
            self.flush_leftovers();
            self.socket.shutdown(Shutdown::Both);
        }
    }

    fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
        fd::let_go(&[self.socket.raw_fd()]);
    }

    fn raw_fds(&self) -> Vec<RawFd> {
        vec![self.socket.raw_fd()]
    }
}

impl Drop for TlsLink {
    fn drop(&mut self) {
        self.close();
    }
}

impl TlsTx {
    pub(crate) fn send(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        self.link.check_abandoned()?;
        if self.finished {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut batch = Vec::with_capacity(parts.len());
        let mut batched = 0;
        for mut part in parts.iter().copied() {
            while !part.is_empty() {
                let (piece, rest) = part.split_at(part.len().min(SEND_CHUNK_BYTES - batched));
                part = rest;
                batched += piece.len();
                batch.push(IoSlice::new(piece));
                if batched == SEND_CHUNK_BYTES {
                    self.link.seal_and_send(&batch)?;
                    batch.clear();
                    batched = 0;
                }
            }
        }
        if batched > 0 {
            self.link.seal_and_send(&batch)?;
        }
        self.link.flush_leftovers();
        Ok(())
    }

    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.finished = true;
        self.link.check_abandoned()?;
        self.link.state().send_close_notify();
        self.link.seal_and_send(&[])?;
        self.link.socket.shutdown(Shutdown::Write);
        Ok(())
    }
}

impl TlsRx {
    pub(crate) fn set_spin(&mut self, spin: Duration) {
        self.spin = spin;
    }

    pub(crate) fn recv(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(count) = self.decrypt_into(buf)? {
                return Ok(count);
            }
            let received = self.link.socket.recv_spinning(self.incoming.space(), self.spin);
            self.arrived(received)?;
        }
    }

    pub(crate) fn try_recv(&mut self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            if let Some(count) = self.decrypt_into(buf)? {
                return Ok(Some(count));
            }
            match self.link.socket.try_recv(self.incoming.space()) {
                Ok(None) => return Ok(None),
                Ok(Some(count)) => self.arrived(Ok(count))?,
                Err(error) => self.arrived(Err(error))?,
            }
        }
    }

    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        // Half a record is not something to receive yet, so the socket alone cannot tell.
        loop {
            if self.has_plaintext()? {
                return Ok(true);
            }
            match self.link.socket.try_recv(self.incoming.space()) {
                Ok(None) if !fd::readable(&self.link.socket, deadline)? => return Ok(false),
                Ok(None) => {}
                Ok(Some(count)) => self.arrived(Ok(count))?,
                Err(error) => self.arrived(Err(error))?,
            }
        }
    }

    /// Takes note of what the socket gave.
    fn arrived(&mut self, received: io::Result<usize>) -> io::Result<()> {
        match received {
            Ok(0) if self.link.closed.load(Ordering::Relaxed) => self.at_end = true,
            Ok(0) => {
                // Lets rustls tell a clean end from a cut one at the next read.
                self.link.state().read_tls(&mut io::empty())?;
            }
            Ok(count) => self.incoming.filled(count),
            Err(error) if self.link.closed.load(Ordering::Relaxed) => {
                tracing::trace!(%error, "receive after a close");
                self.at_end = true;
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Moves as much plaintext as there is, or as fits, into `buf`. `None` when more ciphertext is needed.
    fn decrypt_into(&mut self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        self.link.check_abandoned()?;
        if self.at_end || buf.is_empty() {
            return Ok(Some(0));
        }
        let mut done = 0;
        loop {
            // Once per record, so that a sender never waits long for the lock.
            let mut state = self.link.state();
            match state.reader().read(&mut buf[done..]) {
                Ok(0) => {
                    self.at_end = done == 0;
                    return Ok(Some(done));
                }
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) if done > 0 => return Ok(Some(done)),
                Err(error) => return Err(error),
            }
            if done == buf.len() {
                return Ok(Some(done));
            }
            if self.incoming.feed(&mut state)? == 0 {
                return Ok((done > 0).then_some(done));
            }
            self.process(state)?;
        }
    }

    fn has_plaintext(&mut self) -> io::Result<bool> {
        self.link.check_abandoned()?;
        if self.at_end {
            return Ok(true);
        }
        loop {
            let mut state = self.link.state();
            // A byte to peek at, a clean end, or a cut one: all of them are there to be received.
            match state.reader().into_first_chunk() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                _ => return Ok(true),
            }
            if self.incoming.feed(&mut state)? == 0 {
                return Ok(false);
            }
            self.process(state)?;
        }
    }

    fn process(&self, mut state: MutexGuard<'_, rustls::Connection>) -> io::Result<()> {
        let result = state.process_new_packets();
        let must_send = state.wants_write();
        drop(state);
        if must_send {
            self.link.flush_leftovers();
        }
        result.map(drop).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }
}

/// Ciphertext that has arrived and rustls has not taken yet.
pub(crate) struct Incoming {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Incoming({} bytes)", self.end - self.start)
    }
}

impl Incoming {
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; INCOMING_BYTES].into(), start: 0, end: 0 }
    }

    /// Where to receive to. Never empty, since it is asked for only when all was fed.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        &mut self.bytes[self.end..]
    }

    pub(crate) fn filled(&mut self, count: usize) {
        self.end += count;
    }

    /// Gives rustls as much as it takes at once. 0 when nothing is left.
    pub(crate) fn feed(&mut self, tls: &mut rustls::Connection) -> io::Result<usize> {
        if self.start == self.end {
            return Ok(0);
        }
        let count = tls.read_tls(&mut &self.bytes[self.start..self.end])?;
        self.start += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::{ClientSecurity, ServerIdentity};
    use crate::tls;
    use rustls::pki_types::ServerName;
    use rustls::{ClientConnection, ServerConnection};

    /// Two connections over a socket pair, after a handshake in memory.
    fn pair() -> [Connection; 2] {
        let identity = ServerIdentity::generate(&["localhost".to_owned()]).unwrap();
        let config =
            tls::client_config(&ClientSecurity::Fingerprint(identity.fingerprint().0)).unwrap().unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut client: rustls::Connection = ClientConnection::new(config, name).unwrap().into();
        let mut server: rustls::Connection = ServerConnection::new(identity.config.clone()).unwrap().into();
        while client.is_handshaking() || server.is_handshaking() {
            for (from, to) in [(0, 1), (1, 0)] {
                let ends = [&mut client, &mut server];
                let mut bytes = Vec::new();
                extract(ends[from], &mut bytes);
                let mut rest = bytes.as_slice();
                while !rest.is_empty() {
                    ends[to].read_tls(&mut rest).unwrap();
                    ends[to].process_new_packets().unwrap();
                }
            }
        }
        assert_eq!(client.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
        let (near, far) = fd::socket_pair().unwrap();
        [connection(near.into(), client, Incoming::new()), connection(far.into(), server, Incoming::new())]
    }

    #[test]
    fn keys_can_change_in_the_middle_of_traffic_in_both_directions() {
        let [mut client, mut server] = pair();
        for round in 0..20u8 {
            for (from, to) in [(0, 1), (1, 0)] {
                let ends = [&mut client, &mut server];
                let TxHalf::Tls(tx) = &ends[from].tx.0 else { unreachable!() };
                // Asks the other side for a new key too; its reply is made while it reads.
                tx.link.state().refresh_traffic_keys().unwrap();
                ends[from].tx.send(&[&[round; 40_000]]).unwrap();
                let mut back = vec![0; 40_000];
                ends[to].rx.recv_exact(&mut back).unwrap();
                assert!(back.iter().all(|byte| *byte == round));
            }
        }
    }

    #[test]
    fn a_damaged_record_is_an_error_and_the_peer_is_told() {
        let [client, mut server] = pair();
        let (TxHalf::Tls(tx), mut rx) = (client.tx.0, client.rx) else { unreachable!() };
        let mut bytes = Vec::new();
        {
            let mut state = tx.link.state();
            state.writer().write_all(b"secret").unwrap();
            extract(&mut state, &mut bytes);
        }
        *bytes.last_mut().unwrap() ^= 1;
        tx.link.socket.send_all(&[&bytes]).unwrap();
        let error = server.rx.recv(&mut [0; 10]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        let told = rx.recv(&mut [0; 10]).unwrap_err();
        assert!(told.to_string().contains("BadRecordMac") || told.to_string().contains("alert"), "{told}");
    }

    #[test]
    fn a_stream_that_is_cut_is_not_taken_for_one_that_ended() {
        let [mut client, mut server] = pair();
        client.tx.send(&[b"all of"]).unwrap();
        let TxHalf::Tls(tx) = &client.tx.0 else { unreachable!() };
        tx.link.socket.shutdown(Shutdown::Both);
        server.rx.recv_exact(&mut [0; 6]).unwrap();
        let error = server.rx.recv(&mut [0; 10]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
