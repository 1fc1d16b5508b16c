//! One ring in shared memory: the only place that touches memory another process can write.
//!
//! ```text
//! offset 0       128     256             384             512        640        4096
//!        | head  | tail  | reader sleeps | writer sleeps | finished | deserted | data ...
//! ```
//!
//! `head` counts the bytes ever written, `tail` the bytes ever read; their difference is what is in the ring. Each word
//! has a pair of cache lines of its own. The memory is sealed against a change of size, so no access here can fault.
//! The other process may change any byte at any time: words are atomics and their values are checked by the callers;
//! data is copied and never referenced.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Where the data begins.
pub(crate) const HEADER_BYTES: usize = 4096;

/// A mapped ring. Unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Ring {
    base: NonNull<u8>,
    /// A power of two.
    capacity: usize,
}

// SAFETY: the mapping belongs to this value and may be used from any thread; its words are atomics, and its data is
// copied by one reader and one writer that keep to disjoint parts (a peer that does not gets garbage, as it deserves).
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    /// Maps memory that the caller knows to be `HEADER_BYTES + capacity` long and sealed.
    pub(crate) fn map(fd: &OwnedFd, capacity: usize) -> io::Result<Self> {
        assert!(capacity.is_power_of_two());
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing of ours.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                HEADER_BYTES + capacity,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, capacity })
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many bytes were ever written.
    pub(crate) fn head(&self) -> &AtomicU64 {
        // SAFETY: offset 0 of a live, page-aligned mapping of more than eight bytes.
        unsafe { self.base.cast().as_ref() }
    }

    /// How many bytes were ever read.
    pub(crate) fn tail(&self) -> &AtomicU64 {
        // SAFETY: offset 128 is inside the header page.
        let at = unsafe { self.base.add(128) };
        // SAFETY: aligned, alive as long as `self`, and shared only as an atomic.
        unsafe { at.cast().as_ref() }
    }

    /// Not zero while the reader sleeps and wants to be woken by new data.
    pub(crate) fn reader_sleeps(&self) -> &AtomicU32 {
        self.flag::<256>()
    }

    /// Not zero while the writer sleeps and wants to be woken by new space.
    pub(crate) fn writer_sleeps(&self) -> &AtomicU32 {
        self.flag::<384>()
    }

    /// Not zero when the writer has written its last byte.
    pub(crate) fn finished(&self) -> &AtomicU32 {
        self.flag::<512>()
    }

    /// Not zero when the reader will not read any more.
    pub(crate) fn deserted(&self) -> &AtomicU32 {
        self.flag::<640>()
    }

    fn flag<const OFFSET: usize>(&self) -> &AtomicU32 {
        const { assert!(OFFSET + 4 <= HEADER_BYTES && OFFSET.is_multiple_of(4)) };
        // SAFETY: checked above to be inside the header page.
        let at = unsafe { self.base.add(OFFSET) };
        // SAFETY: aligned, alive as long as `self`, and shared only as an atomic.
        unsafe { at.cast().as_ref() }
    }

    /// Copies `bytes` to the place of byte number `position`, round the corner if need be.
    pub(crate) fn write(&self, position: u64, bytes: &[u8]) {
        assert!(bytes.len() <= self.capacity);
        let at = (position as usize) & (self.capacity - 1);
        let (before, after) = bytes.split_at(bytes.len().min(self.capacity - at));
        // SAFETY: `at` is below the capacity, so this is inside the mapping.
        let target = unsafe { self.base.add(HEADER_BYTES + at) };
        // SAFETY: `before` ends at the end of the data at the latest; the mapping is not one of our own slices.
        unsafe { target.copy_from_nonoverlapping(NonNull::from(before).cast(), before.len()) };
        // SAFETY: the data begins inside the mapping.
        let start = unsafe { self.base.add(HEADER_BYTES) };
        // SAFETY: `after` is at most as long as the whole data.
        unsafe { start.copy_from_nonoverlapping(NonNull::from(after).cast(), after.len()) };
    }

    /// Copies from the place of byte number `position` into `buf`, round the corner if need be.
    pub(crate) fn read(&self, position: u64, buf: &mut [u8]) {
        assert!(buf.len() <= self.capacity);
        let at = (position as usize) & (self.capacity - 1);
        let corner = buf.len().min(self.capacity - at);
        let (before, after) = buf.split_at_mut(corner);
        // SAFETY: `at` is below the capacity, so this is inside the mapping.
        let source = unsafe { self.base.add(HEADER_BYTES + at) };
        let (target, length) = (NonNull::from(&mut *before).cast(), before.len());
        // SAFETY: `before` ends at the end of the data at the latest; the mapping is not one of our own slices.
        unsafe { source.copy_to_nonoverlapping(target, length) };
        // SAFETY: the data begins inside the mapping.
        let start = unsafe { self.base.add(HEADER_BYTES) };
        let (target, length) = (NonNull::from(&mut *after).cast(), after.len());
        // SAFETY: `after` is at most as long as the whole data.
        unsafe { start.copy_to_nonoverlapping(target, length) };
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `map` with this length, and no reference into it outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), HEADER_BYTES + self.capacity) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fd;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_at_a_position_is_read_there(position in any::<u64>(), length in 0..=4096usize) {
            let memory = fd::memfd((HEADER_BYTES + 4096) as u64).unwrap();
            let (ours, theirs) = (Ring::map(&memory, 4096).unwrap(), Ring::map(&memory, 4096).unwrap());
            let bytes: Vec<u8> = (0..length).map(|at| at as u8 ^ 0x5a).collect();
            ours.write(position, &bytes);
            let mut back = vec![0; length];
            theirs.read(position, &mut back);
            prop_assert_eq!(back, bytes);
        }
    }
}
