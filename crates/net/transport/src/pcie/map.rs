//! Registers and memory that a device shares with us: the only place that touches either.
//!
//! The device may change any byte of the memory at any time: words are atomics and their values are checked by the
//! callers; data is copied and never referenced.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use super::Registers;

/// Mapped memory, shared with a device. Unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value and may be used from any thread; its words are atomics or device registers, and
// its data is copied by one reader and one writer that keep to disjoint parts (a device that does not gives garbage).
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` of a file, which the caller knows to be that long and to stay so.
    pub(crate) fn new(file: &impl AsRawFd, bytes: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing of ours.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, bytes })
    }

    /// Where it is in this process, to ask the kernel where that is in the machine.
    pub(crate) fn virtual_address(&self) -> usize {
        self.base.as_ptr().addr()
    }

    /// The word at `offset`.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.bytes);
        // SAFETY: checked above to be inside the mapping.
        let at = unsafe { self.base.add(offset) };
        // SAFETY: aligned, since mappings begin at pages; alive as long as `self`; shared only as an atomic.
        unsafe { at.cast().as_ref() }
    }

    /// Copies `from` to `offset`.
    pub(crate) fn write(&self, offset: usize, from: &[u8]) {
        assert!(offset.checked_add(from.len()).is_some_and(|end| end <= self.bytes));
        // SAFETY: checked above to be inside the mapping.
        let target = unsafe { self.base.add(offset) };
        // SAFETY: as many bytes follow inside the mapping, which is none of our own slices.
        unsafe { target.copy_from_nonoverlapping(NonNull::from(from).cast(), from.len()) };
    }

    /// Copies from `offset` into `to`.
    pub(crate) fn read(&self, offset: usize, to: &mut [u8]) {
        assert!(offset.checked_add(to.len()).is_some_and(|end| end <= self.bytes));
        // SAFETY: checked above to be inside the mapping.
        let source = unsafe { self.base.add(offset) };
        let (target, length) = (NonNull::from(&mut *to).cast(), to.len());
        // SAFETY: as many bytes follow inside the mapping, which is none of our own slices.
        unsafe { source.copy_to_nonoverlapping(target, length) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `new` with this length, and no reference into it outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// The registers of a device, mapped from sysfs.
#[derive(Debug)]
pub(crate) struct MappedRegisters(pub(crate) Mapping);

impl Registers for MappedRegisters {
    fn read(&self, offset: u64) -> u32 {
        let at: *const u32 = self.0.word(offset as usize).as_ptr();
        // SAFETY: `word` has checked place and alignment; a register is read exactly once, hence volatile.
        let value = u32::from_le(unsafe { at.read_volatile() });
        // What the device wrote to memory before it answered is there for us now.
        fence(Ordering::SeqCst);
        value
    }

    fn write(&self, offset: u64, value: u32) {
        // What we wrote to memory must be there when the device hears of it.
        fence(Ordering::SeqCst);
        let at = self.0.word(offset as usize).as_ptr();
        // SAFETY: `word` has checked place and alignment; a register is written exactly once, hence volatile.
        unsafe { at.write_volatile(value.to_le()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_of_one_file_are_one_memory() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let (one, other) = (Mapping::new(&file, 8192).unwrap(), Mapping::new(&file, 8192).unwrap());
        one.write(4090, b"across a page");
        let mut back = [0; 13];
        other.read(4090, &mut back);
        assert_eq!(&back, b"across a page");
        MappedRegisters(one).write(8188, 0x0102_0304);
        assert_eq!(MappedRegisters(other).read(8188), 0x0102_0304);
    }

    #[test]
    #[should_panic(expected = "offset")]
    fn nothing_outside_is_touched() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        Mapping::new(&file, 4096).unwrap().write(4095, b"ab");
    }
}
