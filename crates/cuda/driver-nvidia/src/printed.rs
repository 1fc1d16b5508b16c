//! What kernels print.
//!
//! The driver writes the text of a kernel's `printf` to this process's standard output, when a wait ends. The text
//! belongs to the client; so standard output becomes a pipe that we read after each wait of a context that may print.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Mutex;

/// The reading end of standard output.
#[derive(Debug)]
pub(crate) struct Printed {
    pipe: Mutex<File>,
}

impl Printed {
    /// Makes standard output a pipe. From now on nothing else may print there.
    pub(crate) fn take_over() -> io::Result<Self> {
        /// As much text as the driver keeps for a context by default.
        const PIPE_BYTES: libc::c_int = 1 << 20;
        let mut ends = [0; 2];
        // SAFETY: `ends` has room for two descriptors.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: both descriptors are new and owned by nothing else.
        let (read, write) = unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
        // SAFETY: plain calls on descriptors we own. A small pipe holds less text; the rest is lost, as the driver
        // itself loses text when its buffer is full.
        unsafe { libc::fcntl(write.as_raw_fd(), libc::F_SETPIPE_SZ, PIPE_BYTES) };
        // SAFETY: the write end lives until after the call; standard output is replaced as a whole.
        if unsafe { libc::dup2(write.as_raw_fd(), libc::STDOUT_FILENO) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { pipe: Mutex::new(File::from(read)) })
    }

    /// Hands over what was printed since the last time.
    pub(crate) fn collect(&self, print: impl Fn(&[u8])) {
        // SAFETY: flushes C's streams, whose buffers the driver prints into.
        unsafe { libc::fflush(std::ptr::null_mut()) };
        let Ok(mut pipe) = self.pipe.lock() else { return };
        let mut text = [0; 16 << 10];
        while let Ok(count @ 1..) = pipe.read(&mut text) {
            print(&text[..count]);
        }
    }
}
