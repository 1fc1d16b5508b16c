//! Frames over a socket: Unix, TCP, or TCP with TLS.
//!
//! A stream is used by one thread at a time. It speaks half of the time and listens the other half: the protocol has no
//! point at which both sides may have to write much.

use crate::error::Broken;
use crate::protocol::{Answer, HEAD_BYTES, Head, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use snapshot::Bytes;
use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use zeroize::Zeroizing;

/// What carries the bytes.
pub(crate) enum Carrier {
    Unix(UnixStream),
    Tcp(TcpStream),
    /// The server's end.
    TlsServer(Box<rustls::StreamOwned<rustls::ServerConnection, TcpStream>>),
    /// The client's end.
    TlsClient(Box<rustls::StreamOwned<rustls::ClientConnection, TcpStream>>),
}

/// A stream of frames.
pub(crate) struct Stream {
    carrier: Carrier,
}

/// Ends a connection from another thread.
pub(crate) struct Closer(pub(crate) OwnedFd);

impl Closer {
    /// Both directions, at once. The thread that is blocked in the connection wakes up.
    pub(crate) fn close(&self) {
        // Fails only if the other side has closed it already.
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both);
    }
}

/// A message and the block that came with it.
pub(crate) type WithBlock<T> = (T, Option<Bytes>);

impl Stream {
    /// A stream whose reads and writes each end after `patience`.
    pub(crate) fn new(carrier: Carrier, patience: Duration) -> io::Result<Self> {
        let stream = Self { carrier };
        if let Socket::Tcp(socket) = stream.socket() {
            socket.set_nodelay(true)?;
        }
        stream.set_patience(patience)?;
        Ok(stream)
    }

    /// Reads and writes each end after `patience` from now on.
    pub(crate) fn set_patience(&self, patience: Duration) -> io::Result<()> {
        match self.socket() {
            Socket::Unix(socket) => {
                socket.set_read_timeout(Some(patience))?;
                socket.set_write_timeout(Some(patience))?;
            }
            Socket::Tcp(socket) => {
                socket.set_read_timeout(Some(patience))?;
                socket.set_write_timeout(Some(patience))?;
            }
        }
        Ok(())
    }

    /// Over a Unix socket.
    pub(crate) fn unix(socket: UnixStream, patience: Duration) -> io::Result<Self> {
        Self::new(Carrier::Unix(socket), patience)
    }

    fn socket(&self) -> Socket<'_> {
        match &self.carrier {
            Carrier::Unix(socket) => Socket::Unix(socket),
            Carrier::Tcp(socket) => Socket::Tcp(socket),
            Carrier::TlsServer(stream) => Socket::Tcp(&stream.sock),
            Carrier::TlsClient(stream) => Socket::Tcp(&stream.sock),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self.socket() {
            Socket::Unix(socket) => socket.as_fd(),
            Socket::Tcp(socket) => socket.as_fd(),
        }
    }

    /// Whether a message has come, without waiting. Over TLS always `false`: there, bytes in the socket need not be a
    /// message, and a message need not be in the socket any more.
    pub(crate) fn has_come(&self) -> bool {
        if matches!(self.carrier, Carrier::TlsServer(_) | Carrier::TlsClient(_)) {
            return false;
        }
        let mut fds = [PollFd::from_borrowed_fd(self.fd(), PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// Sends a request without a block.
    pub(crate) fn ask(&mut self, request: &Request) -> Result<(), Broken> {
        let (head, body) = request.encode();
        self.send(&head, &body)
    }

    /// Sends a request and the block that belongs to it.
    pub(crate) fn ask_with(&mut self, request: &Request, block: &[u8]) -> Result<(), Broken> {
        self.send(&request.encode().0, block)
    }

    /// Sends an answer without a block.
    pub(crate) fn answer(&mut self, answer: &Answer) -> Result<(), Broken> {
        let (head, body) = answer.encode();
        self.send(&head, &body)
    }

    /// Sends an answer and the block that belongs to it.
    pub(crate) fn answer_with(&mut self, answer: &Answer, block: &[u8]) -> Result<(), Broken> {
        self.send(&answer.encode().0, block)
    }

    /// The next answer, with the bytes of its block if it has one.
    pub(crate) fn hear(&mut self) -> Result<WithBlock<Answer>, Broken> {
        let head = self.head(false)?;
        let body = self.body(&head)?;
        let answer = Answer::decode(&head, &body)?;
        let block = Answer::carries_block(head.kind).then(|| taken(body));
        Ok((answer, block))
    }

    /// The next answer, with the bytes of its block in `into` if it has one of this length.
    pub(crate) fn hear_into(&mut self, into: &mut [u8]) -> Result<Answer, Broken> {
        let head = self.head(false)?;
        if Answer::carries_block(head.kind) && head.body_bytes as usize == into.len() {
            self.reader().read_exact(into)?;
            return Ok(Answer::decode(&head, &[])?);
        }
        let body = self.body(&head)?;
        Ok(Answer::decode(&head, &body)?)
    }

    /// The next request. Waits for its first byte as long as it takes if `is_patient`.
    pub(crate) fn next(&mut self, is_patient: bool) -> Result<WithBlock<Request>, Broken> {
        let head = self.head(is_patient)?;
        let body = self.body(&head)?;
        let request = Request::decode(&head, &body)?;
        let block = Request::carries_block(head.kind).then(|| taken(body));
        Ok((request, block))
    }

    fn head(&mut self, is_patient: bool) -> Result<Head, Broken> {
        let mut bytes = [0; HEAD_BYTES];
        let mut have = 0;
        while have < HEAD_BYTES {
            match self.reader().read(&mut bytes[have..]) {
                Ok(0) => return Err(Broken::Closed),
                Ok(count) => have += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_patient && have == 0 && error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Head::decode(&bytes)?)
    }

    /// The body, which is overwritten when it is dropped: it may hold a program's bytes or a secret, also if the rest
    /// never comes.
    fn body(&mut self, head: &Head) -> Result<Zeroizing<Box<[u8]>>, Broken> {
        let mut body = Zeroizing::new(vec![0; head.body_bytes as usize].into_boxed_slice());
        self.reader().read_exact(&mut body)?;
        Ok(body)
    }

    fn reader(&mut self) -> &mut dyn Read {
        match &mut self.carrier {
            Carrier::Unix(socket) => socket,
            Carrier::Tcp(socket) => socket,
            Carrier::TlsServer(stream) => stream,
            Carrier::TlsClient(stream) => stream,
        }
    }

    fn writer(&mut self) -> &mut dyn Write {
        match &mut self.carrier {
            Carrier::Unix(socket) => socket,
            Carrier::Tcp(socket) => socket,
            Carrier::TlsServer(stream) => stream,
            Carrier::TlsClient(stream) => stream,
        }
    }

    fn send(&mut self, head: &Head, body: &[u8]) -> Result<(), Broken> {
        let head = head.encode();
        let mut parts = [IoSlice::new(&head), IoSlice::new(body)];
        let mut left = &mut parts[..];
        let writer = self.writer();
        IoSlice::advance_slices(&mut left, 0);
        while !left.is_empty() {
            match writer.write_vectored(left) {
                Ok(0) => return Err(Broken::Closed),
                Ok(count) => IoSlice::advance_slices(&mut left, count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(writer.flush()?)
    }
}

enum Socket<'a> {
    Unix(&'a UnixStream),
    Tcp(&'a TcpStream),
}

/// The bytes of a block, which overwrite themselves from now on.
fn taken(mut body: Zeroizing<Box<[u8]>>) -> Bytes {
    Bytes::from(std::mem::take(&mut *body))
}
