//! The two halves of a shared-memory connection.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::{Duration, Instant};

use super::map::Ring;
use super::memory::Memory;
use super::spin::Spinner;
use crate::connection::{Connection, Link, RxHalf, TxHalf};
use crate::fd::{self, Interest};
use crate::socket::Socket;

/// Bytes after which a long send shows the reader what is there, so that both copy at the same time.
const PUBLISH_BYTES: usize = 64 << 10;
/// Bytes after which a long receive gives space back.
const RELEASE_BYTES: usize = 256 << 10;

/// One direction as one side sees it: the ring and the two eventfds that belong to it.
#[derive(Debug)]
pub(crate) struct Direction {
    pub(crate) ring: Ring,
    /// Wakes the reader.
    pub(crate) data: OwnedFd,
    /// Wakes the writer.
    pub(crate) space: OwnedFd,
}

/// What both halves share.
#[derive(Debug)]
pub(crate) struct ShmLink {
    socket: Socket,
    out: Direction,
    into: Direction,
    /// This side has closed, or the peer is gone. Never unset.
    ended: AtomicBool,
    abandoned: AtomicBool,
    /// Descriptors of memory that the client passes to the server.
    memory: Memory,
}

#[derive(Debug)]
pub(crate) struct ShmTx {
    link: Arc<ShmLink>,
    /// Our own count of bytes written. The ring's copy is for the peer; we never read it back.
    head: u64,
    finished: bool,
    spinner: Spinner,
}

#[derive(Debug)]
pub(crate) struct ShmRx {
    link: Arc<ShmLink>,
    /// Our own count of bytes read.
    tail: u64,
    spinner: Spinner,
}

pub(crate) fn connection(socket: Socket, out: Direction, into: Direction, memory: Memory) -> Connection {
    let (ended, abandoned) = (AtomicBool::new(false), AtomicBool::new(false));
    let link = Arc::new(ShmLink { socket, out, into, ended, abandoned, memory });
    let tx = ShmTx { link: link.clone(), head: 0, finished: false, spinner: Spinner::new() };
    let rx = ShmRx { link: link.clone(), tail: 0, spinner: Spinner::new() };
    Connection::new(TxHalf::Shm(tx), RxHalf::Shm(rx), &link)
}

impl ShmLink {
    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// Passes the descriptor of memory to the server.
    pub(crate) fn pass_memory(&self, memory: BorrowedFd<'_>) -> io::Result<()> {
        match self.memory {
            Memory::Offered if !self.has_ended() => fd::pass_fd(self.socket.as_fd(), memory),
            Memory::Offered => Err(io::ErrorKind::NotConnected.into()),
            Memory::Taken(_) | Memory::Refused => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Takes the next descriptor that the client has passed; `None` when there is none.
    pub(crate) fn take_memory(&self) -> io::Result<Option<OwnedFd>> {
        self.memory.take(self.socket.as_fd())
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Sleeps until `event` is signalled, the peer or this side closes, or `deadline`. False at the deadline. After the
    /// set-up nothing but descriptors of memory comes by the socket; whatever else it has to say means the end.
    fn sleep(&self, event: &OwnedFd, deadline: Option<Instant>) -> io::Result<bool> {
        let fds = [(event.as_fd(), Interest::Readable), (self.socket.as_fd(), Interest::Readable)];
        let [woken, hung_up] = fd::poll(fds, deadline)?;
        if woken {
            fd::eventfd_clear(event.as_fd());
        }
        if hung_up && !self.memory.is_there(self.socket.as_fd()) {
            self.ended.store(true, Ordering::Release);
        }
        Ok(woken || hung_up)
    }
}

impl Link for ShmLink {
    fn close(&self) {
        if self.is_abandoned() {
            return;
        }
        self.ended.store(true, Ordering::Release);
        self.out.ring.finished().store(1, Ordering::Release);
        self.into.ring.deserted().store(1, Ordering::Release);
        // Wakes every sleeper of both sides: all of them poll the socket.
        self.socket.shutdown(Shutdown::Both);
    }

    fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
        self.ended.store(true, Ordering::Release);
        fd::let_go(&self.raw_fds());
    }

    fn raw_fds(&self) -> Vec<RawFd> {
        let events = [&self.out.data, &self.out.space, &self.into.data, &self.into.space];
        let mut fds = vec![self.socket.raw_fd()];
        fds.extend(events.map(|event| event.as_raw_fd()));
        fds
    }
}

impl Drop for ShmLink {
    fn drop(&mut self) {
        self.close();
    }
}

impl ShmTx {
    pub(crate) fn link(&self) -> &Arc<ShmLink> {
        &self.link
    }

    pub(crate) fn send(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        let mut unpublished = 0;
        for mut part in parts.iter().copied() {
            while !part.is_empty() {
                let free = self.free_after(unpublished)?;
                if free == 0 || unpublished >= PUBLISH_BYTES {
                    self.publish(unpublished);
                    unpublished = 0;
                    if free == 0 {
                        self.wait_for_space()?;
                    }
                    continue;
                }
                let (piece, rest) = part.split_at(part.len().min(free).min(PUBLISH_BYTES));
                self.link.out.ring.write(self.head + unpublished as u64, piece);
                unpublished += piece.len();
                part = rest;
            }
        }
        self.publish(unpublished);
        Ok(())
    }

    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.finished = true;
        if !self.link.is_abandoned() {
            self.link.out.ring.finished().store(1, Ordering::Release);
            self.wake_reader();
        }
        Ok(())
    }

    /// How many bytes fit behind the `unpublished` ones. `tail` is the peer's word: it must lie between what we know
    /// to be possible, else the peer is broken or hostile.
    fn free_after(&self, unpublished: usize) -> io::Result<usize> {
        let ring = &self.link.out.ring;
        if self.finished || self.link.has_ended() || ring.deserted().load(Ordering::Relaxed) != 0 {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let used = self.head.wrapping_sub(ring.tail().load(Ordering::Acquire));
        let capacity = ring.capacity() as u64;
        if used > capacity {
            return Err(corrupt());
        }
        Ok((capacity - used) as usize - unpublished)
    }

    fn publish(&mut self, bytes: usize) {
        if bytes > 0 {
            self.head += bytes as u64;
            self.link.out.ring.head().store(self.head, Ordering::Release);
            self.wake_reader();
        }
    }

    fn wake_reader(&self) {
        // Pairs with the fence of a reader that is about to sleep: it sees the new head, or we see its flag.
        fence(Ordering::SeqCst);
        let sleeps = self.link.out.ring.reader_sleeps();
        if sleeps.load(Ordering::Relaxed) != 0 {
            sleeps.store(0, Ordering::Relaxed);
            fd::eventfd_signal(self.link.out.data.as_fd());
        }
    }

    fn wait_for_space(&mut self) -> io::Result<()> {
        let link = self.link.clone();
        let ring = &link.out.ring;
        let full_at = self.head.wrapping_sub(ring.capacity() as u64);
        let changed =
            || ring.tail().load(Ordering::Acquire) != full_at || ring.deserted().load(Ordering::Relaxed) != 0;
        let sleep = || {
            ring.writer_sleeps().store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if !changed() && !link.has_ended() {
                link.sleep(&link.out.space, None)?;
            }
            ring.writer_sleeps().store(0, Ordering::Relaxed);
            Ok(())
        };
        self.spinner.wait(|| changed() || link.has_ended(), (), sleep)
    }
}

impl ShmRx {
    pub(crate) fn set_spin(&mut self, spin: Duration) {
        self.spinner = Spinner::constant(spin);
    }

    pub(crate) fn recv(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(count) = self.try_recv(buf)? {
                return Ok(count);
            }
            self.wait_for_data(None)?;
        }
    }

    pub(crate) fn try_recv(&mut self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        if buf.is_empty() {
            return Ok(Some(0));
        }
        let available = self.available()?;
        if available == 0 {
            return Ok(self.is_at_end()?.then_some(0));
        }
        let count = available.min(buf.len());
        for piece in buf[..count].chunks_mut(RELEASE_BYTES) {
            self.link.into.ring.read(self.tail, piece);
            self.release(piece.len());
        }
        Ok(Some(count))
    }

    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            if self.available()? > 0 || self.is_at_end()? {
                return Ok(true);
            }
            // A timeout of zero asks for no looking around either.
            if timeout.is_some_and(|timeout| timeout.is_zero()) || !self.wait_for_data(deadline)? {
                return Ok(false);
            }
        }
    }

    /// How many bytes are there. `head` is the peer's word: see [`ShmTx::free_after`].
    fn available(&self) -> io::Result<usize> {
        if self.link.is_abandoned() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let ring = &self.link.into.ring;
        let available = ring.head().load(Ordering::Acquire).wrapping_sub(self.tail);
        if available > ring.capacity() as u64 { Err(corrupt()) } else { Ok(available as usize) }
    }

    /// True when nothing more will come. What was written before the end is read first.
    fn is_at_end(&self) -> io::Result<bool> {
        let ended = self.link.into.ring.finished().load(Ordering::Acquire) != 0 || self.link.has_ended();
        Ok(ended && self.available()? == 0)
    }

    fn release(&mut self, bytes: usize) {
        self.tail += bytes as u64;
        let ring = &self.link.into.ring;
        ring.tail().store(self.tail, Ordering::Release);
        // Pairs with the fence of a writer that is about to sleep.
        fence(Ordering::SeqCst);
        if ring.writer_sleeps().load(Ordering::Relaxed) != 0 {
            ring.writer_sleeps().store(0, Ordering::Relaxed);
            fd::eventfd_signal(self.link.into.space.as_fd());
        }
    }

    /// False at the deadline.
    fn wait_for_data(&mut self, deadline: Option<Instant>) -> io::Result<bool> {
        let link = self.link.clone();
        let (ring, tail) = (&link.into.ring, self.tail);
        let changed =
            || ring.head().load(Ordering::Acquire) != tail || ring.finished().load(Ordering::Relaxed) != 0;
        let sleep = || {
            ring.reader_sleeps().store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let in_time = changed() || link.has_ended() || link.sleep(&link.into.data, deadline)?;
            ring.reader_sleeps().store(0, Ordering::Relaxed);
            Ok(in_time)
        };
        self.spinner.wait(|| changed() || link.has_ended(), true, sleep)
    }
}

fn corrupt() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the peer wrote an impossible index into the shared memory")
}
