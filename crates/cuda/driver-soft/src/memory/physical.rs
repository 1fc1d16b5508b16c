//! Memory without an address, which can be mapped at several places.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    sync::Arc,
};

/// Anonymous memory behind a file descriptor.
#[derive(Debug)]
pub(crate) struct Physical {
    fd: OwnedFd,
    bytes: u64,
}

impl Physical {
    /// Memory of this size. Pages appear when they are touched.
    pub(crate) fn create(bytes: u64) -> io::Result<Arc<Self>> {
        let fd = memory_file(c"dxpu device memory", bytes)?;
        Ok(Arc::new(Self { fd, bytes }))
    }

    /// Memory of another session, of at least this size.
    pub(crate) fn adopt(fd: OwnedFd, bytes: u64) -> io::Result<Arc<Self>> {
        let file = std::fs::File::from(fd);
        if file.metadata()?.len() < bytes {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Arc::new(Self { fd: file.into(), bytes }))
    }

    /// The same memory for another session.
    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn fd(&self) -> libc::c_int {
        self.fd.as_raw_fd()
    }
}

/// A file that exists only in memory, of this length, full of zeros.
pub(super) fn memory_file(name: &std::ffi::CStr, bytes: u64) -> io::Result<OwnedFd> {
    let length = libc::off_t::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the name is a C string; the call has no other condition.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was made a moment ago and belongs to nothing else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the descriptor is open; the call touches no memory of ours.
    if unsafe { libc::ftruncate(fd.as_raw_fd(), length) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(fd)
}
