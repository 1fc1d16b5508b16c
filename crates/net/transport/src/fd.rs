//! The few system calls that no safe crate wraps: passing file descriptors, polling, memfd, eventfd.
//!
//! Every file descriptor made or received here is close-on-exec. This module and the shared-memory ring are the only
//! ones of the crate with unsafe code.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// The most descriptors one message carries. The kernel allows 253; we never need more than a handful.
pub const FDS_PER_MESSAGE_MAX: usize = 8;
/// The most bytes beside the descriptors.
pub const PAYLOAD_BYTES_MAX: usize = 4096;

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

/// Sends descriptors and a payload of 1 to [`PAYLOAD_BYTES_MAX`] bytes as one message (`SCM_RIGHTS`).
///
/// The payload carries its length in front, so that it also arrives whole over a stream socket that splits it.
pub fn send_fds(socket: BorrowedFd<'_>, fds: &[BorrowedFd<'_>], payload: &[u8]) -> io::Result<()> {
    if fds.is_empty() || fds.len() > FDS_PER_MESSAGE_MAX || payload.len() > PAYLOAD_BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "too many descriptors or bytes for a message",
        ));
    }
    let mut bytes = Vec::with_capacity(4 + payload.len());
    bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    bytes.extend_from_slice(payload);

    let mut control = Control([0; 64]);
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: msghdr is plain data for which all zeros is a valid value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    let fd_bytes = size_of_val(fds) as u32;
    // SAFETY: CMSG_SPACE only computes.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(fd_bytes) } as usize;
    // SAFETY: msg_control points at `control`, which is aligned and has room for FDS_PER_MESSAGE_MAX descriptors, so
    // the first header lies inside it and is not null.
    let header = unsafe { &mut *libc::CMSG_FIRSTHDR(&raw const message) };
    header.cmsg_level = libc::SOL_SOCKET;
    header.cmsg_type = libc::SCM_RIGHTS;
    // SAFETY: CMSG_LEN only computes.
    header.cmsg_len = unsafe { libc::CMSG_LEN(fd_bytes) } as usize;
    // SAFETY: the header is inside `control`; its data begins right after it.
    let data = unsafe { libc::CMSG_DATA(header) };
    for (at, fd) in fds.iter().enumerate() {
        // SAFETY: `at` is below FDS_PER_MESSAGE_MAX, for which `control` has room; the data may be unaligned.
        unsafe { data.cast::<RawFd>().add(at).write_unaligned(fd.as_raw_fd()) };
    }
    let sent = retry(|| {
        // SAFETY: `message` points at live buffers of the stated lengths.
        unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) }
    })?;
    send_rest(socket, &bytes[sent..])
}

/// Receives one message of [`send_fds`]. Blocks. `UnexpectedEof` when the peer has closed.
pub fn recv_fds(socket: BorrowedFd<'_>) -> io::Result<(Vec<OwnedFd>, Vec<u8>)> {
    let mut length = [0u8; 4];
    let mut control = Control([0; 64]);
    let mut part = libc::iovec { iov_base: length.as_mut_ptr().cast(), iov_len: length.len() };
    // SAFETY: msghdr is plain data for which all zeros is a valid value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = size_of::<Control>();
    let received = retry(|| {
        // SAFETY: `message` points at live buffers of the stated lengths, writable for the whole call.
        unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) }
    })?;
    // Take ownership of every descriptor first, so that none leaks when the rest is refused.
    let fds = take_fds(&message);
    if received == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "more file descriptors came than fit"));
    }
    recv_rest(socket, &mut length[received..])?;
    let length = u32::from_le_bytes(length) as usize;
    if length > PAYLOAD_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a descriptor message is too long"));
    }
    let mut payload = vec![0; length];
    recv_rest(socket, &mut payload)?;
    Ok((fds, payload))
}

/// Room for one control message with [`FDS_PER_MESSAGE_MAX`] descriptors, aligned as `cmsghdr` is.
#[repr(align(8))]
struct Control([u8; 64]);

// SAFETY: CMSG_SPACE only computes.
const _: () =
    assert!(unsafe { libc::CMSG_SPACE((FDS_PER_MESSAGE_MAX * 4) as u32) } as usize <= size_of::<Control>());

fn take_fds(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: recvmsg filled `message`; its control buffer is alive and msg_controllen bytes of it are valid.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR return null or a header inside the control buffer.
        let this = unsafe { &*header };
        if this.cmsg_level == libc::SOL_SOCKET && this.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: CMSG_LEN only computes.
            let before = unsafe { libc::CMSG_LEN(0) } as usize;
            for at in 0..(this.cmsg_len - before) / size_of::<RawFd>() {
                // SAFETY: the data of this header lies in the control buffer.
                let data = unsafe { libc::CMSG_DATA(header) };
                // SAFETY: the kernel wrote cmsg_len bytes of whole descriptors; `at` counts them.
                let raw = unsafe { data.cast::<RawFd>().add(at).read_unaligned() };
                // SAFETY: the kernel just made this descriptor for us; nothing else owns it.
                fds.push(unsafe { OwnedFd::from_raw_fd(raw) });
            }
        }
        // SAFETY: as above; `header` belongs to `message`.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    fds
}

fn send_rest(socket: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let sent = retry(|| {
            // SAFETY: the pointer and length are those of a live slice.
            unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) }
        })?;
        bytes = &bytes[sent..];
    }
    Ok(())
}

fn recv_rest(socket: BorrowedFd<'_>, mut bytes: &mut [u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match recv(socket, bytes, 0)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => bytes = &mut bytes[count..],
        }
    }
    Ok(())
}

/// `recv(2)` with flags, repeated when a signal interrupts it.
pub(crate) fn recv(socket: BorrowedFd<'_>, buf: &mut [u8], flags: i32) -> io::Result<usize> {
    retry(|| {
        // SAFETY: the pointer and length are those of a live, writable slice.
        unsafe { libc::recv(socket.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len(), flags) }
    })
}

/// Calls until the call is not interrupted; a negative result is `errno`.
fn retry(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        match usize::try_from(call()) {
            Ok(count) => return Ok(count),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
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
    let mut entries = fds.map(|(fd, interest)| libc::pollfd {
        fd: fd.as_raw_fd(),
        events: match interest {
            Interest::Readable => libc::POLLIN | libc::POLLRDHUP,
            Interest::Writable => libc::POLLOUT,
        },
        revents: 0,
    });
    loop {
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = left.map(timespec);
        let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: `entries` has N live elements; the timeout is null or points at a live timespec; no signal mask.
        let ready =
            unsafe { libc::ppoll(entries.as_mut_ptr(), N as libc::nfds_t, timeout, std::ptr::null()) };
        if ready >= 0 {
            return Ok(entries.map(|entry| entry.revents != 0));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

/// A counter that wakes the thread that polls it.
pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: eventfd takes no pointers.
    let raw = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just made this descriptor for us; nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Wakes the thread that polls the eventfd. A full counter means that it is awake already.
pub(crate) fn eventfd_signal(fd: BorrowedFd<'_>) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: eight live bytes. The result does not matter: the only failure is a full counter.
    let _ = unsafe { libc::write(fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
}

/// Sets the eventfd back to zero.
pub(crate) fn eventfd_clear(fd: BorrowedFd<'_>) {
    let mut count = [0u8; 8];
    // SAFETY: eight live, writable bytes. The result does not matter: the only failure is a zero counter.
    let _ = unsafe { libc::read(fd.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
}

/// Anonymous memory of a fixed size as a file: sealed, so that no process can shrink or grow it any more.
pub(crate) fn memfd(bytes: u64) -> io::Result<OwnedFd> {
    // SAFETY: the name is a C string literal.
    let raw =
        unsafe { libc::memfd_create(c"dxpu-ring".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just made this descriptor for us; nothing else owns it.
    let file = unsafe { File::from_raw_fd(raw) };
    file.set_len(bytes)?;
    // SAFETY: fcntl with an integer argument.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SIZE_SEALS | libc::F_SEAL_SEAL) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(file.into())
}

/// The seals that fix a memfd's size.
const SIZE_SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

/// The size of the peer's memfd, if its size is sealed. A mapping of it then never faults.
pub(crate) fn sealed_size(fd: &OwnedFd) -> io::Result<u64> {
    // SAFETY: fcntl without a pointer argument.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 || seals & SIZE_SEALS != SIZE_SEALS {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the peer's shared memory is not sealed against a change of size",
        ));
    }
    Ok(File::from(fd.try_clone()?).metadata()?.len())
}

/// Process and user at the other end of a Unix socket, as they were when it connected.
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
    // SAFETY: the path is a C string literal.
    let null = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    if null < 0 {
        return;
    }
    for fd in fds {
        // SAFETY: dup3 takes no pointers; the caller owns `fd` and expects it to be replaced.
        unsafe { libc::dup3(null, *fd, libc::O_CLOEXEC) };
    }
    // SAFETY: `null` was opened above and is closed once.
    unsafe { libc::close(null) };
}

/// Asks the kernel to keep this thread's sleeps as short as they were asked to be (the default adds up to 50 us).
pub(crate) fn sleep_precisely() {
    // SAFETY: prctl with integer arguments; failure only means less precise sleeps.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) };
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
}
