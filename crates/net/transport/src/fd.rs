//! System calls on file descriptors: passing them, polling, memfd, eventfd. By rustix, which makes them safe.
//!
//! Every file descriptor made or received here is close-on-exec. Two calls are unsafe and say why; beside them only the
//! mapped rings of the crate have unsafe code.

#![allow(unsafe_code)]

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::{DupFlags, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Instant;

/// The most descriptors one message carries. The kernel allows 253; we never need more than a handful.
pub const FDS_PER_MESSAGE_MAX: usize = 8;
/// The most bytes beside the descriptors.
pub const PAYLOAD_BYTES_MAX: usize = 4096;

/// Room for the descriptors of one message.
const CONTROL_BYTES: usize = rustix::cmsg_space!(ScmRights(FDS_PER_MESSAGE_MAX));

/// Sends one descriptor and a few bytes over a Unix socket. See [`send_fds`].
pub fn send_fd(socket: BorrowedFd<'_>, fd: BorrowedFd<'_>, payload: &[u8]) -> io::Result<()> {
    send_fds(socket, &[fd], payload)
}

/// Receives what [`send_fd`] sent: the descriptor and its bytes. See [`recv_fds`].
pub fn recv_fd(socket: BorrowedFd<'_>) -> io::Result<(OwnedFd, Vec<u8>)> {
    let (fds, payload) = recv_fds(socket)?;
    let mut fds = fds.into_iter();
    match (fds.next(), fds.next()) {
        (Some(fd), None) => Ok((fd, payload)),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "expected exactly one file descriptor")),
    }
}

/// Sends descriptors and a payload of at most [`PAYLOAD_BYTES_MAX`] bytes as one message (`SCM_RIGHTS`).
///
/// The payload carries its length in front, so that it also arrives whole over a stream socket that splits it.
pub fn send_fds(socket: BorrowedFd<'_>, fds: &[BorrowedFd<'_>], payload: &[u8]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fits = (1..=FDS_PER_MESSAGE_MAX).contains(&fds.len())
        && payload.len() <= PAYLOAD_BYTES_MAX
        && control.push(SendAncillaryMessage::ScmRights(fds));
    if !fits {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "too many descriptors or bytes for a message",
        ));
    }
    let mut bytes = Vec::with_capacity(4 + payload.len());
    bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    bytes.extend_from_slice(payload);
    let sent = retry_on_intr(|| {
        rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)
    })?;
    send_rest(socket, &bytes[sent..])
}

/// Receives one message of [`send_fds`]. Blocks. `UnexpectedEof` when the peer has closed.
pub fn recv_fds(socket: BorrowedFd<'_>) -> io::Result<(Vec<OwnedFd>, Vec<u8>)> {
    let mut length = [0u8; 4];
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = retry_on_intr(|| {
        let mut parts = [IoSliceMut::new(&mut length)];
        rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    // Take ownership of every descriptor first, so that none leaks when the rest is refused.
    let fds = owned(&mut control);
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    // The room is for at least so many; the kernel may have found place for one more in its padding.
    if received.flags.contains(ReturnFlags::CTRUNC) || fds.len() > FDS_PER_MESSAGE_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "more file descriptors came than fit"));
    }
    recv_rest(socket, &mut length[received.bytes..])?;
    let length = u32::from_le_bytes(length) as usize;
    if length > PAYLOAD_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a descriptor message is too long"));
    }
    let mut payload = vec![0; length];
    recv_rest(socket, &mut payload)?;
    Ok((fds, payload))
}

/// The descriptors that came with a message. They are closed when they are dropped.
fn owned(control: &mut RecvAncillaryBuffer<'_>) -> Vec<OwnedFd> {
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    rights.flatten().collect()
}

/// Passes one descriptor with a single byte, which no stream socket can split. Never blocks.
pub(crate) fn pass_fd(socket: BorrowedFd<'_>, fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let (fds, mut control) = ([fd], SendAncillaryBuffer::new(&mut space));
    control.push(SendAncillaryMessage::ScmRights(&fds));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    retry_on_intr(|| rustix::net::sendmsg(socket, &[IoSlice::new(&[PASSED])], &mut control, flags))?;
    Ok(())
}

/// The byte that goes with a passed descriptor.
const PASSED: u8 = 0x5d;

/// Takes what [`pass_fd`] sent, if something is there. Never blocks. `UnexpectedEof` when the peer has closed.
pub(crate) fn take_passed_fd(socket: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0u8; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = retry_on_intr(|| {
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, flags)
    });
    let received = match received {
        Ok(received) => received,
        Err(rustix::io::Errno::AGAIN) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut fds = owned(&mut control);
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    match (fds.pop(), fds.is_empty(), byte == [PASSED]) {
        (Some(fd), true, true) if !received.flags.contains(ReturnFlags::CTRUNC) => Ok(Some(fd)),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "expected exactly one file descriptor")),
    }
}

fn send_rest(socket: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let sent = retry_on_intr(|| rustix::net::send(socket, bytes, SendFlags::NOSIGNAL))?;
        bytes = &bytes[sent..];
    }
    Ok(())
}

fn recv_rest(socket: BorrowedFd<'_>, mut bytes: &mut [u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match recv(socket, bytes, RecvFlags::empty())? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => bytes = &mut bytes[count..],
        }
    }
    Ok(())
}

/// `recv(2)` with flags, repeated when a signal interrupts it.
pub(crate) fn recv(socket: BorrowedFd<'_>, buf: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
    let (count, _) = retry_on_intr(|| rustix::net::recv(socket, &mut *buf, flags))?;
    Ok(count)
}

/// What [`poll`] waits for on a descriptor. Errors and hang-ups always count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    Readable,
    Writable,
}

/// Waits until one of `N` descriptors is ready (or has failed), or until `deadline`. Says which are ready.
pub(crate) fn poll<const N: usize>(
    fds: [(BorrowedFd<'_>, Interest); N],
    deadline: Option<Instant>,
) -> io::Result<[bool; N]> {
    let mut entries = fds.map(|(fd, interest)| {
        let events = match interest {
            Interest::Readable => PollFlags::IN | PollFlags::RDHUP,
            Interest::Writable => PollFlags::OUT,
        };
        PollFd::from_borrowed_fd(fd, events)
    });
    retry_on_intr(|| {
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        // A time that no timespec holds is no limit.
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        rustix::event::poll(&mut entries, timeout.as_ref())
    })?;
    Ok(entries.map(|entry| !entry.revents().is_empty()))
}

/// A counter that wakes the thread that polls it.
pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Wakes the thread that polls the eventfd.
pub(crate) fn eventfd_signal(fd: BorrowedFd<'_>) {
    // The only failure is a full counter: then the thread has been woken already.
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

/// Sets the eventfd back to zero.
pub(crate) fn eventfd_clear(fd: BorrowedFd<'_>) {
    // The only failure is a counter that is zero.
    let _ = rustix::io::read(fd, &mut [0u8; 8]);
}

/// Anonymous memory of a fixed size as a file: sealed, so that no process can shrink or grow it any more.
pub(crate) fn memfd(bytes: u64) -> io::Result<OwnedFd> {
    let memory = rustix::fs::memfd_create(c"dxpu-ring", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&memory, bytes)?;
    rustix::fs::fcntl_add_seals(&memory, SIZE_SEALS | SealFlags::SEAL)?;
    Ok(memory)
}

/// The seals that fix a memfd's size.
const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// The size of the peer's memfd, if its size is sealed. A mapping of it then never faults.
pub(crate) fn sealed_size(fd: &OwnedFd) -> io::Result<u64> {
    if !rustix::fs::fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SIZE_SEALS)) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the peer's shared memory is not sealed against a change of size",
        ));
    }
    Ok(rustix::fs::fstat(fd)?.st_size as u64)
}

/// Process and user at the other end of a Unix socket, as they were when it connected.
///
/// Not by rustix: a peer in another PID namespace has the process number 0, which its type for such numbers cannot hold.
pub(crate) fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<(i32, u32)> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the pointers are to a live ucred and its length.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut length,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok((credentials.pid, credentials.uid)) }
}

/// Makes each descriptor a descriptor of `/dev/null`, and so lets go of what it was: the number stays with its owner,
/// which may still close it. Only system calls that are safe between `fork` and `exec` are used.
pub(crate) fn let_go(fds: &[RawFd]) {
    let Ok(null) = rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) else {
        return;
    };
    for fd in fds {
        // SAFETY: the caller owns `fd`, keeps it open meanwhile and expects it to be replaced. It is not closed here.
        let mut fd = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(*fd) });
        // A descriptor that cannot be replaced stays what it was; nothing else can be done after a fork.
        let _ = rustix::io::dup3(&null, &mut fd, DupFlags::CLOEXEC);
    }
}

/// Asks the kernel to keep this thread's sleeps as short as they were asked to be (the default adds up to 50 us).
pub(crate) fn sleep_precisely() {
    // Failure only means less precise sleeps.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}

/// A pair of connected Unix sockets, for instance to pass connections between a listener and a worker.
pub fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (a, b) = std::os::unix::net::UnixStream::pair()?;
    Ok((a.into(), b.into()))
}

/// True while something can be read from `fd` (or it has failed) before `deadline`.
pub(crate) fn readable(fd: impl AsFd, deadline: Option<Instant>) -> io::Result<bool> {
    Ok(poll([(fd.as_fd(), Interest::Readable)], deadline)?[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_passed_descriptor_is_the_same_open_file() {
        let (a, b) = socket_pair().unwrap();
        let (mut near, far) = UnixStream::pair().unwrap();
        send_fd(a.as_fd(), far.as_fd(), b"who it is for").unwrap();
        drop(far);
        let (fd, payload) = recv_fd(b.as_fd()).unwrap();
        assert_eq!(payload, b"who it is for");
        UnixStream::from(fd).write_all(b"hello").unwrap();
        let mut text = String::new();
        near.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
    }

    #[test]
    fn several_descriptors_and_empty_payloads_pass_in_order() {
        let (a, b) = socket_pair().unwrap();
        let (x, y) = (memfd(4096).unwrap(), memfd(8192).unwrap());
        send_fds(a.as_fd(), &[x.as_fd(), y.as_fd()], b"").unwrap();
        send_fds(a.as_fd(), &[y.as_fd()], &[7; PAYLOAD_BYTES_MAX]).unwrap();
        let (fds, payload) = recv_fds(b.as_fd()).unwrap();
        assert_eq!((fds.len(), payload.len()), (2, 0));
        assert_eq!(sealed_size(&fds[0]).unwrap(), 4096);
        assert_eq!(sealed_size(&fds[1]).unwrap(), 8192);
        assert_eq!(recv_fds(b.as_fd()).unwrap().1, [7; PAYLOAD_BYTES_MAX]);
        drop(a);
        assert_eq!(recv_fds(b.as_fd()).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_message_takes_no_more_than_was_promised_and_leaks_nothing() {
        let (a, b) = socket_pair().unwrap();
        let many = [a.as_fd(); FDS_PER_MESSAGE_MAX + 1];
        for (fds, payload) in [(&many[..], 0), (&many[..0], 0), (&many[..1], PAYLOAD_BYTES_MAX + 1)] {
            let refused = send_fds(a.as_fd(), fds, &vec![0; payload]).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        }
        send_fds(a.as_fd(), &many[1..], b"all").unwrap();
        let (fds, payload) = recv_fds(b.as_fd()).unwrap();
        assert_eq!((fds.len(), payload.as_slice()), (FDS_PER_MESSAGE_MAX, &b"all"[..]));
        for fd in &fds {
            assert!(rustix::io::fcntl_getfd(fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        }
        // More than there is room for: what came is closed again, and the message refused.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_PER_MESSAGE_MAX + 1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
        rustix::net::sendmsg(&a, &[IoSlice::new(&[0; 4])], &mut control, SendFlags::NOSIGNAL).unwrap();
        assert_eq!(recv_fds(b.as_fd()).unwrap_err().kind(), io::ErrorKind::InvalidData);
        drop((fds, a));
        assert_eq!(
            recv_fds(b.as_fd()).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof,
            "a copy of it is open"
        );
    }

    #[test]
    fn unsealed_memory_is_refused() {
        let file: OwnedFd = tempfile::tempfile().unwrap().into();
        assert!(sealed_size(&file).is_err());
        let sealed = File::from(memfd(4096).unwrap());
        assert!(sealed.set_len(100).is_err());
        assert!(sealed.set_len(10_000).is_err());
    }

    #[test]
    fn letting_go_keeps_the_number_and_hides_the_end() {
        let (near, far) = UnixStream::pair().unwrap();
        let copy = far.try_clone().unwrap();
        let_go(&[copy.as_raw_fd()]);
        drop(copy);
        assert!(!readable(&near, Some(Instant::now())).unwrap(), "the peer must not notice");
        drop(far);
        assert!(readable(&near, Some(Instant::now())).unwrap());
    }

    #[test]
    fn polling_ends_at_its_deadline_and_events_count_until_they_are_cleared() {
        let event = eventfd().unwrap();
        assert!(!readable(&event, Some(Instant::now())).unwrap());
        eventfd_signal(event.as_fd());
        eventfd_signal(event.as_fd());
        assert!(readable(&event, None).unwrap());
        eventfd_clear(event.as_fd());
        eventfd_clear(event.as_fd());
        assert!(!readable(&event, Some(Instant::now())).unwrap());
    }
}
