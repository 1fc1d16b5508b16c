//! The program's own memory as a view: it becomes a memory file where it lies, and private memory again in the end.
//!
//! Threads of the program may use the memory all the time. No byte that they write is lost:
//!
//! ```text
//!   adopt   pages move away at once (mremap), a touch of the empty place waits for the userfaultfd
//!           bytes are copied into the file; the file is mapped at the place; waiting threads go on
//!   end     all bytes are in the file; writes there wait; new pages with the same bytes move there at once
//! ```

use super::{BOTH, Pages, SHARED, check, map, userfault};
use crate::paging::userfault::Userfault;
use std::{
    fs, io,
    os::fd::{AsRawFd, OwnedFd},
    ptr,
};

const PAGE: u64 = 4096;
const NOTHING: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// Whether memory can be adopted: whole pages of one mapping, private to this process, readable and writable, not of a file and
/// not a stack.
pub(crate) fn is_adoptable(start: u64, bytes: u64) -> bool {
    let is_whole = bytes > 0 && start.is_multiple_of(PAGE) && bytes.is_multiple_of(PAGE);
    let Some(end) = start.checked_add(bytes).filter(|_| is_whole) else { return false };
    let Ok(maps) = fs::read_to_string("/proc/self/maps") else { return false };
    maps.lines().any(|line| is_private_around(line, start, end))
}

/// Whether a line of `/proc/self/maps` is a mapping of that kind around some addresses.
fn is_private_around(line: &str, start: u64, end: u64) -> bool {
    let mut words = line.split_ascii_whitespace();
    let (addresses, rights) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (file, name) = (words.nth(2).unwrap_or_default(), words.next().unwrap_or_default());
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let Some((from, to)) = addresses.split_once('-').and_then(|(from, to)| number(from).zip(number(to)))
    else {
        return false;
    };
    let is_named_well = name.is_empty() || name == "[heap]" || name.starts_with("[anon:");
    from <= start && end <= to && rights == "rw-p" && file == "0" && is_named_well
}

impl Pages {
    /// Takes over the program's memory at `view`, which [`is_adoptable`]; the program may write it. If it fails the memory is as
    /// it was.
    pub(crate) fn adopt(view: u64, bytes: u64) -> io::Result<Self> {
        let userfault = userfault().ok_or(io::ErrorKind::Unsupported)?;
        let (file, mut pages) = Self::begin(view, bytes)?;
        // Without memory for the file this fails; a copy into it would end the program.
        pages.back(&(0..bytes))?;
        let aside = map(0, bytes, libc::PROT_NONE, NOTHING, -1)?;
        let taken = userfault.register_missing(view, bytes).and_then(|()| {
            let moved = move_pages(view, aside, bytes, libc::MREMAP_DONTUNMAP);
            moved.and_then(|()| {
                // SAFETY: the moved pages and the alias are readable and writable, apart, and as long; no other thread knows of
                // them.
                unsafe {
                    ptr::copy_nonoverlapping(aside as *const u8, pages.alias as *mut u8, bytes as usize)
                };
                let mapped = map(view, bytes, BOTH, SHARED | libc::MAP_FIXED, file.as_raw_fd()).map(drop);
                mapped.or_else(|error| move_pages(aside, view, bytes, 0).and(Err(error)))
            })
        });
        // SAFETY: the range was reserved above; what is in it now was copied or has moved back.
        unsafe { libc::munmap(aside as *mut _, bytes as usize) };
        if let Err(error) = taken {
            userfault.unregister(view, bytes);
            return Err(error);
        }
        pages.own = Some(file);
        // From here on the place has the file, so that whatever fails, no byte is lost.
        let opened = pages.watch().and_then(|()| userfault.open_pages(view, bytes, true));
        if opened.is_err() {
            pages.end_view();
            // Threads that touched the empty place find the file there.
            let _ = userfault.wake(view, bytes);
        }
        opened.map(|()| pages)
    }

    /// Whether the view was the program's own memory, which it has unmapped since.
    pub(crate) fn is_left(&self) -> bool {
        let is_there = |userfault: &Userfault| userfault.write_protect(self.view, self.bytes).is_ok();
        self.own.is_some() && !userfault().is_some_and(is_there)
    }

    /// See [`Pages::end_view`].
    pub(super) fn end_own(&self, file: &OwnedFd) {
        let Some(userfault) = userfault() else { return };
        // From here on a write waits. If that fails, the program has unmapped its memory.
        if userfault.write_protect(self.view, self.bytes).is_err() {
            return;
        }
        let Err(error) = self.make_private(userfault) else { return };
        crate::log::debug(|| format!("registered memory stays in its file: {error}"));
        userfault.unregister(self.view, self.bytes);
        let flags = libc::MAP_PRIVATE | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // A child of the program may have it again. If that fails, the program has it all the same.
        if map(self.view, self.bytes, BOTH, flags, file.as_raw_fd()).is_ok() {
            // SAFETY: the view is mapped, and the call changes no byte.
            unsafe { libc::madvise(self.view as *mut _, self.bytes as usize, libc::MADV_DOFORK) };
        }
    }

    /// Puts new pages with the bytes of the file in the place of the view, which is write-protected.
    fn make_private(&self, userfault: &Userfault) -> io::Result<()> {
        let bytes = self.bytes as usize;
        let fresh = map(0, self.bytes, BOTH, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)?;
        let filled = || {
            // SAFETY: the new range is ours alone.
            check(unsafe { libc::madvise(fresh as *mut _, bytes, libc::MADV_POPULATE_WRITE) })?;
            // SAFETY: both are mapped, apart, and as long; no thread writes either of them.
            unsafe { ptr::copy_nonoverlapping(self.alias as *const u8, fresh as *mut u8, bytes) };
            move_pages(fresh, self.view, self.bytes, 0)
        };
        let moved = filled();
        if moved.is_err() {
            // SAFETY: the new range is ours alone and was not moved.
            unsafe { libc::munmap(fresh as *mut _, bytes) };
        }
        // The pages have moved whether or not a thread waits for them.
        moved.map(|()| drop(userfault.wake(self.view, self.bytes)))
    }
}

/// Moves all pages of a range to another, whose mapping goes. With `MREMAP_DONTUNMAP` the range stays, empty.
fn move_pages(from: u64, to: u64, bytes: u64, flags: i32) -> io::Result<()> {
    let flags = flags | libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: `to` is a range that the caller has reserved, or one that it had taken away.
    let got = unsafe {
        libc::mremap(from as *mut _, bytes as usize, bytes as usize, flags, to as *mut libc::c_void)
    };
    if got == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_private_memory_in_one_piece_is_adopted() {
        let is_good = |line| is_private_around(line, 0x7f00_0000_2000, 0x7f00_0000_4000);
        assert!(is_good("7f0000000000-7f0000010000 rw-p 00000000 00:00 0 "));
        assert!(is_good("7f0000002000-7f0000004000 rw-p 00000000 00:00 0                          [heap]"));
        assert!(is_good("7f0000002000-7f0000004000 rw-p 00000000 00:00 0 [anon:malloc]"));
        assert!(!is_good("7f0000002000-7f0000003000 rw-p 00000000 00:00 0 "), "it ends before");
        assert!(!is_good("7f0000003000-7f0000009000 rw-p 00000000 00:00 0 "), "it begins behind");
        assert!(!is_good("7f0000000000-7f0000010000 r--p 00000000 00:00 0 "), "read-only");
        assert!(!is_good("7f0000000000-7f0000010000 rw-s 00000000 00:01 1234 /dev/zero (deleted)"), "shared");
        assert!(!is_good("7f0000000000-7f0000010000 rw-p 00000000 08:01 1234 /some/file"), "of a file");
        assert!(!is_good("7f0000000000-7f0000010000 rw-p 00000000 00:00 0 [stack]"));
        assert!(!is_good("nonsense"));
    }
}
