//! One connected stream socket, TCP or Unix, used by a sending and a receiving thread at the same time.
//!
//! The socket stays in blocking mode; calls that must not block say so one by one (`MSG_DONTWAIT`). No call ever
//! raises SIGPIPE: this code lives in other people's processes.

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::net::RecvFlags;
use socket2::SockAddr;

use crate::fd::{self, Interest};

/// What a lane asks of the kernel. Enough for 100 us at 40 GB/s, or 3 ms at 10 Gbit/s.
const LANE_SOCKET_BYTES: usize = 4 << 20;
/// The kernel's own limit on parts in one call (IOV_MAX).
const PARTS_PER_CALL_MAX: usize = 1024;

/// A header, a body, and what may stand around them.
const FEW_PARTS: usize = 8;

#[derive(Debug)]
pub(crate) struct Socket {
    inner: socket2::Socket,
}

impl From<OwnedFd> for Socket {
    fn from(fd: OwnedFd) -> Self {
        Self { inner: fd.into() }
    }
}

impl From<Socket> for OwnedFd {
    fn from(socket: Socket) -> Self {
        socket.inner.into()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl Socket {
    pub(crate) fn raw_fd(&self) -> RawFd {
        self.inner.as_raw_fd()
    }

    pub(crate) fn connect_by(&self, place: &SockAddr, deadline: Instant) -> io::Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            Err(io::ErrorKind::TimedOut.into())
        } else {
            self.inner.connect_timeout(place, left)
        }
    }

    /// Small messages must leave at once, and be acknowledged at once.
    pub(crate) fn set_no_delay(&self) -> io::Result<()> {
        self.inner.set_tcp_nodelay(true)?;
        // A wish: the kernel goes back to late acknowledgements when it sees that answers follow soon and carry them.
        let _ = self.inner.set_tcp_quickack(true);
        Ok(())
    }

    /// Asks for large buffers. For TCP only where the administrator allows that much: a smaller fixed buffer would
    /// be worse than the kernel's own, which grow with the connection.
    pub(crate) fn widen(&self, is_tcp: bool) {
        if is_tcp && (limit_of("wmem_max") < LANE_SOCKET_BYTES || limit_of("rmem_max") < LANE_SOCKET_BYTES) {
            return;
        }
        // Both are wishes: the kernel gives what it has.
        let _ = self.inner.set_send_buffer_size(LANE_SOCKET_BYTES);
        let _ = self.inner.set_recv_buffer_size(LANE_SOCKET_BYTES);
    }

    /// Sends every byte of every part, in one system call where the kernel takes them at once.
    pub(crate) fn send_all(&self, parts: &[&[u8]]) -> io::Result<()> {
        // The usual few parts need no memory of their own.
        let mut few = [IoSlice::new(&[]); FEW_PARTS];
        if let Some(few) = few.get_mut(..parts.len()) {
            few.iter_mut().zip(parts).for_each(|(slice, part)| *slice = IoSlice::new(part));
            return self.send_slices(few);
        }
        let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        self.send_slices(&mut slices)
    }

    fn send_slices(&self, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        // Skips empty parts in front.
        IoSlice::advance_slices(&mut slices, 0);
        while !slices.is_empty() {
            let batch = &slices[..slices.len().min(PARTS_PER_CALL_MAX)];
            match self.inner.send_vectored_with_flags(batch, libc::MSG_NOSIGNAL) {
                Ok(sent) => IoSlice::advance_slices(&mut slices, sent),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends what fits now; `Ok(0)` when nothing does.
    pub(crate) fn send_now(&self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.inner.send_with_flags(bytes, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
                result => return result,
            }
        }
    }

    /// Sends every byte before `deadline`.
    pub(crate) fn send_all_by(&self, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            let sent = self.send_now(bytes)?;
            bytes = &bytes[sent..];
            if sent == 0 && !fd::poll([(self.as_fd(), Interest::Writable)], Some(deadline))?[0] {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        Ok(())
    }

    /// At least one byte, or 0 at the end.
    pub(crate) fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        fd::recv(self.as_fd(), buf, RecvFlags::empty())
    }

    /// As [`Self::recv`], but looks for `spin` before it sleeps.
    pub(crate) fn recv_spinning(&self, buf: &mut [u8], spin: Duration) -> io::Result<usize> {
        if !spin.is_zero() {
            let started = Instant::now();
            loop {
                if let Some(count) = self.try_recv(buf)? {
                    return Ok(count);
                }
                if started.elapsed() >= spin {
                    break;
                }
                std::hint::spin_loop();
            }
        }
        self.recv(buf)
    }

    /// Blocks until `buf` is full, in one system call where the kernel manages; fewer bytes at the end.
    pub(crate) fn recv_full(&self, buf: &mut [u8]) -> io::Result<usize> {
        let mut have = 0;
        while have < buf.len() {
            match fd::recv(self.as_fd(), &mut buf[have..], RecvFlags::WAITALL)? {
                0 => break,
                count => have += count,
            }
        }
        Ok(have)
    }

    /// `None` when nothing is there.
    pub(crate) fn try_recv(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        match fd::recv(self.as_fd(), buf, RecvFlags::DONTWAIT) {
            Ok(count) => Ok(Some(count)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// At least one byte before `deadline`, or 0 at the end.
    pub(crate) fn recv_by(&self, buf: &mut [u8], deadline: Instant) -> io::Result<usize> {
        loop {
            if let Some(count) = self.try_recv(buf)? {
                return Ok(count);
            }
            if !fd::readable(self, Some(deadline))? {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }

    /// Exactly `buf`, and not a byte more, before `deadline`.
    pub(crate) fn recv_exact_by(&self, buf: &mut [u8], deadline: Instant) -> io::Result<()> {
        let mut have = 0;
        while have < buf.len() {
            match self.recv_by(&mut buf[have..], deadline)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => have += count,
            }
        }
        Ok(())
    }

    /// Runs something that receives with blocking calls, each of which then ends at `deadline`.
    pub(crate) fn with_read_deadline<T>(
        &self,
        deadline: Instant,
        receive: impl FnOnce(&Self) -> io::Result<T>,
    ) -> io::Result<T> {
        // Zero would mean no limit at all.
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_micros(1));
        self.inner.set_read_timeout(Some(left))?;
        let result = receive(self).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
            _ => error,
        });
        self.inner.set_read_timeout(None)?;
        result
    }

    /// True when a receive would not block.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
        fd::readable(self, timeout.map(|timeout| Instant::now() + timeout))
    }

    /// Ends one or both directions for all holders of the socket, and wakes the threads that are blocked in them.
    pub(crate) fn shutdown(&self, how: Shutdown) {
        // Fails only when the peer has gone already, which is what we want.
        let _ = self.inner.shutdown(how);
    }
}

fn limit_of(name: &str) -> usize {
    let text = std::fs::read_to_string(format!("/proc/sys/net/core/{name}")).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}
