//! A connection is two halves and a closer, whatever carries its bytes.
//!
//! ```text
//!   Connection ─ split ─▶ Tx      one thread sends
//!                         Rx      another one receives
//!                         Closer  any thread ends both, at once
//! ```
//!
//! A byte stream without message borders: framing belongs to the protocol above. Dropping both halves closes the
//! connection; dropping one of them tells the peer nothing (see [`Tx::finish`]). A closer does not keep a connection
//! alive.

use std::io;
use std::net::Shutdown;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::delay::{DelayRx, DelayTx};
use crate::fd;
use crate::pcie::{PcieRx, PcieTx};
use crate::shm::{Memory, ShmLink, ShmRx, ShmTx};
use crate::socket::Socket;
use crate::tls::{TlsRx, TlsTx};

/// A two-way stream of bytes.
#[derive(Debug)]
pub struct Connection {
    /// The sending half.
    pub tx: Tx,
    /// The receiving half.
    pub rx: Rx,
    /// Ends both.
    pub closer: Closer,
}

/// The sending half of a connection.
#[derive(Debug)]
pub struct Tx(pub(crate) TxHalf);

/// The receiving half of a connection.
#[derive(Debug)]
pub struct Rx(pub(crate) RxHalf);

/// Ends a connection from any thread.
#[derive(Clone, Debug)]
pub struct Closer {
    link: Weak<dyn Link>,
}

#[derive(Debug)]
pub(crate) enum TxHalf {
    Socket(Arc<SocketLink>),
    Tls(TlsTx),
    Shm(ShmTx),
    Pcie(PcieTx),
    Delayed(DelayTx),
}

#[derive(Debug)]
pub(crate) enum RxHalf {
    Socket(SocketRx),
    Tls(TlsRx),
    Shm(ShmRx),
    Pcie(PcieRx),
    Delayed(DelayRx),
}

/// What both halves share, seen from outside. Dropping it closes the connection.
pub(crate) trait Link: Send + Sync + std::fmt::Debug {
    fn close(&self);
    fn abandon(&self);
    fn raw_fds(&self) -> Vec<RawFd>;
}

impl Connection {
    pub(crate) fn new<L: Link + 'static>(tx: TxHalf, rx: RxHalf, link: &Arc<L>) -> Self {
        let link: Weak<L> = Arc::downgrade(link);
        Self { tx: Tx(tx), rx: Rx(rx), closer: Closer { link } }
    }

    /// A connection straight over a socket, nothing around the bytes.
    pub(crate) fn over_socket(socket: Socket) -> Self {
        let link = Arc::new(SocketLink { socket, abandoned: AtomicBool::new(false) });
        let rx = SocketRx { link: link.clone(), spin: Duration::ZERO };
        Self::new(TxHalf::Socket(link.clone()), RxHalf::Socket(rx), &link)
    }

    /// The way for memory from this client to its server; none where the transport has none.
    pub fn courier(&self) -> Option<Courier> {
        let TxHalf::Shm(tx) = &self.tx.0 else { return None };
        let link = tx.link();
        matches!(link.memory(), Memory::Offered).then(|| Courier { link: Arc::downgrade(link) })
    }

    /// Where memory arrives at this server; none where the transport has no way for it.
    pub fn inbox(&self) -> Option<Inbox> {
        let TxHalf::Shm(tx) = &self.tx.0 else { return None };
        let link = tx.link();
        matches!(link.memory(), Memory::Taken(_)).then(|| Inbox { link: Arc::downgrade(link) })
    }

    /// The three parts, for three owners.
    pub fn split(self) -> (Tx, Rx, Closer) {
        (self.tx, self.rx, self.closer)
    }

    /// Every file descriptor behind the connection. They stay owned by it; [`Closer::abandon`] is the way for a
    /// forked child to let go of them.
    pub fn raw_fds(&self) -> Vec<RawFd> {
        self.closer.raw_fds()
    }
}

/// Passes descriptors of memory to the server of a connection, beside its bytes. Keeps no connection alive.
#[derive(Clone, Debug)]
pub struct Courier {
    link: Weak<ShmLink>,
}

impl Courier {
    /// Passes one. The server finds it in the order of passing; that it is there must be said in the connection itself.
    /// Never blocks: when the server has not taken earlier ones for long, the kernel refuses.
    pub fn pass(&self, memory: BorrowedFd<'_>) -> io::Result<()> {
        self.link.upgrade().ok_or(io::ErrorKind::NotConnected)?.pass_memory(memory)
    }
}

/// Descriptors of memory that the client of a connection has passed. Keeps no connection alive.
#[derive(Clone, Debug)]
pub struct Inbox {
    link: Weak<ShmLink>,
}

impl Inbox {
    /// Takes the next one; `None` when there is none. Never blocks.
    pub fn take(&self) -> io::Result<Option<OwnedFd>> {
        self.link.upgrade().ok_or(io::ErrorKind::NotConnected)?.take_memory()
    }
}

impl Tx {
    /// Sends all bytes of all parts, in order; blocks while the peer does not take them. After an error the stream is
    /// broken: how much of it arrived is unknown.
    pub fn send(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        match &mut self.0 {
            TxHalf::Socket(link) => link.socket.send_all(parts),
            TxHalf::Tls(tx) => tx.send(parts),
            TxHalf::Shm(tx) => tx.send(parts),
            TxHalf::Pcie(tx) => tx.send(parts),
            TxHalf::Delayed(tx) => tx.send(parts),
        }
    }

    /// Whether a send is a copy into the peer's memory, without a system call while the peer is awake. Then waking a
    /// sender thread would cost the caller more than the send.
    pub fn is_shared_memory(&self) -> bool {
        matches!(self.0, TxHalf::Shm(_))
    }

    /// Tells the peer that nothing more comes; it receives the end after the last byte. The other direction goes on.
    pub fn finish(&mut self) -> io::Result<()> {
        match &mut self.0 {
            TxHalf::Socket(link) => {
                if !link.abandoned.load(Ordering::Relaxed) {
                    link.socket.shutdown(Shutdown::Write);
                }
                Ok(())
            }
            TxHalf::Tls(tx) => tx.finish(),
            TxHalf::Shm(tx) => tx.finish(),
            TxHalf::Pcie(tx) => tx.finish(),
            TxHalf::Delayed(tx) => tx.finish(),
        }
    }
}

impl Rx {
    /// How long [`Rx::recv`] and [`Rx::recv_exact`] look for bytes before they let the kernel put the thread to sleep.
    ///
    /// A sleep and its wake-up cost as much as several messages; looking costs a core. The default is not to look,
    /// except at shared memory, where looking is cheap: there for as long as has paid off lately. A delayed connection
    /// does not change: it looks for bytes that are due.
    pub fn set_spin(&mut self, spin: Duration) {
        match &mut self.0 {
            RxHalf::Socket(rx) => rx.spin = spin,
            RxHalf::Tls(rx) => rx.set_spin(spin),
            RxHalf::Shm(rx) => rx.set_spin(spin),
            RxHalf::Pcie(rx) => rx.set_spin(spin),
            RxHalf::Delayed(_) => {}
        }
    }

    /// Blocks until at least one byte is there. `Ok(0)` is the end, when `buf` is not empty.
    pub fn recv(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match &mut self.0 {
            RxHalf::Socket(rx) => rx.link.socket.recv_spinning(buf, rx.spin),
            RxHalf::Tls(rx) => rx.recv(buf),
            RxHalf::Shm(rx) => rx.recv(buf),
            RxHalf::Pcie(rx) => rx.recv(buf),
            RxHalf::Delayed(rx) => rx.recv(buf),
        }
    }

    /// Blocks until `buf` is full; `UnexpectedEof` when the end comes first.
    pub fn recv_exact(&mut self, buf: &mut [u8]) -> io::Result<()> {
        let mut have = 0;
        while have < buf.len() {
            let rest = &mut buf[have..];
            let count = match &mut self.0 {
                RxHalf::Socket(rx) if rx.spin.is_zero() => rx.link.socket.recv_full(rest)?,
                _ => self.recv(rest)?,
            };
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            have += count;
        }
        Ok(())
    }

    /// Receives what is there now; `Ok(None)` when nothing is, `Ok(Some(0))` at the end.
    pub fn try_recv(&mut self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        match &mut self.0 {
            RxHalf::Socket(rx) => rx.link.socket.try_recv(buf),
            RxHalf::Tls(rx) => rx.try_recv(buf),
            RxHalf::Shm(rx) => rx.try_recv(buf),
            RxHalf::Pcie(rx) => rx.try_recv(buf),
            RxHalf::Delayed(rx) => rx.try_recv(buf),
        }
    }

    /// Waits until bytes or the end are there, at most for `timeout` (`None`: as long as it takes). False when it
    /// was the timeout. After true, [`Rx::recv`] does not block.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        match &mut self.0 {
            RxHalf::Socket(rx) => rx.link.socket.wait(timeout),
            RxHalf::Tls(rx) => rx.wait(timeout),
            RxHalf::Shm(rx) => rx.wait(timeout),
            RxHalf::Pcie(rx) => rx.wait(timeout),
            RxHalf::Delayed(rx) => rx.wait(timeout),
        }
    }
}

impl Closer {
    pub(crate) fn raw_fds(&self) -> Vec<RawFd> {
        self.link.upgrade().map(|link| link.raw_fds()).unwrap_or_default()
    }

    /// Closes both directions now, from any thread. A blocked receive returns the end, here and there; a blocked send
    /// here fails. A peer that is blocked in a send over TCP learns of it when the halves here are dropped (the kernel
    /// resets the connection then). Bytes on the way may be lost. Idempotent.
    pub fn close(&self) {
        if let Some(link) = self.link.upgrade() {
            link.close();
        }
    }

    /// For the child of a fork: lets go of the connection without a sign to the peer, with which the parent keeps
    /// talking. Afterwards both halves fail and may be dropped or forgotten. Takes no lock and allocates little, since
    /// a thread that did not survive the fork may have held one.
    pub fn abandon(&self) {
        if let Some(link) = self.link.upgrade() {
            link.abandon();
        }
    }
}

/// A socket shared by both halves.
#[derive(Debug)]
pub(crate) struct SocketLink {
    pub(crate) socket: Socket,
    abandoned: AtomicBool,
}

/// The receiving half of a bare socket.
#[derive(Debug)]
pub(crate) struct SocketRx {
    link: Arc<SocketLink>,
    spin: Duration,
}

impl Link for SocketLink {
    fn close(&self) {
        if !self.abandoned.load(Ordering::Relaxed) {
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

impl Drop for SocketLink {
    fn drop(&mut self) {
        // A forked child may still have a copy of the descriptor; then closing ours would not end the connection.
        self.close();
    }
}
