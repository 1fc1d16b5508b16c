//! A stream socket that carries messages and file descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

use crate::message::{HEADER_BYTES, Header, HeaderError};
use crate::session::BODY_BYTES_MAX;

/// File descriptors with one message.
pub const FDS_MAX: usize = 16;
/// How long a peer may take over the rest of a message it began, or to take a reply. It is on the same machine.
const STALL_MAX: Duration = Duration::from_secs(2);

/// A message as it came.
#[derive(Debug)]
pub struct Incoming {
    /// Its header.
    pub header: Header,
    /// Its body, no longer than the limit.
    pub body: Vec<u8>,
    /// Its file descriptors, at most [`FDS_MAX`].
    pub fds: Vec<OwnedFd>,
}

/// Why no message could be received.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The peer closed the connection between two messages.
    #[error("the peer is gone")]
    Closed,
    /// The connection broke, or ended inside a message.
    #[error("cannot receive")]
    Io(#[source] io::Error),
    /// The peer does not speak the protocol.
    #[error("not a message")]
    Header(#[source] HeaderError),
}

/// One end of a connection.
pub struct Connection {
    stream: UnixStream,
}

impl Connection {
    /// Takes a connected stream.
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(STALL_MAX))?;
        stream.set_write_timeout(Some(STALL_MAX))?;
        Ok(Self { stream })
    }

    /// Receives one message. Call it when the socket is readable: a peer that stalls inside a message is an error.
    pub fn receive(&mut self) -> Result<Incoming, ReceiveError> {
        let mut fds = Vec::new();
        let mut head = [0; HEADER_BYTES];
        match self.fill(&mut head, &mut fds) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Err(ReceiveError::Closed),
            Err(error) => return Err(ReceiveError::Io(error)),
        }
        let header = Header::decode(&head, BODY_BYTES_MAX).map_err(ReceiveError::Header)?;
        let mut body = vec![0; header.body_bytes];
        self.fill(&mut body, &mut fds).map_err(ReceiveError::Io)?;
        Ok(Incoming { header, body, fds })
    }

    /// Fills `into`. The kernel never joins bytes of two messages with file descriptors, and the first byte of a message
    /// brings them, so reading header and body apart keeps them with their message.
    fn fill(&mut self, into: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<()> {
        let mut done = 0;
        while done < into.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut buffers = [IoSliceMut::new(&mut into[done..])];
            let received = match recvmsg(&self.stream, &mut buffers, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(received) => received,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(received) = message {
                    fds.extend(received);
                }
            }
            if fds.len() > FDS_MAX {
                return Err(io::Error::other("too many file descriptors with one message"));
            }
            match received.bytes {
                0 if done == 0 => return Err(io::ErrorKind::ConnectionReset.into()),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                bytes => done += bytes,
            }
        }
        Ok(())
    }

    /// Sends one message with its file descriptors.
    pub fn send(&mut self, message: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        assert!(fds.len() <= FDS_MAX, "callers split");
        let mut done = 0;
        while done < message.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if done == 0 && !fds.is_empty() {
                let fits = control.push(SendAncillaryMessage::ScmRights(fds));
                debug_assert!(fits);
            }
            let buffers = [IoSlice::new(&message[done..])];
            match sendmsg(&self.stream, &buffers, &mut control, SendFlags::NOSIGNAL) {
                Ok(sent) => done += sent,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Ends the connection for both ends.
    pub fn shutdown(&self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
