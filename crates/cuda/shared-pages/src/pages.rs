//! The mapping, and copies from and to it.

use crate::file::{self, NotShareable};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use thiserror::Error;

/// A place that is not in the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{bytes} bytes from {offset} on are not all in the shared pages")]
pub struct OutsideOfPages {
    /// Where it begins.
    pub offset: u64,
    /// How long it is.
    pub bytes: u64,
}

/// Pages that two processes have mapped, for reading and writing. Unmapped when dropped.
#[derive(Debug)]
pub struct SharedPages {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value and may be used from any thread. Nothing here makes a reference into it; copies
// race with the other process, and may race with each other, in which case they take bytes of either.
unsafe impl Send for SharedPages {}
// SAFETY: as above.
unsafe impl Sync for SharedPages {}

impl SharedPages {
    /// New pages, all of them there and zero, and the descriptor to hand to the other process.
    ///
    /// They are there because it is this process that wants them: the other one must not be charged for them, nor fail for
    /// want of them.
    pub fn create(bytes: usize) -> io::Result<(Self, OwnedFd)> {
        let file = file::create(bytes)?;
        let pages = Self::map(&file, bytes)?;
        pages.fill(&file)?;
        Ok((pages, file))
    }

    /// Maps what another process has made, if it is `bytes` long and can never be less.
    pub fn adopt(file: &OwnedFd, bytes: u64) -> Result<Self, NotShareable> {
        let bytes = file::check(file, bytes)?;
        Ok(Self::map(file, bytes)?)
    }

    fn map(file: &OwnedFd, bytes: usize) -> io::Result<Self> {
        let (access, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, bytes })
    }

    /// Has the kernel find all pages now, large ones where it may.
    fn fill(&self, file: &OwnedFd) -> io::Result<()> {
        let start = self.base.as_ptr().cast();
        // SAFETY: the range is this mapping. It is a hint: ordinary pages do, too.
        unsafe { libc::madvise(start, self.bytes, libc::MADV_HUGEPAGE) };
        // SAFETY: the range is this mapping; it makes its pages and changes no byte of them.
        if unsafe { libc::madvise(start, self.bytes, libc::MADV_POPULATE_WRITE) } == 0 {
            return Ok(());
        }
        // A kernel before 5.14.
        Ok(rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, self.bytes as u64)?)
    }

    /// How many bytes there are. The pages are mapped for reading and writing, from [`Self::address`] on, as long as `self`
    /// lives.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where they begin in this process.
    pub fn address(&self) -> usize {
        self.base.as_ptr().expose_provenance()
    }

    /// Whether all `bytes` from `offset` on are in the pages.
    pub fn check(&self, offset: u64, bytes: u64) -> Result<(), OutsideOfPages> {
        let end = offset.checked_add(bytes).filter(|end| *end <= self.bytes as u64);
        end.map(drop).ok_or(OutsideOfPages { offset, bytes })
    }

    /// Copies the bytes from `offset` on to `out`.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), OutsideOfPages> {
        self.check(offset, out.len() as u64)?;
        // SAFETY: checked to be inside of the mapping.
        let source = unsafe { self.base.add(offset as usize) };
        // SAFETY: as many bytes are in the mapping, which lives as long as `self`; `out` is a slice of ours, which the mapping
        // never is.
        unsafe { source.copy_to_nonoverlapping(NonNull::from(&mut *out).cast(), out.len()) };
        Ok(())
    }

    /// Copies `data` to the bytes from `offset` on.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), OutsideOfPages> {
        self.check(offset, data.len() as u64)?;
        // SAFETY: checked to be inside of the mapping.
        let target = unsafe { self.base.add(offset as usize) };
        // SAFETY: as in `read`, the other way round.
        unsafe { target.copy_from_nonoverlapping(NonNull::from(data).cast(), data.len()) };
        Ok(())
    }
}

impl Drop for SharedPages {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `map` with this length, and nothing refers to it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
