//! Words that several processes share.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::atomic::AtomicU64,
};

/// An array of atomic words in a memory file, mapped into every process that has its descriptor.
#[derive(Debug)]
pub struct SharedWords {
    fd: OwnedFd,
    words: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: the pointer leads to shared memory that lives as long as the value and is only used as atomics.
unsafe impl Send for SharedWords {}
// SAFETY: as above; atomics may be used by several threads at once.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Makes a new file of `count` zero words. Its descriptor closes at exec, unless the caller changes that.
    pub fn create(count: usize) -> io::Result<Self> {
        let fd = rustix::fs::memfd_create("dxpu shared words", rustix::fs::MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&fd, count as u64 * 8)?;
        Self::map(fd, count)
    }

    /// Maps the file that another process made.
    pub fn open(fd: OwnedFd) -> io::Result<Self> {
        let bytes = std::fs::File::from(fd.try_clone()?).metadata()?.len();
        // A file that shrinks under a mapping kills its readers; refuse what is not whole words now.
        if bytes == 0 || !bytes.is_multiple_of(8) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let count = usize::try_from(bytes / 8).map_err(|_| io::ErrorKind::InvalidData)?;
        Self::map(fd, count)
    }

    fn map(fd: OwnedFd, count: usize) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses an unused range; the file has `count` words.
        let got = unsafe {
            libc::mmap(std::ptr::null_mut(), count * 8, access, libc::MAP_SHARED, fd.as_raw_fd(), 0)
        };
        if got == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let words = NonNull::new(got.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { fd, words, count })
    }

    /// The words.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: `count` words are mapped as long as `self` lives, page-aligned, and every process that maps them
        // uses them as atomics only.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr(), self.count) }
    }

    /// The file, to hand to another process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: this mapping was made in `map` and no reference into it outlives `self`.
        unsafe { libc::munmap(self.words.as_ptr().cast(), self.count * 8) };
    }
}
