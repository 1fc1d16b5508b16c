//! userfaultfd(2): the kernel tells of touches itself, those by system calls too.
//!
//! A closed page of the view is one without an entry in the page table. Its bytes may be in the memory file ("minor") or not
//! ("missing"); both are events. A readable page is write-protected by the userfaultfd, so that a write is an event.

use std::{
    io, mem,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

const API: u64 = 0xaa;
const USER_MODE_ONLY: i32 = 1;
const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
const FEATURE_MISSING_SHMEM: u64 = 1 << 5;
const FEATURE_THREAD_ID: u64 = 1 << 8;
const FEATURE_MINOR_SHMEM: u64 = 1 << 10;
const FEATURE_WP_SHMEM: u64 = 1 << 12;
/// Without it a page that was never there would not be write-protected. It came with `CONTINUE_MODE_WP` (Linux 6.4).
const FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
const REGISTER_MISSING: u64 = 1;
const REGISTER_MODES: u64 = REGISTER_MISSING | 2 | 4;
const CONTINUE_MODE_DONTWAKE: u64 = 1;
const CONTINUE_MODE_WP: u64 = 2;
const WRITEPROTECT_MODE_WP: u64 = 1;
const WRITEPROTECT_MODE_DONTWAKE: u64 = 2;
const EVENT_PAGEFAULT: u8 = 0x12;
const FLAG_WRITE: u64 = 1;
const FLAG_WP: u64 = 2;
const PAGE: u64 = 4096;

#[repr(C)]
struct ApiCall {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Span {
    start: u64,
    bytes: u64,
}

#[repr(C)]
struct Register {
    span: Span,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct WriteProtect {
    span: Span,
    mode: u64,
}

#[repr(C)]
struct Continue {
    span: Span,
    mode: u64,
    mapped: i64,
}

/// `struct uffd_msg` of a page fault.
#[repr(C)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    thread: u32,
    rest: u32,
}

/// `_IOC(direction, 0xaa, number, size)`.
const fn request<T>(direction: u64, number: u64) -> u64 {
    direction << 30 | (mem::size_of::<T>() as u64) << 16 | 0xaa << 8 | number
}

const READ: u64 = 2;
const READ_WRITE: u64 = 3;

pub(super) struct Userfault {
    file: OwnedFd,
    /// Touches by system calls are events, too.
    pub(super) serves_kernel: bool,
}

impl Userfault {
    /// Opens one that can do all that is needed.
    pub(super) fn open() -> io::Result<Self> {
        Self::open_with(0).or_else(|_| Self::open_with(USER_MODE_ONLY))
    }

    fn open_with(mode: i32) -> io::Result<Self> {
        // SAFETY: the call has no pointers.
        let file = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | mode) } as i32;
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and ours.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        let userfault = Self { file, serves_kernel: mode == 0 };
        let features = FEATURE_PAGEFAULT_FLAG_WP
            | FEATURE_MISSING_SHMEM
            | FEATURE_THREAD_ID
            | FEATURE_MINOR_SHMEM
            | FEATURE_WP_SHMEM
            | FEATURE_WP_UNPOPULATED;
        userfault
            .call(request::<ApiCall>(READ_WRITE, 0x3f), &mut ApiCall { api: API, features, ioctls: 0 })?;
        Ok(userfault)
    }

    fn call<T>(&self, request: u64, argument: &mut T) -> io::Result<()> {
        // SAFETY: `argument` is the structure that the request names, and is alive during the call.
        let code = unsafe { libc::ioctl(self.file.as_raw_fd(), request as _, &raw mut *argument) };
        if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    pub(super) fn register(&self, start: u64, bytes: u64) -> io::Result<()> {
        self.register_as(start, bytes, REGISTER_MODES)
    }

    /// For memory of no file: a touch where there is no page is an event.
    pub(super) fn register_missing(&self, start: u64, bytes: u64) -> io::Result<()> {
        self.register_as(start, bytes, REGISTER_MISSING)
    }

    fn register_as(&self, start: u64, bytes: u64, mode: u64) -> io::Result<()> {
        let mut register = Register { span: Span { start, bytes }, mode, ioctls: 0 };
        self.call(request::<Register>(READ_WRITE, 0), &mut register)
    }

    /// Ends that; threads that wait there go on, and find what is there then.
    pub(super) fn unregister(&self, start: u64, bytes: u64) {
        let _ = self.call(request::<Span>(READ, 1), &mut Span { start, bytes });
    }

    pub(super) fn write_protect(&self, start: u64, bytes: u64) -> io::Result<()> {
        self.set_write_protection(start, bytes, WRITEPROTECT_MODE_WP)
    }

    fn set_write_protection(&self, start: u64, bytes: u64, mode: u64) -> io::Result<()> {
        let mut change = WriteProtect { span: Span { start, bytes }, mode };
        loop {
            match self.call(request::<WriteProtect>(READ_WRITE, 6), &mut change) {
                // The process is changing its mappings at the moment.
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => std::thread::yield_now(),
                result => return result,
            }
        }
    }

    /// Opens pages whose bytes are in the file, and wakes the threads that wait for them. Pages that are open already are left as they
    /// are, but may be written from now on with `is_write`.
    pub(super) fn open_pages(&self, start: u64, bytes: u64, is_write: bool) -> io::Result<()> {
        // One wake at the end: a thread that is woken too early touches again, and is heard of twice.
        let mode = CONTINUE_MODE_DONTWAKE | if is_write { 0 } else { CONTINUE_MODE_WP };
        let end = start + bytes;
        let (mut at, mut skipped) = (start, 0);
        while at < end {
            let mut go = Continue { span: Span { start: at, bytes: end - at }, mode, mapped: 0 };
            match self.call(request::<Continue>(READ_WRITE, 7), &mut go) {
                Ok(()) => break,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => at += go.mapped.max(0) as u64,
                    // This page is there. If many are, all are: the rest is found by later touches.
                    Some(libc::EEXIST) if skipped < 32 => {
                        at += go.mapped.max(0) as u64 + PAGE;
                        skipped += 1;
                    }
                    Some(libc::EEXIST) => break,
                    _ => return Err(error),
                },
            }
        }
        if is_write {
            self.set_write_protection(start, bytes, WRITEPROTECT_MODE_DONTWAKE)?;
        }
        self.wake(start, bytes)
    }

    /// Has threads that wait in a range look again.
    pub(super) fn wake(&self, start: u64, bytes: u64) -> io::Result<()> {
        self.call(request::<Span>(READ, 2), &mut Span { start, bytes })
    }

    /// Reads events for ever and says where, whether to write, and by which thread.
    pub(super) fn listen(&self, heard: fn(u64, bool, i32)) {
        loop {
            // SAFETY: all zero is a valid value of this plain structure.
            let mut message: Message = unsafe { mem::zeroed() };
            let bytes = mem::size_of::<Message>();
            // SAFETY: the message has as many bytes, and any bytes are a valid one.
            let got = unsafe { libc::read(self.file.as_raw_fd(), (&raw mut message).cast(), bytes) };
            if got < 0 {
                match io::Error::last_os_error().raw_os_error() {
                    Some(libc::EINTR | libc::EAGAIN) => continue,
                    _ => return,
                }
            }
            if got as usize == bytes && message.event == EVENT_PAGEFAULT {
                heard(message.address, message.flags & (FLAG_WRITE | FLAG_WP) != 0, message.thread as i32);
            }
        }
    }
}
