//! The pages of one managed allocation: a memory file that is mapped twice.
//!
//! ```text
//!   view   at the device's address: what the program uses; open or closed, block by block
//!   alias  anywhere: what we use, always open; so no thread of ours ever touches a closed page
//! ```
//!
//! A forked child inherits neither, as with NVIDIA's driver: a touch there is an ordinary SIGSEGV.

mod own;

pub(crate) use own::is_adoptable;

use super::{note_managed, userfault};
use std::{
    io,
    ops::Range,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    ptr,
    sync::atomic::{AtomicBool, Ordering},
};

/// What the program may do with pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Nothing.
    Closed,
    /// Read.
    Read,
    /// Read and write.
    Write,
}

impl Access {
    fn protection(self) -> i32 {
        match self {
            Self::Closed => libc::PROT_NONE,
            Self::Read => libc::PROT_READ,
            Self::Write => libc::PROT_READ | libc::PROT_WRITE,
        }
    }
}

/// See the module's words.
#[derive(Debug)]
pub(crate) struct Pages {
    view: u64,
    alias: u64,
    bytes: u64,
    /// The file, where the view was the program's own memory and becomes that again.
    own: Option<OwnedFd>,
    /// Parts of [`PART`] bytes for which the file has pages, all of them mapped in the alias.
    backed: Vec<AtomicBool>,
}

const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;
const SHARED: i32 = libc::MAP_SHARED | libc::MAP_NORESERVE;

/// As large as a block of managed memory.
const PART: u64 = 64 << 10;

fn check(code: i32) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn map(at: u64, bytes: u64, protection: i32, flags: i32, file: i32) -> io::Result<u64> {
    // SAFETY: callers name addresses that are reserved for this, or none; the kernel checks the rest.
    let got = unsafe { libc::mmap(at as *mut _, bytes as usize, protection, flags, file, 0) };
    if got == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(got as u64) }
}

impl Pages {
    /// New zero pages with their view at `view`, in a range that this library has reserved; the program may read them.
    pub(crate) fn create(view: u64, bytes: u64) -> io::Result<Self> {
        let (file, pages) = Self::begin(view, bytes)?;
        // From here on a failure drops `pages`, which restores the reservation.
        let first = if userfault().is_some() { BOTH } else { libc::PROT_READ };
        map(view, bytes, first, SHARED | libc::MAP_FIXED, file.as_raw_fd())?;
        pages.watch()?;
        Ok(pages)
    }

    /// A file and its alias. There is no view yet.
    fn begin(view: u64, bytes: u64) -> io::Result<(OwnedFd, Self)> {
        // SAFETY: the name is a C string; the call touches nothing else.
        let file = unsafe { libc::memfd_create(c"dxpu-managed".as_ptr(), libc::MFD_CLOEXEC) };
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and ours.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        // SAFETY: the call has no pointers.
        check(unsafe { libc::ftruncate(file.as_raw_fd(), bytes as i64) })?;
        let alias = map(0, bytes, BOTH, SHARED, file.as_raw_fd())?;
        let backed = (0..bytes.div_ceil(PART)).map(|_| AtomicBool::new(false)).collect();
        Ok((file, Self { view, alias, bytes, own: None, backed }))
    }

    /// Begins to hear of touches of the view.
    fn watch(&self) -> io::Result<()> {
        for start in [self.view, self.alias] {
            // SAFETY: both mappings are ours, and no bytes change.
            check(unsafe { libc::madvise(start as *mut _, self.bytes as usize, libc::MADV_DONTFORK) })?;
        }
        if let Some(userfault) = userfault() {
            userfault.register(self.view, self.bytes)?;
        }
        note_managed(self.view, self.bytes);
        Ok(())
    }

    /// Where we read and write them: the address of the byte at `offset`.
    pub(crate) fn alias(&self, offset: u64) -> u64 {
        self.alias + offset.min(self.bytes)
    }

    /// Rounds to whole pages; blocks are multiples of pages, only the end of the last is not.
    fn whole(&self, range: &Range<u64>) -> (u64, u64) {
        const PAGE: u64 = 4096;
        let end = range.end.next_multiple_of(PAGE).min(self.bytes);
        (self.view + range.start, end.saturating_sub(range.start))
    }

    /// Changes what the program may do. With [`Access::Write`] and [`Access::Read`], the bytes are there.
    pub(crate) fn set(&self, range: &Range<u64>, access: Access) -> io::Result<()> {
        let (start, bytes) = self.whole(range);
        if bytes == 0 {
            return Ok(());
        }
        let Some(userfault) = userfault() else {
            // SAFETY: the range lies in the view, which is ours.
            return check(unsafe { libc::mprotect(start as *mut _, bytes as usize, access.protection()) });
        };
        match access {
            // Without pages a touch is an event. The bytes stay in the file.
            Access::Closed => {
                if self.own.is_some() {
                    // Fails where the program has unmapped its memory: other memory may lie there now.
                    userfault.write_protect(start, bytes)?;
                }
                // SAFETY: the range lies in the view, which is ours.
                check(unsafe { libc::madvise(start as *mut _, bytes as usize, libc::MADV_DONTNEED) })
            }
            Access::Read | Access::Write => {
                self.back(range)?;
                userfault.open_pages(start, bytes, access == Access::Write)
            }
        }
    }

    /// Has pages that the program could write become read-only.
    pub(crate) fn make_read_only(&self, range: &Range<u64>) -> io::Result<()> {
        match userfault() {
            Some(userfault) => {
                let (start, bytes) = self.whole(range);
                userfault.write_protect(start, bytes)
            }
            None => self.set(range, Access::Read),
        }
    }

    /// Opens a block to a thread that found it closed although it is open. With page protection that thread was late; with a
    /// userfaultfd the page was open without being there.
    pub(crate) fn open_late(&self, range: &Range<u64>, access: Access) -> io::Result<()> {
        match userfault() {
            Some(_) => self.set(range, access),
            None => Ok(()),
        }
    }

    /// Nothing can be had here any more: touches become the program's own.
    pub(crate) fn give_up(&self) {
        if self.own.is_some() {
            self.end_view();
        } else if let Some(userfault) = userfault() {
            // SAFETY: the whole view is ours.
            unsafe { libc::mprotect(self.view as *mut _, self.bytes as usize, libc::PROT_NONE) };
            userfault.unregister(self.view, self.bytes);
        }
    }

    /// Restores the reservation in place of the view: the program has given the memory back. The program's own memory becomes
    /// private memory again, with the bytes that are here.
    pub(crate) fn end_view(&self) {
        if let Some(file) = &self.own {
            return self.end_own(file);
        }
        if let Some(userfault) = userfault() {
            userfault.unregister(self.view, self.bytes);
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        let _ = map(self.view, self.bytes, libc::PROT_NONE, flags, -1);
    }

    /// Makes pages that will be wanted soon. What fails here is tried again when they are wanted, and told then.
    pub(crate) fn make_ready(&self, range: &Range<u64>) {
        if userfault().is_some() && !range.is_empty() {
            let _ = self.back(range);
        }
    }

    /// Makes the file have pages for a range, and the alias as well: each first touch there would be a fault of its own.
    fn back(&self, range: &Range<u64>) -> io::Result<()> {
        let last = self.backed.len() as u64;
        let parts = range.start / PART..range.end.div_ceil(PART).min(last);
        let Some(first) = parts.clone().find(|part| !self.backed[*part as usize].load(Ordering::Acquire))
        else {
            return Ok(());
        };
        let start = first * PART;
        let bytes = (parts.end * PART).min(self.bytes) - start;
        // SAFETY: the range lies in the alias, which is ours; the call changes no byte.
        check(unsafe {
            libc::madvise((self.alias + start) as *mut _, bytes as usize, libc::MADV_POPULATE_WRITE)
        })?;
        for part in first..parts.end {
            self.backed[part as usize].store(true, Ordering::Release);
        }
        Ok(())
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: `create` mapped the alias, and nothing uses it once its owner goes.
        unsafe { libc::munmap(ptr::without_provenance_mut(self.alias as usize), self.bytes as usize) };
    }
}
