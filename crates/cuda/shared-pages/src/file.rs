//! The file behind shared pages, and what makes one acceptable.

use rustix::fs::{MemfdFlags, SealFlags};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use thiserror::Error;

/// No process can change the file's size any more. Without these a peer could cut it short, and an access to a mapping of
/// it would end this process.
const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// `TMPFS_MAGIC`: ordinary pages. Huge pages of a pool (hugetlbfs) are sealed in the same way, but an access fails when the
/// pool is empty.
const ORDINARY_PAGES: u64 = 0x0102_1994;

/// Why a file is not taken as shared pages.
#[derive(Debug, Error)]
pub enum NotShareable {
    /// Its size can still be changed, or it is no memory file at all.
    #[error("the size of the file is not sealed")]
    NotSealed,
    /// It is not made of ordinary pages.
    #[error("the file is not made of ordinary memory pages")]
    NotOrdinary,
    /// It has another size than was said.
    #[error("the file has {have} bytes, not {said}")]
    OtherSize {
        /// Its size.
        have: u64,
        /// The size that was announced.
        said: u64,
    },
    /// Nothing, or more than an address space holds.
    #[error("{said} bytes cannot be mapped")]
    Size {
        /// The size that was announced.
        said: u64,
    },
    /// The kernel refused.
    #[error("the kernel refused to map the file")]
    Kernel(#[from] io::Error),
}

/// A new file of `bytes`, its size sealed. It has no pages yet.
pub(crate) fn create(bytes: usize) -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("dxpu-pinned", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, bytes as u64)?;
    rustix::fs::fcntl_add_seals(&file, SIZE_SEALS | SealFlags::SEAL)?;
    Ok(file)
}

/// Checks a file of another process.
pub(crate) fn check(file: impl AsFd, said: u64) -> Result<usize, NotShareable> {
    let bytes = usize::try_from(said).ok().filter(|bytes| (1..=isize::MAX as usize).contains(bytes));
    let bytes = bytes.ok_or(NotShareable::Size { said })?;
    if !rustix::fs::fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SIZE_SEALS)) {
        return Err(NotShareable::NotSealed);
    }
    let kind = rustix::fs::fstatfs(&file).map_err(io::Error::from)?;
    if kind.f_type as u64 != ORDINARY_PAGES {
        return Err(NotShareable::NotOrdinary);
    }
    // After the seals: from here on the size stays.
    let have = rustix::fs::fstat(&file).map_err(io::Error::from)?.st_size as u64;
    if have != said {
        return Err(NotShareable::OtherSize { have, said });
    }
    Ok(bytes)
}
